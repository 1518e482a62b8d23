"""A container's raw stream, as the engine hands it over after an attach."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from anyio.abc import SocketAttribute, UNIXSocketStream

from sandboxed_mcp.engine.dial import RECEIVE_BYTES

if TYPE_CHECKING:
    from sandboxed_mcp.engine.dial import EngineStream

__all__ = ["HijackedStream"]


class HijackedStream:
    """A container's raw stream after the upgrade: frames in, input bytes out.

    Args:
        stream: The connection that was upgraded.
        early: Bytes that arrived together with the upgrade header.
    """

    def __init__(self, stream: EngineStream, early: bytes) -> None:
        self._stream = stream
        self._early = early

    async def receive(self) -> bytes:
        """The next bytes, at most 256 KiB; raises `anyio.EndOfStream` at the end."""
        if self._early:
            early, self._early = self._early, b""
            return early
        return await self._stream.receive(RECEIVE_BYTES)

    def detach(self) -> tuple[socket.socket, bytes] | None:
        """A copy of the raw socket, non-blocking, and what was read too early.

        None when the stream is not a plain local socket.
        """
        if not isinstance(self._stream, UNIXSocketStream):
            return None
        raw = self._stream.extra(SocketAttribute.raw_socket)
        early, self._early = self._early, b""
        return socket.socket(fileno=os.dup(raw.fileno())), early

    async def send(self, data: bytes) -> None:
        """Writes to the container's standard input."""
        await self._stream.send(data)

    async def send_eof(self) -> None:
        """Ends the container's standard input; its output stays open."""
        await self._stream.send_eof()

    async def abort(self) -> None:
        """Drops the connection, copies of its socket included: whoever reads one sees the end."""
        if isinstance(self._stream, UNIXSocketStream):
            with suppress(OSError):
                self._stream.extra(SocketAttribute.raw_socket).shutdown(socket.SHUT_RDWR)
        else:
            await self._stream.aclose()

    async def aclose(self) -> None:
        """Closes both directions."""
        await self._stream.aclose()
