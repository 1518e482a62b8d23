"""What a ruleset is rendered from, and the names that the ruleset and its users share.

The launcher and the gateway make a `RulesetSpec`; `render_ruleset` turns it into text; the
gateway then finds its sets, counters and flows again by the names and marks given here.

Marks (32 bits, network namespace local):

    packet mark of the gateway's own sockets   `Gateway.mark`, bit 30 set
    connection mark                            generation << 16 | slot
    packet mark on the way out                 `RulesetSpec.stamp`, taken off at the link

A slot says which rule a flow was let out by: 0 is the gateway's own question to a resolver, 1
to n the rules in their order. Pure; nothing here renders.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from sandboxed_mcp.egress.values import NO_LIMITS, NameRule, PortRange, Unrestricted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxed_mcp.egress.addresses import IPAddress, IPNetwork
    from sandboxed_mcp.egress.values import AddressRule, Egress, Rule, RuleLimits

__all__ = [
    "LINK_TABLE",
    "TABLE",
    "UPSTREAM_SLOT",
    "Gateway",
    "Hook",
    "Learned",
    "Mode",
    "Reason",
    "RulesetSpec",
    "Slot",
    "Upstream",
    "ct_mark",
    "list_slots",
    "name_set",
    "split_ct_mark",
]

TABLE: Final = "sandboxed_mcp"
"""The inet table that holds all of it; no other table is touched, `LINK_TABLE` excepted."""

LINK_TABLE: Final = "sandboxed_mcp_link"
"""The netdev table of the backstop at the link."""

UPSTREAM_SLOT: Final = 0
MAX_GENERATION: Final = 0x3FFF
_UPSTREAM_PORTS: Final = PortRange(20000, 24095)  # below the ephemeral ports
_OWN_MARK: Final = 0x4000_0000
_MAX_MARK: Final = 0x7FFF_FFFF  # setsockopt takes a signed int
_DEVICE: Final = re.compile(r"[A-Za-z0-9_.-]{1,15}\Z")  # IFNAMSIZ 16

Hook = Literal["output", "forward"]
Mode = Literal["enforce", "observe"]
Reason = Literal[
    "bytes",
    "connections",
    "default",
    "embedded",
    "inbound",
    "injection",
    "never",
    "observed",
    "private",
    "protocol",
    "rate",
    "relay",
]
"""Why a packet was denied; `bytes` and `rate` are followed by `:` and the rule's id."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """How the gateway's own sockets and ports are told from the server's.

    Attributes:
        mark: SO_MARK of every socket it opens to the outside; bit 30 set.
        uid: The user it runs as; a packet is the gateway's by mark and uid together.
        resolver_port: Where its resolver listens, UDP and TCP, on loopback.
        relay_port: Where its TLS relay listens, TCP, on loopback.
        upstream_ports: Source ports of its UDP questions; nothing local may send there.
    """

    mark: int = 0x4000_5347
    uid: int = 0
    resolver_port: int = 15053
    relay_port: int = 15443
    upstream_ports: PortRange = _UPSTREAM_PORTS

    def __post_init__(self) -> None:
        """Refuse a mark that a connection mark or the absence of one could equal."""
        if not _OWN_MARK <= self.mark <= _MAX_MARK:
            raise ValueError(
                f"gateway mark {self.mark:#x} is not in {_OWN_MARK:#x}..{_MAX_MARK:#x}"
            )


@dataclass(frozen=True, slots=True)
class Upstream:
    """A resolver that the gateway asks, by UDP and TCP."""

    address: IPAddress
    port: int = 53


@dataclass(frozen=True, slots=True)
class Learned:
    """An address that a name of a rule was found to have.

    Attributes:
        rule: The rule that names it.
        address: The address, judged by `classify` before it gets here.
        seconds: How long it stays open; at least 1.
    """

    rule: NameRule
    address: IPAddress
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesetSpec:
    """Everything one ruleset depends on.

    Attributes:
        egress: The rules; the empty tuple denies everything but loopback.
        generation: 1 to 16383, another one at every update: flows let out under an earlier
            one must pass the rules again.
        gateway: The gateway's own sockets and ports.
        upstreams: The resolvers it may ask; empty while there is no policy, and to observe.
        forbidden: Addresses of this link and of the host: own, bridge, neighbours, host.
        mode: `observe` lets nothing out and leads every TCP connection to the relay.
        hook: `output` when server and gateway share a network namespace; `forward` when
            the gateway routes for it.
        server_link: The device that leads to the server; for the hook `forward` alone.
        link: The device that leads out, for the backstop behind packet sockets; None leaves
            the backstop out (kernels before 5.16 have no such hook).
        stamp: A random number of at most 30 bits, secret; packets without it do not pass
            the link.
        ipv6: Whether the network has IPv6; without, neighbour discovery is dropped too.
        log_group: The NFLOG group that denied packets are reported to.
        log_rate: Reports a second for each reason; the counters count all.
        learned: What the sets hold from the start.
        used_bytes: Bytes that rules with `max_bytes` have used up before, by rule id.
        max_connections: Connections open at once through the link, and as many on loopback.
        set_size: Addresses that one rule's set may hold.
    """

    egress: Egress
    generation: int
    gateway: Gateway = field(default_factory=Gateway)
    upstreams: tuple[Upstream, ...] = ()
    forbidden: tuple[IPNetwork, ...] = ()
    mode: Mode = "enforce"
    hook: Hook = "output"
    server_link: str | None = None
    link: str | None = None
    stamp: int = 0
    ipv6: bool = False
    log_group: int = 7
    log_rate: int = 50
    learned: tuple[Learned, ...] = ()
    used_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    max_connections: int = 4096
    set_size: int = 4096

    def __post_init__(self) -> None:
        """Refuse combinations that would not hold."""
        if not 1 <= self.generation <= MAX_GENERATION:
            raise ValueError(f"generation {self.generation} is not in 1..{MAX_GENERATION}")
        if (self.hook == "forward") != (self.server_link is not None):
            raise ValueError("the hook 'forward' and a server link go together")
        if self.link is not None and not 1 <= self.stamp < _OWN_MARK:
            raise ValueError("a link needs a stamp of 1 to 30 bits")
        for name in (self.link, self.server_link):
            if name is not None and not _is_device(name):
                raise ValueError(f"{name!r} is not the name of a network device")


@dataclass(frozen=True, slots=True)
class Slot:
    """A rule with its place: what its flows are marked and its sets and counters are called.

    Attributes:
        number: 1 to n.
        id: The rule's id; `unrestricted` when there are no rules.
        rule: None when egress is unrestricted.
    """

    number: int
    id: str
    rule: Rule | None

    @property
    def limits(self) -> RuleLimits:
        """The rule's bounds."""
        return NO_LIMITS if self.rule is None else self.rule.limits

    @property
    def sent(self) -> str:
        """The counter of what left."""
        return f"{self.id}_sent"

    @property
    def received(self) -> str:
        """The counter of what came back."""
        return f"{self.id}_received"

    @property
    def quota(self) -> str:
        """The quota of both."""
        return f"{self.id}_bytes"


def list_slots(egress: Egress) -> tuple[Slot, ...]:
    """Number the rules."""
    if isinstance(egress, Unrestricted):
        return (Slot(1, egress.text, None),)
    return tuple(Slot(number, rule.id, rule) for number, rule in enumerate(egress, 1))


def name_set(rule: NameRule | AddressRule, version: int) -> str:
    """The set of a rule's learned addresses, IP version 4 or 6."""
    return f"{rule.id}_v{version}"


def ct_mark(generation: int, slot: int) -> int:
    """The connection mark of a flow that a rule let out."""
    return generation << 16 | slot


def split_ct_mark(mark: int) -> tuple[int, int]:
    """Generation and slot of a connection mark; generation 0 was never let out."""
    return mark >> 16, mark & 0xFFFF


def _is_device(name: str) -> bool:
    return _DEVICE.match(name) is not None
