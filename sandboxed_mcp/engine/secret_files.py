"""Secret files: a folder that only this user can enter, in memory where the system allows it.

The container gets its part `files` as `/run/secrets`, read-only. The folder is removed with the
sandbox, and by the watchdog when the launcher dies; its file `owner` says whose it is, should
the watchdog die as well.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxed_mcp.engine.owner import describe_owner
from sandboxed_mcp.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from sandboxed_mcp.config.resolved import ResolvedSecret

__all__ = [
    "OWNER_FILE",
    "PREFIX",
    "SHARED",
    "make_secret_folder",
    "open_secret_files",
    "secret_places",
]

PREFIX = "sandboxed-mcp-"
SHARED = "files"
OWNER_FILE = "owner"


def secret_places(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders in memory where secret folders are made, the preferred one first."""
    places = (environ.get("XDG_RUNTIME_DIR"), "/dev/shm")  # noqa: S108 - mkdtemp makes it private
    return tuple(Path(place) for place in places if place and Path(place).is_dir())


def make_secret_folder(environ: Mapping[str, str]) -> Path:
    """A new private folder (mode 0700), in memory if there is such a place.

    Args:
        environ: The launcher's environment; `XDG_RUNTIME_DIR` is read.

    Raises:
        LaunchError: There is no place that can be written to.
    """
    try:
        folder = _make_folder(secret_places(environ))
        _write_owner(folder)
    except OSError as error:
        raise LaunchError(f"the folder for secret files cannot be made: {error}") from error
    return folder


def _write_owner(folder: Path) -> None:
    try:
        (folder / OWNER_FILE).write_text(describe_owner(), encoding="ascii", errors="replace")
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _make_folder(places: tuple[Path, ...]) -> Path:
    for place in places:
        try:
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix=PREFIX))


@contextmanager
def open_secret_files(folder: Path, secrets: tuple[ResolvedSecret, ...]) -> Generator[str]:
    """Writes the secrets; gives the folder to mount, removes everything at the end.

    Args:
        folder: A private folder from `make_secret_folder`.
        secrets: The secrets that are delivered as files; a name becomes a file name.
    """
    try:
        # The server's user is not ours: the files are open to all, behind a closed door.
        shared = folder / SHARED
        shared.mkdir(mode=0o755)
        for secret in secrets:
            path = shared / secret.name
            path.write_text(secret.value, encoding="utf-8")
            path.chmod(0o444)
        yield str(shared)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
