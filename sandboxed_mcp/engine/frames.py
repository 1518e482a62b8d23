"""Takes the engine's multiplexed attach stream apart. Pure, without I/O.

The format is that of the Docker Engine API, `POST /containers/{id}/attach`, "Stream format".
`FrameDecoder` gives the same result however the bytes arrive, and copies none of them.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

from sandboxed_mcp.errors import EngineError

__all__ = ["FrameDecoder", "ProtocolError", "Stream"]

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
