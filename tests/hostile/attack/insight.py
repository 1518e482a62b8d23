"""What a process can find out about where it runs: environment, files, processes, limits."""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path

KERNEL = ("/proc", "/sys")
OWN = re.compile(r"/proc/(?:\d+|self|thread-self)(?:/|$)")


def read(path: str, size: int = 1 << 16) -> str:
    """A file's text, or the name of what stopped it."""
    try:
        with Path(path).open("rb") as file:
            return file.read(size).decode(errors="replace")
    except OSError as error:
        return f"!{error.strerror}"


def environment_by_every_route() -> dict[str, list[str]]:
    """NAME=VALUE entries by where they were found: own, and of every visible process."""
    found = {"os.environ": [f"{k}={v}" for k, v in os.environ.items()]}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() or folder.name in {"self", "thread-self"}:
            text = read(f"{folder}/environ")
            if not text.startswith("!"):
                found[f"{folder}/environ"] = [one for one in text.split("\0") if one]
    return found


def command_lines() -> dict[str, str]:
    return {
        folder.name: read(f"{folder}/cmdline").replace("\0", " ").strip()
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit()
    }


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def status() -> dict[str, str]:
    """/proc/self/status as a table."""
    lines = read("/proc/self/status").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def status_of_first() -> dict[str, str]:
    lines = read("/proc/1/status").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def identity() -> dict[str, object]:
    return {
        "uids": os.getresuid(),
        "gids": os.getresgid(),
        "groups": os.getgroups(),
        "host": socket.gethostname(),
        "cwd": os.getcwd(),  # noqa: PTH109
    }


def namespaces() -> dict[str, str]:
    kinds = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
    return {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}  # noqa: PTH115


def devices() -> list[str]:
    """Character and block devices below /dev."""
    found: list[str] = []
    for folder, _, names in os.walk("/dev"):
        for name in names:
            path = Path(folder) / name
            mode = path.lstat().st_mode
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                found.append(str(path))
    return sorted(found)


def sockets() -> list[str]:
    """Unix sockets in the file system."""
    found: list[str] = []
    for folder, folders, names in os.walk("/"):
        folders[:] = [f for f in folders if os.path.join(folder, f) not in KERNEL]  # noqa: PTH118
        for name in names:
            path = Path(folder) / name
            try:
                if stat.S_ISSOCK(path.lstat().st_mode):
                    found.append(str(path))
            except OSError:
                continue
    return found


def writable_places(root: str = "/") -> dict[str, list[str]]:
    """Where a file could be created, and which file could be opened for writing."""
    created: list[str] = []
    opened: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if os.path.join(folder, f) not in KERNEL]  # noqa: PTH118
        if _creates(folder):
            created.append(folder)
        opened += [path for path in (os.path.join(folder, n) for n in names) if _opens(path)]  # noqa: PTH118
    return {"created": created, "opened": sorted(opened)}


def writable_kernel_files(root: str) -> list[str]:
    """Files below /proc or /sys that open for writing, those of processes left out."""
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not OWN.match(os.path.join(folder, f))]  # noqa: PTH118
        found += [path for path in (os.path.join(folder, n) for n in names) if _opens(path)]  # noqa: PTH118
    return sorted(found)


def _creates(folder: str) -> bool:
    path = os.path.join(folder, f"probe-{os.getpid()}")  # noqa: PTH118
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    os.unlink(path)  # noqa: PTH108
    return True


def _opens(path: str) -> bool:
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def modify(path: str) -> dict[str, str]:
    """Every way to change an existing file or what is at its path."""
    twin = f"{path}.probe"
    acts = {
        "write": lambda: os.close(os.open(path, os.O_WRONLY)),
        "truncate": lambda: os.truncate(path, os.stat(path).st_size),  # noqa: PTH116
        "chmod": lambda: os.chmod(path, 0o600),  # noqa: PTH101
        "link": lambda: os.link(path, twin),
        "rename": lambda: os.rename(path, twin),  # noqa: PTH104
        "unlink": lambda: os.unlink(path),  # noqa: PTH108
        "utime": lambda: os.utime(path, (1, 1)),
        "create beside": lambda: os.close(os.open(twin, os.O_CREAT | os.O_WRONLY)),
    }
    outcome: dict[str, str] = {}
    for name, act in acts.items():
        try:
            act()
            outcome[name] = "ok"
        except OSError as error:
            outcome[name] = error.strerror or "?"
    return outcome


def write_text(path: str, text: str) -> str:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        return error.strerror or "?"
    return "ok"


def make_link(path: str, target: str) -> str:
    try:
        os.symlink(target, path)  # noqa: PTH211
    except OSError as error:
        return error.strerror or "?"
    return "ok"


def mounts() -> dict[str, list[str]]:
    """Mount points and their options; the last mount at a place counts."""
    found: dict[str, list[str]] = {}
    for line in read("/proc/self/mountinfo", 1 << 20).splitlines():
        fields = line.split(" ")
        found[fields[4]] = fields[5].split(",")
    return found


def interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def routes() -> list[str]:
    lines = read("/proc/net/route").splitlines()[1:] + read("/proc/net/ipv6_route").splitlines()
    return [line for line in lines if not line.endswith("lo")]


def resolve(name: str) -> str:
    try:
        socket.getaddrinfo(name, 443)
    except socket.gaierror as error:
        return str(error)
    return "ok"


def list_folder(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))  # noqa: PTH208
    except OSError as error:
        return [f"!{error.strerror}"]


def find_name(name: str) -> list[str]:
    """Every path whose last part is `name`, in all of what is visible."""
    found: list[str] = []
    for folder, folders, names in os.walk("/"):
        folders[:] = [f for f in folders if os.path.join(folder, f) not in KERNEL]  # noqa: PTH118
        found += [os.path.join(folder, one) for one in (*names, *folders) if one == name]  # noqa: PTH118
    return found


def open_descriptors() -> list[str]:
    """What every visible process holds open."""
    found: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            for one in folder.iterdir():
                found.add(os.readlink(one))  # noqa: PTH115
        except OSError:
            continue
    return sorted(found)


def run(*argv: str) -> str:
    """Runs a program; gives what it says."""
    import subprocess

    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
    except OSError as error:
        return f"!{error.strerror}"
    return (done.stdout + done.stderr).strip()
