"""The chains in which a packet's way ends: let out, denied, or turned away at a bound.

Pure: values in, lines out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.ruleset_text import block, hexadecimal
from sandboxed_mcp.egress.ruleset_values import ct_mark

if TYPE_CHECKING:
    from sandboxed_mcp.egress.ruleset_values import RulesetSpec, Slot

__all__ = ["render_deny_chains", "render_grant_chains", "render_limit_chains"]

_REFUSED: Final = (
    "connections",
    "default",
    "embedded",
    "never",
    "observed",
    "private",
    "protocol",
    "relay",
)
_DROPPED: Final = ("inbound", "injection")
_HEAD_BYTES: Final = 96  # of a denied packet: both IP headers' fields and the ports


def render_deny_chains(spec: RulesetSpec, slots: tuple[Slot, ...]) -> list[str]:
    """Write a chain `deny_REASON` for each reason, and for each rule with a bound.

    Each counts (counter `denied_REASON`), reports at a bounded rate and refuses, so that a
    program fails fast; what came in from outside or at the gateway's own ports is dropped.
    """
    lines: list[str] = []
    for reason in _REFUSED:
        lines += _render_deny(spec, f"deny_{reason}", reason, "goto refuse")
    for reason in _DROPPED:
        lines += _render_deny(spec, f"deny_{reason}", reason, "drop")
    for slot in slots:
        if slot.limits.max_connections_per_minute is not None:
            lines += _render_deny(spec, f"deny_rate_{slot.id}", f"rate:{slot.id}", "goto refuse")
        if slot.limits.max_bytes is not None:
            lines += _render_deny(spec, f"deny_bytes_{slot.id}", f"bytes:{slot.id}", "goto refuse")
    return [*lines, *block("chain refuse", _refusals())]


def render_limit_chains(spec: RulesetSpec, slots: tuple[Slot, ...]) -> list[str]:
    """Write a chain `limit_ID` for each rule with a bound on new connections.

    A token bucket: up to five above the bound pass in the worst minute.
    """
    del spec
    lines: list[str] = []
    for slot in slots:
        rate = slot.limits.max_connections_per_minute
        if rate is not None:
            bound = f"limit rate over {rate}/minute burst {min(rate, 5)} packets"
            lines += block(f"chain limit_{slot.id}", [f"{bound} goto deny_rate_{slot.id}"])
    return lines


def render_grant_chains(spec: RulesetSpec, slots: tuple[Slot, ...]) -> list[str]:
    """Write `granted` (a rule applies), `passed` (out), `leave` (stamped) and `answered` (in).

    A flow is new while its connection mark is 0: unlike `ct state new` that also holds for a
    UDP flow without an answer, and it spares flows that an earlier generation let out.
    """
    granted = [f"ct mark 0 ct count over {spec.max_connections} goto deny_connections"]
    granted += [
        f"ct mark 0 meta mark {_mark(spec, slot)} jump limit_{slot.id}"
        for slot in slots
        if slot.limits.max_connections_per_minute is not None
    ]
    granted += ["ct mark set meta mark", "goto passed"]
    passed = [*_account(spec, slots, "sent"), "goto leave"]
    answered = [*_account(spec, slots, "received"), "accept"]
    stamp = [] if spec.link is None else [f"meta mark set {hexadecimal(spec.stamp)}"]
    return [
        *block("chain granted", granted),
        *block("chain passed", passed),
        *block("chain leave", [*stamp, "accept"]),
        *block("chain answered", answered),
    ]


def _render_deny(spec: RulesetSpec, chain: str, reason: str, end: str) -> list[str]:
    report = (
        f"limit rate {spec.log_rate}/second burst {2 * spec.log_rate} packets"
        f' log prefix "{reason}" group {spec.log_group} snaplen {_HEAD_BYTES}'
    )
    counter = f"denied_{chain.removeprefix('deny_')}"
    return [
        f"counter {counter} {{ }}",
        *block(f"chain {chain}", [f'counter name "{counter}"', report, end]),
    ]


def _refusals() -> list[str]:
    """TCP is reset, so that the program fails at once; the rest hears that it is not allowed.

    Not an ICMP error for TCP: one that answers a SYN while the program still holds the socket
    is taken for a passing one, always over IPv6 and at times over IPv4, and the program waits
    a second for the next try.
    """
    return [
        "meta l4proto tcp reject with tcp reset",
        "reject with icmpx type admin-prohibited",
    ]


def _account(spec: RulesetSpec, slots: tuple[Slot, ...], direction: str) -> list[str]:
    lines = [
        f'ct mark {_mark(spec, slot)} quota name "{slot.quota}" goto deny_bytes_{slot.id}'
        for slot in slots
        if slot.limits.max_bytes is not None
    ]
    counters = ", ".join(
        f'{_mark(spec, slot)} : "{slot.sent if direction == "sent" else slot.received}"'
        for slot in slots
    )
    return [*lines, f"counter name ct mark map {{ {counters} }}"] if counters else lines


def _mark(spec: RulesetSpec, slot: Slot) -> str:
    return hexadecimal(ct_mark(spec.generation, slot.number))
