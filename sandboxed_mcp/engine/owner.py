"""Which process a container belongs to, and whether that process still lives.

An owner is written as `machine/boot/namespace/pid/start`: the machine's id, its boot id, its
pid namespace, the process id and the process's start time in clock ticks after boot. Only an
owner of this machine and this pid namespace can be judged; any other is left alone.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

__all__ = ["describe_owner", "owner_is_gone"]

PARTS = 5


def describe_owner(pid: int | None = None) -> str:
    """The owner text of a process; of this one without an argument."""
    pid = os.getpid() if pid is None else pid
    return "/".join((_machine(), _boot(), _namespace(), str(pid), _start_time(pid) or "unknown"))


def owner_is_gone(owner: str) -> bool:
    """Whether the process behind an owner text has certainly ended.

    False when it lives, and when it cannot be judged from here.
    """
    parts = owner.split("/")
    if len(parts) != PARTS or parts[0] != _machine():
        return False
    if parts[1] != _boot():
        return True
    if parts[2] != _namespace() or not parts[3].isdigit():
        return False
    return _start_time(int(parts[3])) != parts[4]


def _machine() -> str:
    host = socket.gethostname().replace("/", "_")
    return f"{host}:{_read('/etc/machine-id') or 'unknown'}"


def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id") or "unknown"


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        return "unknown"


def _start_time(pid: int) -> str | None:
    """Field 22 of /proc/PID/stat; None when there is no such process."""
    text = _read(f"/proc/{pid}/stat")
    if text is None:
        return None if _namespace() != "unknown" else _alive(pid)
    # The command name, in parentheses, may hold spaces and parentheses of its own.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def _alive(pid: int) -> str | None:
    """Without /proc: `unknown` for a live process, None for a dead one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return "unknown"
    return "unknown"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
