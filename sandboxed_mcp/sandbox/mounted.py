"""Whether a container got the host paths that were checked, not what took their place since.

The engine opens a mount's source again, by its path, after the checks of the configuration. A
path that has changed is refused before the container is made; what the kernel really mounted
(/proc/PID/mountinfo, proc(5)) is compared as soon as it runs, before it gets any input.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from sandboxed_mcp.config.mountinfo import find_covering

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sandboxed_mcp.config.mountinfo import MountPoint
    from sandboxed_mcp.config.resolved import ResolvedMount

__all__ = ["compare_mounts", "find_moved"]


def find_moved(mounts: Sequence[ResolvedMount]) -> Iterator[str]:
    """One sentence for each source that leads somewhere else than when it was checked."""
    for mount in mounts:
        now = os.path.realpath(mount.source)
        if now != mount.source:
            yield f"mount source '{mount.source}' has become a link to '{now}' since it was checked"


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
        elif (found.device, found.root) != expected:
            yield f"the mount at {mount.target} shows '{found.root}', not '{mount.source}'"


def _locate(path: str, ours: Sequence[MountPoint]) -> tuple[str, str] | None:
    """Where a path lies: its file system, and its path in there."""
    mount = find_covering(path, ours)
    if mount is None:
        return None
    inside = PurePosixPath(mount.root) / PurePosixPath(path).relative_to(mount.point)
    return mount.device, str(inside)
