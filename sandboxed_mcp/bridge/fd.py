"""Whole reads and writes on descriptors that somebody may have made non-blocking."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

__all__ = ["read_some", "recv_some", "send_all", "write_all"]


def read_some(descriptor: int, size: int) -> bytes:
    """The next bytes, at least one; empty at the end."""
    while True:
        try:
            return os.read(descriptor, size)
        except BlockingIOError:
            _wait(descriptor, select.POLLIN)


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Writes all bytes.

    Raises:
        OSError: The reader is gone.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            _wait(descriptor, select.POLLOUT)


def recv_some(connection: socket.socket, size: int) -> bytes:
    """The next bytes of a socket, at least one; empty at the end."""
    while True:
        try:
            return connection.recv(size)
        except BlockingIOError:
            _wait(connection.fileno(), select.POLLIN)


def send_all(connection: socket.socket, data: bytes) -> None:
    """Sends all bytes.

    Raises:
        OSError: The other side is gone.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[connection.send(view) :]
        except BlockingIOError:
            _wait(connection.fileno(), select.POLLOUT)


def _wait(descriptor: int, event: int) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    poll.poll()
