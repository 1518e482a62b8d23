"""Pods under attack: a sandbox with egress rules, driven from outside, watched at its own wire.

A pod is opened with the library, exactly as a user does; the hostile server inside is
`attack/main.py`. Every frame that leaves it is read at the host's end of its link, before
anything on the host could filter it: what is not there has not left.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import dns.message
import dns.rcode

from sandboxed_mcp import Policy, Sandbox, ServerConfig, open_sandbox
from sandboxed_mcp.events import NetworkEvent
from tests.hostile.arena import EXPOSED_LABEL, RUN, docker
from tests.lab.desk import HERE
from tests.lab.netns import Namespace
from tests.lab.prober import Outcome, Prober
from tests.lab.sniffer import Sniffer, open_sniffer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from anyio.from_thread import BlockingPortal

    from tests.lab.sniffer import Arrival

__all__ = ["IMAGE", "Exposed", "Launchpad", "Pod", "ask", "watch_link"]

IMAGE = "sandboxed-mcp/python:latest"
RESOLVER = "198.51.100.53"
_SYN = 2
_numbers = itertools.count(1)


class Pod(Prober):
    """A sandbox with egress rules.

    Attributes:
        sandbox: The sandbox.
        gateway: Container id of its gateway.
        wire: What left it, before anything could filter it.
    """

    def __init__(self, portal: BlockingPortal, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.portal = portal
        self.wire: Sniffer
        self.address = ""
        self._buffer = b""
        self._events: list[NetworkEvent] = []
        launch = sandbox.plan.labels["sandboxed-mcp.launch"]
        of = f"label=sandboxed-mcp.launch={launch}"
        found = docker("ps", "-q", "--no-trunc", "--filter", of).split()
        (self.gateway,) = set(found) - {sandbox.container}

    def start(self, deed: str, /, **arguments: object) -> None:
        line = json.dumps({"do": deed, **arguments}).encode() + b"\n"
        self.portal.call(self.sandbox.send, line)

    def finish(self, *, within: float = 20.0) -> Outcome:
        return Outcome(**json.loads(self.portal.call(self._read_line, within)))

    def apply(self, egress: object, **more: Any) -> None:
        """Put another policy in force."""
        self.portal.call(self.sandbox.apply_policy, make_policy(egress, **more))

    def events(self, kind: str = "deny") -> list[dict[str, Any]]:
        """The details of every event of a kind so far."""
        for event in self.portal.call(self._take):
            self._events.append(event)
        return [dict(each.details) for each in self._events if each.kind == kind]

    def wait_event(
        self,
        kind: str = "deny",
        matches: Callable[[dict[str, Any]], bool] = lambda _details: True,
        within: float = 5.0,
        **fields: object,
    ) -> dict[str, Any]:
        """Wait for an event with these details, or find it among those that came."""
        deadline = time.monotonic() + within
        while True:
            for details in self.events(kind):
                if fields.items() <= details.items() and matches(details):
                    return details
            left = deadline - time.monotonic()
            assert left > 0, f"no {kind} event with {fields}; seen: {self.events(kind)[-20:]}"
            self.portal.call(self._await_event, left)

    def full_events(self) -> list[NetworkEvent]:
        """Every event of the network so far."""
        self.events()
        return list(self._events)

    def end(self, within: float) -> str:
        """Wait for the server's end; why."""
        status = self.portal.call(self._wait, within)
        return str(status.reason)

    async def _wait(self, within: float) -> Any:
        with anyio.fail_after(within):
            return await self.sandbox.wait()

    async def _take(self) -> list[NetworkEvent]:
        queued = self.sandbox.events.take_queued()
        return [event for event in queued if isinstance(event, NetworkEvent)]

    async def _await_event(self, within: float) -> None:
        with anyio.move_on_after(within):
            event = await anext(self.sandbox.events)
            if isinstance(event, NetworkEvent):
                self._events.append(event)

    async def _read_line(self, within: float) -> bytes:
        with anyio.fail_after(within):
            while b"\n" not in self._buffer:
                self._buffer += await self.sandbox.receive()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class Exposed(Prober):
    """The same program in a plain container on the engine's bridge, with nothing in its way."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        super().__init__(process)
        self.name = name
        self.wire: Sniffer
        self.address = ""


def make_policy(egress: object, **more: Any) -> Policy:
    """A policy that asks nobody but the laboratory's resolver."""
    return Policy.model_validate({"egress": egress, "dns": (RESOLVER,), **more})


@dataclass(frozen=True)
class Launchpad:
    """Opens pods.

    Attributes:
        portal: Where the launcher's event loop runs.
        attack: The folder with the attacker's programs and the laboratory's authority.
    """

    portal: BlockingPortal
    attack: Path

    def config(self, egress: object, *options: str, **settings: Any) -> ServerConfig:
        """The hostile server under a policy; `policy` holds further fields of it."""
        policy = make_policy(egress, **settings.pop("policy", {}))
        return ServerConfig.model_validate(
            {
                "name": f"{RUN}-pod-{next(_numbers)}",
                "command": "python3",
                "args": ["-u", "/attack/main.py", *options],
                "env": {"SSL_CERT_FILE": "/attack/ca.pem"},
                "mounts": [{"source": str(self.attack), "target": "/attack"}],
                "policy": policy,
                **settings,
            }
        )

    @contextlib.contextmanager
    def open(
        self,
        egress: object,
        *options: str,
        observe: bool = False,
        **settings: Any,
    ) -> Generator[Pod, None, None]:
        """Open a pod."""
        config = self.config(egress, *options, **settings)
        opening = self.portal.wrap_async_context_manager(open_sandbox(config, observe=observe))
        with opening as sandbox:
            pod = Pod(self.portal, sandbox)
            with watch_link(pod.gateway) as (pod.wire, pod.address):
                yield pod

    @contextlib.contextmanager
    def open_unwatched(self, egress: object) -> Generator[Pod, None, None]:
        """Open a pod for quantities that nobody could count packet by packet."""
        opening = self.portal.wrap_async_context_manager(open_sandbox(self.config(egress)))
        with opening as sandbox:
            yield Pod(self.portal, sandbox)

    @contextlib.contextmanager
    def open_exposed(self, *options: str, image: str = IMAGE) -> Generator[Exposed, None, None]:
        """Run the program in a plain container."""
        name = f"{RUN}-bare-{next(_numbers)}"
        command = [
            "docker", "run", "-i", "--rm", f"--name={name}", f"--label={EXPOSED_LABEL}={RUN}",
            "--network=bridge", f"--dns={RESOLVER}", f"--volume={self.attack}:/attack:ro",
            "--env=SSL_CERT_FILE=/attack/ca.pem", "--user=0:0", *options, image,
            "python3", "-u", "/attack/main.py",
        ]  # fmt: skip
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as process:
            try:
                exposed = Exposed(process, name)
                assert exposed.do("status").table
                with watch_link(name) as (exposed.wire, exposed.address):
                    yield exposed
            finally:
                subprocess.run(["docker", "rm", "-fv", name], capture_output=True, check=False)
                process.kill()

    @contextlib.contextmanager
    def open_bare(self, namespace: Namespace) -> Generator[Prober, None, None]:
        """Run the program in a namespace of the laboratory, with nothing in its way."""
        program = str(self.attack / "main.py")
        process = namespace.inside(
            lambda: subprocess.Popen(
                [sys.executable, "-u", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        )
        with process:
            try:
                yield Prober(process)
            finally:
                process.kill()


def namespace_of(container: str) -> Namespace:
    """The network namespace of a running container."""
    pid = docker("inspect", "-f", "{{.State.Pid}}", container)
    return Namespace(container[:12], Path("/proc", pid, "ns", "net"))


@contextlib.contextmanager
def watch_link(container: str) -> Generator[tuple[Sniffer, str], None, None]:
    """Watch what leaves a container, and say its address."""
    (inner,) = json.loads(namespace_of(container).run("ip", "-j", "addr", "show", "dev", "eth0"))
    done = subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True)
    (outer,) = [each for each in json.loads(done.stdout) if each["ifindex"] == inner["link_index"]]
    (address,) = [each["local"] for each in inner["addr_info"] if each["family"] == "inet"]
    with open_sniffer(HERE, outer["ifname"]) as wire:
        yield wire, str(address)


def left_for(wire: Sniffer, *allowed: tuple[str, int]) -> list[Arrival]:
    """What left for other places than those allowed, as `(address, port)`; 0 is any port."""
    known = {(ip_address(address), port) for address, port in allowed}
    return [
        each
        for each in wire.packets()
        if each.address is not None
        and (each.address, each.port) not in known
        and (each.address, 0) not in known
    ]


def begun_at(wire: Sniffer, *allowed: tuple[str, int]) -> list[Arrival]:
    """What arrived for other places than those allowed, but for the rest of TCP connections.

    IPv6 is left out: the bridge has none, and the host's own end of the wire chatters.
    """
    found = left_for(wire, *allowed)
    return [
        each
        for each in found
        if isinstance(each.address, IPv4Address)
        and (each.protocol != "tcp" or each.payload[5] & _SYN)
    ]


def ask(  # noqa: PLR0913 - the parts of a question
    prober: Prober,
    name: str,
    kind: str = "A",
    *,
    server: str = RESOLVER,
    port: int = 53,
    protocol: str = "udp",
    timeout: float = 4.0,
) -> dns.message.Message | str:
    """Ask a server from inside by hand; the answer, or the error's name."""
    return send_query(
        prober,
        dns.message.make_query(name, kind).to_wire(),
        server=server,
        port=port,
        protocol=protocol,
        timeout=timeout,
    )


def send_query(  # noqa: PLR0913 - the parts of a question
    prober: Prober,
    wire: bytes,
    *,
    server: str = RESOLVER,
    port: int = 53,
    protocol: str = "udp",
    timeout: float = 4.0,
) -> dns.message.Message | str:
    """Send a message to a server from inside; the answer, or the error's name."""
    outcome = prober.do(
        "exchange_hex",
        protocol=protocol,
        address=server,
        port=port,
        data=wire.hex(),
        timeout=timeout,
    )
    if outcome.error is not None:
        return outcome.error
    data = bytes.fromhex(outcome.text)
    return dns.message.from_wire(data[2:] if protocol == "tcp" else data)


def code_of(answer: dns.message.Message | str) -> str:
    """The response code of an answer, or the error's name."""
    return answer if isinstance(answer, str) else dns.rcode.to_text(answer.rcode())


def addresses_of(answer: dns.message.Message | str) -> set[str]:
    """The addresses in an answer."""
    assert not isinstance(answer, str), answer
    lines = "\n".join(rrset.to_text() for rrset in answer.answer)
    return {line.split()[-1] for line in lines.splitlines()}
