"""Taking more than one's share: processes, memory, space, descriptors, time."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path


def fork_bomb(most: int) -> dict[str, object]:
    """Forks children that stay until it is refused, then ends them."""
    children: list[int] = []
    refused = ""
    for _ in range(most):
        try:
            pid = os.fork()
        except OSError as error:
            refused = errno.errorcode[error.errno or 0]
            break
        if pid == 0:
            signal.pause()
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"started": len(children), "refused": refused}


def take_memory(size: int) -> int:
    """Touches `size` bytes of fresh memory; gives how many."""
    block = mmap.mmap(-1, size)
    for position in range(0, size, mmap.PAGESIZE):
        block[position] = 1
    block.close()
    return size


def fill(folder: str, most: int) -> dict[str, object]:
    """Writes until it is refused or `most` bytes are there; removes it again."""
    path = Path(folder) / f"fill-{os.getpid()}"
    block = bytes(1 << 16)
    written, refused = 0, ""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while written < most:
            written += os.write(descriptor, block)
    except OSError as error:
        refused = errno.errorcode[error.errno or 0]
    os.close(descriptor)
    path.unlink()
    return {"written": written, "refused": refused}


def fill_inodes(folder: str, most: int) -> dict[str, object]:
    """Creates empty files until it is refused; removes them again."""
    home = Path(folder) / f"inodes-{os.getpid()}"
    home.mkdir()
    descriptor = os.open(home, os.O_RDONLY)
    made, refused = 0, ""
    try:
        while made < most:
            os.close(os.open(str(made), os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
            made += 1
    except OSError as error:
        refused = errno.errorcode[error.errno or 0]
    for number in range(made):
        os.unlink(str(number), dir_fd=descriptor)
    home.rmdir()
    return {"made": made, "refused": refused}


def open_files(most: int) -> dict[str, object]:
    opened: list[int] = []
    refused = ""
    try:
        while len(opened) < most:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        refused = errno.errorcode[error.errno or 0]
    for descriptor in opened:
        os.close(descriptor)
    return {"opened": len(opened), "refused": refused}


def spin(workers: int, seconds: float) -> float:
    """Keeps `workers` processes busy; gives the CPU seconds used per second of wall time."""
    started = time.monotonic()
    children: list[int] = []
    for _ in range(workers):
        pid = os.fork()
        if pid == 0:
            while time.monotonic() - started < seconds:
                pass
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / (time.monotonic() - started)


def throttling() -> dict[str, int]:
    """The kernel's own count of how often the CPU limit held this container back."""
    for path in ("/sys/fs/cgroup/cpu/cpu.stat", "/sys/fs/cgroup/cpu.stat"):
        with suppress(OSError):
            lines = Path(path).read_text(encoding="ascii").splitlines()
            return {key: int(value) for key, value in (line.split() for line in lines)}
    return {}


def swap_limits() -> dict[str, int]:
    """Memory and memory-with-swap in bytes, however the kernel's version words it."""
    old = Path("/sys/fs/cgroup/memory")
    if old.is_dir():
        memory = int((old / "memory.limit_in_bytes").read_text(encoding="ascii"))
        both = int((old / "memory.memsw.limit_in_bytes").read_text(encoding="ascii"))
        return {"memory": memory, "swap": both - memory}
    new = Path("/sys/fs/cgroup")
    memory = int((new / "memory.max").read_text(encoding="ascii"))
    return {"memory": memory, "swap": int((new / "memory.swap.max").read_text(encoding="ascii"))}


def crash() -> bool:
    """Whether a crashing child left a core dump."""
    pid = os.fork()
    if pid == 0:
        os.abort()
    _, ended = os.waitpid(pid, 0)
    return os.WCOREDUMP(ended)


def lock_memory(size: int) -> str:
    import ctypes

    block = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    ctypes.set_errno(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)) == 0:
        return "ok"
    return errno.errorcode[ctypes.get_errno()]
