"""The engine's refusals, told by the setting that they are about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandboxed_mcp.errors import ConfigError, EngineRefusedError

if TYPE_CHECKING:
    from sandboxed_mcp.config.resolved import ResolvedServer

__all__ = ["name_setting"]

# What an engine's own words hold, the setting they are about, and what to do. In this order.
_SETTINGS: Final = (
    ("executable file not found", "command", "name a program that the image holds"),
    ("no such file or directory: unknown", "command", "name a program that the image holds"),
    ("permission denied: unknown", "command", "name a program that the server's user may run"),
    ("unknown or invalid runtime", "policy.runtime", "name a runtime that the engine has"),
    ("runtime", "policy.runtime", "name a runtime that the engine has"),
    ("cpu", "policy.limits.cpus", "grant no more than the engine has"),
    ("memory", "policy.limits.memory", "write a limit that the engine can set"),
    ("pids", "policy.limits.pids", "write a limit that the engine can set"),
    ("bind source path", "mounts", "mount a path that is there"),
    ("mount", "mounts", "mount a path that is there"),
    ("working directory", "cwd", "name a folder that the image holds"),
    ("chdir", "cwd", "name a folder that the image holds"),
)
_RUNC: Final = "OCI runtime create failed"


def name_setting(
    error: EngineRefusedError, resolved: ResolvedServer
) -> ConfigError | EngineRefusedError:
    """The same refusal with the setting that the engine means; itself when that is unknown."""
    words = error.reason.replace(_RUNC, "").replace("runc create failed", "").lower()
    for sign, setting, fix in _SETTINGS:
        if sign in words:
            path = f"servers.{resolved.name}.{setting}"
            return ConfigError(path, str(error), fix, file=resolved.origin)
    return error
