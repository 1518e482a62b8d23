"""What the kernel says is mounted where: /proc/PID/mountinfo (proc_pid_mountinfo(5)), read once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MountPoint", "find_covering", "parse_mountinfo", "read_mountinfo"]

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_FIELDS: Final = 5


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A line of mountinfo.

    Attributes:
        device: `major:minor` of the file system.
        root: The folder or file of that file system that is mounted.
        point: Where it is mounted.
        kind: The kind of file system, such as `ext4` or `proc`.
    """

    device: str
    root: str
    point: str
    kind: str


def read_mountinfo(pid: int | str) -> tuple[MountPoint, ...]:
    """The mounts that a process sees; empty where this machine does not show them."""
    try:
        text = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ()
    return parse_mountinfo(text)


def parse_mountinfo(text: str) -> tuple[MountPoint, ...]:
    """The lines of a mountinfo file, in their order."""
    halves = (line.partition(" - ") for line in text.splitlines())
    rows = ((before.split(" "), after.partition(" ")[0]) for before, _, after in halves)
    return tuple(
        MountPoint(row[2], _unescape(row[3]), _unescape(row[4]), kind)
        for row, kind in rows
        if len(row) >= _FIELDS
    )


def find_covering(path: str, mounts: Sequence[MountPoint]) -> MountPoint | None:
    """The mount that a path lies on; of mounts at one point the last one is seen."""
    holding = [mount for mount in mounts if PurePosixPath(path).is_relative_to(mount.point)]
    if not holding:
        return None
    return max(enumerate(holding), key=lambda each: (len(each[1].point), each[0]))[1]


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
