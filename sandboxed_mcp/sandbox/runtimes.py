"""What really runs: the runtime of a container, and what its first process holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxed_mcp.config.resolved import ResolvedServer
    from sandboxed_mcp.engine.api import Engine

__all__ = ["check_runtime", "read_status"]

# Programs that run a container on the host kernel's network stack. gVisor's own stack sends
# through packet sockets and a virtual machine through a tap: neither meets the `output` hook.
_KERNEL_STACK: Final = frozenset({"runc", "crun", "youki", "io.containerd.runc.v2"})


async def check_runtime(engine: Engine, container: str, resolved: ResolvedServer) -> None:
    """Refuses a runtime whose own network stack sends past the gateway's rules.

    Args:
        engine: The engine that made the container.
        container: The server's container, created and not started.
        resolved: For the message.

    Raises:
        ConfigError: It is not known to use the network namespace's own stack.
    """
    found = await engine.inspect(container)
    runtime: str = (found or {"HostConfig": {}})["HostConfig"].get("Runtime") or "unknown"
    if runtime in _KERNEL_STACK:
        return
    known: Mapping[str, Any] = (await engine.info()).get("Runtimes") or {}
    settings: Mapping[str, Any] = known.get(runtime) or {}
    program = str(settings.get("path", runtime)).rpartition("/")[2]
    if program in _KERNEL_STACK:
        return
    if program == "runsc" and "--network=host" in (settings.get("runtimeArgs") or []):
        return
    raise ConfigError(
        f"servers.{resolved.name}.policy.runtime",
        f"runtime '{runtime}' is not known to send through the network namespace's own stack, "
        "so that egress rules would not bind it",
        "use runc, crun or youki (or runsc with --network=host in the engine's configuration), "
        "or remove the egress rules",
        file=resolved.origin,
    )


def read_status(pid: int, container: str) -> str | None:
    """The status of a container's first process; None when this machine does not show it."""
    folder = Path("/proc") / str(pid)
    try:
        if pid == 0 or container not in (folder / "cgroup").read_text():
            return None
        return (folder / "status").read_text()
    except OSError:
        return None
