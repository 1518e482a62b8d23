"""The policy of a sandbox: what it may reach and how much it may use.

Values only: no file is read here (see `policies` for that). A policy that is not written grants
nothing: no network, an unprivileged user, bounded resources.
"""

from __future__ import annotations

import math
import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    model_validator,
)
from pydantic.json_schema import WithJsonSchema

from sandboxed_mcp.config.problems import RefusedError, Table, refusing_rules, shown
from sandboxed_mcp.egress.addresses import classify
from sandboxed_mcp.egress.rules import NameRule, Unrestricted, parse_egress, render_egress
from sandboxed_mcp.egress.sizes import parse_size, render_size

if TYPE_CHECKING:
    from sandboxed_mcp.egress.rules import Egress

__all__ = ["CALLER", "Limits", "Policy"]

CALLER: Final = "caller"
"""The `user` that stands for whoever launches the sandbox."""

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_USER: Final = re.compile(r"(0|[1-9][0-9]{0,9})(?::(0|[1-9][0-9]{0,9}))?\Z")
_LARGEST_ID: Final = (1 << 31) - 2
_RUNTIME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")

_SIZE_SCHEMA: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "string", "pattern": "^[1-9][0-9]*(B|KiB|MiB|GiB)$"},
    ]
}
_RULE_SCHEMA: Final = {
    "anyOf": [
        {"type": "string", "description": "TARGET[:PORTS][/PROTOCOL], such as api.example.com"},
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["host"],
            "properties": {
                "host": {"type": "string"},
                "ports": {"type": ["integer", "string"]},
                "protocol": {"enum": ["tcp", "udp"]},
                "tls": {"enum": ["verify", "off"]},
                "allow_private": {"type": "boolean"},
                "max_connections_per_minute": {"type": "integer", "minimum": 1},
                "max_bytes": _SIZE_SCHEMA,
            },
        },
    ]
}
_EGRESS_SCHEMA: Final = {
    "description": "What the server may reach; [] is no network.",
    "anyOf": [{"const": "unrestricted"}, {"type": "array", "items": _RULE_SCHEMA}],
}


def _size_between(low: int, high: int) -> BeforeValidator:
    def validate(value: object) -> int:
        size = refusing_rules(parse_size)(value)
        if not low <= size <= high:
            raise RefusedError(
                f"{shown(value)} is out of bounds",
                f'write a size from "{render_size(low)}" to "{render_size(high)}"',
            )
        return size

    return BeforeValidator(validate)


def _number_between(low: float, high: float, unit: str, *, whole: bool) -> BeforeValidator:
    def validate(value: object) -> int | float:
        kinds = (int,) if whole else (int, float)
        bounds = f"write a {'whole ' if whole else ''}number of {unit} from {low} to {high}"
        if isinstance(value, bool) or not isinstance(value, kinds) or _is_nan(value):
            raise RefusedError(f"{shown(value)} is not a number of {unit}", bounds)
        if not low <= value <= high:
            raise RefusedError(f"{shown(value)} is out of bounds", bounds)
        return value

    return BeforeValidator(validate)


def _is_nan(value: float) -> bool:
    return isinstance(value, float) and math.isnan(value)


class Limits(Table):
    """The bounds of one sandbox; each is enforced, none is advisory.

    Sizes are bytes, or a text such as `512MiB` (`B`, `KiB`, `MiB`, `GiB`).

    Attributes:
        memory: Memory without swap, the scratch space included, in bytes; 16 MiB to 1 TiB.
        cpus: CPU time a second, in processors; 0.01 to 1024.
        pids: Processes and threads at once; 4 to 65536.
        scratch: Size of the writable `/tmp`, in bytes; 4 KiB to 64 GiB, at most `memory`.
        message_size: The longest JSON-RPC line from the server, in bytes; 1 KiB to 1 GiB.
        start_timeout: Seconds from launch until the server's process runs; 0.1 to 3600.
    """

    memory: Annotated[int, _size_between(16 * MIB, TIB), WithJsonSchema(_SIZE_SCHEMA)] = 512 * MIB
    cpus: Annotated[float, _number_between(0.01, 1024, "processors", whole=False)] = 1.0
    pids: Annotated[int, _number_between(4, 65536, "processes", whole=True)] = 128
    scratch: Annotated[int, _size_between(4 * KIB, 64 * GIB), WithJsonSchema(_SIZE_SCHEMA)] = (
        64 * MIB
    )
    message_size: Annotated[int, _size_between(KIB, GIB), WithJsonSchema(_SIZE_SCHEMA)] = 64 * MIB
    start_timeout: Annotated[float, _number_between(0.1, 3600, "seconds", whole=False)] = 60.0

    @model_validator(mode="after")
    def _check_scratch(self) -> Limits:
        if self.scratch > self.memory:
            raise RefusedError(
                f"'{render_size(self.scratch)}' is more than memory "
                f"('{render_size(self.memory)}'), which scratch counts towards",
                "lower scratch or raise memory",
                ".scratch",
            )
        return self


def _parse_user(value: object) -> str:
    fix = f'write "uid:gid" in numbers, "{CALLER}" for yourself, or "0:0" for root'
    if value == CALLER:
        return CALLER
    found = _USER.match(value) if isinstance(value, str) else None
    if found is None:
        raise RefusedError(f"{shown(value)} is not a user", fix)
    uid, gid = int(found[1]), int(found[2] or found[1])
    if max(uid, gid) > _LARGEST_ID:
        raise RefusedError(f"{shown(value)} is beyond the largest id ({_LARGEST_ID})", fix)
    if uid == 0 and value != "0:0":
        raise RefusedError(
            f"{shown(value)} is root without saying so", 'write "0:0" if that is meant'
        )
    return f"{uid}:{gid}"


def _parse_runtime(value: object) -> str | None:
    if value is None or (isinstance(value, str) and _RUNTIME.match(value)):
        return value
    raise RefusedError(
        f"{shown(value)} is not the name of a runtime",
        'write a name the engine knows, such as "runc" or "runsc", or leave it out',
    )


def _check_breadth(egress: Egress) -> Egress:
    """Refuse a wildcard below a public suffix: under `*.co.uk` anybody may have a name."""
    wildcards = [
        (index, rule)
        for index, rule in enumerate(() if isinstance(egress, Unrestricted) else egress)
        if isinstance(rule, NameRule) and rule.wildcard
    ]
    if wildcards:
        # Reading the list takes a tenth of a second, and few policies have wildcards.
        from publicsuffixlist import PublicSuffixList  # noqa: PLC0415

        suffixes = PublicSuffixList(only_icann=True)
        for index, rule in wildcards:
            if suffixes.is_public(rule.suffix):
                raise RefusedError(
                    f"'*.{rule.suffix}' is too broad: '{rule.suffix}' is a public suffix, under "
                    "which anybody may register a name",
                    f'name the host, or a domain below it such as "*.example.{rule.suffix}"',
                    f"[{index}]",
                )
    return egress


def _check_dns(resolvers: tuple[str, ...]) -> tuple[str, ...]:
    for index, text in enumerate(resolvers):
        host, _, port = text.rpartition(":") if _has_port(text) else (text, "", "53")
        try:
            address = ip_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            address = None
        if address is None or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise RefusedError(
                f"{shown(text)} is not the address of a resolver",
                'write an address such as "198.51.100.53", or "198.51.100.53:53"',
                f"[{index}]",
            )
        if classify(address) == "never":
            raise RefusedError(
                f"{shown(text)} cannot be reached from a sandbox",
                "name a resolver on a network, not a loopback or link-local address",
                f"[{index}]",
            )
    return resolvers


def _has_port(text: str) -> bool:
    return text.startswith("[") or text.count(":") == 1


if TYPE_CHECKING:
    _EgressField = Egress
else:  # the annotation of a field is looked into, and the rules are no concern of pydantic
    _EgressField = Annotated[
        object,
        PlainValidator(refusing_rules(parse_egress)),
        AfterValidator(_check_breadth),
        PlainSerializer(render_egress, return_type=object),
        WithJsonSchema(_EGRESS_SCHEMA),
    ]


class Policy(Table):
    """What a server is granted.

    Attributes:
        egress: `UNRESTRICTED`, or the rules; the empty tuple is no network at all.
        limits: The resource bounds.
        user: `uid:gid` in numbers; `caller` stands for whoever launches the sandbox, unless
            that is root; `0:0` is root, spelled out. A `uid` alone means the group of the same
            number.
        runtime: The engine's name of an OCI runtime; None for the engine's default.
        dns: The resolvers that allowed names are asked of, as `ADDRESS` or `ADDRESS:PORT` (IPv6
            in brackets when there is a port); empty for the engine's own.
    """

    parts = {"limits": Limits}  # noqa: RUF012 - the base declares it a class variable

    egress: _EgressField = ()
    limits: Limits = Field(default_factory=Limits)
    user: Annotated[str, BeforeValidator(_parse_user)] = "65532:65532"
    runtime: Annotated[str | None, BeforeValidator(_parse_runtime)] = None
    dns: Annotated[tuple[str, ...], AfterValidator(_check_dns)] = ()
