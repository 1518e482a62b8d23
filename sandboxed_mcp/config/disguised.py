"""Places of the system that stand at another path: bind mounts of them, and kernel file systems.

A path tells where something is, not what it is. These checks go by the file itself (device and
inode, stat(2)) and by the kind of its file system (/proc/self/mountinfo, proc(5)).
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Final

from sandboxed_mcp.config import places
from sandboxed_mcp.config.mountinfo import find_covering, read_mountinfo

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
    mount = find_covering(real, read_mountinfo("self"))
    return mount.kind if mount is not None and mount.kind in _KERNEL else None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino
