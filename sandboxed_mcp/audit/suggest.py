"""The smallest policy that covers what was observed, in TOML, for a person to edit. Pure.

A line for each destination that was used or wanted, with the evidence as a comment above it. It
is what a server asked for, not what it should get: nothing here judges that. A wildcard or
`allow_private` is never suggested. Only what the rules' own parser accepts, and writes, becomes
text outside a comment; comments are escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.audit.activity import LOOKUP, Activity, Place, Traffic
from sandboxed_mcp.egress.addresses import classify
from sandboxed_mcp.egress.rules import (
    AddressRule,
    Rule,
    RuleError,
    parse_rule,
    render_rule,
)
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from sandboxed_mcp.egress.addresses import IPAddress

__all__ = ["Suggestion", "make_suggestions", "render_suggestions"]

MAX_RULES: Final = 256
REASON_CHARS: Final = 120
NAME_CHARS: Final = 80
HTTPS: Final = 443
LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()

_SINKS: Final = ip_network("192.0.2.0/24")
"""Where names lead while observing; no destination of the server's (RFC 5737)."""

_FROM_OUTSIDE: Final = frozenset({"inbound", "injection"})


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One rule, and why.

    Attributes:
        rule: The rule.
        place: What it is for.
        traffic: The evidence.
        note: What is guessed or should be known, one clause; empty for nothing.
        asserted: Whether it is part of the policy; otherwise it stands in a comment.
    """

    rule: Rule
    place: Place
    traffic: Traffic
    note: str = ""
    asserted: bool = True


def make_suggestions(activity: Activity) -> tuple[list[Suggestion], int]:
    """The rules that cover an activity, by host.

    Returns:
        At most 256 suggestions, the busiest, and the number of destinations without one: no
        rule can name them, or there are too many.
    """
    connected = {place.host for place in activity.places if place.protocol != LOOKUP}
    made: dict[tuple[str, str, str], Suggestion] = {}
    left_out = activity.left_out
    for place, traffic in sorted(activity.places.items(), key=_rank):
        if place.protocol == LOOKUP and place.host in connected:
            continue
        try:
            found = _suggest(place, traffic)
        except RuleError:
            left_out += 1
            continue
        if len(made) < MAX_RULES:
            made.setdefault(_key(found.rule), found)
        else:
            left_out += 1
    ordered = sorted(made.values(), key=lambda one: (one.place.host, one.place.port))
    return ordered, left_out


def render_suggestions(suggestions: list[Suggestion], left_out: int, source: str) -> str:
    """A policy file.

    Args:
        suggestions: From `make_suggestions`.
        left_out: Likewise.
        source: Where the events come from, for the head.
    """
    lines = [
        f"# What was observed: {sanitize(source, NAME_CHARS)}.",
        "# Read it before you use it: it holds what the server asked for, not what it needs.",
        "",
        "egress = [",
    ]
    for one in suggestions:
        lines += [f"    # {text}" for text in _explain(one)]
        value = _render(one.rule)
        lines.append(f"    {value}," if one.asserted else f"    # {value},")
    lines.append("]")
    if left_out:
        lines += ["", f"# Without a rule, as none can name them or there are too many: {left_out}"]
    return "\n".join(lines) + "\n"


def _key(rule: Rule) -> tuple[str, str, str]:
    """What two rules of one policy may not share: two names of the server's can be one."""
    target = rule.target if isinstance(rule, AddressRule) else rule.pattern
    return target, rule.protocol, str(rule.ports)


def _rank(item: tuple[Place, Traffic]) -> tuple[int, Place]:
    place, traffic = item
    return -(traffic.allowed + traffic.denied), place


def _suggest(place: Place, traffic: Traffic) -> Suggestion:
    """Raises RuleError for what no rule can name."""
    if place.protocol == LOOKUP:
        return _suggest_lookup(place, traffic)
    if not traffic.allowed and traffic.reason in _FROM_OUTSIDE:
        raise RuleError("it came from outside", "no rule is needed")
    address = _parse_address(place.host)
    if address is not None:
        return _suggest_address(address, place, traffic)
    if place.protocol == "tcp" and not traffic.nameless:
        rule = parse_rule(f"{place.host}:{place.port}")
        if traffic.named or rule.id in traffic.rules:
            return Suggestion(rule, place, traffic)
        plain = parse_rule(f"{place.host}:{place.port}/tcp")
        if place.port == HTTPS and plain.id not in traffic.rules:
            return Suggestion(rule, place, traffic, "that it speaks TLS is assumed")
        return Suggestion(plain, place, traffic)
    rule = parse_rule(f"{place.host}:{place.port}/{place.protocol}")
    note = "it shows no TLS server name that could be verified" if traffic.nameless else ""
    return Suggestion(rule, place, traffic, note)


def _suggest_lookup(place: Place, traffic: Traffic) -> Suggestion:
    rule = parse_rule(place.host)
    if traffic.kinds and not traffic.kinds & {"A", "AAAA"}:
        return Suggestion(rule, place, traffic, "only other records than addresses", asserted=False)
    note = "it was only looked up: port 443 is assumed"
    return Suggestion(rule, place, traffic, note)


def _suggest_address(address: IPAddress, place: Place, traffic: Traffic) -> Suggestion:
    if address in _SINKS:
        raise RuleError("it stands for a name that is not known any more", "observe again")
    host = f"[{address}]" if ":" in str(address) else str(address)
    rule = parse_rule(f"{host}:{place.port}/{place.protocol}")
    if classify(address) == "private" and not traffic.allowed:
        return Suggestion(rule, place, traffic, "a private address", asserted=False)
    return Suggestion(rule, place, traffic)


def _parse_address(host: str) -> IPAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _render(rule: Rule) -> str:
    written = render_rule(rule)
    return written if written.startswith("{") else f'"{written}"'


def _explain(one: Suggestion) -> list[str]:
    traffic = one.traffic
    parts: list[str] = []
    if traffic.allowed:
        parts.append(f"allowed {_times(traffic.allowed)}")
    if traffic.denied:
        reason = sanitize(traffic.reason, REASON_CHARS)
        parts.append(f"denied {_times(traffic.denied)} ({reason})")
    if traffic.sent or traffic.received:
        parts.append(f"{traffic.sent} bytes sent, {traffic.received} received")
    lines = [f"{', '.join(parts)}; {_time(traffic.first)} to {_time(traffic.last)} UTC"]
    if isinstance(one.rule, AddressRule) and not one.note:
        lines.append("by address: no name is known")
    if traffic.private:
        shown = sanitize(", ".join(traffic.private), REASON_CHARS)
        lines.append(f"the name also leads to {shown}, which the policy before did not open")
    return [*lines, *([one.note] if one.note else [])]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _time(seconds: float) -> str:
    bounded = min(max(seconds, 0.0), LATEST)
    return datetime.fromtimestamp(bounded, UTC).strftime("%Y-%m-%d %H:%M:%S")
