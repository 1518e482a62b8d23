"""What the gateway reports: one frozen type an event.

The gateway writes events as lines to its stdout (`event_lines` has the format), the host side
reads them back and adds the time, the server and the launch. Pure: no clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

__all__ = [
    "EVENT_TYPES",
    "CanaryChecked",
    "ConnectionClosed",
    "ConnectionOpened",
    "Denied",
    "EgressEvent",
    "EventsSuppressed",
    "GatewayArmed",
    "GatewayFailed",
    "GatewayReady",
    "NameResolved",
    "PolicyApplied",
    "PolicyRefused",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressEvent:
    """Something that the gateway saw or did."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayArmed(EgressEvent):
    """The deny-all ruleset stands and no policy is applied yet.

    Attributes:
        ipv6: Whether the network has IPv6.
        backstop: Whether the kernel takes the rules at the link, behind packet sockets.
    """

    kind: ClassVar[str] = "armed"

    ipv6: bool
    backstop: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReady(EgressEvent):
    """The policy is in force and both probes agree: the server may start.

    Attributes:
        generation: Of the policy.
        resolvers: The upstream resolvers.
    """

    kind: ClassVar[str] = "ready"

    generation: int
    resolvers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFailed(EgressEvent):
    """The gateway cannot keep its promise and exits; the server has no network from here on.

    Attributes:
        reason: One sentence.
    """

    kind: ClassVar[str] = "failed"

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyApplied(EgressEvent):
    """A policy is in force.

    Attributes:
        generation: Counts the policies of this sandbox, from 1.
        mode: `enforce` or `observe`.
        rules: How many rules it has.
        ended: Open connections that it does not allow any more, and that were ended.
    """

    kind: ClassVar[str] = "policy"

    generation: int
    mode: str
    rules: int
    ended: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRefused(EgressEvent):
    """An update was not applied; the policy before it is still in force.

    Attributes:
        generation: Of the refused policy; 0 when its line did not even tell.
        reason: Why, with the setting.
    """

    kind: ClassVar[str] = "policy_refused"

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryChecked(EgressEvent):
    """The regular probe changed its mind, or ran for the first time.

    Attributes:
        passed: Whether what must be open is open and what must be shut is shut.
        detail: Which probe failed; empty when none did.
    """

    kind: ClassVar[str] = "canary"

    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameResolved(EgressEvent):
    """A name that a rule names was resolved and its addresses were opened.

    Attributes:
        name: Canonical, as asked.
        query_type: `A` or `AAAA`.
        rules: Ids of the rules that name it.
        addresses: What was opened and answered; empty when the name has none of that kind.
        aliases: Targets of the CNAME chain, in order.
        ttl: Seconds, as answered.
        count: How many lookups this event stands for.
    """

    kind: ClassVar[str] = "dns"

    name: str
    query_type: str
    rules: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    ttl: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOpened(EgressEvent):
    """A connection was let through.

    Attributes:
        rule: Id of the rule.
        name: Host name: verified by TLS for a verified rule, else the one that was looked up;
            empty for an address rule.
        address: Where it goes.
        port: 1 to 65535.
        protocol: `tcp` or `udp`.
        ech: Whether its ClientHello held an encrypted one; `name` is then the outer name.
        count: How many connections this event stands for.
    """

    kind: ClassVar[str] = "connect"

    rule: str
    name: str = ""
    address: str
    port: int
    protocol: str = "tcp"
    ech: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed(EgressEvent):
    """A connection ended.

    Attributes:
        rule: Id of the rule.
        name: As when it was opened.
        address: Where it went.
        port: 1 to 65535.
        protocol: `tcp` or `udp`.
        sent: Bytes from the server to the outside.
        received: Bytes from the outside to the server.
        seconds: How long it was open.
        reason: `closed`, or why the gateway ended it.
    """

    kind: ClassVar[str] = "close"

    rule: str
    name: str = ""
    address: str
    port: int
    protocol: str = "tcp"
    sent: int
    received: int
    seconds: float
    reason: str = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied(EgressEvent):
    """Something was denied.

    Attributes:
        layer: Who denied it: `dns`, `tls` or `packet`.
        reason: Why, a few words.
        name: The host name, when known: as asked for, or as the ClientHello shows it.
        query_type: Of a DNS query, such as `TXT`.
        address: Where a packet or connection wanted to go.
        port: Its port; 0 when it has none.
        protocol: `tcp`, `udp`, `icmp`, or the protocol's number.
        rule: Id of the rule that came closest, if any.
        count: How many equal denials this event stands for.
    """

    kind: ClassVar[str] = "deny"

    layer: str
    reason: str
    name: str = ""
    query_type: str = ""
    address: str = ""
    port: int = 0
    protocol: str = ""
    rule: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsSuppressed(EgressEvent):
    """Events came faster than they may be reported; these are only counted.

    Attributes:
        of: Kind of the suppressed events, such as `deny`.
        count: How many.
    """

    kind: ClassVar[str] = "suppressed"

    of: str
    count: int


EVENT_TYPES: Final[dict[str, type[EgressEvent]]] = {
    each.kind: each
    for each in (
        GatewayArmed,
        GatewayReady,
        GatewayFailed,
        PolicyApplied,
        PolicyRefused,
        CanaryChecked,
        NameResolved,
        ConnectionOpened,
        ConnectionClosed,
        Denied,
        EventsSuppressed,
    )
}
"""Every event by the word that its line carries."""
