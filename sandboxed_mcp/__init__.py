"""Run MCP servers that nobody trusts as if they were local child processes.

    from sandboxed_mcp import ServerConfig, connect

    async with connect(ServerConfig(name="notes", image="sandboxed-mcp/notes")) as client:
        print(await client.list_tools())

Names are imported when they are first used: importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxed_mcp.bridge.transport import connect, open_streams, stdio_transport
    from sandboxed_mcp.config.mounts import Mount
    from sandboxed_mcp.config.policy import Limits, Policy
    from sandboxed_mcp.config.servers import Secret, ServerConfig
    from sandboxed_mcp.engine.api import Engine
    from sandboxed_mcp.engine.connection import find_engine
    from sandboxed_mcp.errors import (
        ConfigError,
        EngineError,
        ExitStatus,
        LaunchError,
        SandboxError,
        ServerExitedError,
        StartTimeoutError,
    )
    from sandboxed_mcp.sandbox import Sandbox, open_sandbox

_HOMES = {
    "sandboxed_mcp.bridge.transport": ("connect", "open_streams", "stdio_transport"),
    "sandboxed_mcp.config.mounts": ("Mount",),
    "sandboxed_mcp.config.policy": ("Limits", "Policy"),
    "sandboxed_mcp.config.servers": ("Secret", "ServerConfig"),
    "sandboxed_mcp.engine.api": ("Engine",),
    "sandboxed_mcp.engine.connection": ("find_engine",),
    "sandboxed_mcp.errors": (
        "ConfigError",
        "EngineError",
        "ExitStatus",
        "LaunchError",
        "SandboxError",
        "ServerExitedError",
        "StartTimeoutError",
    ),
    "sandboxed_mcp.sandbox": ("Sandbox", "open_sandbox"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ConfigError",
    "Engine",
    "EngineError",
    "ExitStatus",
    "LaunchError",
    "Limits",
    "Mount",
    "Policy",
    "Sandbox",
    "SandboxError",
    "Secret",
    "ServerConfig",
    "ServerExitedError",
    "StartTimeoutError",
    "connect",
    "find_engine",
    "open_sandbox",
    "open_streams",
    "stdio_transport",
]


def __getattr__(name: str) -> object:
    """A public name, imported from its home on first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sandboxed_mcp' has no attribute '{name}'")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
