"""From a stream of bytes to lines.

`LineAssembler` cuts a byte stream at newlines, as the stdio transport of MCP frames its
messages. It gives the same result however the bytes arrive, in time linear in their number.

This module never looks into a line, never changes a byte of one, and never keeps more than
one unfinished line of bounded length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

__all__ = [
    "EDGE_BYTES",
    "Line",
    "LineAssembler",
    "Overlong",
]

Line: TypeAlias = bytes | bytearray
"""A line without its newline; the receiver owns it. A long one is a `bytearray`, since making
`bytes` of it would double the time and the memory it costs."""

EDGE_BYTES: Final = 4096
"""How many bytes of each end of an overlong line are kept, so that its `id` can be found."""

_LONG_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Overlong:
    """A line longer than the limit; its bytes are dropped, all but its two ends.

    Each such line is reported twice: at the moment it passes the limit (an endless line must
    not stall the call it answers), and when it ends (many servers write the `id` last).

    Attributes:
        head: The first bytes of the line, at most `EDGE_BYTES`.
        tail: The last bytes, at most `EDGE_BYTES`; empty while the line goes on.
        limit: The limit that it passed, in bytes.
        length: Bytes seen so far, the newline not counted; one more than the limit in the
            first report.
        ended: Whether this is the second report.
    """

    head: bytes
    tail: bytes
    limit: int
    length: int
    ended: bool


class LineAssembler:
    r"""Cuts a stream of bytes at each `\n`.

    A line is its bytes without the `\n`; a `\r` before it belongs to the line and is kept.
    Lines of nothing but white space are dropped: they are no messages and do no harm.
    """

    def __init__(self, limit: int) -> None:
        """Start at the beginning of a line.

        Args:
            limit: The longest line that is kept, in bytes.
        """
        if limit < 1:
            raise ValueError(f"a line limit of {limit} bytes keeps nothing; use 1 or more")
        self._limit = limit
        self._buffer = bytearray()
        self._overlong: _Discard | None = None

    def receive(self, piece: bytes | memoryview) -> list[Line | Overlong]:
        """Take the next bytes.

        Args:
            piece: Any number of bytes; they are copied, the caller may reuse its buffer.

        Returns:
            What is complete now, in order: lines, and reports of overlong ones.
        """
        found: list[Line | Overlong] = []
        chunk = bytes(piece)
        if b"\n" not in chunk:
            self._extend(chunk, found)
            return found
        first, *whole, last = chunk.split(b"\n")
        self._extend(first, found)
        self._end_line(found)
        for line in whole:
            if len(line) > self._limit:
                self._extend(line, found)
                self._end_line(found)
            elif line and not line.isspace():
                found.append(line)
        self._extend(last, found)
        return found

    def finish(self) -> Line | Overlong | None:
        """Return the unfinished rest at the end of the stream, if there is one."""
        found: list[Line | Overlong] = []
        self._end_line(found)
        return found[0] if found else None

    def _extend(self, piece: bytes, found: list[Line | Overlong]) -> None:
        if self._overlong is not None:
            self._overlong.extend(piece)
            return
        self._buffer += piece
        if len(self._buffer) > self._limit:
            head = bytes(self._buffer[: min(EDGE_BYTES, self._limit)])
            found.append(Overlong(head, b"", self._limit, self._limit + 1, ended=False))
            self._overlong = _Discard(head, self._limit)
            self._overlong.extend(bytes(self._buffer))
            self._buffer = bytearray()

    def _end_line(self, found: list[Line | Overlong]) -> None:
        if self._overlong is not None:
            found.append(self._overlong.report())
            self._overlong = None
        elif self._buffer and not self._buffer.isspace():
            long = len(self._buffer) >= _LONG_BYTES
            found.append(self._buffer if long else bytes(self._buffer))
        self._buffer = bytearray()


class _Discard:
    """What is remembered of an overlong line while it is thrown away."""

    def __init__(self, head: bytes, limit: int) -> None:
        self._head = head
        self._limit = limit
        self._tail = b""
        self._length = 0

    def extend(self, piece: bytes) -> None:
        self._length += len(piece)
        self._tail = (self._tail + piece[-EDGE_BYTES:])[-EDGE_BYTES:]

    def report(self) -> Overlong:
        return Overlong(self._head, self._tail, self._limit, self._length, ended=True)
