"""The parser of one egress rule; `rules` is its face and describes the grammar.

Every refusal is a `RuleError` that shows the value and gives the reason. Nothing is guessed:
what could be read in two ways is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from sandboxed_mcp.egress.names import parse_pattern
from sandboxed_mcp.egress.networks import check_network, parse_network
from sandboxed_mcp.egress.sizes import parse_size
from sandboxed_mcp.egress.suggest import suggest
from sandboxed_mcp.egress.values import (
    NO_LIMITS,
    AddressRule,
    NameRule,
    PortRange,
    Protocol,
    Rule,
    RuleError,
    RuleLimits,
    TlsMode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["parse_ports", "parse_table", "parse_text", "split_text"]

_Value = TypeVar("_Value")

MAX_TEXT: Final = 320
MAX_PORT: Final = 65535
MAX_RATE: Final = 1_000_000

_HTTPS: Final = PortRange(443, 443)
_PORT: Final = re.compile(r"(?:0|[1-9][0-9]{0,4})\Z")
_TEXT: Final = re.compile(
    r"(?P<target>\[[^\[\]]*\]|[^\[\]/:]*(?:/[0-9]+)?)(?::(?P<ports>[^:/]*))?(?:/(?P<protocol>[^/]*))?\Z"
)
_KEYS: Final = (
    "host",
    "ports",
    "protocol",
    "tls",
    "allow_private",
    "max_connections_per_minute",
    "max_bytes",
)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A rule as written, split but not yet judged; None for what is not there."""

    target: str
    ports: PortRange | None
    protocol: Protocol | None
    tls: TlsMode | None = None
    allow_private: bool = False
    limits: RuleLimits = NO_LIMITS


def parse_text(text: str) -> Rule:
    """Read a rule from text; raises `RuleError`."""
    target, ports, protocol = split_text(text)
    return _build(_Parts(target, ports, protocol))


def split_text(text: str) -> tuple[str, PortRange | None, Protocol | None]:
    """Split `TARGET[:PORTS][/PROTOCOL]`; the target is not judged yet; raises `RuleError`."""
    _check_characters(text)
    found = _TEXT.match(text)
    if found is None:
        raise _explain_shape(text)
    ports, protocol = found["ports"], found["protocol"]
    return (
        found["target"],
        None if ports is None else parse_ports(ports),
        None if protocol is None else _parse_protocol(protocol),
    )


def parse_table(table: Mapping[object, object]) -> Rule:
    """Read a rule from a table; raises `RuleError` with the key as `setting`."""
    _check_keys(table)
    host = _read(table, "host", _parse_target)
    return _build(
        _Parts(
            target=host,
            ports=_read(table, "ports", parse_ports) if "ports" in table else None,
            protocol=_read(table, "protocol", _parse_protocol) if "protocol" in table else None,
            tls=_read(table, "tls", _parse_tls) if "tls" in table else None,
            allow_private="allow_private" in table and _read(table, "allow_private", _parse_flag),
            limits=_parse_limits(table),
        )
    )


def parse_ports(value: object) -> PortRange:
    """Read a port or a range.

    Args:
        value: `443`, `"443"` or `"8000-8100"`.

    Raises:
        RuleError: Not a port, 0, above 65535, or the range runs backwards.
    """
    fix = "write a port from 1 to 65535, or a range such as 8000-8100"
    text = _shown(value) if isinstance(value, int) else value
    if not isinstance(text, str):
        raise RuleError(f"ports {_shown(value)} is not a port or a range", fix)
    first, dash, last = text.partition("-")
    bounds = (first, last) if dash else (first, first)
    if not all(_PORT.match(bound) for bound in bounds):
        raise RuleError(f"ports {_shown(value)} is not a port or a range", fix)
    low, high = int(bounds[0]), int(bounds[1])
    if low == 0:
        raise RuleError(f"ports {_shown(value)} holds port 0", fix)
    if high > MAX_PORT:
        raise RuleError(f"ports {_shown(value)} goes beyond {MAX_PORT}", fix)
    if low > high:
        raise RuleError(f"ports {_shown(value)} runs backwards", f"write {high}-{low}")
    return PortRange(low, high)


def _build(parts: _Parts) -> Rule:
    network = parse_network(parts.target)
    if network is None:
        return _build_name(parts)
    check_network(network, parts.target, allow_private=parts.allow_private)
    if parts.tls == "verify":
        raise RuleError(
            f"rule for {parts.target!r} asks to verify TLS names, and an address has none",
            "name the host, or leave tls out",
            ".tls",
        )
    if parts.ports is None or parts.protocol is None:
        raise RuleError(
            f"rule for {parts.target!r} names an address without its port and protocol",
            "write both, such as '192.0.2.7:443/tcp'",
        )
    return AddressRule(network, parts.ports, parts.protocol, parts.allow_private, parts.limits)


def _build_name(parts: _Parts) -> NameRule:
    protocol = parts.protocol or "tcp"
    tls = parts.tls or ("verify" if parts.protocol is None else "off")
    if tls == "verify" and protocol == "udp":
        raise RuleError(
            f"rule for {parts.target!r} asks to verify TLS names over UDP",
            'write protocol = "tcp", or leave tls out',
            ".tls",
        )
    pattern = parse_pattern(parts.target, allow_private=parts.allow_private)
    ports = parts.ports or _HTTPS
    return NameRule(pattern, ports, protocol, tls, parts.allow_private, parts.limits)


def _check_characters(text: str) -> None:
    if not text:
        raise RuleError("rule is empty", "write a host such as 'api.example.com'")
    fix = "write TARGET[:PORTS][/PROTOCOL] and nothing else"
    if len(text) > MAX_TEXT:
        raise RuleError(f"rule {text[:80]!r} and so on has {len(text)} characters", fix)
    for char in text:
        if (kind := _forbidden_kind(char)) is not None:
            raise RuleError(f"rule {text!r} holds {kind} ({_code(char)})", fix)


def _forbidden_kind(char: str) -> str | None:
    if char == "\0":
        return "a NUL character"
    if char.isspace():
        return "whitespace"
    if char == "\\":
        return "a backslash"
    if char == "@":
        return "user information"
    return None if char.isprintable() else "a control or invisible character"


def _explain_shape(text: str) -> RuleError:
    """Say why a text is not even of the grammar's shape."""
    if "://" in text:
        return RuleError(f"rule {text!r} is a URL", "write the host and port alone")
    if text.count(":") > 1 and "[" not in text:
        return RuleError(
            f"rule {text!r} has more than one ':'",
            "put an IPv6 address in brackets, such as '[2001:db8::/32]:443/tcp'",
        )
    if text.startswith("[") and "]/" in text:
        return RuleError(
            f"rule {text!r} has something between its address and its port",
            "put the prefix length inside the brackets: '[2001:db8::/32]:443/tcp'",
        )
    if text.count("/") > 1:
        return RuleError(f"rule {text!r} has a path", "a rule is about a host and port alone")
    return RuleError(f"rule {text!r} is not of the grammar", "write TARGET[:PORTS][/PROTOCOL]")


def _check_keys(table: Mapping[object, object]) -> None:
    for key in table:
        if key not in _KEYS:
            raise RuleError(f"rule has the unknown key {_shown(key)}", suggest(key, _KEYS))
    if "host" not in table:
        raise RuleError("rule has no host", 'add host = "api.example.com"')


def _read(table: Mapping[object, object], key: str, parse: Callable[[object], _Value]) -> _Value:
    try:
        return parse(table[key])
    except RuleError as error:
        raise RuleError(error.problem, error.fix, f".{key}") from error


def _parse_limits(table: Mapping[object, object]) -> RuleLimits:
    rate, size = "max_connections_per_minute", "max_bytes"
    return RuleLimits(
        max_connections_per_minute=_read(table, rate, _parse_rate) if rate in table else None,
        max_bytes=_read(table, size, parse_size) if size in table else None,
    )


def _parse_target(value: object) -> str:
    if not isinstance(value, str):
        raise RuleError(f"host is {_shown(value)}", 'write a string such as "api.example.com"')
    _check_characters(value)
    found = _TEXT.match(value)
    if found is None:
        raise _explain_shape(value)
    if found["target"] != value:
        raise RuleError(
            f"host {value!r} holds more than a host",
            "in a table, ports and protocol are keys of their own",
        )
    return value


def _parse_protocol(value: object) -> Protocol:
    if value == "tcp":
        return "tcp"
    if value == "udp":
        return "udp"
    raise RuleError(f"{_shown(value)} is not a protocol", "write tcp or udp, in lower case")


def _parse_tls(value: object) -> TlsMode:
    if value == "verify":
        return "verify"
    if value == "off":
        return "off"
    raise RuleError(f"tls is {_shown(value)}", 'write "verify" or "off"')


def _parse_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise RuleError(f"allow_private is {_shown(value)}", "write true or false")


def _parse_rate(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_RATE:
        return value
    raise RuleError(
        f"max_connections_per_minute is {_shown(value)}",
        f"write a whole number from 1 to {MAX_RATE}",
    )


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(value[:80])
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 64):
        return str(value)
    return f"of type {type(value).__name__}"


def _code(char: str) -> str:
    return f"U+{ord(char):04X}"
