"""From a container's attach stream to lines of bytes.

Two parsers without I/O: `FrameDecoder` takes the engine's multiplexed stream apart (Docker
Engine API, `POST /containers/{id}/attach`, "Stream format"), `LineAssembler` cuts a byte
stream at newlines, as the stdio transport of MCP frames its messages. Both give the same
result however the bytes arrive, in time linear in their number.

This module never looks into a line, never changes a byte of one, and never keeps more than
one unfinished line of bounded length.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

from sandboxed_mcp.errors import EngineError

__all__ = [
    "EDGE_BYTES",
    "FrameDecoder",
    "Line",
    "LineAssembler",
    "Overlong",
    "ProtocolError",
    "Stream",
]

Line: TypeAlias = bytes | bytearray
"""A line without its newline; the receiver owns it. A long one is a `bytearray`, since making
`bytes` of it would double the time and the memory it costs."""

EDGE_BYTES: Final = 4096
"""How many bytes of each end of an overlong line are kept, so that its `id` can be found."""

_LONG_BYTES: Final = 65_536
_HEADER: Final = Struct(">B3sI")
_PADDING: Final = b"\0\0\0"


class ProtocolError(EngineError):
    """The engine's attach stream breaks its own format; nothing after it can be trusted."""


class Stream(IntEnum):
    """The stream type of a frame: its header's first byte."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2


_STREAMS: Final = tuple(Stream)


class FrameDecoder:
    """Takes the multiplexed attach stream apart.

    A frame is a header of 8 bytes (stream type, three zero bytes, big-endian length) and its
    payload. Payload is handed out as it arrives, without waiting for the end of its frame.
    """

    def __init__(self) -> None:
        """Start at the first byte after the engine's upgrade response."""
        self._header = b""
        self._stream = Stream.STDIN
        self._missing: int = 0

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here: no header and no payload is incomplete."""
        return not self._header and not self._missing

    def receive(self, data: bytes | memoryview) -> list[tuple[Stream, memoryview]]:
        """Take the next bytes of the attach stream.

        Args:
            data: Bytes as they came; the pieces are views into them, not copies.

        Returns:
            Non-empty pieces of payload in order, each with its stream.

        Raises:
            ProtocolError: A header names an unknown stream or its padding is not zero.
        """
        view = memoryview(data)
        end = len(view)
        pieces: list[tuple[Stream, memoryview]] = []
        position = self._finish_header(view) if self._header else 0
        while position < end:
            if self._missing:
                stop = min(position + self._missing, end)
                pieces.append((self._stream, view[position:stop]))
                self._missing -= stop - position
                position = stop
            elif end - position >= _HEADER.size:
                self._open_frame(view, position)
                position += _HEADER.size
            else:
                self._header = bytes(view[position:])
                break
        return pieces

    def _finish_header(self, view: memoryview) -> int:
        """Complete a header that was split; return the position after it."""
        wanted = _HEADER.size - len(self._header)
        self._header += view[:wanted]
        if len(self._header) == _HEADER.size:
            self._open_frame(self._header, 0)
            self._header = b""
        return min(wanted, len(view))

    def _open_frame(self, buffer: bytes | memoryview, position: int) -> None:
        kind: int
        padding: bytes
        length: int
        kind, padding, length = _HEADER.unpack_from(buffer, position)
        if kind >= len(_STREAMS) or padding != _PADDING:
            header = bytes(buffer[position : position + _HEADER.size])
            raise ProtocolError(
                f"the engine's attach stream holds a malformed frame header ({header.hex(' ')}); "
                "was the container created with a terminal?"
            )
        self._stream = _STREAMS[kind]
        self._missing = length


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
