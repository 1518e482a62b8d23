"""Reading a configuration file: bytes -> TOML or JSON document, or an error that names it.

A file is read once, whole and bounded; what is not a regular file is refused, since a pipe
would never end. Duplicate keys are errors in both formats.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from typing import TYPE_CHECKING, Final, NoReturn

from sandboxed_mcp.config.problems import RefusedError, shown
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_document", "read_text"]

MAX_FILE: Final = 1 << 20


def read_document(path: Path) -> dict[str, object]:
    """Read a `.toml` or `.json` file whose top level is a table.

    Args:
        path: The file; a UTF-8 byte order mark is tolerated.

    Raises:
        ConfigError: It cannot be read, is larger than 1 MiB, or is not of its format.
    """
    parsers = {".toml": _parse_toml, ".json": _parse_json}
    parse = parsers.get(path.suffix)
    if parse is None:
        raise _error(path, f"the name ends in {shown(path.suffix)}", "use a .toml or .json file")
    text = read_text(path, MAX_FILE)
    try:
        return parse(text.removeprefix("\ufeff"))
    except RefusedError as error:
        raise _error(path, error.problem, error.fix) from None
    except RecursionError:
        raise _error(path, "it is nested too deeply", "remove the nesting") from None


def read_text(path: Path, limit: int) -> str:
    """Read a UTF-8 text file.

    Args:
        path: A regular file, or a symbolic link to one.
        limit: The largest size, in bytes.

    Raises:
        ConfigError: It cannot be read, is no regular file, is larger, or is not UTF-8.
    """
    try:
        data = _read_bytes(path, limit)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "bad path"
        raise _error(path, f"it cannot be read ({reason})", "check path and permissions") from None
    if len(data) > limit:
        raise _error(path, f"it is larger than {limit} bytes", "make it smaller")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _error(path, f"byte {error.start} is not UTF-8", "save it as UTF-8") from None


def _read_bytes(path: Path, limit: int) -> bytes:
    """Read one byte more than the limit at most; opening a pipe must not wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _error(path, "it is not a regular file", "name a file")
        return file.read(limit + 1)


def _parse_toml(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise RefusedError(f"it is not TOML ({error})", "correct it there") from None


def _parse_json(text: str) -> dict[str, object]:
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RefusedError:
        raise
    except ValueError as error:
        raise RefusedError(
            f"it is not JSON ({error})", "correct it there; comments and last commas are not JSON"
        ) from None
    if not isinstance(value, dict):
        raise RefusedError("it is not a JSON object", 'write {"mcpServers": {...}}')
    return value  # pyright: ignore[reportUnknownVariableType]


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table: dict[str, object] = {}
    for key, value in pairs:
        if key in table:
            raise RefusedError(f"the key {shown(key)} stands twice in one object", "keep one")
        table[key] = value
    return table


def _refuse_constant(constant: str) -> NoReturn:
    raise RefusedError(f"{constant} is not a JSON number", "write a number")


def _error(path: Path, problem: str, fix: str) -> ConfigError:
    return ConfigError("(the file)", problem, fix, file=str(path))
