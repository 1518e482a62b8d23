"""Servers of the simulated internet: plain TCP and UDP echo.

Each runs on a thread; its socket was made inside the namespace that holds the address. What a
server says begins with `echo `, so that no test mistakes its own bytes for an answer.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.lab.netns import Namespace

__all__ = ["EchoServer", "open_echo", "open_listener", "open_loop"]

_POLL = 0.05


class EchoServer:
    """Echoes on any number of TCP and UDP sockets, and counts."""

    def __init__(self) -> None:
        """No socket yet."""
        self.connections = 0
        self.datagrams = 0
        self.received = 0
        self.open: list[socket.socket] = []
        """TCP connections that are open, to push bytes from this side."""
        self._selector = selectors.DefaultSelector()

    def serve(self, listener: socket.socket) -> None:
        """Serve a bound socket too."""
        listener.setblocking(False)
        stream = listener.type == socket.SOCK_STREAM
        self._selector.register(
            listener, selectors.EVENT_READ, self._accept if stream else self._answer
        )

    def step(self) -> None:
        """Handle what is ready."""
        if not self._selector.get_map():
            return
        for key, _ in self._selector.select(_POLL):
            work: Callable[[socket.socket], None] = key.data
            with contextlib.suppress(OSError):
                work(_as_socket(key.fileobj))

    def close(self) -> None:
        """Close every socket."""
        for key in list(self._selector.get_map().values()):
            _as_socket(key.fileobj).close()
        self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self.connections += 1
        connection.setblocking(False)
        self.open.append(connection)
        self._selector.register(connection, selectors.EVENT_READ, self._echo)

    def _echo(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        self.received += len(data)
        if data:
            connection.send(b"echo " + data)
            return
        self._selector.unregister(connection)
        self.open.remove(connection)
        connection.close()

    def _answer(self, listener: socket.socket) -> None:
        data, peer = listener.recvfrom(65536)
        self.datagrams += 1
        listener.sendto(b"echo " + data, peer)


def open_listener(namespace: Namespace, protocol: str, address: str, port: int) -> socket.socket:
    """Make a bound socket inside a namespace; a TCP one listens."""
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    def make() -> socket.socket:
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            if protocol == "tcp":
                listener.listen(256)
        except OSError:
            listener.close()
            raise
        return listener

    return namespace.inside(make)


@contextlib.contextmanager
def open_echo(
    namespace: Namespace, *places: tuple[str, str, int]
) -> Generator[EchoServer, None, None]:
    """Echo at places `(protocol, address, port)` until the end."""
    server = EchoServer()
    try:
        for place in places:
            server.serve(open_listener(namespace, *place))
        with open_loop(server.step, "echo"):
            yield server
    finally:
        server.close()


@contextlib.contextmanager
def open_loop(step: Callable[[], None], name: str) -> Generator[None, None, None]:
    """Repeat a step, which must return soon, on a thread until the end."""
    stopping = threading.Event()

    def repeat() -> None:
        while not stopping.is_set():
            step()

    thread = threading.Thread(target=repeat, name=name)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _as_socket(file: object) -> socket.socket:
    assert isinstance(file, socket.socket)
    return file
