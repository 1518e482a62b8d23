"""One build of an image at a time on this host, across processes.

The lock belongs to the process: the kernel drops it however the process ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from sandboxed_mcp.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["LOCK_SECONDS", "hold_lock"]

LOCK_SECONDS = 1200.0
"""How long a build waits for another build of the same image."""

_RETRY_SECONDS = 0.2


@contextmanager
def hold_lock(
    name: str, progress: Callable[[str], None], *, wait_seconds: float = LOCK_SECONDS
) -> Generator[None]:
    """Hold the lock of one image name.

    Raises:
        EngineError: Another process held it for longer than `wait_seconds`, or the lock file
            cannot be made.
    """
    descriptor = _open_lock(name)
    try:
        _acquire(descriptor, name, progress, wait_seconds)
        yield
    finally:
        os.close(descriptor)


def _open_lock(name: str) -> int:
    path = Path.home() / ".cache" / "sandboxed-mcp" / f"build-{name.replace('/', '-')}.lock"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise EngineError(f"cannot make the build lock {path}: {error.strerror}") from error


def _acquire(
    descriptor: int, name: str, progress: Callable[[str], None], wait_seconds: float
) -> None:
    deadline = time.monotonic() + wait_seconds
    waited = False
    while not _try_lock(descriptor):
        if not waited:
            progress(f"waiting for another build of {name}")
            waited = True
        if time.monotonic() >= deadline:
            raise EngineError(f"another build of '{name}' did not end within {wait_seconds:g} s")
        Event().wait(_RETRY_SECONDS)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
