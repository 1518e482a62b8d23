"""Mark the gateway's own sockets, which is how the ruleset knows them."""

from __future__ import annotations

import socket
import struct
from typing import Final

__all__ = ["set_mark"]

_SO_MARK: Final = 36


def set_mark(sock: socket.socket, mark: int) -> None:
    """Set SO_MARK (socket(7)); needs NET_ADMIN.

    Args:
        sock: Not yet connected.
        mark: 32 bits, top bit included; 0 leaves the socket as it is.
    """
    if mark:
        sock.setsockopt(socket.SOL_SOCKET, _SO_MARK, struct.pack("=I", mark))
