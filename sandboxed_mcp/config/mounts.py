"""Mounts as written: `SOURCE:TARGET[:ro|rw]` or a table, and what a target may be.

Pure; whether a source may be mounted is judged in `sources`, which looks at the file system.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator

from sandboxed_mcp.config.problems import RefusedError, Table, shown

__all__ = ["Mount", "check_inside_path", "check_targets", "parse_mount"]

_WINDOWS: Final = re.compile(r"[A-Za-z]:[\\/]")
_LONGEST_PATH: Final = 4095

_KERNEL: Final = ("/proc", "/sys", "/dev")
_RESERVED: Final = (
    *_KERNEL,
    "/etc",
    "/run",
    "/var/run",
    "/tmp",  # noqa: S108 - the sandbox's own scratch space
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/boot",
    "/usr",
)
_OPEN_BELOW: Final = ("/usr/src", "/usr/share", "/usr/local/share")


def _check_target(target: str) -> str:
    fix = "write an absolute path of the sandbox, such as /data"
    check_inside_path(target, fix)
    if target == "/":
        raise RefusedError("'/' would hide the whole image", fix)
    if any(_below(target, path) and target != path for path in _OPEN_BELOW):
        return target
    for reserved in _RESERVED:
        if _below(target, reserved):
            raise RefusedError(f"{shown(target)} is at or below {reserved} of the sandbox", fix)
    return target


def _check_source(source: str) -> str:
    fix = "write a path of this machine: absolute, relative to this file, or below ~"
    if not source or "\0" in source or len(source) > _LONGEST_PATH:
        raise RefusedError(f"{shown(source)} is not a path", fix)
    if _WINDOWS.match(source) or "\\" in source:
        raise RefusedError(f"{shown(source)} is a Windows path", fix)
    if "${" in source:
        raise RefusedError(f"{shown(source)} holds a variable, and nothing is expanded", fix)
    if any(not char.isprintable() for char in source):
        raise RefusedError(f"{shown(source)} holds a control character", fix)
    return source


class Mount(Table):
    """A file or folder of the host, as written.

    Attributes:
        source: Path on the host; relative to the configuration's folder, or `~/...`.
        target: Absolute path in the sandbox.
        mode: `ro` or `rw`.
        relabel: SELinux relabelling of the source: `shared` (`z`), `private` (`Z`), or none.
    """

    source: Annotated[str, AfterValidator(_check_source)]
    target: Annotated[str, AfterValidator(_check_target)]
    mode: Literal["ro", "rw"] = "ro"
    relabel: Literal["shared", "private"] | None = None


def parse_mount(value: object) -> object:
    """Split `SOURCE:TARGET[:ro|rw]` into a table; anything else is returned as it is.

    Raises:
        RefusedError: The text is not of that form.
    """
    if not isinstance(value, str):
        return value
    fix = 'write "SOURCE:TARGET" or "SOURCE:TARGET:rw"; a source with ":" needs a table'
    if _WINDOWS.match(value):
        raise RefusedError(f"{shown(value)} starts with a Windows drive", fix)
    source, *rest = value.split(":")
    if not rest or not source:
        raise RefusedError(f"{shown(value)} names no {'target' if source else 'source'}", fix)
    target, *options = rest
    if options == []:
        return {"source": source, "target": target}
    if options in (["ro"], ["rw"]):
        return {"source": source, "target": target, "mode": options[0]}
    written = ":".join(options)
    if written.lower() in ("z", "ro,z", "rw,z"):
        fix = 'write a table with relabel = "shared" or "private"'
    raise RefusedError(f"{shown(value)} ends in the unknown mode {shown(written)}", fix)


def check_inside_path(path: str, fix: str) -> None:
    """Check a path of the sandbox: absolute, normal, printable.

    Raises:
        RefusedError: With the reason and the given fix.
    """
    if not path.startswith("/"):
        raise RefusedError(f"{shown(path)} is not an absolute path", fix)
    if len(path) > _LONGEST_PATH or any(not char.isprintable() for char in path):
        raise RefusedError(f"{shown(path)} holds a control character or is too long", fix)
    if ".." in path.split("/"):
        raise RefusedError(f"{shown(path)} holds '..'", fix)
    if str(PurePosixPath(path)) != path or path.startswith("//"):
        raise RefusedError(f"{shown(path)} is not in its shortest form", fix)
    if any(char in path for char in ":\\"):
        raise RefusedError(f"{shown(path)} holds ':' or a backslash", fix)


def check_cwd(path: str) -> str:
    """Check a working directory: a path of the sandbox outside /proc, /sys and /dev.

    Raises:
        RefusedError: Through such a path a container has been left before (CVE-2024-21626).
    """
    fix = "write an absolute path of the sandbox, such as /data"
    check_inside_path(path, fix)
    if any(_below(path, kernel) for kernel in _KERNEL):
        raise RefusedError(f"{shown(path)} is at or below /proc, /sys or /dev", fix)
    return path


def check_targets(mounts: tuple[Mount, ...]) -> None:
    """Refuse two mounts of which one target lies at or below the other.

    Raises:
        RefusedError: `setting` is the index of the later mount.
    """
    for index, mount in enumerate(mounts):
        for other in mounts[:index]:
            if _below(mount.target, other.target) or _below(other.target, mount.target):
                raise RefusedError(
                    f"{shown(mount.target)} overlaps the target {shown(other.target)}",
                    "give each mount a folder of its own",
                    f"[{index}].target",
                )


def _below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent.rstrip("/") + "/")
