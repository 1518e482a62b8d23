"""What really runs: the runtime of a container, and what its first process holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandboxed_mcp.engine.verify import compare_confinement, compare_status
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxed_mcp.config.resolved import ResolvedServer
    from sandboxed_mcp.engine.api import Engine

__all__ = ["check_runtime", "compare_process", "find_file_server", "read_status"]

GVISOR: Final = "runsc"

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
    runtime, program, arguments = await _find_program(engine, container)
    if program in _KERNEL_STACK:
        return
    if program == GVISOR and "--network=host" in arguments:
        return
    raise ConfigError(
        f"servers.{resolved.name}.policy.runtime",
        f"runtime '{runtime}' is not known to send through the network namespace's own stack, "
        "so that egress rules would not bind it",
        "use runc, crun or youki (or runsc with --network=host in the engine's configuration), "
        "or remove the egress rules",
        file=resolved.origin,
    )


async def compare_process(
    engine: Engine, container: str, status: str, *, net_admin: bool
) -> tuple[str, ...]:
    """One sentence for each thing that a container's process has and shall not have.

    gVisor's kernel is a program on this machine, and the process seen here is that program: it
    has what it needs to run others, and must have shut itself in. The server's own capabilities
    exist inside it alone; the engine's report of them was compared before.

    Args:
        engine: The engine that runs the container.
        container: The container.
        status: The text of /proc/PID/status of its first process.
        net_admin: Whether it shall have CAP_NET_ADMIN.
    """
    differences = compare_status(status, net_admin=net_admin)
    if not differences or net_admin:
        return differences
    _, program, _ = await _find_program(engine, container)
    return compare_confinement(status) if program == GVISOR else differences


async def _find_program(engine: Engine, container: str) -> tuple[str, str, list[str]]:
    """The name of a container's runtime, its program, and the arguments that it is given."""
    runtime = await engine.find_runtime(container)
    if runtime in _KERNEL_STACK:
        return runtime, runtime, []
    known: Mapping[str, Any] = (await engine.info()).get("Runtimes") or {}
    settings: Mapping[str, Any] = known.get(runtime) or {}
    program = str(settings.get("path") or runtime).rpartition("/")[2]
    return runtime, program, list(settings.get("runtimeArgs") or [])


def read_status(pid: int, container: str) -> str | None:
    """The status of a container's first process; None when this machine does not show it."""
    folder = Path("/proc") / str(pid)
    try:
        if pid == 0 or container not in (folder / "cgroup").read_text():
            return None
        return (folder / "status").read_text()
    except OSError:
        return None


def find_file_server(pid: int, container: str) -> int:
    """The process that has a container's files mounted: under gVisor not its first one.

    Args:
        pid: The container's first process.
        container: The container.
    """
    if _read_program(pid) != "runsc-sandbox":
        return pid
    for folder in Path("/proc").glob("[0-9]*"):
        number = int(folder.name)
        if _read_program(number) == "runsc-gofer" and read_status(number, container) is not None:
            return number
    return pid


def _read_program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
    except (OSError, ValueError):
        return ""
