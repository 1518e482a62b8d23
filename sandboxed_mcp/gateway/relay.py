"""The transparent relay for rules that verify the TLS server name.

    redirected connection -> original destination -> ClientHello -> judge (pure) -> dial -> splice

A connection that was not redirected, one of too many, one whose ClientHello does not come in
time or does not name what a rule names, ends here: with a TLS alert where TLS is spoken, else
with a reset. The bytes of the ClientHello go on unchanged; what follows is spliced, never read.
Streams may be idle for as long as they like; keep-alive probes find the dead ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.events import ConnectionClosed, ConnectionOpened, Denied, EgressEvent
from sandboxed_mcp.gateway.own_sockets import bind_stream, set_mark
from sandboxed_mcp.gateway.relay_policy import (
    Admitted,
    Rejected,
    RelayPolicy,
    Target,
    judge_hello,
    still_allowed,
)
from sandboxed_mcp.gateway.relay_sockets import (
    dial,
    explain,
    keep_alive,
    local_target,
    read_hello,
    read_original_destination,
    reset,
    say_farewell,
    send_all,
)
from sandboxed_mcp.gateway.splice import PipePool, SplicedPair
from sandboxed_mcp.gateway.tls import ClientHelloReader, Incomplete, render_alert

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sandboxed_mcp.egress.addresses import IPAddress

__all__ = ["Relay", "open_relay"]

MAX_CONNECTIONS: Final = 256

ACCEPTS_AT_ONCE: Final = 16
DEFER_SECONDS: Final = 3

_PASSING: Final = frozenset(
    {errno.EAGAIN, errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
)
"""Errors of accept that pass by themselves."""


@dataclass(eq=False, slots=True)
class _Open:
    """A connection that was admitted."""

    target: Target
    name: str
    pair: SplicedPair


class Relay:
    """The relay of one sandbox, without its listeners."""

    def __init__(
        self,
        policy: RelayPolicy,
        *,
        names: Callable[[IPAddress], tuple[str, ...]],
        report: Callable[[EgressEvent], None],
        mark: int = 0,
        clock: Callable[[], float],
    ) -> None:
        """Start with a policy.

        Args:
            policy: What is in force.
            names: The names that an address is open for now.
            report: Takes events.
            mark: SO_MARK of the connections it makes, which the ruleset requires.
            clock: Monotonic, seconds.
        """
        self._policy = policy
        self._names = names
        self._report = report
        self._mark = mark
        self._clock = clock
        self._pipes = PipePool()
        self._count = 0
        self._open: set[_Open] = set()

    def adopt(self, policy: RelayPolicy) -> int:
        """Go on under another policy; returns how many connections it ended by that."""
        self._policy = policy
        ended = [each for each in self._open if not still_allowed(policy, each.target, each.name)]
        for each in ended:
            each.pair.abort(OSError(errno.ECONNABORTED, "not allowed by the policy any more"))
        return len(ended)

    def close(self) -> None:
        """Give back what is kept for connections to come."""
        self._pipes.close()

    def accept(self, listener: socket.socket, tasks: asyncio.TaskGroup) -> None:
        """Take in the connections that wait, at most `MAX_CONNECTIONS` at once."""
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                client, _address = listener.accept()
            except OSError as error:
                if error.errno in _PASSING:
                    return
                raise
            client.setblocking(False)
            if self._count >= MAX_CONNECTIONS:
                self._report(Denied(layer="tls", reason="too many connections", protocol="tcp"))
                reset(client)
                continue
            self._count += 1
            tasks.create_task(self._serve(client))

    async def _serve(self, client: socket.socket) -> None:
        ended_well = False
        try:
            target = read_original_destination(client)
            if target is None or target == local_target(client):
                self._report(Denied(layer="tls", reason="spoke to the relay directly"))
                return
            ended_well = await self._judge(client, target)
        except OSError:
            pass  # the client is gone before it was admitted
        finally:
            self._count -= 1
            client.close() if ended_well else reset(client)

    async def _judge(self, client: socket.socket, target: Target) -> bool:
        """See the connection through; whether it may be closed in the regular way."""
        reader = ClientHelloReader()
        outcome = await read_hello(client, reader)
        if isinstance(outcome, Incomplete) and not reader.received:
            return False
        judged = judge_hello(self._policy, target, self._names(target.address), outcome)
        if isinstance(judged, Admitted):
            return await self._carry(client, target, judged, bytes(reader.received))
        self._deny(target, judged)
        if judged.alert is None:
            return False
        await say_farewell(client, render_alert(judged.alert))
        return True

    async def _carry(
        self, client: socket.socket, target: Target, admitted: Admitted, hello: bytes
    ) -> bool:
        """Dial the destination, then move bytes until both sides have ended, or one fails."""
        started = self._clock()
        family = socket.AF_INET if isinstance(target.address, IPv4Address) else socket.AF_INET6
        with socket.socket(family, socket.SOCK_STREAM) as outside:
            pair = SplicedPair(client, outside, self._pipes)
            reason, sent = "", 0
            try:
                set_mark(outside, self._mark)
                await dial(outside, target)
                sent = await send_all(outside, hello)
                self._report(_opened(target, admitted))  # while the other side is busy
                keep_alive(client, outside)
                await self._run(_Open(target, admitted.name, pair))
            except OSError as error:
                reason = explain(error)
                reset(outside)
            finally:
                self._report(
                    ConnectionClosed(
                        rule=admitted.rule.id,
                        name=admitted.name,
                        address=str(target.address),
                        port=target.port,
                        sent=sent + pair.sent,
                        received=pair.received,
                        seconds=round(self._clock() - started, 3),
                        reason=reason or "closed",
                    )
                )
        return not reason

    async def _run(self, connection: _Open) -> None:
        self._open.add(connection)
        try:
            await connection.pair.run()
        finally:
            self._open.discard(connection)

    def _deny(self, target: Target, rejected: Rejected) -> None:
        self._report(
            Denied(
                layer="tls",
                reason=rejected.reason,
                name=rejected.name,
                address=str(target.address),
                port=target.port,
                protocol="tcp",
                rule=rejected.rule,
            )
        )


@contextlib.asynccontextmanager
async def open_relay(relay: Relay, *, hosts: tuple[str, ...], port: int) -> AsyncGenerator[None]:
    """Serve on each of the addresses until the context ends; then every connection is reset.

    Args:
        relay: Takes the connections.
        hosts: Loopback addresses, IPv4 or IPv6.
        port: TCP.

    Raises:
        OSError: An address cannot be bound.
    """
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(bind_stream(host, port)) for host in hosts]
        for listener in listeners:  # wake us for a connection together with its first bytes
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, DEFER_SECONDS)
        stack.callback(relay.close)
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(_serve_all(relay, listeners))
            try:
                yield
            finally:
                serving.cancel()


async def _serve_all(relay: Relay, listeners: list[socket.socket]) -> None:
    """Serve until cancelled, which ends every connection too."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        for listener in listeners:
            loop.add_reader(listener, relay.accept, listener, tasks)
        try:
            await loop.create_future()
        finally:
            for listener in listeners:
                loop.remove_reader(listener)


def _opened(target: Target, admitted: Admitted) -> ConnectionOpened:
    return ConnectionOpened(
        rule=admitted.rule.id,
        name=admitted.name,
        address=str(target.address),
        port=target.port,
        ech=admitted.ech,
    )
