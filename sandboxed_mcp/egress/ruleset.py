"""The packet filter of a sandbox: `RulesetSpec` -> the text of one `nft -f -` transaction.

The text replaces our own tables as a whole or, when any line is refused, changes nothing. A
packet that leaves takes this way, and the first that applies decides:

    1. the gateway's question to a resolver (mark and uid together, that address and port)
    2. the engine's embedded resolver and the relay spoken to directly: denied
    3. loopback, redirected packets included: accepted
    4. a flow that the current generation of rules let out: accepted
    5. invalid: dropped; neither TCP nor UDP: denied (neighbour discovery excepted)
    6. a metadata address that a rule spells out: accepted; `never` and the link: denied
    7. the relay, to addresses of verified rules: accepted
    8. address rules, then names that may be private: accepted; private: denied
    9. names: accepted; the rest: denied

Before all that, port 53 is redirected to the resolver whatever the address, and TCP to an
address learned for a verified rule to the relay, unless another rule opens that address and
port without verification. What comes in is let in only as the answer to what went out.

`unrestricted` opens every address, private ones included, that is not in 6 for TCP and UDP.
Denied packets are counted, reported to NFLOG at a bounded rate, then rejected.

Pure: it reads no clock, runs no `nft` and knows no interface but those it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.forbidden import list_never, list_private, split_versions
from sandboxed_mcp.egress.ruleset_chains import (
    render_deny_chains,
    render_grant_chains,
    render_limit_chains,
)
from sandboxed_mcp.egress.ruleset_egress import render_egress_chains
from sandboxed_mcp.egress.ruleset_hooks import render_hooks, render_link
from sandboxed_mcp.egress.ruleset_text import block
from sandboxed_mcp.egress.ruleset_values import LINK_TABLE, TABLE, list_slots, name_set
from sandboxed_mcp.egress.values import AddressRule, NameRule, RuleError

if TYPE_CHECKING:
    from sandboxed_mcp.egress.addresses import IPNetwork
    from sandboxed_mcp.egress.ruleset_values import RulesetSpec, Slot

__all__ = ["render_ruleset"]

# `ct bytes` in any chain, and nothing jumps to this one, makes the kernel count the bytes of
# each flow: nf_conntrack_acct cannot be written where /proc/sys is read-only.
_SWITCH_ACCOUNTING: Final = "ct bytes 0 return"


def render_ruleset(spec: RulesetSpec, *, first: bool = False) -> str:
    """Write the whole ruleset.

    Args:
        spec: What it depends on.
        first: For a namespace that has none yet: refused by the kernel where one is found,
            and 10 ms faster, since `nft` waits for what it replaced to be freed.

    Returns:
        Text for the standard input of one `nft -f -`.

    Raises:
        RuleError: An address rule lies within `spec.forbidden` and could never be honoured.
    """
    _check_address_rules(spec)
    slots = list_slots(spec.egress)
    body = [
        *_render_objects(spec, slots),
        *render_deny_chains(spec, slots),
        *render_limit_chains(spec, slots),
        *render_grant_chains(spec, slots),
        *render_egress_chains(spec, slots),
        *render_hooks(spec, slots),
        *block("chain accounting", [_SWITCH_ACCOUNTING]),
    ]
    table = block(f"table inet {TABLE}", body)
    link = render_link(spec)
    heads = [
        _render_head(f"inet {TABLE}", first=first),
        _render_head(f"netdev {LINK_TABLE}", first=first) if link or not first else [],
    ]
    return "\n".join([*heads[0], *heads[1], *table, *link, ""])


def _render_head(table: str, *, first: bool) -> list[str]:
    return [f"create table {table}"] if first else [f"add table {table}", f"delete table {table}"]


def _check_address_rules(spec: RulesetSpec) -> None:
    for slot in list_slots(spec.egress):
        rule = slot.rule
        if not isinstance(rule, AddressRule):
            continue
        if any(_contains(network, rule.network) for network in spec.forbidden):
            raise RuleError(
                f"rule '{rule.text}' names an address of this host or of the sandbox's link",
                "name an address that does not belong to the host or a neighbour",
                f"[{slot.number - 1}]",
            )


def _contains(outer: IPNetwork, inner: IPNetwork) -> bool:
    return (
        outer.version == inner.version
        and outer.prefixlen <= inner.prefixlen
        and inner.network_address in outer
    )


def _render_objects(spec: RulesetSpec, slots: tuple[Slot, ...]) -> list[str]:
    learned = _group_learned(spec)
    lines: list[str] = []
    for slot in slots:
        lines += [f"counter {slot.sent} {{ }}", f"counter {slot.received} {{ }}"]
        if slot.limits.max_bytes is not None:
            used = spec.used_bytes.get(slot.id, 0)
            quota = f"over {slot.limits.max_bytes} bytes used {used} bytes"
            lines += block(f"quota {slot.quota}", [quota])
        if isinstance(slot.rule, NameRule):
            lines += _render_learned_set(spec, slot.rule, 4, learned)
            lines += _render_learned_set(spec, slot.rule, 6, learned)
    for name, networks in (
        ("never", (*list_never(), *spec.forbidden)),
        ("private", list_private()),
    ):
        v4, v6 = split_versions(networks)
        lines += _render_network_set(f"{name}_v4", "ipv4_addr", v4)
        lines += _render_network_set(f"{name}_v6", "ipv6_addr", v6)
    return lines


def _group_learned(spec: RulesetSpec) -> dict[str, list[str]]:
    """The elements that each set starts with; of two for one address the later one counts."""
    entries = {(name_set(e.rule, e.address.version), e.address): e.seconds for e in spec.learned}
    groups: dict[str, list[str]] = {}
    for (name, address), seconds in entries.items():
        groups.setdefault(name, []).append(f"{address} timeout {seconds}s")
    return groups


def _render_learned_set(
    spec: RulesetSpec, rule: NameRule, version: int, learned: dict[str, list[str]]
) -> list[str]:
    name = name_set(rule, version)
    body = [f"type ipv{version}_addr", "flags timeout", f"size {spec.set_size}"]
    if name in learned:
        body.append(f"elements = {{ {', '.join(learned[name])} }}")
    return block(f"set {name}", body)


def _render_network_set(name: str, kind: str, networks: tuple[IPNetwork, ...]) -> list[str]:
    elements = ", ".join(str(network) for network in networks)
    body = [f"type {kind}", "flags interval", "auto-merge", f"elements = {{ {elements} }}"]
    return block(f"set {name}", body)
