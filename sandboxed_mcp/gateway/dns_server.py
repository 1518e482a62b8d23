"""Serve DNS on loopback, UDP and TCP (RFC 1035, RFC 7766), for the one sandbox next door.

Every query of the network namespace is redirected here. Datagrams are answered in place when
the policy or the cache can; lookups run as tasks. A TCP client has `TCP_SECONDS` for each
message and for taking its answer, and there are at most `MAX_CLIENTS` of them. The UDP socket
is bound without SO_REUSEADDR, which would let the server bind the port as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING, Final, Protocol

from sandboxed_mcp.egress.events import Denied, EgressEvent
from sandboxed_mcp.gateway.own_sockets import bind_datagrams, bind_stream
from sandboxed_mcp.gateway.question import Malformed, parse_query, render_answer, render_failure

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from sandboxed_mcp.gateway.answer_cache import Answer
    from sandboxed_mcp.gateway.question import Query

__all__ = ["MAX_CLIENTS", "TCP_SECONDS", "Answers", "open_dns_server"]

MAX_CLIENTS: Final = 64
TCP_SECONDS: Final = 5.0
MAX_QUERY: Final = 4096
DATAGRAMS_AT_ONCE: Final = 32
"""Datagrams that are handled before others have their turn."""


class Answers(Protocol):
    """Answers well-formed queries; the resolver does."""

    def answer_now(self, query: Query) -> Answer | None:
        """Answer at once, or not."""
        ...

    async def resolve(self, query: Query) -> Answer:
        """Answer after a lookup."""
        ...


@contextlib.asynccontextmanager
async def open_dns_server(
    resolver: Answers, *, hosts: tuple[str, ...], port: int, report: Callable[[EgressEvent], None]
) -> AsyncGenerator[None]:
    """Serve on each of the addresses until the context ends.

    An error inside a lookup is not an answer: it ends the context with that error.

    Args:
        resolver: Answers the queries.
        hosts: Loopback addresses, IPv4 or IPv6.
        port: UDP and TCP.
        report: Takes events about what is no query.

    Raises:
        OSError: An address cannot be bound.
    """
    async with contextlib.AsyncExitStack() as stack:
        sockets = [
            (
                stack.enter_context(bind_datagrams(host, port)),
                stack.enter_context(bind_stream(host, port)),
            )
            for host in hosts
        ]
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        server = _DnsServer(resolver, tasks, report)
        loop = asyncio.get_running_loop()
        for datagrams, listener in sockets:
            loop.add_reader(datagrams, server.read_datagrams, datagrams)
            stack.callback(loop.remove_reader, datagrams)
            acceptor = tasks.create_task(server.accept(listener))
            stack.callback(acceptor.cancel)
        stack.callback(server.close)
        yield


class _DnsServer:
    def __init__(
        self, resolver: Answers, tasks: asyncio.TaskGroup, report: Callable[[EgressEvent], None]
    ) -> None:
        self._resolver = resolver
        self._tasks = tasks
        self._report = report
        self._running: set[asyncio.Task[None]] = set()
        self._clients = 0

    def close(self) -> None:
        """Give up every lookup and every client."""
        for task in self._running:
            task.cancel()

    def read_datagrams(self, sock: socket.socket) -> None:
        """Handle what has arrived."""
        for _ in range(DATAGRAMS_AT_ONCE):
            try:
                data, client = sock.recvfrom(MAX_QUERY + 1)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error about an earlier answer
            if len(data) <= MAX_QUERY:
                self._handle_datagram(sock, data, client)

    def _handle_datagram(self, sock: socket.socket, data: bytes, client: object) -> None:
        query = self._parse(data)
        if isinstance(query, bytes):
            _send(sock, query, client)
        elif query is not None:
            answer = self._resolver.answer_now(query)
            if answer is None:
                self._start(self._resolve_datagram(sock, query, client))
            else:
                _send(sock, _render(query, answer, query.udp_limit), client)

    async def _resolve_datagram(self, sock: socket.socket, query: Query, client: object) -> None:
        answer = await self._resolver.resolve(query)
        _send(sock, _render(query, answer, query.udp_limit), client)

    async def accept(self, listener: socket.socket) -> None:
        """Take clients in; one too many is closed at once."""
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            if self._clients >= MAX_CLIENTS:
                client.close()
                self._report(
                    Denied(layer="dns", reason="too many clients over TCP", protocol="tcp")
                )
                continue
            self._clients += 1
            self._start(self._serve(client))

    async def _serve(self, client: socket.socket) -> None:
        try:
            with client, contextlib.suppress(OSError, _Closed):
                while True:
                    await self._serve_one(client)
        finally:
            self._clients -= 1

    async def _serve_one(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(TCP_SECONDS):
            (size,) = struct.unpack("!H", await _receive_exactly(client, 2))
            if size > MAX_QUERY:
                raise _Closed
            query = self._parse(await _receive_exactly(client, size))
        if query is None:
            raise _Closed
        if not isinstance(query, bytes):
            answer = self._resolver.answer_now(query) or await self._resolver.resolve(query)
            query = _render(query, answer, 65535)
        async with asyncio.timeout(TCP_SECONDS):
            await loop.sock_sendall(client, struct.pack("!H", len(query)) + query)

    def _parse(self, data: bytes) -> Query | bytes | None:
        """A query; or the answer to what is none; or None for what has no answer."""
        query = parse_query(data)
        if isinstance(query, Malformed):
            self._report(Denied(layer="dns", reason=f"malformed query: {query.reason}"))
            return render_failure(query)
        return query

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


class _Closed(Exception):  # noqa: N818 - not an error: the client is gone or is sent away
    pass


def _render(query: Query, answer: Answer, limit: int) -> bytes:
    return render_answer(query, answer.code, answer.addresses, ttl=answer.ttl, limit=limit)


def _send(sock: socket.socket, data: bytes, client: object) -> None:
    """Send, or drop: a client that takes no answers gets none."""
    with contextlib.suppress(OSError):
        sock.sendto(data, client)  # pyright: ignore[reportArgumentType] - as recvfrom gave it


async def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < size:
        chunk = await loop.sock_recv(sock, size - len(data))
        if not chunk:
            raise _Closed
        data += chunk
    return bytes(data)
