"""Probe the gateway's own promise: something that must be shut, something that must be open.

Must fail: a datagram to an address that no rule opens (240.0.0.1, RFC 1112 class E, routed
nowhere). The ruleset refuses it inside the system call. Must pass: a query to port 53, which
the ruleset leads to the resolver, for a name that only a probe asks for; it is answered here
and goes no further.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.gateway.answer import make_query
from sandboxed_mcp.gateway.answer_cache import Answer
from sandboxed_mcp.gateway.question import NOERROR, A

if TYPE_CHECKING:
    from sandboxed_mcp.gateway.dns_server import Answers
    from sandboxed_mcp.gateway.nflog import DeniedPacket
    from sandboxed_mcp.gateway.question import Query

__all__ = ["Canary", "CanaryError"]

SHUT: Final = IPv4Address("240.0.0.1")
SHUT_PORT: Final = 9
ANSWER_SECONDS: Final = 2.0


class CanaryError(Exception):
    """A probe went the wrong way; the message says which."""


class Canary:
    """Sends the probes, and answers the one that must pass in the resolver's place."""

    def __init__(self, resolver: Answers) -> None:
        """Stand in front of the resolver."""
        self._resolver = resolver
        self._name = f"{secrets.token_hex(8)}.canary.invalid"
        self._source_port = 0

    async def probe(self) -> None:
        """Send both probes.

        Raises:
            CanaryError: What must be shut is open, or what must be open is shut.
        """
        self._probe_shut()
        await self._probe_open()

    def is_probe(self, packet: DeniedPacket) -> bool:
        """Whether a denied packet is the probe that must fail."""
        return packet.address == SHUT and packet.source_port == self._source_port

    def answer_now(self, query: Query) -> Answer | None:
        """Answer the probe; pass everything else on."""
        if query.name == self._name:
            return Answer(NOERROR)
        return self._resolver.answer_now(query)

    async def resolve(self, query: Query) -> Answer:
        """Pass on."""
        return await self._resolver.resolve(query)

    def _probe_shut(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            try:
                sock.connect((str(SHUT), SHUT_PORT))
                self._source_port = sock.getsockname()[1]
                sock.send(b"canary")
            except OSError:
                return
        raise CanaryError(f"a datagram to {SHUT} was not refused: the ruleset does not hold")

    async def _probe_open(self) -> None:
        loop = asyncio.get_running_loop()
        query = make_query(self._name, A)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            try:
                sock.connect(("127.0.0.1", 53))
                sock.send(query.wire)
                async with asyncio.timeout(ANSWER_SECONDS):
                    while not query.is_answered_by(await loop.sock_recv(sock, 512)):
                        pass
            except OSError as error:
                raise CanaryError("a query to port 53 does not reach the resolver") from error
