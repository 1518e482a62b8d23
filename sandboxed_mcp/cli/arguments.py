"""The arguments of a tool call as a person writes them: one JSON object. Pure."""

from __future__ import annotations

import json
from typing import Final, NoReturn, cast

from sandboxed_mcp.errors import ConfigError

__all__ = ["parse_arguments"]

EXAMPLE: Final = 'write one JSON object, such as {"query": "tea"}'
_KINDS: Final[dict[type, str]] = {
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def parse_arguments(text: str | bytes) -> dict[str, object]:
    """Reads the arguments of a call (RFC 8259, strictly); nothing at all is no arguments.

    Raises:
        ConfigError: It is no JSON object; the message says where it stops to be one.
    """
    text = _decode(text)
    if not text.strip():
        return {}
    try:
        value: object = json.loads(
            text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant
        )
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        _refuse("not usable: a text holds half of a surrogate pair")
    except json.JSONDecodeError as error:
        _refuse(f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}")
    except RecursionError:
        _refuse("nested too deeply")
    except ValueError as error:  # Python's own limit for the digits of an integer
        _refuse(f"not usable: {error}")
    if not isinstance(value, dict):
        _refuse(f"{_KINDS.get(type(value), 'a value')}, not an object")
    return cast("dict[str, object]", value)


def _decode(text: str | bytes) -> str:
    try:
        if isinstance(text, bytes):
            return text.decode()
        text.encode()
    except UnicodeDecodeError as error:
        _refuse(f"not UTF-8 at byte {error.start}")
    except UnicodeEncodeError as error:
        _refuse(f"not UTF-8 at character {error.start + 1}")
    return text


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            _refuse(f"ambiguous: the key {json.dumps(key)} stands twice in one object")
        found[key] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    _refuse(f"not JSON: {name} is no JSON number")


def _refuse(problem: str) -> NoReturn:
    raise ConfigError("JSON", f"the arguments are {problem}", EXAMPLE)
