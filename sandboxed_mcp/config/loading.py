"""Loading servers from a file: `sandboxed-mcp.toml`, or the JSON file of a client."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from sandboxed_mcp.config.clients import parse_client_entry, select_entries
from sandboxed_mcp.config.files import read_document
from sandboxed_mcp.config.policies import find_policy, load_policy
from sandboxed_mcp.config.problems import RefusedError, Section, join_problems, shown
from sandboxed_mcp.config.servers import ServerConfig, check_server_name, parse_server
from sandboxed_mcp.config.sources import read_host
from sandboxed_mcp.egress.suggest import suggest
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxed_mcp.config.policy import Policy

__all__ = ["CONFIG_NAME", "find_config", "load_server", "load_server_policy", "load_servers"]

CONFIG_NAME: Final = "sandboxed-mcp.toml"


def find_config(cwd: Path, environ: Mapping[str, str]) -> Path:
    """Find the configuration that is used when none is named.

    Args:
        cwd: The current folder: `sandboxed-mcp.toml` there comes first.
        environ: For `XDG_CONFIG_HOME` (XDG Base Directory 0.8) and HOME:
            `sandboxed-mcp/sandboxed-mcp.toml` there comes second.

    Raises:
        ConfigError: Neither is there.
    """
    home = environ.get("HOME", "")
    configured = environ.get("XDG_CONFIG_HOME", "")
    folder = Path(configured) if configured.startswith("/") else Path(home) / ".config"
    candidates = [cwd / CONFIG_NAME]
    if folder.is_absolute():
        candidates.append(folder / "sandboxed-mcp" / CONFIG_NAME)
    for path in candidates:
        if os.path.lexists(path):
            return path
    looked = " or ".join(f"'{path}'" for path in candidates)
    raise ConfigError(
        CONFIG_NAME, f"there is no configuration at {looked}", "write one, or name a file"
    )


def load_servers(path: Path) -> dict[str, ServerConfig]:
    """Load every server of a file.

    Args:
        path: A `.toml` file with `[servers.NAME]`, or a client's `.json` file.

    Returns:
        The servers by name, in the order of the file.

    Raises:
        ConfigError: The file cannot be used, or a setting of any server is refused.
    """
    root, entries = _read_entries(path)
    servers: dict[str, ServerConfig] = {}
    errors: list[ConfigError] = []
    for name, entry in entries.items():
        try:
            servers[name] = _parse_entry(name, entry, root, path)
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise join_problems(errors)
    return servers


def load_server(path: Path, name: str) -> ServerConfig:
    """Load one server of a file.

    A TOML file is ours, and all of it must be right. In a client's file only this entry is
    looked at: others may be remote servers, or for another launcher.

    Raises:
        ConfigError: The file cannot be used, the server is not in it, or a setting is refused.
    """
    root, entries = _read_entries(path)
    if name not in entries:
        fix = suggest(name, entries)
        raise ConfigError(root, f"there is no server {shown(name)}", fix, file=str(path))
    if path.suffix == ".toml":
        return load_servers(path)[name]
    return _parse_entry(name, entries[name], root, path)


def load_server_policy(
    name: str, path: Path | None, cwd: Path, environ: Mapping[str, str]
) -> Policy:
    """Load the policy of one server of a file; nothing else of it is looked up.

    Args:
        name: The server.
        path: The file; None finds it.
        cwd: As for `find_config`.
        environ: Likewise, and for `~`.

    Raises:
        ConfigError: The file, the server or its policy cannot be used.
    """
    server = load_server(path if path is not None else find_config(cwd, environ), name)
    written = server.policy
    if not isinstance(written, str):
        return written
    try:
        return load_policy(find_policy(written, server.base_dir or cwd, read_host(environ)))
    except RefusedError as error:
        raise server.section.error(".policy", error.problem, error.fix) from error


def _read_entries(path: Path) -> tuple[str, Mapping[str, object]]:
    document = read_document(path)
    if path.suffix == ".json":
        return select_entries(document, path)
    unknown = [key for key in document if key != "servers"]
    if unknown:
        raise ConfigError(
            unknown[0],
            f"the key {shown(unknown[0])} is unknown",
            "the file holds [servers.NAME] tables alone",
            file=str(path),
        )
    entries = document.get("servers")
    if not isinstance(entries, dict) or not entries:
        raise ConfigError(
            "servers", "the file has no server", "add a table [servers.NAME]", file=str(path)
        )
    return "servers", cast("dict[str, object]", entries)


def _parse_entry(name: str, entry: object, root: str, path: Path) -> ServerConfig:
    try:
        check_server_name(name)
    except RefusedError as error:
        raise ConfigError(root, error.problem, error.fix, file=str(path)) from None
    if path.suffix == ".json":
        return parse_client_entry(name, entry, root, path)
    section = Section(str(path), f"{root}.{name}")
    return parse_server(name, entry, section, path.absolute().parent)
