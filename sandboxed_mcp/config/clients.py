"""Files of MCP clients: `{"mcpServers": {...}}`, or VS Code's `{"servers": {...}}`.

An entry keeps the shape the client knows; what the sandbox adds stands in its `sandbox` table
(`image`, `secrets`, `mounts`, `policy`, `audit`). Keys that only the client acts on are
accepted and have no effect here; any other key is refused by name. A placeholder, which some
clients expand and others pass on as it stands, is refused: nothing is expanded here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

from sandboxed_mcp.config.problems import Section, render_setting, shown
from sandboxed_mcp.config.servers import ServerConfig, parse_server
from sandboxed_mcp.egress.suggest import suggest
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["ROOTS", "parse_client_entry", "select_entries"]

ROOTS: Final = ("mcpServers", "servers")

_OURS: Final = ("command", "args", "env", "cwd", "disabled")
_NESTED: Final = ("image", "secrets", "mounts", "policy", "audit")
_CLIENT_ONLY: Final[Mapping[str, str]] = {
    "type": "Claude Code, Cursor, VS Code, Copilot",
    "timeout": "Claude Code, Cline, Roo Code, Gemini CLI, Amazon Q",
    "alwaysAllow": "Roo Code, Cline",
    "autoApprove": "Cline, Kiro",
    "disabledTools": "Roo Code, Windsurf, Kiro",
    "watchPaths": "Roo Code",
    "description": "Gemini CLI, Cherry Studio",
    "name": "Cherry Studio",
    "trust": "Gemini CLI",
    "includeTools": "Gemini CLI",
    "excludeTools": "Gemini CLI",
    "tools": "Copilot",
    "alwaysLoad": "Claude Code",
    "dev": "VS Code",
    "gallery": "VS Code",
    "version": "VS Code",
}
"""Keys without effect here, with the clients that use them."""

_LOCAL_TYPES: Final = ("stdio", "local")
_REMOTE_KEYS: Final = ("url", "serverUrl", "httpUrl", "headers")
_EXPANDED: Final = re.compile(r"\$\{[^{}]*\}")
_FILL_IN: Final = re.compile(r"<[^<>]{1,64}>\Z")


def select_entries(document: Mapping[str, object], path: Path) -> tuple[str, dict[str, object]]:
    """Find the table of servers in a client's file.

    Args:
        document: The whole file; its other keys are the client's own.
        path: For messages.

    Returns:
        The key of the table and its entries.

    Raises:
        ConfigError: There is none, there are two, or it is not a table.
    """
    roots = [root for root in ROOTS if root in document]
    if len(roots) != 1:
        has = "both" if roots else "neither"
        raise ConfigError(
            "(the file)",
            f"it has {has} 'mcpServers' and 'servers'"
            if roots
            else f"it has {has} of the two tables 'mcpServers' and 'servers'",
            "keep one of them" if roots else 'write {"mcpServers": {"NAME": {...}}}',
            file=str(path),
        )
    entries = document[roots[0]]
    if not isinstance(entries, dict):
        raise ConfigError(roots[0], "it is not an object", "write {...}", file=str(path))
    return roots[0], cast("dict[str, object]", entries)


def parse_client_entry(name: str, entry: object, root: str, path: Path) -> ServerConfig:
    """Read one server of a client's file.

    Args:
        name: Its key.
        entry: Its value.
        root: The key of the table it is in.
        path: The file.

    Raises:
        ConfigError: With a line for each setting that is refused.
    """
    section = Section(str(path), root + render_setting([name]), sandbox=True)
    if not isinstance(entry, dict):
        raise section.error("", f"it is {shown(entry)}", 'write {"command": "...", "args": []}')
    table = cast("dict[str, object]", entry)
    _check_local(table, section)
    _check_keys(table, section)
    _check_placeholders(table, section)
    ours = {key: table[key] for key in _OURS if key in table}
    return parse_server(name, ours | _nested(table, section), section, path.absolute().parent)


def _check_local(table: dict[str, object], section: Section) -> None:
    for key in _REMOTE_KEYS:
        if key in table:
            raise ConfigError(
                f"{section.path}.{key}",
                "this is a remote server: it runs elsewhere, so there is nothing to sandbox",
                "leave it to the client, or set command",
                file=section.file,
            )
    kind = table.get("type", "stdio")
    if kind not in _LOCAL_TYPES:
        raise ConfigError(
            f"{section.path}.type",
            f"{shown(kind)} is not a local server",
            'only "stdio" servers are sandboxed',
            file=section.file,
        )


def _check_keys(table: dict[str, object], section: Section) -> None:
    known = (*_OURS, "sandbox", *_CLIENT_ONLY)
    for key in table:
        if key in known:
            continue
        fix = suggest(key, known)
        if key in _NESTED:
            fix = "put it into the entry's sandbox table"
        if key == "envFile":
            fix = "write the values in env, and take secrets with sandbox.secrets"
        raise ConfigError(
            section.path + render_setting([key]),
            f"the key {shown(key)} is unknown",
            fix,
            file=section.file,
        )


def _check_placeholders(table: dict[str, object], section: Section) -> None:
    for key in ("command", "args", "env"):
        for setting, value in _texts(key, table.get(key)):
            found = _EXPANDED.search(value) or _FILL_IN.match(value)
            if found:
                raise section.error(
                    setting,
                    f"the placeholder {shown(found[0])} is not expanded here",
                    "write the value out; take a secret from the environment with sandbox.secrets",
                )


def _texts(key: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, str):
        return [(f".{key}", value)]
    found: list[tuple[str, object]] = []
    if isinstance(value, list):
        listed = cast("list[object]", value)
        found = [(f".{key}[{index}]", item) for index, item in enumerate(listed)]
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        found = [(f".{key}{render_setting([name])}", item) for name, item in items]
    return [(setting, item) for setting, item in found if isinstance(item, str)]


def _nested(table: dict[str, object], section: Section) -> dict[str, object]:
    sandbox = table.get("sandbox", {})
    where = f"{section.path}.sandbox"
    if not isinstance(sandbox, dict):
        raise ConfigError(where, f"it is {shown(sandbox)}", "write {...}", file=section.file)
    nested = cast("dict[str, object]", sandbox)
    for key in nested:
        if key in _OURS:
            raise ConfigError(
                f"{where}.{key}",
                f"the key {shown(key)} does not belong there",
                "put it beside sandbox, where the client reads it",
                file=section.file,
            )
    return nested
