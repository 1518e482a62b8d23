"""The gateway's own sockets: bound where the server shares the namespace, marked on the way out."""

from __future__ import annotations

import socket
import struct
from typing import Final

__all__ = ["bind_datagrams", "bind_stream", "set_mark"]

BACKLOG: Final = 128
_SO_MARK: Final = 36


def bind_datagrams(host: str, port: int) -> socket.socket:
    """Bind a UDP socket, without SO_REUSEADDR, which would let the server bind the port as well.

    Raises:
        OSError: The port is taken.
    """
    return _bind(host, port, socket.SOCK_DGRAM)


def bind_stream(host: str, port: int) -> socket.socket:
    """Listen for TCP, also where connections of an earlier listener linger.

    On a socket that listens, SO_REUSEADDR lets nobody else bind the port.

    Raises:
        OSError: The port is taken.
    """
    return _bind(host, port, socket.SOCK_STREAM)


def set_mark(sock: socket.socket, mark: int) -> None:
    """Set SO_MARK (socket(7)), by which the ruleset knows the gateway; needs NET_ADMIN.

    Args:
        sock: Not yet connected.
        mark: 32 bits; 0 leaves the socket as it is.
    """
    if mark:
        sock.setsockopt(socket.SOL_SOCKET, _SO_MARK, struct.pack("=I", mark))


def _bind(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    try:
        sock.setblocking(False)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
