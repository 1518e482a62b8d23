"""Whether a file or folder of the host may be mounted: real path, kind, place, permission.

Looks at the file system and changes nothing. Every refusal shows the source as written and,
when a symbolic link leads elsewhere, where it really is. The path is resolved once, here; the
engine is given the resolved one.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.config import places
from sandboxed_mcp.config.disguised import find_kernel_filesystem, find_system_place
from sandboxed_mcp.config.mountinfo import read_mountinfo
from sandboxed_mcp.config.places import at_or_below
from sandboxed_mcp.config.problems import RefusedError, shown
from sandboxed_mcp.config.resolved import ResolvedMount

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandboxed_mcp.config.mounts import Mount

__all__ = ["Host", "read_host", "resolve_mount"]

WALKED_ENTRIES: Final = 200_000
"""How much of a mounted folder is searched for sockets, half a second or so at the most."""

_NARROWER: Final = "name a narrower folder that holds only what the server needs"


@dataclass(frozen=True, slots=True)
class Host:
    """What the checks need to know of this machine.

    Attributes:
        home: The launching user's home, real path.
        sockets: Real paths of engine and agent sockets, and of the folders of launchers' own.
        mount_points: Where file systems are mounted.
    """

    home: str
    sockets: tuple[str, ...] = ()
    mount_points: tuple[str, ...] = ()

    def expand(self, written: str, base_dir: Path) -> Path:
        """Make a path absolute: `~/` is the home, anything relative is below `base_dir`.

        Raises:
            RefusedError: It is the `~user` form.
        """
        if written == "~" or written.startswith("~/"):
            return Path(self.home) / written[2:]
        if written.startswith("~"):
            raise RefusedError(f"{shown(written)} names another user's home", "write it out")
        return base_dir.absolute() / written


def read_host(environ: Mapping[str, str]) -> Host:
    """Read what the checks need; `environ` gives HOME, DOCKER_HOST, SSH_AUTH_SOCK and so on."""
    home = os.path.realpath(environ.get("HOME") or _home_of_record())
    candidates = [
        *places.SOCKETS,
        *(f"{home}/{name}" for name in places.USER_SOCKETS),
        *_sockets_of(environ),
    ]
    sockets = [os.path.realpath(path) for path in candidates if os.path.lexists(path)]
    # These are made when a server starts: what holds them is refused before they are there.
    control = places.control_folders(environ.get("XDG_RUNTIME_DIR"), os.getuid())
    sockets += [os.path.realpath(folder) for folder in control]
    return Host(home, tuple(sockets), tuple(mount.point for mount in read_mountinfo("self")))


def resolve_mount(mount: Mount, base_dir: Path, host: Host, user: str) -> ResolvedMount:
    """Resolve and check one mount.

    Args:
        mount: As written.
        base_dir: What a relative source is relative to.
        host: This machine.
        user: `uid:gid` of the server.

    Raises:
        RefusedError: The source is not there, or may not be mounted; one sentence says why.
    """
    real, info = _resolve(mount.source, base_dir, host)
    label = shown(mount.source)
    if real != mount.source:
        label += f" (really {shown(real)})"
    _check_kind(info.st_mode, label)
    _check_place(real, label, host)
    if stat.S_ISDIR(info.st_mode):
        _check_folder(real, label, host)
    _check_access(info, label, user, write=mount.mode == "rw")
    return ResolvedMount(real, mount.target, mount.mode == "ro", mount.relabel, mount.source)


def _resolve(written: str, base_dir: Path, host: Host) -> tuple[str, os.stat_result]:
    path = host.expand(written, base_dir)
    try:
        real = os.path.realpath(path, strict=True)
        info = Path(real).lstat()
    except OSError as error:
        where = "" if str(path) == written else f" ('{path}')"
        raise RefusedError(
            f"{shown(written)}{where} cannot be mounted: {error.strerror}",
            "create it, or correct the path",
        ) from None
    if not real.isprintable():
        raise RefusedError(f"{shown(written)} leads to a path with odd characters", "rename it")
    return real, info


def _check_kind(mode: int, label: str) -> None:
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    kinds = {
        stat.S_IFSOCK: "a socket, through which a server reaches a process of the host",
        stat.S_IFIFO: "a pipe",
    }
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    raise RefusedError(f"{label} is {kind}", "mount a file or a folder")


def _check_place(real: str, label: str, host: Host) -> None:
    for place in places.SYSTEM:
        for known in {place, os.path.realpath(place)}:
            if at_or_below(real, known):
                raise RefusedError(
                    f"{label} is at or below {known} of the system",
                    "copy what the server needs to a folder of your own",
                )
    if (place := find_system_place(real)) is not None:
        raise RefusedError(
            f"{label} is {place} of the system at another path",
            "copy what the server needs to a folder of your own",
        )
    if (kind := find_kernel_filesystem(real)) is not None:
        raise RefusedError(
            f"{label} lies on a file system of the kernel ({kind})",
            "copy what the server needs to a folder of your own",
        )
    if real in places.BROAD or real in map(os.path.realpath, places.BROAD):
        raise RefusedError(f"{label} is too broad", _NARROWER)
    if at_or_below(host.home, real):
        raise RefusedError(f"{label} is or holds your home", _NARROWER)
    _check_credentials(real, label, host)


def _check_credentials(real: str, label: str, host: Host) -> None:
    fix = "mount something else; pass a single value with secrets"
    for name in places.CREDENTIALS:
        place = os.path.realpath(f"{host.home}/{name}")
        if at_or_below(real, place):
            raise RefusedError(f"{label} holds credentials (~/{name})", fix)
        if at_or_below(place, real) and Path(place).exists():
            raise RefusedError(f"{label} holds credentials (~/{name})", _NARROWER)
    if any(part in places.CREDENTIAL_NAMES for part in Path(real).parts):
        raise RefusedError(f"{label} holds credentials", fix)


def _check_folder(real: str, label: str, host: Host) -> None:
    for place in (*places.SYSTEM, *map(os.path.realpath, places.SYSTEM)):
        if at_or_below(place, real):
            raise RefusedError(f"{label} holds {place} of the system", _NARROWER)
    for socket in (*host.sockets, *_sockets_in(real)):
        if at_or_below(socket, real):
            raise RefusedError(
                f"{label} holds the socket '{socket}', through which a server leaves its sandbox",
                _NARROWER,
            )
    for point in host.mount_points:
        if point != real and at_or_below(point, real):
            raise RefusedError(
                f"{label} holds another file system ('{point}'), which the mount would not show",
                "mount that one by itself, or name a folder beside it",
            )


def _check_access(info: os.stat_result, label: str, user: str, *, write: bool) -> None:
    """Hold owner, group and mode against the server's user; it has no capability to override."""
    if not sys.platform.startswith("linux"):
        return  # a desktop engine's file sharing goes by its own rules
    uid, gid = map(int, user.split(":"))
    shift = 6 if info.st_uid == uid else 3 if info.st_gid == gid else 0
    needed = 0o2 if write else 0o4
    if stat.S_ISDIR(info.st_mode):
        needed |= 0o1
    if info.st_mode >> shift & needed == needed:
        return
    verb = "write to" if write else "read"
    raise RefusedError(
        f"{label} belongs to {info.st_uid}:{info.st_gid} with mode "
        f"{stat.S_IMODE(info.st_mode):04o}, so the server's user {user} cannot {verb} it",
        _fix_access(info, user, write=write),
    )


def _fix_access(info: os.stat_result, user: str, *, write: bool) -> str:
    change = f"run chown {user}" if write else "run chmod o+rX"
    if info.st_uid == os.getuid() != 0:
        return f'set user = "caller" in the policy, or {change} on it'
    return f"{change} on it, or set user in the policy"


def _sockets_in(real: str) -> Iterator[str]:
    """The sockets below a folder: those bound there by path, and those that a walk finds."""
    yield from (path for path in _bound_sockets() if at_or_below(path, real))
    folders = [real]
    seen = 0
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif _is_socket(entry):
                        yield entry.path
        except OSError as error:
            if seen == 0:
                raise RefusedError(
                    f"'{real}' cannot be listed: {error.strerror}",
                    "mount a folder that you can read",
                ) from None
        if seen > WALKED_ENTRIES:
            raise RefusedError(
                f"'{real}' holds more than {WALKED_ENTRIES} files, too many to search for sockets",
                _NARROWER,
            )


def _bound_sockets() -> list[str]:
    """The paths of every live unix socket of this network namespace (/proc/net/unix, unix(7))."""
    try:
        text = Path("/proc/net/unix").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    rows = (line.split(maxsplit=7) for line in text.splitlines()[1:])
    return [os.path.realpath(row[7]) for row in rows if len(row) > 7 and row[7].startswith("/")]  # noqa: PLR2004


def _is_socket(entry: os.DirEntry[str]) -> bool:
    """Ask for the kind that the listing holds first: a stat for each entry would be slow."""
    if entry.is_symlink() or entry.is_dir() or entry.is_file():
        return False
    return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)


def _sockets_of(environ: Mapping[str, str]) -> list[str]:
    listed = [environ.get(name, "") for name in ("DOCKER_HOST", "CONTAINER_HOST")]
    paths = [one.removeprefix("unix://") for one in listed if one.startswith("unix://")]
    if agent := environ.get("SSH_AUTH_SOCK"):
        paths.append(agent)
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        paths += [f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock"]
    return paths


def _home_of_record() -> str:
    import pwd  # noqa: PLC0415 - only where HOME is not set

    return pwd.getpwuid(os.getuid()).pw_dir
