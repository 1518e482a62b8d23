"""The sandboxes that an engine runs, as values: grouped by launch, found by a word.

`list_sandboxes` asks the engine; the rest is pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from sandboxed_mcp.engine.orphans import OwnerState, judge_owner
from sandboxed_mcp.errors import ConfigError
from sandboxed_mcp.plan import LABEL_LAUNCH, LABEL_NETWORK, LABEL_OWNER, LABEL_ROLE, LABEL_SERVER

if TYPE_CHECKING:
    from sandboxed_mcp.engine.api import Engine

__all__ = [
    "SERVER",
    "RunningSandbox",
    "belongs_to_caller",
    "find_sandboxes",
    "list_sandboxes",
    "list_servers",
    "render_network",
    "render_uptime",
    "uptime_seconds",
]

SERVER: Final = "server"
SHORTEST_PREFIX: Final = 4
_PARALLEL: Final = 16
_HEX: Final = frozenset("0123456789abcdef")
_OWNER_PID: Final = 3
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class RunningSandbox:
    """A container that carries our labels.

    Attributes:
        server: The configured name of the server.
        launch: The launch id.
        role: `server`, or `gateway` for the container that keeps its egress rules.
        container: The container's id.
        owner: The launcher, as its label says.
        owner_state: Whether the launcher lives.
        state: The engine's word, such as `running`.
        image: The image it was created from: a reference, or an id.
        network: The engine's network mode.
        started: When its process started, by the engine's clock; None when it has not.
        found: Everything the engine knows of it.
    """

    server: str
    launch: str
    role: str
    container: str
    owner: str
    owner_state: OwnerState
    state: str
    image: str
    network: str
    started: datetime | None
    found: dict[str, Any]


async def list_sandboxes(engine: Engine) -> list[RunningSandbox]:
    """Everything that carries our labels, the oldest first.

    Raises:
        EngineError: The engine cannot list or describe its containers.
    """
    summaries = sorted(await engine.list_containers(), key=lambda one: one.created)
    described: dict[str, dict[str, Any]] = {}
    limit = anyio.CapacityLimiter(_PARALLEL)

    async def describe(container: str) -> None:
        async with limit:
            found = await engine.inspect(container)
        if found is not None:
            described[container] = found

    try:
        async with anyio.create_task_group() as tasks:
            for summary in summaries:
                tasks.start_soon(describe, summary.id)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return [_read(described[one.id], engine) for one in summaries if one.id in described]


def _read(found: dict[str, Any], engine: Engine) -> RunningSandbox:
    labels: dict[str, str] = found["Config"].get("Labels") or {}
    owner = labels.get(LABEL_OWNER, "")
    return RunningSandbox(
        server=labels.get(LABEL_SERVER, ""),
        launch=labels.get(LABEL_LAUNCH, ""),
        role=labels.get(LABEL_ROLE, SERVER),
        container=found["Id"],
        owner=owner,
        owner_state=judge_owner(owner, engine),
        state=found["State"]["Status"],
        image=found["Image"],
        network=found["HostConfig"]["NetworkMode"],
        started=_parse_time(found["State"].get("StartedAt") or ""),
        found=found,
    )


def _parse_time(text: str) -> datetime | None:
    """An RFC 3339 time of the engine; its year 1 stands for never."""
    try:
        # The engine writes nanoseconds, which Python does not read.
        parsed = datetime.fromisoformat(text[:19]).replace(tzinfo=UTC)
    except ValueError:
        return None
    return parsed if parsed.year > 1 else None


def list_servers(sandboxes: list[RunningSandbox]) -> list[RunningSandbox]:
    """One for each launch: its server, or its gateway as long as that is all there is."""
    served = {one.launch for one in sandboxes if one.role == SERVER}
    return [one for one in sandboxes if one.role == SERVER or one.launch not in served]


def render_network(sandbox: RunningSandbox) -> str:
    """What a sandbox can reach: `none`, `rules`, `unrestricted` or `observed` (none, recorded)."""
    if sandbox.role != SERVER:
        return "gateway only"
    labels: dict[str, str] = sandbox.found.get("Config", {}).get("Labels") or {}
    if not sandbox.network.startswith("container:"):
        return sandbox.network
    return labels.get(LABEL_NETWORK, "rules")


def find_sandboxes(word: str, sandboxes: list[RunningSandbox]) -> list[RunningSandbox]:
    """The sandboxes that a server's name, or the beginning of a launch id, stands for.

    Raises:
        ConfigError: There is none, or the word can mean more than one thing.
    """
    named = [one for one in sandboxes if one.server == word]
    begun = [one for one in sandboxes if _is_prefix(word) and one.launch.startswith(word)]
    launches = {one.launch for one in begun}
    if (named and launches - {one.launch for one in named}) or len(launches) > 1:
        listed = ", ".join(sorted(launches | {one.launch for one in named}))
        raise ConfigError(
            word, f"it stands for more than one launch: {listed}", "write more of the launch id"
        )
    if not named and not begun:
        raise ConfigError(
            repr(word),
            "no sandbox of that name or launch id is running",
            "see 'sandboxed-mcp ps'; a launch id needs at least its first 4 digits",
        )
    return named or begun


def _is_prefix(word: str) -> bool:
    return len(word) >= SHORTEST_PREFIX and _HEX.issuperset(word)


def belongs_to_caller(sandbox: RunningSandbox, uid: int) -> bool:
    """Whether a sandbox was launched on this machine, by this user where that can be told."""
    if sandbox.owner_state == "elsewhere":
        return False
    if sandbox.owner_state == "gone":
        return True
    try:
        return Path("/proc", sandbox.owner.split("/")[_OWNER_PID]).stat().st_uid == uid
    except OSError:
        return True


def uptime_seconds(sandbox: RunningSandbox, now: datetime) -> int | None:
    """Whole seconds since the start; never negative, whatever the engine's clock says."""
    if sandbox.started is None or sandbox.state != "running":
        return None
    return max(0, int((now - sandbox.started).total_seconds()))


def render_uptime(seconds: int | None) -> str:
    """A duration as two units at most, such as `3h 07m`."""
    if seconds is None:
        return "-"
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m {seconds % _MINUTE:02d}s"
    if seconds < _DAY:
        return f"{seconds // _HOUR}h {seconds % _HOUR // _MINUTE:02d}m"
    return f"{seconds // _DAY}d {seconds % _DAY // _HOUR:02d}h"
