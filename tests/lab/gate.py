"""A ruleset in force in a sandbox's namespace, without the gateway's process.

The test plays the gateway: it loads rulesets, opens addresses, reads denials, and makes the
gateway's marked sockets. For tests of the packet filter alone.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import time
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar

from sandboxed_mcp.egress.rules import NameRule, parse_egress
from sandboxed_mcp.egress.ruleset import render_ruleset
from sandboxed_mcp.egress.ruleset_values import Learned, RulesetSpec, Upstream
from sandboxed_mcp.gateway.conntrack import FLOW_GROUPS, Flow, FlowListener, end_flow, list_flows
from sandboxed_mcp.gateway.netlink import NetlinkSocket
from sandboxed_mcp.gateway.nflog import DeniedListener, DeniedPacket
from sandboxed_mcp.gateway.nft import load_ruleset
from sandboxed_mcp.gateway.sets import Count, LearnedSets, read_counts
from tests.lab.internet import LINK_V4, LINK_V6

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.lab.internet import Pod

__all__ = ["UPSTREAM", "Gate", "open_gate"]

_Result = TypeVar("_Result")

UPSTREAM = "198.51.100.53"
_SO_MARK = 36


class Gate:
    """The packet filter of one sandbox."""

    def __init__(self, pod: Pod, spec: RulesetSpec, stack: contextlib.ExitStack) -> None:
        """Put a ruleset in force; the sockets close with the stack."""
        self.pod = pod
        self.spec = spec
        self._inside(lambda: load_ruleset(render_ruleset(spec, first=True)))
        self.netlink = stack.enter_context(self._inside(NetlinkSocket))
        self.sets = LearnedSets(self.netlink)
        log = stack.enter_context(self._inside(NetlinkSocket))
        self.denied = DeniedListener(log, spec.log_group)
        flows = stack.enter_context(self._inside(lambda: NetlinkSocket(FLOW_GROUPS)))
        self.flows = FlowListener(flows)
        self._stack = stack

    def apply(self, egress: object, **changes: Any) -> None:
        """Replace the policy by the next generation."""
        self.spec = replace(
            self.spec,
            egress=parse_egress(egress),
            generation=self.spec.generation + 1,
            **changes,
        )
        self._inside(lambda: load_ruleset(render_ruleset(self.spec)))

    def rule(self, number: int = 0) -> NameRule:
        """A name rule of the policy in force."""
        assert isinstance(self.spec.egress, tuple)
        rule = self.spec.egress[number]
        assert isinstance(rule, NameRule)
        return rule

    def learn(self, *addresses: str, rule: int = 0, seconds: int = 60) -> None:
        """Open addresses for a name rule."""
        self.sets.open(self.learned(*addresses, rule=rule, seconds=seconds))

    def learned(self, *addresses: str, rule: int = 0, seconds: int = 60) -> tuple[Learned, ...]:
        """Addresses of a name rule, as values."""
        named = self.rule(rule)
        return tuple(Learned(named, ip_address(each), seconds) for each in addresses)

    def counts(self) -> dict[str, Count]:
        """The counters now."""
        return read_counts(self.netlink)

    def list_flows(self) -> list[Flow]:
        """The flows that are open now."""
        return list_flows(self.netlink)

    def end_flow(self, flow: Flow) -> bool:
        """Forget a flow."""
        return end_flow(self.netlink, flow)

    def wait_denied(
        self, reason: str, address: str | None = None, *, within: float = 3.0
    ) -> DeniedPacket:
        """Wait for the report of a packet that was denied."""
        deadline = time.monotonic() + within
        seen: list[DeniedPacket] = []
        while time.monotonic() < deadline:
            select.select([self.denied], [], [], 0.1)
            for packet in self.denied.receive():
                seen.append(packet)
                if packet.reason == reason and address in (None, str(packet.address)):
                    return packet
        raise AssertionError(f"no denial '{reason}' of {address}; reported: {seen}")

    def connect(self, protocol: str, address: str, port: int, *, mark: bool = True) -> str:
        """Connect with a socket as the gateway makes them, and exchange a word."""

        def work() -> str:
            with _connected(self.spec, protocol, address, port, mark=mark) as made:
                made.sendall(b"gateway")
                return made.recv(4096).decode()

        return self._inside(work)

    def hold(self, protocol: str, address: str, port: int) -> socket.socket:
        """Keep a connected socket of the gateway's."""
        made = self._inside(lambda: _connected(self.spec, protocol, address, port, mark=True))
        return self._stack.enter_context(made)

    def _inside(self, work: Callable[[], _Result]) -> _Result:
        return self.pod.namespace.inside(work)


def _connected(
    spec: RulesetSpec, protocol: str, address: str, port: int, *, mark: bool
) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    made = socket.socket(family, kind)
    try:
        made.settimeout(2)
        if mark:
            made.setsockopt(socket.SOL_SOCKET, _SO_MARK, spec.gateway.mark)
        if protocol == "udp":
            made.bind(("", spec.gateway.upstream_ports.first + secrets.randbelow(4096)))
        made.connect((address, port))
    except OSError:
        made.close()
        raise
    return made


@contextlib.contextmanager
def open_gate(
    pod: Pod,
    egress: object,
    **more: Any,
) -> Generator[Gate, None, None]:
    """Put a policy in force in a sandbox's namespace.

    Args:
        pod: The sandbox.
        egress: As in a policy.
        more: Fields of `RulesetSpec` that differ from: one upstream resolver, the link and
            its addresses forbidden, the backstop on, IPv6.
    """
    defaults: dict[str, Any] = {
        "generation": 1,
        "upstreams": (Upstream(ip_address(UPSTREAM)),),
        "forbidden": (LINK_V4, LINK_V6),
        "link": "eth0",
        "stamp": 1 + secrets.randbelow(0x3FFF_FFFE),
        "ipv6": True,
    }
    spec = RulesetSpec(egress=parse_egress(egress), **{**defaults, **more})
    with contextlib.ExitStack() as stack:
        yield Gate(pod, spec, stack)
