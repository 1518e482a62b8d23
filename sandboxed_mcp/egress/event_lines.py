"""The gateway's events as lines of JSON (RFC 8259), written there and read on the host.

Text that came from the server is cut to `MAX_TEXT` characters and escaped, so that a line is
ASCII, bounded, and cannot be told to mean something else. Pure: no clock, no I/O.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Final, cast

from sandboxed_mcp.egress.events import EVENT_TYPES, EgressEvent

__all__ = ["MAX_LINE", "MAX_TEXT", "EventError", "parse_egress_event", "render_egress_event"]

MAX_TEXT: Final = 255
"""Characters of one text field; a DNS name has at most 253."""

MAX_LIST: Final = 32
"""Entries of one list field: the addresses of an answer."""

MAX_LINE: Final = 512 * 1024
"""No line is longer, even with every character of every field escaped."""


class EventError(ValueError):
    """A line is none that the gateway writes."""


def render_egress_event(event: EgressEvent) -> bytes:
    """One line of JSON in ASCII, its newline included; texts and lists are cut to their bound."""
    names = (field.name for field in fields(event))
    values = {name: _bounded(getattr(event, name)) for name in names}
    line = json.dumps({"event": event.kind, **values}, ensure_ascii=True, separators=(",", ":"))
    return line.encode("ascii") + b"\n"


def parse_egress_event(line: bytes) -> EgressEvent:
    """Read a line back; the gateway is ours, yet it sits next to the server.

    Args:
        line: With or without its newline.

    Returns:
        The event, equal to the rendered one (but for cut texts).

    Raises:
        EventError: Not JSON, an unknown kind, an unknown or missing field, a wrong type.
    """
    try:
        loaded: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EventError("the gateway wrote a line that is not JSON") from error
    if not isinstance(loaded, dict):
        raise EventError("the gateway wrote a line that is not an object")
    values = cast("dict[str, object]", loaded)
    event_type = EVENT_TYPES.get(str(values.pop("event", "")))
    if event_type is None:
        raise EventError("the gateway wrote an event of unknown kind")
    known = {field.name: str(field.type) for field in fields(event_type)}
    try:
        checked = {name: _check(value, known[name]) for name, value in values.items()}
        return event_type(**checked)
    except (KeyError, TypeError) as error:
        raise EventError(f"the gateway wrote a malformed '{event_type.kind}' event") from error


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, tuple):
        return [_bounded(item) for item in cast("tuple[object, ...]", value[:MAX_LIST])]
    return value


def _check(value: object, annotation: str) -> Any:  # noqa: ANN401 - of the annotation's type
    """Return a JSON value as the field's type; TypeError when it is another."""
    match annotation, value:
        case "bool", bool():
            return value
        case "int", int() if not isinstance(value, bool):
            return value
        case "float", int() | float() if not isinstance(value, bool):
            return float(value)
        case "str", str():
            return value
        case "tuple[str, ...]", list():
            items = cast("list[object]", value)
            return tuple(_check(item, "str") for item in items)
        case _:
            raise TypeError(annotation)
