"""The decisions of a ruleset: which packets the rules let out, and which are redirected first.

Pure: values in, lines out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.addresses import METADATA
from sandboxed_mcp.egress.ruleset_text import (
    block,
    either_version,
    hexadecimal,
    match_gateway,
    match_ports,
)
from sandboxed_mcp.egress.ruleset_values import ct_mark
from sandboxed_mcp.egress.values import AddressRule, NameRule, Unrestricted

if TYPE_CHECKING:
    from sandboxed_mcp.egress.ruleset_values import RulesetSpec, Slot

__all__ = ["DISCOVERY", "render_egress_chains", "render_redirects"]

DISCOVERY: Final = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255"
"""Neighbour discovery (RFC 4861) without router advertisements, which nobody here needs."""

_CHATTER: Final = (
    "ip protocol igmp counter drop",
    "icmpv6 type { 131, 132, 133, 143 } counter drop",  # MLD, router solicitation
    "icmp type { destination-unreachable, time-exceeded, parameter-problem } counter drop",
    "icmpv6 type { 1, 2, 3, 4 } counter drop",  # errors, such as a datagram that came too late
)
"""What the kernel says by itself: not the server's doing, so not reported; not let out either."""


def render_egress_chains(spec: RulesetSpec, slots: tuple[Slot, ...]) -> list[str]:
    """Write `egress`, the way of a packet that wants to leave, and `relay_egress`."""
    generation = hexadecimal(ct_mark(spec.generation, 0))
    body = [
        f"ct state established ct mark and 0xffff0000 == {generation} goto passed",
        "ct state invalid counter drop",
        *([f"{DISCOVERY} goto leave"] if spec.ipv6 else []),
        *_CHATTER,
        "meta l4proto != { tcp, udp } goto deny_protocol",
    ]
    if spec.mode == "observe":
        return block("chain egress", [*body, "goto deny_observed"])
    return [
        *block("chain egress", [*body, *_render_decisions(spec, slots)]),
        *block("chain relay_egress", _render_relay_decisions(spec, slots)),
    ]


def render_redirects(spec: RulesetSpec, slots: tuple[Slot, ...]) -> list[str]:
    """Write the lines that lead names to the resolver and verified TLS to the relay.

    A connection that another rule opens without verification is not led to the relay: it is
    that rule's connection.
    """
    resolver, relay = spec.gateway.resolver_port, spec.gateway.relay_port
    to_relay = f"redirect to :{relay}"
    lines = [
        f"meta l4proto {{ tcp, udp }} th dport 53 redirect to :{resolver}",
        "fib daddr type local return",
    ]
    if spec.mode == "observe":
        return [*lines, f"meta l4proto tcp {to_relay}"]
    direct = [slot for slot in slots if not _verified(slot)]
    verified = [slot for slot in slots if _verified(slot)]
    lines += [f"{match} return" for slot in direct for match in _match(slot)]
    lines += [f"{match} {to_relay}" for slot in verified for match in _match(slot)]
    return lines


def _render_decisions(spec: RulesetSpec, slots: tuple[Slot, ...]) -> list[str]:
    metadata = [slot for slot in slots if _spells_metadata(slot)]
    literals = [s for s in slots if isinstance(s.rule, AddressRule) and s not in metadata]
    direct = [s for s in slots if isinstance(s.rule, NameRule) and not _verified(s)]
    return [
        *_grant(spec, metadata),
        *either_version("{ip} daddr @never_v{version} goto deny_never"),
        f"{match_gateway(spec.gateway)} goto relay_egress",
        *_grant(spec, literals),
        *_open_all(spec),
        *_grant_names(spec, direct),
    ]


def _render_relay_decisions(spec: RulesetSpec, slots: tuple[Slot, ...]) -> list[str]:
    return _grant_names(spec, [slot for slot in slots if _verified(slot)])


def _grant_names(spec: RulesetSpec, slots: list[Slot]) -> list[str]:
    """Names that may be private, then no private address, then the other names."""
    private = [slot for slot in slots if slot.rule and slot.rule.allow_private]
    return [
        *_grant(spec, private),
        *either_version("{ip} daddr @private_v{version} goto deny_private"),
        *_grant(spec, [slot for slot in slots if slot not in private]),
        "goto deny_default",
    ]


def _open_all(spec: RulesetSpec) -> list[str]:
    if not isinstance(spec.egress, Unrestricted):
        return []
    return [f"meta mark set {hexadecimal(ct_mark(spec.generation, 1))} goto granted"]


def _grant(spec: RulesetSpec, slots: list[Slot]) -> list[str]:
    lines: list[str] = []
    for slot in slots:
        mark = hexadecimal(ct_mark(spec.generation, slot.number))
        lines += [f"{match} meta mark set {mark} goto granted" for match in _match(slot)]
    return lines


def _match(slot: Slot) -> list[str]:
    """The conditions under which a rule applies, one a line."""
    rule = slot.rule
    if rule is None:
        return []
    ports = match_ports(rule.protocol, rule.ports)
    if isinstance(rule, NameRule):
        return either_version(f"{{ip}} daddr @{rule.id}_v{{version}} {ports}")
    header = "ip6" if ":" in str(rule.network) else "ip"
    return [f"{header} daddr {rule.network} {ports}"]


def _verified(slot: Slot) -> bool:
    return isinstance(slot.rule, NameRule) and slot.rule.tls == "verify"


def _spells_metadata(slot: Slot) -> bool:
    """Whether it names one metadata address, with the leave that the grammar asks for."""
    rule = slot.rule
    if not isinstance(rule, AddressRule) or not (rule.single and rule.allow_private):
        return False
    return rule.network.network_address in METADATA
