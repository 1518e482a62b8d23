"""What may be asked, which addresses of the answer are opened, and for how long. Pure.

A query is decided before anything goes upstream. This module never sends one, and never opens
an address: it says which rules would.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.forbidden import list_never, split_versions
from sandboxed_mcp.egress.rules import (
    Destination,
    NameRule,
    Rule,
    decide,
    matches_name,
)
from sandboxed_mcp.gateway.question import AAAA, NOERROR, NXDOMAIN, A

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandboxed_mcp.egress.addresses import IPAddress, IPNetwork
    from sandboxed_mcp.egress.ruleset_values import Mode
    from sandboxed_mcp.gateway.question import Query

__all__ = [
    "MAX_ADDRESSES",
    "MAX_ADDRESSES_PER_NAME",
    "Forward",
    "Grant",
    "NamePolicy",
    "Settled",
    "Stripped",
    "clamp_ttl",
    "decide_query",
    "grant_addresses",
]

MAX_ADDRESSES: Final = 32
"""Addresses of one answer that are opened and shown."""

MAX_ADDRESSES_PER_NAME: Final = 256
"""Addresses that are open for one name at the same time."""

MIN_LEARNED: Final = 60
MAX_LEARNED: Final = 3600
SLACK: Final = 60
"""Seconds that an address stays open after the answer that showed it has run out."""

_NEVER: Final = dict(zip((4, 6), split_versions(list_never()), strict=True))
"""What the packet filter refuses, by IP version: never shown as reachable."""

_HOST_NAME: Final = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\Z")


@dataclass(frozen=True, slots=True)
class NamePolicy:
    """The part of a policy that the resolver needs.

    Attributes:
        rules: The rules in their order; address rules name no host and are passed over.
        mode: `observe`: every name leads to a sink, nothing is asked upstream.
        forbidden: What no rule opens on this network: our own addresses, the bridge's, the host's.
        ipv6: Whether IPv6 addresses can be reached at all.
    """

    rules: tuple[Rule, ...]
    mode: Mode = "enforce"
    forbidden: tuple[IPNetwork, ...] = ()
    ipv6: bool = True


@dataclass(frozen=True, slots=True)
class Forward:
    """Ask upstream.

    Attributes:
        rules: The rules that name it; never empty.
    """

    rules: tuple[NameRule, ...]

    @property
    def wildcards(self) -> tuple[NameRule, ...]:
        """The rules whose budget the name uses; empty when some rule spells it out."""
        return self.rules if all(rule.wildcard for rule in self.rules) else ()


@dataclass(frozen=True, slots=True)
class Settled:
    """Answer at once, with no address.

    Attributes:
        code: The response code.
        denied: Why it is a denial; empty when it is none.
    """

    code: int
    denied: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """An address of an answer and the rules that open it.

    Attributes:
        address: The address.
        rules: Never empty.
    """

    address: IPAddress
    rules: tuple[NameRule, ...]


@dataclass(frozen=True, slots=True)
class Stripped:
    """An address of an answer that no rule opens.

    Attributes:
        address: The address.
        rule: Id of the rule that came closest.
        reason: Why.
    """

    address: IPAddress
    rule: str
    reason: str


def decide_query(policy: NamePolicy, query: Query) -> Forward | Settled:
    """Decide about a well-formed query, in either mode as if it were to be enforced."""
    rules = tuple(
        rule
        for rule in policy.rules
        if isinstance(rule, NameRule) and matches_name(rule, query.name)
    )
    if not rules:
        return Settled(NXDOMAIN, "no rule names it")
    if not _HOST_NAME.match(query.name):
        return Settled(NXDOMAIN, "not a host name")
    if query.type not in (A, AAAA) or (query.type == AAAA and not policy.ipv6):
        return Settled(NOERROR)
    return Forward(rules)


def grant_addresses(
    policy: NamePolicy, name: str, rules: tuple[NameRule, ...], addresses: Iterable[IPAddress]
) -> tuple[list[Grant], list[Stripped]]:
    """Sort the addresses of an answer into those that rules open, at most `MAX_ADDRESSES`.

    Returns:
        What is granted, in the answer's order, and what is stripped with the reason.
    """
    granted: list[Grant] = []
    stripped: list[Stripped] = []
    for address in dict.fromkeys(addresses):
        judged = _judge(policy, name, rules, address)
        if isinstance(judged, Stripped):
            stripped.append(judged)
        elif len(granted) < MAX_ADDRESSES:
            granted.append(judged)
    return granted, stripped


def clamp_ttl(ttl: int) -> tuple[int, int]:
    """Bound a TTL.

    Returns:
        Seconds that the answer is served for, and seconds that its addresses stay open: 60 to
        3600, and longer than served by `SLACK`.
    """
    served = max(0, min(ttl, MAX_LEARNED - SLACK))
    return served, max(MIN_LEARNED, served + SLACK)


def _judge(
    policy: NamePolicy, name: str, rules: tuple[NameRule, ...], address: IPAddress
) -> Grant | Stripped:
    if any(address in network for network in policy.forbidden):
        return Stripped(address, rules[0].id, "an address of the sandbox's own network")
    if any(address in network for network in _NEVER[address.version]):
        return Stripped(address, rules[0].id, "an address that no rule opens")
    verdicts = [(rule, decide((rule,), _destination(rule, name, address))) for rule in rules]
    opening = tuple(rule for rule, verdict in verdicts if verdict.allowed)
    if opening:
        return Grant(address, opening)
    return Stripped(address, rules[0].id, verdicts[0][1].reason)


def _destination(rule: NameRule, name: str, address: IPAddress) -> Destination:
    """What the rule is for: its own port and protocol, and the name shown in TLS."""
    return Destination(name, address, rule.ports.first, rule.protocol, name)
