"""Where launchers listen for `watch` and `policy apply`: one unix socket a launch.

The sockets, `LAUNCH.sock`, are in a folder that only this user can enter. They have a name in
the file system, on the host's side alone: no sandbox can hold one, since the folder may not be
mounted (see `config.places`). A socket outlives a killed launcher; it is stale when nobody
listens any more, and then anyone of the same user may remove it.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.config.places import control_folders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "find_control_socket",
    "list_places",
    "list_stale_sockets",
    "place_control_socket",
]

LONGEST_PATH: Final = 107
"""Bytes of a unix socket's path (unix(7)), without the NUL."""

YOUNG_SECONDS: Final = 10.0
"""A socket as new as that may be about to be listened at."""

_NAME: Final = re.compile(r"[0-9a-f]{32}\.sock\Z")
_OTHERS: Final = 0o077


def place_control_socket(environ: Mapping[str, str], launch: str) -> Path:
    """The path for a launch's socket; its folder is there and private.

    Args:
        environ: `XDG_RUNTIME_DIR` is read.
        launch: The launch id.

    Raises:
        OSError: There is no such folder and none can be made.
    """
    failure = OSError("no folder for it can be made")
    for path in map(Path, list_places(environ, launch)):
        if len(os.fsencode(path)) > LONGEST_PATH:
            continue
        try:
            with suppress(FileExistsError):
                path.parent.mkdir(mode=0o700)
            if _is_private(path.parent):
                return path
            failure = OSError(f"'{path.parent}' is not private to this user")
        except OSError as error:
            failure = error
    raise failure


def list_places(environ: Mapping[str, str], launch: str) -> list[str]:
    """Every path where `place_control_socket` may put a launch's socket."""
    folders = control_folders(environ.get("XDG_RUNTIME_DIR"), os.getuid())
    return [str(Path(folder) / f"{launch}.sock") for folder in folders]


def find_control_socket(environ: Mapping[str, str], launch: str) -> Path | None:
    """The socket of a launch of this user; None when there is none.

    Args:
        environ: `XDG_RUNTIME_DIR` is read.
        launch: The launch id.
    """
    found = (path for path in _list_sockets(environ) if path.name == f"{launch}.sock")
    return next(found, None)


def list_stale_sockets(environ: Mapping[str, str]) -> list[Path]:
    """The sockets of this user at which nobody listens.

    Args:
        environ: `XDG_RUNTIME_DIR` is read.
    """
    return [path for path in _list_sockets(environ) if _is_stale(path)]


def _list_sockets(environ: Mapping[str, str]) -> Iterator[Path]:
    for folder in map(Path, control_folders(environ.get("XDG_RUNTIME_DIR"), os.getuid())):
        with suppress(OSError):
            if _is_private(folder):
                yield from (path for path in folder.iterdir() if _NAME.match(path.name))


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    private = found.st_uid == os.getuid() and not found.st_mode & _OTHERS
    return private and stat.S_ISDIR(found.st_mode)


def _is_stale(path: Path) -> bool:
    try:
        if abs(time.time() - path.lstat().st_mtime) < YOUNG_SECONDS:
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a full backlog is somebody's, and not to be waited for
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
