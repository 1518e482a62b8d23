"""What a server could swap through a mount that it may write to.

A path is safe to follow only if nobody untrusted can change a name on the way. A server with a
writable mount can replace any file, folder or link in it, so at the next start a path through it
could lead anywhere: another mount's source, a secret's file, the configuration, the policy.
Such a combination is refused before the server has had a chance.

Looks at the file system and changes nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.config.places import at_or_below
from sandboxed_mcp.config.problems import RefusedError, shown

if TYPE_CHECKING:
    from pathlib import Path

    from sandboxed_mcp.config.resolved import ResolvedMount

__all__ = ["Way", "check_ways", "lookup_folders"]

MAX_STEPS: Final = 4096


@dataclass(frozen=True, slots=True)
class Way:
    """A path that a launch follows.

    Attributes:
        path: As it is followed: absolute, links not resolved.
        label: What it is, for the message.
    """

    path: Path
    label: str


def check_ways(ways: list[Way], mounts: tuple[ResolvedMount, ...]) -> None:
    """Refuse a writable mount through which one of the paths leads.

    Raises:
        RefusedError: `setting` is the index and key of the writable mount.
    """
    trails = [(way, lookup_folders(str(way.path))) for way in ways]
    for index, mount in enumerate(mounts):
        for way, folders in trails:
            if mount.read_only or not any(at_or_below(one, mount.source) for one in folders):
                continue
            raise RefusedError(
                f"{shown(mount.written)} is writable and holds {way.label}, which the server "
                "could swap for something else before the next start",
                "make it ro, mount a narrower folder, or keep the other elsewhere",
                f"[{index}].source",
            )


def lookup_folders(path: str) -> list[str]:
    """List the real folders in which the names of a path are looked up, links followed.

    Whoever may write to one of them decides where the path leads (path_resolution(7)). The
    walk ends where nothing is there, or in a loop of links.
    """
    pending = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    current, folders = "/", list[str]()
    for _ in range(MAX_STEPS):
        if not pending:
            break
        name = pending.pop()
        if name == "..":
            current = os.path.dirname(current)  # noqa: PTH120 - text, and "/" stays "/"
            continue
        folders.append(current)
        entry = f"{current.rstrip('/')}/{name}"
        try:
            target = os.readlink(entry)  # noqa: PTH115 - text in, text out
        except OSError:  # not a link
            current = entry
            continue
        current = "/" if target.startswith("/") else current
        pending += [part for part in reversed(target.split("/")) if part not in ("", ".")]
    return folders
