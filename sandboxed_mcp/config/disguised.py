"""Places of the system that stand at another path: bind mounts of them, and kernel file systems.

A path tells where something is, not what it is. These checks go by the file itself (device and
inode, stat(2)) and by the kind of its file system (/proc/self/mountinfo, proc(5)).
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Final

from sandboxed_mcp.config import places

__all__ = ["find_kernel_filesystem", "find_system_place"]

_KERNEL: Final = frozenset(
    {
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tracefs",
    }
)
_POINT: Final = 4


def find_system_place(real: str) -> str | None:
    """The folder of the system that a path or a folder above it really is; None when it is none."""
    system = {_identity(place): place for place in places.SYSTEM}
    system.pop(None, None)
    for path in (PurePosixPath(real), *PurePosixPath(real).parents):
        found = system.get(_identity(str(path)))
        if found is not None:
            return found
    return None


def find_kernel_filesystem(real: str) -> str | None:
    """The kind of the kernel's own file system that a path lies on; None for an ordinary one."""
    try:
        text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return None  # not Linux: the engine runs in a virtual machine
    kind, depth = "", -1
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split(" ")[_POINT].replace("\\040", " ")
        if PurePosixPath(real).is_relative_to(point) and len(point) >= depth:
            kind, depth = after.split(" ")[0], len(point)
    return kind if kind in _KERNEL else None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino
