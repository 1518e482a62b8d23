"""The JSON Schema (2020-12) of a line of the audit log, made from the event types themselves.

This is where every kind of event is documented: its name, its fields and their units are the
docstrings of `sandboxed_mcp.events` and `sandboxed_mcp.egress.events`.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, cast

from sandboxed_mcp import events
from sandboxed_mcp.egress.events import EVENT_TYPES
from sandboxed_mcp.events import Event, NetworkEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["audit_schema"]

_TYPES: Final[dict[str, dict[str, object]]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "int | None": {"type": ["integer", "null"]},
    "str | None": {"type": ["string", "null"]},
    "tuple[str, ...]": {"type": "array", "items": {"type": "string"}},
}
_ATTRIBUTE: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def audit_schema() -> dict[str, Any]:
    """Describe one line; each kind of event is a definition of its own."""
    kinds = {**_list_own(), **EVENT_TYPES}
    common = _describe_fields(Event)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of the audit log",
        "description": "JSON Lines in ASCII, an object a line; `event` names the kind.",
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds],
        "$defs": {kind: _describe(kind, one, common) for kind, one in kinds.items()},
    }


def _list_own() -> dict[str, type]:
    """The launcher's own events; those of the gateway are named by kind."""
    named = (getattr(events, name) for name in events.__all__)
    types = cast("list[type]", [one for one in named if inspect.isclass(one)])
    return {one.__name__: one for one in types if one not in {Event, NetworkEvent}}


def _describe(kind: str, event_type: type, common: dict[str, Any]) -> dict[str, Any]:
    properties = {"event": {"const": kind}, **common, **_describe_fields(event_type)}
    return {
        "type": "object",
        "description": (event_type.__doc__ or "").partition("\n")[0],
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _describe_fields(event_type: type) -> dict[str, Any]:
    texts = dict(_read_attributes(event_type.__doc__ or ""))
    own = [one for one in fields(event_type) if one.name in texts]
    return {one.name: {**_TYPES[str(one.type)], "description": texts[one.name]} for one in own}


def _read_attributes(docstring: str) -> Iterator[tuple[str, str]]:
    _, _, listing = docstring.partition("Attributes:\n")
    for name, text in _ATTRIBUTE.findall(_dedent(listing)):
        yield name, " ".join(text.split())


def _dedent(listing: str) -> str:
    """The listing with its entries at four columns, however the interpreter keeps docstrings."""
    lines = inspect.cleandoc("x\n" + listing).splitlines()[1:]
    return "\n".join(f"    {line}" if line else "" for line in lines)
