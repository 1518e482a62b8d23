"""What the relay does with single sockets: where from, the hello, alerts, resets, keep-alive."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import struct
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.gateway.relay_policy import Target
from sandboxed_mcp.gateway.tls import MAX_CLIENT_HELLO, ClientHelloReader, Incomplete, Outcome

if TYPE_CHECKING:
    from sandboxed_mcp.egress.addresses import IPAddress

__all__ = [
    "dial",
    "explain",
    "keep_alive",
    "local_target",
    "read_hello",
    "read_original_destination",
    "reset",
    "say_farewell",
    "send_all",
]

HELLO_SECONDS: Final = 5.0
DIAL_SECONDS: Final = 10.0
SEND_SECONDS: Final = 10.0
FAREWELL_SECONDS: Final = 1.0
"""How long the other side has to take an alert."""

_KEEP_ALIVE: Final = (
    (socket.TCP_KEEPIDLE, 300),
    (socket.TCP_KEEPINTVL, 60),
    (socket.TCP_KEEPCNT, 5),
)
_SO_ORIGINAL_DST: Final = 80  # linux/netfilter_ipv4.h, and the same number for IPv6
_SOCKADDR_IN: Final = struct.Struct("!2xH4s8x")
_SOCKADDR_IN6: Final = struct.Struct("!2xH4x16s4x")


def read_original_destination(client: socket.socket) -> Target | None:
    """Where a redirected connection was meant to go; None when no redirect is on record."""
    try:
        if client.family == socket.AF_INET:
            raw = client.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, _SOCKADDR_IN.size)
            port, packed = _SOCKADDR_IN.unpack(raw)
        else:
            raw = client.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, _SOCKADDR_IN6.size)
            port, packed = _SOCKADDR_IN6.unpack(raw)
    except OSError:
        return None
    return Target(_unpack(packed), port)


def local_target(client: socket.socket) -> Target:
    """The address of our own end: the original destination of what was not redirected."""
    host, port, *_ = client.getsockname()
    return Target(ip_address(host), port)


async def read_hello(client: socket.socket, reader: ClientHelloReader) -> Outcome:
    """Read until the ClientHello is decided, its time is up, or the client stops sending."""
    with contextlib.suppress(BlockingIOError):
        reader.receive(client.recv(MAX_CLIENT_HELLO))  # the common case: it is there, in one piece
    if isinstance(reader.outcome, Incomplete):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HELLO_SECONDS):
                await _read_on(client, reader)
    return reader.outcome


async def dial(outside: socket.socket, target: Target) -> None:
    """Connect within `DIAL_SECONDS`.

    Raises:
        OSError: Refused, unreachable, or `TimeoutError`.
    """
    outside.setblocking(False)
    error = outside.connect_ex((str(target.address), target.port))
    if error == errno.EINPROGRESS:
        if not _is_writable(outside):  # a near destination has answered already
            await _wait_writable(outside, DIAL_SECONDS)
        error = outside.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))


async def send_all(sock: socket.socket, data: bytes) -> int:
    """Send a few bytes, on a fresh connection at once, else within `SEND_SECONDS`.

    Returns:
        How many.
    """
    sent = sock.send(data)
    if sent < len(data):
        async with asyncio.timeout(SEND_SECONDS):
            await asyncio.get_running_loop().sock_sendall(sock, data[sent:])
    return len(data)


async def say_farewell(client: socket.socket, data: bytes) -> None:
    """Send last bytes and give the client time to read them: a close at once might drop them."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await loop.sock_sendall(client, data)
            client.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(client, MAX_CLIENT_HELLO):
                pass


def keep_alive(*socks: socket.socket) -> None:
    """Have the kernel find out when another side is gone; and never wait to fill a segment."""
    for sock in socks:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, value in _KEEP_ALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def reset(sock: socket.socket) -> None:
    """Close a connection; what is still under way is dropped and the other side is reset."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def explain(error: OSError) -> str:
    """Say in a few words why a connection ended."""
    if isinstance(error, TimeoutError) and error.errno is None:
        return "the destination did not answer in time"
    return (error.strerror or os.strerror(error.errno or 0)).lower()


async def _read_on(client: socket.socket, reader: ClientHelloReader) -> None:
    loop = asyncio.get_running_loop()
    while isinstance(reader.outcome, Incomplete):
        data = await loop.sock_recv(client, MAX_CLIENT_HELLO)
        if not data:
            return
        reader.receive(data)


def _is_writable(sock: socket.socket) -> bool:
    now = select.poll()
    now.register(sock, select.POLLOUT)
    return bool(now.poll(0))


async def _wait_writable(sock: socket.socket, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    writable: asyncio.Future[None] = loop.create_future()
    loop.add_writer(sock.fileno(), _resolve, writable)
    try:
        async with asyncio.timeout(seconds):
            await writable
    finally:
        loop.remove_writer(sock.fileno())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _unpack(packed: bytes) -> IPAddress:
    address = ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
