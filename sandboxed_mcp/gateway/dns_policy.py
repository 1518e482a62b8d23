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
    Unrestricted,
    decide,
    rules_for_name,
)
from sandboxed_mcp.egress.ruleset_values import Learned
from sandboxed_mcp.gateway.question import AAAA, NOERROR, NXDOMAIN, A

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandboxed_mcp.egress.addresses import IPAddress, IPNetwork
    from sandboxed_mcp.egress.ruleset_values import Mode
    from sandboxed_mcp.egress.values import Egress
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
    "keep_learned",
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
        egress: The rules, of which address rules name no host and are passed over; or
            unrestricted: every name is asked for.
        mode: `observe`: every name leads to a sink, nothing is asked upstream.
        forbidden: What no rule opens on this network: our own addresses, the bridge's, the host's.
        ipv6: Whether IPv6 addresses can be reached at all.
    """

    egress: Egress
    mode: Mode = "enforce"
    forbidden: tuple[IPNetwork, ...] = ()
    ipv6: bool = True


@dataclass(frozen=True, slots=True)
class Forward:
    """Ask upstream.

    Attributes:
        rules: The rules that name it; empty only when egress is unrestricted.
    """

    rules: tuple[NameRule, ...]

    @property
    def wildcards(self) -> tuple[NameRule, ...]:
        """The rules whose budget the name uses; empty when some rule spells it out."""
        return self.rules if all(rule.wildcard for rule in self.rules) else ()

    @property
    def nearest(self) -> str:
        """Id of the first rule; empty when egress is unrestricted."""
        return self.rules[0].id if self.rules else ""


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
        rules: Empty only when egress is unrestricted.
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
    rules = rules_for_name(policy.egress, query.name)
    if not rules and not isinstance(policy.egress, Unrestricted):
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


def keep_learned(
    policy: NamePolicy, pairs: Iterable[tuple[str, IPAddress, float]]
) -> tuple[Learned, ...]:
    """Select what stays open when the policy takes over.

    Args:
        policy: The new policy.
        pairs: Name, address and the seconds that the address is open for it.

    Returns:
        What the new ruleset's sets hold from the start; the longest time of each.
    """
    seconds: dict[tuple[NameRule, IPAddress], int] = {}
    for name, address, left in pairs:
        rules = rules_for_name(policy.egress, name)
        granted, _ = grant_addresses(policy, name, rules, [address])
        for rule in (rule for grant in granted for rule in grant.rules):
            key = (rule, address)
            seconds[key] = max(seconds.get(key, 1), int(left) + 1)
    return tuple(Learned(rule, address, left) for (rule, address), left in seconds.items())


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
    verdicts = [decide((rule,), _destination(rule, name, address)) for rule in rules]
    opening = tuple(r for r, verdict in zip(rules, verdicts, strict=True) if verdict.allowed)
    nearest = rules[0].id if rules else ""
    if rules and not opening:
        return Stripped(address, nearest, verdicts[0].reason)
    if any(address in network for network in policy.forbidden):
        return Stripped(address, nearest, "an address of the sandbox's own network")
    if any(address in network for network in _NEVER[address.version]):
        return Stripped(address, nearest, "an address that no rule opens")
    return Grant(address, opening)


def _destination(rule: NameRule, name: str, address: IPAddress) -> Destination:
    """What the rule is for: its own port and protocol, and the name shown in TLS."""
    return Destination(name, address, rule.ports.first, rule.protocol, name)
