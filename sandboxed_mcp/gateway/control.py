"""The control lines that the launcher writes to the gateway's stdin: JSON -> command. Pure.

    {"control": "policy", "generation": 1, "mode": "enforce", "egress": ["api.example.com:443"],
     "dns": ["198.51.100.53"], "forbidden": ["172.17.0.0/16"], "gateway": {"relay_port": 15443}}
    {"control": "update", "generation": 2, ...}      a whole policy again, without "gateway"
    {"control": "stop"}

`egress` is what `render_egress` writes. `mode` is `enforce` unless written; `dns` is the
engine's resolv.conf unless written; `forbidden` adds networks of the host to those that the
gateway finds at its link. An unknown key, a wrong type or a refused rule is an error: nothing
of the line is used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final, cast

from sandboxed_mcp.egress.addresses import classify
from sandboxed_mcp.egress.parsing import parse_ports
from sandboxed_mcp.egress.rules import RuleError, parse_egress
from sandboxed_mcp.egress.ruleset_values import MAX_GENERATION, Gateway, Upstream

if TYPE_CHECKING:
    from sandboxed_mcp.egress.addresses import IPNetwork
    from sandboxed_mcp.egress.ruleset_values import Mode
    from sandboxed_mcp.egress.values import Egress

__all__ = [
    "MAX_LINE",
    "Command",
    "ControlError",
    "Policy",
    "Stop",
    "Update",
    "parse_command",
    "parse_upstream",
]

MAX_LINE: Final = 1 << 20
"""Bytes of one control line: 256 rules take far less."""

_COMMON: Final = frozenset({"control", "generation", "mode", "egress", "dns", "forbidden"})
_GATEWAY_NUMBERS: Final = {
    "mark": 0xFFFF_FFFF,
    "uid": 0xFFFF_FFFE,
    "resolver_port": 0xFFFF,
    "relay_port": 0xFFFF,
}


class ControlError(ValueError):
    """A control line that is refused; the message names the key.

    Attributes:
        generation: Of the policy in the line; 0 when it has none that can be read.
    """

    def __init__(self, message: str, generation: int = 0) -> None:
        """Keep the generation, so that the launcher knows which policy is meant."""
        super().__init__(message)
        self.generation = generation


@dataclass(frozen=True, slots=True)
class Policy:
    """The first policy of a sandbox.

    Attributes:
        generation: At least 1 and below `MAX_GENERATION`, which the deny-all ruleset has.
        egress: What may be reached.
        mode: `enforce` or `observe`.
        dns: The resolvers to ask; empty for the engine's.
        forbidden: Networks that no rule opens, besides those at the link.
        gateway: Marks and ports.
    """

    generation: int
    egress: Egress
    mode: Mode = "enforce"
    dns: tuple[Upstream, ...] = ()
    forbidden: tuple[IPNetwork, ...] = ()
    gateway: Gateway = field(default_factory=Gateway)


@dataclass(frozen=True, slots=True)
class Update:
    """A policy in place of the one in force; its `gateway` means nothing."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class Stop:
    """Shut everything and exit."""


Command = Policy | Update | Stop


def parse_command(line: bytes) -> Command:
    """Read one line, with or without its newline.

    Raises:
        ControlError: It is refused; what the gateway does stays as it is.
    """
    values = _load(line)
    match values.get("control"):
        case "policy":
            return _parse_policy(values, _COMMON | {"gateway"})
        case "update":
            return Update(_parse_policy(values, _COMMON))
        case "stop":
            _check_keys(values, frozenset({"control"}))
            return Stop()
        case _:
            raise ControlError("control: write policy, update or stop")


def _load(line: bytes) -> dict[str, object]:
    try:
        loaded: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ControlError("the line is not JSON") from error
    if not isinstance(loaded, dict):
        raise ControlError("the line is not an object")
    return cast("dict[str, object]", loaded)


def _parse_policy(values: dict[str, object], known: frozenset[str]) -> Policy:
    generation = _integer(values, "generation", 1, MAX_GENERATION - 1)
    try:
        _check_keys(values, known)
        return Policy(
            generation=generation,
            egress=parse_egress(values.get("egress")),
            mode=_parse_mode(values.get("mode", "enforce")),
            dns=tuple(parse_upstream(text) for text in _texts(values, "dns")),
            forbidden=tuple(_parse_network(text) for text in _texts(values, "forbidden")),
            gateway=_parse_gateway(values.get("gateway", {})),
        )
    except RuleError as error:
        raise ControlError(f"egress{error.setting}: {error}", generation) from error
    except ControlError as error:
        raise ControlError(str(error), generation) from error


def _check_keys(values: dict[str, object], known: frozenset[str]) -> None:
    for key in values:
        if key not in known:
            raise ControlError(f"{key[:40]!r} is not a key of this line")


def _parse_mode(value: object) -> Mode:
    match value:
        case "enforce":
            return "enforce"
        case "observe":
            return "observe"
        case _:
            raise ControlError("mode: write enforce or observe")


def parse_upstream(text: str) -> Upstream:
    """Read a resolver: `ADDRESS` or `ADDRESS:PORT`, IPv6 in brackets when there is a port.

    Raises:
        ControlError: It is none, or it is local: loopback, link-local, multicast.
    """
    host, port = text, "53"
    if text.startswith("[") or text.count(":") == 1:
        host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ControlError(f"dns: {text[:80]!r} has no port from 1 to 65535")
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError as error:
        raise ControlError(f"dns: {text[:80]!r} is not an address") from error
    if classify(address) == "never":
        raise ControlError(f"dns: {text[:80]!r} cannot be asked from a container")
    return Upstream(address, int(port))


def _parse_network(text: str) -> IPNetwork:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ControlError(f"forbidden: {text[:80]!r} is not a network") from error


def _parse_gateway(value: object) -> Gateway:
    if not isinstance(value, dict):
        raise ControlError("gateway: write an object")
    values = cast("dict[str, object]", value)
    _check_keys(values, frozenset(each.name for each in fields(Gateway)))
    changes: dict[str, object] = {
        key: _integer(values, key, 1 if key.endswith("_port") else 0, _GATEWAY_NUMBERS[key])
        for key in values.keys() & _GATEWAY_NUMBERS.keys()
    }
    if "upstream_ports" in values:
        changes["upstream_ports"] = parse_ports(values["upstream_ports"])
    try:
        return replace(Gateway(), **changes)
    except ValueError as error:
        raise ControlError(f"gateway: {error}") from error


def _integer(values: dict[str, object], key: str, low: int, high: int) -> int:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ControlError(f"{key}: write a whole number from {low} to {high}")
    return value


def _texts(values: dict[str, object], key: str) -> list[str]:
    value = values.get(key, [])
    if not isinstance(value, list):
        raise ControlError(f"{key}: write a list of texts")
    items = cast("list[object]", value)
    if not all(isinstance(item, str) for item in items):
        raise ControlError(f"{key}: write a list of texts")
    return cast("list[str]", items)
