"""Taking a secret's value from the launcher's environment or from a file.

A missing or empty value stops the launch. No error shows a value.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.config.files import read_text
from sandboxed_mcp.config.problems import RefusedError, shown
from sandboxed_mcp.config.resolved import ResolvedSecret
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sandboxed_mcp.config.servers import Secret
    from sandboxed_mcp.config.sources import Host

__all__ = ["resolve_secret"]

MAX_SECRET: Final = 100_000
"""Bytes; below what Linux lets one environment variable hold (128 KiB)."""


def resolve_secret(
    secret: Secret, base_dir: Path, host: Host, environ: Mapping[str, str]
) -> ResolvedSecret:
    """Take the value of one secret.

    Args:
        secret: As written.
        base_dir: What a relative file is relative to.
        host: For `~`.
        environ: The launcher's environment.

    Raises:
        RefusedError: It is missing, empty, too long or not text, or its file is open to all.
    """
    if secret.file is None:
        value = _take_variable(secret.from_env or secret.name, environ)
    else:
        value = _take_file(host.expand(secret.file, base_dir), secret.file)
    return ResolvedSecret(secret.name, value, secret.delivery)


def _take_variable(variable: str, environ: Mapping[str, str]) -> str:
    value = environ.get(variable)
    if not value:
        state = "is not set" if value is None else "is empty"
        raise RefusedError(
            f"the variable '{variable}' {state} in the launcher's environment",
            f"set {variable} where the launcher starts, or take the secret from a file",
        )
    _check_value(value, f"the variable '{variable}'")
    return value


def _take_file(path: Path, written: str) -> str:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise RefusedError(
            f"the file {shown(written)} cannot be read: '{path}': {reason}", "correct it", ".file"
        ) from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise RefusedError(
            f"the file {shown(written)} is open to every user (mode {stat.S_IMODE(mode):04o})",
            f"run chmod 600 '{path}'",
            ".file",
        )
    value = _read(path, written)
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise RefusedError(f"the file {shown(written)} is empty", "write the value to it", ".file")
    _check_value(value, f"the file {shown(written)}")
    return value


def _read(path: Path, written: str) -> str:
    try:
        return read_text(path, MAX_SECRET)
    except ConfigError as error:
        raise RefusedError(
            f"the file {shown(written)}: {error.problem}", error.fix, ".file"
        ) from None


def _check_value(value: str, where: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:  # os.environ shows bytes that are not UTF-8 as lone surrogates
        raise RefusedError(f"{where} is not UTF-8", "save it as UTF-8 text") from None
    if "\0" in value:
        raise RefusedError(f"{where} holds a NUL character", "remove it")
    if size > MAX_SECRET:
        raise RefusedError(f"{where} is longer than {MAX_SECRET} bytes", "shorten it")
