"""Whether a container got the host paths that were checked, not what took their place since.

The engine opens a mount's source again, by its path, after the checks of the configuration. A
path that has changed is refused before the container is made; what the kernel really mounted
(/proc/PID/mountinfo, proc(5)) is compared as soon as it runs, before it gets any input.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sandboxed_mcp.config.resolved import ResolvedMount

__all__ = ["MountPoint", "compare_mounts", "find_moved", "parse_mountinfo", "read_mountinfo"]

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_FIELDS: Final = 5


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A line of mountinfo.

    Attributes:
        device: `major:minor` of the file system.
        root: The folder or file of that file system that is mounted.
        point: Where it is mounted.
    """

    device: str
    root: str
    point: str


def find_moved(mounts: Sequence[ResolvedMount]) -> Iterator[str]:
    """One sentence for each source that leads somewhere else than when it was checked."""
    for mount in mounts:
        now = os.path.realpath(mount.source)
        if now != mount.source:
            yield f"mount source '{mount.source}' has become a link to '{now}' since it was checked"


def read_mountinfo(pid: int | str) -> tuple[MountPoint, ...]:
    """The mounts that a process sees; empty where this machine does not show them."""
    try:
        text = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ()
    return parse_mountinfo(text)


def parse_mountinfo(text: str) -> tuple[MountPoint, ...]:
    """The lines of a mountinfo file, in their order."""
    rows = (line.split(" ") for line in text.splitlines())
    return tuple(
        MountPoint(row[2], _unescape(row[3]), _unescape(row[4]))
        for row in rows
        if len(row) >= _FIELDS
    )


def compare_mounts(
    mounts: Sequence[ResolvedMount], ours: Sequence[MountPoint], theirs: Sequence[MountPoint]
) -> Iterator[str]:
    """One sentence for each mount of a container that is not the path that was checked.

    Args:
        mounts: The mounts that were checked.
        ours: The mounts that the launcher sees.
        theirs: The mounts that the container sees.
    """
    inside = {mount.point: mount for mount in theirs}
    for mount in mounts:
        expected = _locate(mount.source, ours)
        found = inside.get(mount.target)
        if expected is None or found is None:
            yield f"the mount at {mount.target} cannot be found again"
        elif (found.device, found.root) != (expected.device, expected.root):
            yield f"the mount at {mount.target} shows '{found.root}', not '{mount.source}'"


def _locate(path: str, ours: Sequence[MountPoint]) -> MountPoint | None:
    """Where a path lies: its file system, and its path in there."""
    holding = [mount for mount in ours if PurePosixPath(path).is_relative_to(mount.point)]
    if not holding:
        return None
    # Of mounts at one point the last one is seen.
    mount = max(enumerate(holding), key=lambda each: (len(each[1].point), each[0]))[1]
    inside = PurePosixPath(mount.root) / PurePosixPath(path).relative_to(mount.point)
    return MountPoint(mount.device, str(inside), path)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
