"""A resolver on loopback with everything around it: an upstream server, a client, its events.

The upstream is a DNS server on sockets of its own, the client speaks UDP and TCP; only the
kernel's sets are a set in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar

import dns.message
import dns.query
import dns.rcode

from sandboxed_mcp.egress.events import Denied, EgressEvent
from sandboxed_mcp.egress.rules import parse_egress
from sandboxed_mcp.egress.ruleset_values import Upstream
from sandboxed_mcp.gateway.budget import DEFAULT_BUDGETS, Budgets
from sandboxed_mcp.gateway.dns_policy import NamePolicy
from sandboxed_mcp.gateway.dns_server import open_dns_server
from sandboxed_mcp.gateway.learned import LearnedNames
from sandboxed_mcp.gateway.resolver import NameResolver
from sandboxed_mcp.gateway.upstream import UpstreamClient
from tests.lab.dns import Zone, open_dns
from tests.lab.netns import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

    from sandboxed_mcp.egress.addresses import IPAddress, IPNetwork
    from sandboxed_mcp.egress.ruleset_values import Learned, Mode

__all__ = ["HERE", "Desk", "Here", "MemorySets", "free_port", "open_desk"]

_Result = TypeVar("_Result")


class Here(Namespace):
    """The namespace of the test run itself, for servers on loopback."""

    def inside(self, work: Callable[[], _Result]) -> _Result:
        """Do it here."""
        return work()


HERE = Here("here")


class MemorySets:
    """Opens addresses in memory, as far as there is room."""

    def __init__(self, room: int = 4096) -> None:
        """Take `room` addresses for all rules together."""
        self.room = room
        self.entries: list[Learned] = []

    async def learn(self, entries: Sequence[Learned]) -> frozenset[IPAddress]:
        """Open addresses; those that do not fit are refused."""
        taken: set[IPAddress] = set()
        for entry in entries:
            known = {each.address for each in self.entries}
            if entry.address in known or len(known) < self.room:
                self.entries.append(entry)
                taken.add(entry.address)
        return frozenset(taken)

    def seconds(self, address: str) -> int:
        """How long an address was opened for, the last time."""
        wanted = ip_address(address)
        return [each.seconds for each in self.entries if each.address == wanted][-1]

    def addresses(self) -> set[str]:
        """Everything that was opened."""
        return {str(each.address) for each in self.entries}


class Desk:
    """The client's side of a running resolver, and what is known behind it."""

    def __init__(self, port: int, zone: Zone, sets: MemorySets) -> None:
        """Nothing asked yet."""
        self.port = port
        self.zone = zone
        self.sets = sets
        self.events: list[EgressEvent] = []
        self.learned = LearnedNames()
        self._ahead = 0.0

    def clock(self) -> float:
        """The resolver's clock."""
        return time.monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let time pass for the resolver."""
        self._ahead += seconds

    def ask(self, name: str, kind: str = "A", *, tcp: bool = False) -> dns.message.Message:
        """Ask one question."""
        return self.send(dns.message.make_query(name, kind), tcp=tcp)

    def send(self, query: dns.message.Message, *, tcp: bool = False) -> dns.message.Message:
        """Send a message and return the answer to it."""
        if tcp:
            return dns.query.tcp(query, "127.0.0.1", timeout=15, port=self.port)
        return dns.query.udp(query, "127.0.0.1", timeout=15, port=self.port)

    def send_raw(self, data: bytes, timeout: float = 2.0) -> bytes | None:
        """Send a datagram; None when nothing comes back."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(timeout)
            client.connect(("127.0.0.1", self.port))
            client.send(data)
            with contextlib.suppress(TimeoutError):
                return client.recv(65536)
        return None

    def resolve(self, name: str, kind: str = "A") -> list[str]:
        """The addresses of a name, as answered."""
        lines = [
            line for rrset in self.ask(name, kind).answer for line in rrset.to_text().split("\n")
        ]
        return [line.split()[-1] for line in lines]

    def code(self, name: str, kind: str = "A") -> str:
        """The response code for a name."""
        return dns.rcode.to_text(self.ask(name, kind).rcode())

    def denials(self) -> list[Denied]:
        """What was denied."""
        return [event for event in self.events if isinstance(event, Denied)]


@contextlib.contextmanager
def open_desk(  # noqa: PLR0913 - what a test may vary
    egress: object,
    zone: Zone | None = None,
    *,
    room: int = 4096,
    mode: Mode = "enforce",
    forbidden: tuple[IPNetwork, ...] = (),
    ipv6: bool = True,
    budgets: Budgets = DEFAULT_BUDGETS,
    upstream_port: int | None = None,
) -> Generator[Desk, None, None]:
    """Run a resolver for a policy until the end.

    Its upstream serves `zone`, unless the test has one of its own at `upstream_port`.
    """
    policy = NamePolicy(parse_egress(egress), mode, forbidden, ipv6)
    zone = zone or Zone()
    zone_port = free_port()
    with open_dns(HERE, "127.0.0.1", zone, zone_port):
        desk = Desk(free_port(), zone, MemorySets(room))
        resolvers = (Upstream(ip_address("127.0.0.1"), upstream_port or zone_port),)

        async def serve(stopping: asyncio.Event, ready: Callable[[], None]) -> None:
            resolver = NameResolver(
                policy,
                upstream=UpstreamClient(resolvers),
                learner=desk.sets,
                learned=desk.learned,
                report=desk.events.append,
                clock=desk.clock,
                budgets=budgets,
            )
            async with open_dns_server(
                resolver, hosts=("127.0.0.1",), port=desk.port, report=desk.events.append
            ):
                ready()
                await stopping.wait()

        with open_service(serve):
            yield desk


@contextlib.contextmanager
def open_service(
    serve: Callable[[asyncio.Event, Callable[[], None]], Coroutine[None, None, None]],
) -> Generator[asyncio.AbstractEventLoop, None, None]:
    """Run a coroutine on a loop of its own thread; it stops at the event it is given."""
    ready = threading.Event()
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    failures: list[BaseException] = []

    async def main() -> None:
        stopping = asyncio.Event()
        started.append((asyncio.get_running_loop(), stopping))
        await serve(stopping, ready.set)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="service")
    thread.start()
    try:
        assert ready.wait(10)
        if not failures:
            yield started[0][0]
    finally:
        loop, stopping = started[0]
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stopping.set)
        thread.join()
    if failures:
        raise failures[0]


def free_port() -> int:
    """A port on loopback that is free for UDP and TCP now."""
    while True:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream,
        ):
            datagrams.bind(("127.0.0.1", 0))
            port = datagrams.getsockname()[1]
            with contextlib.suppress(OSError):
                stream.bind(("127.0.0.1", port))
                return int(port)
