"""Finds and removes what launches left behind: containers, secret files, control sockets.

A watchdog removes what its launcher leaves; this is for the case that the watchdog died too.
Only what carries our labels or our prefix is looked at, and it goes only when the process that
owns it has certainly ended; a socket, when nobody listens at it. Whatever cannot be judged from
here stays.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import anyio

from sandboxed_mcp.engine.control_sockets import list_stale_sockets
from sandboxed_mcp.engine.owner import describe_owner, owner_is_gone
from sandboxed_mcp.engine.secret_files import OWNER_FILE, PREFIX, SHARED, secret_places
from sandboxed_mcp.errors import EngineError
from sandboxed_mcp.plan import LABEL_OWNER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sandboxed_mcp.engine.api import ContainerSummary, Engine

__all__ = [
    "Orphan",
    "OwnerState",
    "find_orphans",
    "find_secret_orphans",
    "judge_owner",
    "remove_orphans",
    "sweep_orphans",
]

SWEEP_SECONDS: Final = 2.0
_OWNER_BYTES: Final = 1024
_BOOT: Final = 1

OwnerState = Literal["alive", "gone", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Orphan:
    """Something whose launcher has ended.

    Attributes:
        kind: `container`, `secrets` (a folder of secret files) or `control` (a socket).
        place: The container's id, or the path.
        owner: The owner text that it carries; a socket has none.
        container: The engine's summary when it is a container.
    """

    kind: Literal["container", "secrets", "control"]
    place: str
    owner: str
    container: ContainerSummary | None = None


def judge_owner(owner: str, engine: Engine) -> OwnerState:
    """Whether the process behind an owner text lives.

    `elsewhere`: it cannot be judged from here, as it is of another machine, another pid
    namespace, or of another boot on a remote engine, where a copy of this machine may be
    what launched it.
    """
    here, there = describe_owner().split("/"), owner.split("/")
    if len(here) != len(there) or here[0] != there[0]:
        return "elsewhere"
    if here[_BOOT] != there[_BOOT] and not engine.endpoint.is_local:
        return "elsewhere"
    if owner_is_gone(owner):
        return "gone"
    return "alive" if here[:3] == there[:3] else "elsewhere"


async def find_orphans(engine: Engine) -> list[Orphan]:
    """Everything whose owner is gone; nothing is removed.

    Raises:
        EngineError: The engine cannot list its containers.
    """
    containers = [
        Orphan("container", found.id, found.labels.get(LABEL_OWNER, ""), found)
        for found in await engine.list_containers()
        if judge_owner(found.labels.get(LABEL_OWNER, ""), engine) == "gone"
    ]
    folders = await anyio.to_thread.run_sync(find_secret_orphans)
    sockets = await anyio.to_thread.run_sync(list_stale_sockets, os.environ)
    return [*containers, *folders, *(Orphan("control", str(path), "") for path in sockets)]


async def remove_orphans(engine: Engine) -> list[Orphan]:
    """Removes everything whose owner is gone.

    Returns:
        What was removed. Something that somebody else removed meanwhile is listed too.

    Raises:
        EngineError: The engine cannot list or remove containers.
    """
    orphans = await find_orphans(engine)
    for orphan in orphans:
        if orphan.kind == "container":
            await engine.remove(orphan.place)
        elif orphan.kind == "secrets":
            await anyio.to_thread.run_sync(_remove_folder, orphan.place)
        else:
            await anyio.to_thread.run_sync(_remove_socket, orphan.place)
    return orphans


async def sweep_orphans(engine: Engine) -> None:
    """`remove_orphans` for the end of a launch: at most two seconds, and it never fails."""
    with suppress(EngineError, OSError), anyio.move_on_after(SWEEP_SECONDS):
        await remove_orphans(engine)


def find_secret_orphans(places: Iterable[Path] | None = None) -> list[Orphan]:
    """Folders of secret files whose owner is gone.

    Args:
        places: Where to look; None for everywhere that such folders are made.
    """
    if places is None:
        places = dict.fromkeys([*secret_places(os.environ), Path(tempfile.gettempdir())])
    return [orphan for place in places for orphan in _find_in(place)]


def _find_in(place: Path) -> Iterator[Orphan]:
    try:
        folders = [path for path in place.iterdir() if path.name.startswith(PREFIX)]
    except OSError:
        return
    for folder in folders:
        owner = _read_owner(folder)
        if owner is not None and owner_is_gone(owner):
            yield Orphan("secrets", str(folder), owner)


def _read_owner(folder: Path) -> str | None:
    """The owner text in a private folder of this user; None when it is no such folder."""
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return None
        if stat.S_IMODE(found.st_mode) & 0o077:
            return None
        opened = os.open(folder / OWNER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(opened, "rb") as file:
        return file.read(_OWNER_BYTES).decode("ascii", "replace").strip()


def _remove_socket(path: str) -> None:
    with suppress(OSError):
        Path(path).unlink(missing_ok=True)


def _remove_folder(folder: str) -> None:
    # The files first: were this interrupted, the owner file would still name the rest.
    shutil.rmtree(Path(folder) / SHARED, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
