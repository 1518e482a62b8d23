"""Egress rules: text or table -> frozen rule -> text, and the decision for a destination.

The grammar, `TARGET[:PORTS][/PROTOCOL]`:

    api.example.com            TCP 443, the TLS server name verified
    *.example.com:443          one or more labels below, not example.com itself
    db.example.com:5432/tcp    any protocol over TCP: by learned address, no TLS check
    time.example.com:123/udp
    10.2.0.0/16:5432/tcp       a network; private ones may be named, /8 is the widest
    [2001:db8::/32]:443/tcp    IPv6 in brackets, /32 is the widest
    192.0.2.7:8000-8100/tcp    one address, a range of ports

or a table with `host`, `ports`, `protocol`, `tls`, `allow_private`,
`max_connections_per_minute` and `max_bytes`. Without a protocol a name is verified; with one it
is not, unless a table says `tls = "verify"`. An address rule always spells out port and
protocol, since an address has no name to verify.

Whatever is not in the grammar is refused with the reason. This module and the ones it draws on
use the standard library alone (`idna` for Unicode names): no I/O, no clock, no pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from sandboxed_mcp.egress.names import canonical_name, matches_name
from sandboxed_mcp.egress.parsing import parse_table, parse_text
from sandboxed_mcp.egress.values import (
    NO_LIMITS,
    UNRESTRICTED,
    AddressRule,
    Destination,
    Egress,
    NameRule,
    PortRange,
    Protocol,
    Rule,
    RuleError,
    RuleLimits,
    TlsMode,
    Unrestricted,
    Verdict,
)
from sandboxed_mcp.egress.verdict import decide, parse_destination, rules_for_name

__all__ = [
    "UNRESTRICTED",
    "AddressRule",
    "Destination",
    "Egress",
    "NameRule",
    "PortRange",
    "Protocol",
    "Rule",
    "RuleError",
    "RuleLimits",
    "TlsMode",
    "Unrestricted",
    "Verdict",
    "canonical_name",
    "decide",
    "matches_name",
    "parse_destination",
    "parse_egress",
    "parse_rule",
    "render_egress",
    "render_rule",
    "render_rule_value",
    "rules_for_name",
]

MAX_RULES: Final = 256


def parse_rule(value: object) -> Rule:
    """Read one rule.

    Args:
        value: A string of the grammar above, or a table of the same.

    Returns:
        The rule, canonical: two spellings of one rule are equal.

    Raises:
        RuleError: It is refused; `problem` holds the value and the exact reason.
    """
    if isinstance(value, str):
        return parse_text(value)
    if isinstance(value, Mapping):
        return parse_table(cast("Mapping[object, object]", value))
    raise RuleError(
        f"rule is of type {type(value).__name__}",
        'write a string such as "api.example.com:443" or a table with host',
    )


def parse_egress(value: object) -> Egress:
    """Read a whole `egress` setting.

    Args:
        value: The word `unrestricted`, or a list of rules; the empty list is no network.

    Returns:
        `UNRESTRICTED` or the rules in their order.

    Raises:
        RuleError: One of them is refused, two overlap, or there are more than 256.
    """
    if isinstance(value, Unrestricted) or value == UNRESTRICTED.text:
        return UNRESTRICTED
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RuleError(
            f"egress is {_shown(value)}",
            'write a list of rules, [] for no network, or the word "unrestricted"',
        )
    listed = cast("Sequence[object]", value)
    if len(listed) > MAX_RULES:
        raise RuleError(f"egress has {len(listed)} rules", f"write at most {MAX_RULES}")
    rules: list[Rule] = []
    for index, item in enumerate(listed):
        rules.append(_parse_item(index, item, rules))
    return tuple(rules)


def render_rule(rule: Rule) -> str:
    """Write a rule as TOML would hold it, without the quotes of a plain string.

    Returns:
        The text of the grammar, such as `api.example.com:443`; or an inline table when the
        rule says more than text can.
    """
    value = render_rule_value(rule)
    if isinstance(value, str):
        return value
    pairs = ", ".join(f"{key} = {_render_toml(item)}" for key, item in value.items())
    return f"{{ {pairs} }}"


def render_rule_value(rule: Rule) -> str | dict[str, str | int]:
    """Write a rule as a value that JSON and TOML hold and `parse_rule` reads back equal."""
    if not rule.allow_private and rule.limits == NO_LIMITS:
        return rule.text
    table: dict[str, str | int] = {
        "host": rule.pattern if isinstance(rule, NameRule) else rule.target,
        "ports": str(rule.ports),
        "protocol": rule.protocol,
    }
    if isinstance(rule, NameRule):
        table["tls"] = rule.tls
    if rule.allow_private:
        table["allow_private"] = True
    if rule.limits.max_connections_per_minute is not None:
        table["max_connections_per_minute"] = rule.limits.max_connections_per_minute
    if rule.limits.max_bytes is not None:
        table["max_bytes"] = rule.limits.max_bytes
    return table


def render_egress(egress: Egress) -> str | list[str | dict[str, str | int]]:
    """Write a whole `egress` setting as a value that `parse_egress` reads back equal."""
    if isinstance(egress, Unrestricted):
        return egress.text
    return [render_rule_value(rule) for rule in egress]


def _parse_item(index: int, item: object, earlier: list[Rule]) -> Rule:
    try:
        rule = item if isinstance(item, NameRule | AddressRule) else parse_rule(item)
    except RuleError as error:
        raise RuleError(error.problem, error.fix, f"[{index}]{error.setting}") from error
    for other in earlier:
        if _overlap(rule, other):
            raise RuleError(
                f"rule '{rule.text}' opens the same ports as '{other.text}' before it",
                "keep one of them",
                f"[{index}]",
            )
    return rule


def _overlap(rule: Rule, other: Rule) -> bool:
    return (
        rule.protocol == other.protocol
        and rule.ports.overlaps(other.ports)
        and _target(rule) == _target(other)
    )


def _target(rule: Rule) -> str:
    return rule.pattern if isinstance(rule, NameRule) else rule.target


def _render_toml(value: str | int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else f'"{value}"'


def _shown(value: object) -> str:
    return repr(value)[:80] if isinstance(value, str) else f"of type {type(value).__name__}"
