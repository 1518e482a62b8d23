"""Ask the upstream resolvers: connected, marked sockets, UDP first, TCP where it is needed.

The server sits in the same network namespace and can send to any local port, so each query has
a socket of its own, connected to the resolver, on a random port of a range that the ruleset
shuts for loopback packets; what arrived before the query was sent is thrown away; and a reply
counts only if `SentQuery.is_answered_by` says so. A resolver whose UDP replies do not fit, or
too many messages that are not the reply, lead to TCP. This module never decides what may be
asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.gateway.answer import (
    MAX_REPLY,
    Reply,
    ReplyError,
    SentQuery,
    make_query,
    read_reply,
)
from sandboxed_mcp.gateway.own_sockets import set_mark

if TYPE_CHECKING:
    from collections.abc import Generator

    from sandboxed_mcp.egress.ruleset_values import Upstream
    from sandboxed_mcp.egress.values import PortRange

__all__ = ["UpstreamClient", "UpstreamError", "parse_resolv_conf"]

UDP_TIMEOUT: Final = 1.5
TCP_TIMEOUT: Final = 3.0
TOTAL_TIMEOUT: Final = 8.0
ROUNDS: Final = 2
"""How often each resolver is tried."""

MAX_FOREIGN: Final = 16
"""Messages that are not the reply, before UDP is given up for this query."""

BIND_ATTEMPTS: Final = 16
MAX_DATAGRAM: Final = 4096
"""`MAX_UDP_ANSWER` and room for a resolver that does not care."""


class UpstreamError(Exception):
    """No resolver gave a reply that can be used."""


@dataclass(frozen=True, slots=True)
class UpstreamClient:
    """Asks resolvers in their order.

    Attributes:
        resolvers: The first that gives a usable reply decides.
        mark: SO_MARK of the sockets, which the ruleset requires; 0 for none.
        ports: Source ports of UDP; None lets the kernel choose.
    """

    resolvers: tuple[Upstream, ...]
    mark: int = 0
    ports: PortRange | None = None

    async def ask(self, name: str, query_type: int) -> Reply:
        """Resolve a name, in at most `TOTAL_TIMEOUT` seconds.

        Raises:
            UpstreamError: No resolver gave a usable reply; the message says why, for each.
        """
        problems: dict[str, None] = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOTAL_TIMEOUT):
                for resolver in self.resolvers * ROUNDS:
                    try:
                        return await self._ask_one(resolver, make_query(name, query_type))
                    except (OSError, ReplyError, UpstreamError) as error:
                        problems[f"{resolver.address}: {_explain(error)}"] = None
        raise UpstreamError("; ".join(problems) or "no resolver is known or answers in time")

    async def _ask_one(self, resolver: Upstream, query: SentQuery) -> Reply:
        async with asyncio.timeout(UDP_TIMEOUT):
            data = await self._ask_udp(resolver, query)
        reply = None if data is None else read_reply(data)
        if reply is not None and not reply.truncated:
            return reply
        async with asyncio.timeout(TCP_TIMEOUT):
            data = await self._ask_tcp(resolver, query)
        reply = read_reply(data)
        if reply.truncated:
            raise ReplyError("the reply is truncated over TCP")
        return reply

    async def _ask_udp(self, resolver: Upstream, query: SentQuery) -> bytes | None:
        """Return the reply; None when too much came that is none."""
        loop = asyncio.get_running_loop()
        with self._open(resolver, socket.SOCK_DGRAM) as sock:
            sock.connect((str(resolver.address), resolver.port))
            _drain(sock)
            sock.send(query.wire)
            for _ in range(MAX_FOREIGN):
                data = await loop.sock_recv(sock, MAX_DATAGRAM)
                if query.is_answered_by(data):
                    return data
        return None

    async def _ask_tcp(self, resolver: Upstream, query: SentQuery) -> bytes:
        loop = asyncio.get_running_loop()
        with self._open(resolver, socket.SOCK_STREAM) as sock:
            await loop.sock_connect(sock, (str(resolver.address), resolver.port))
            await loop.sock_sendall(sock, struct.pack("!H", len(query.wire)) + query.wire)
            (size,) = struct.unpack("!H", await _receive_exactly(sock, 2))
            if size > MAX_REPLY:
                raise ReplyError(f"the reply has {size} bytes")
            data = await _receive_exactly(sock, size)
        if not query.is_answered_by(data, exact_case=False):
            raise ReplyError("the reply over TCP answers another question")
        return data

    @contextlib.contextmanager
    def _open(self, resolver: Upstream, kind: socket.SocketKind) -> Generator[socket.socket]:
        family = socket.AF_INET if resolver.address.version == 4 else socket.AF_INET6  # noqa: PLR2004
        with socket.socket(family, kind) as sock:
            sock.setblocking(False)
            set_mark(sock, self.mark)
            if self.ports is not None and kind == socket.SOCK_DGRAM:
                _bind_random(sock, self.ports)
            yield sock


def parse_resolv_conf(text: str) -> tuple[str, ...]:
    """Read the `nameserver` lines of a resolv.conf (resolv.conf(5)); other lines are ignored."""
    lines = (line.split() for line in text.splitlines())
    return tuple(words[1] for words in lines if words[:1] == ["nameserver"] and words[1:])


def _bind_random(sock: socket.socket, ports: PortRange) -> None:
    """Bind to a random free port; another may hold it, so try a few."""
    for _ in range(BIND_ATTEMPTS):
        with contextlib.suppress(OSError):
            sock.bind(("", ports.first + secrets.randbelow(ports.last - ports.first + 1)))
            return
    raise UpstreamError("no source port is free")


def _drain(sock: socket.socket) -> None:
    """Throw away what came before the socket was connected; it can be no reply."""
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.recv(1)


async def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < size:
        chunk = await loop.sock_recv(sock, size - len(data))
        if not chunk:
            raise ReplyError("the resolver closed the connection")
        data += chunk
    return bytes(data)


def _explain(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no reply in time"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
