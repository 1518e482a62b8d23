"""The audit log: every event of a sandbox as a line of JSON, in one private file.

A line is one `write` to a file opened for appending, so a crash loses at most the last line.
The file has mode 0600 and one writer at a time (flock(2)). After 10 MiB it becomes `FILE.1`,
and so on up to `FILE.4`; what is older goes. A file that cannot be trusted is refused when it
is opened; one that cannot be written any more shows in `AuditLog.failed`, and whoever started
the sandbox ends it.

Nothing here decides what is recorded, and nothing reads the lines (see `lines`). Data reaches
the kernel, not the disk: a power failure may lose more.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import anyio

from sandboxed_mcp.errors import ConfigError
from sandboxed_mcp.events import BadLine, BadLinesSuppressed, Event, render_event

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ["KEPT_FILES", "MAX_FILE_BYTES", "AuditLog", "AuditRefusedError", "open_audit_log"]

MAX_FILE_BYTES: Final = 10 * 1024 * 1024
KEPT_FILES: Final = 5
"""The file itself and those before it."""

BAD_LINES_A_SECOND: Final = 10
"""More lines that are no messages are only counted: they must not push denials out."""

_OPEN: Final = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_PRIVATE: Final = 0o600
_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022


class AuditRefusedError(Exception):
    """The file cannot be the audit log.

    Attributes:
        problem: What is wrong, after the file's name.
        fix: What to do, one clause.
    """

    def __init__(self, problem: str, fix: str) -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(f"{problem}; {fix}")


@contextmanager
def open_audit_log(path: Path, setting: str, origin: str | None = None) -> Generator[AuditLog]:
    """Opens the audit log of one sandbox; makes the file when it is not there.

    Args:
        path: The file; its folder must be there.
        setting: What named it, for errors.
        origin: The configuration file that names it.

    Raises:
        ConfigError: It is a link, no regular file, not private to this user, in a folder that
            others can write to, in use by another writer, or cannot be opened.
    """
    try:
        log = AuditLog(path)
    except AuditRefusedError as error:
        problem = f"the audit log '{path}' {error.problem}"
        raise ConfigError(setting, problem, error.fix, file=origin) from error
    try:
        yield log
    finally:
        log.close()


class AuditLog:
    """One open audit log.

    Attributes:
        path: The file.
        failure: Why it cannot be written any more; empty while it can.
        failed: Set together with `failure`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure = ""
        self.failed = anyio.Event()
        self._bad_lines = _BadLines()
        self._folder = _open_folder(path)
        try:
            self._file, self._size = _open_file(path.name, self._folder)
        except BaseException:
            os.close(self._folder)
            raise

    def write(self, event: Event) -> None:
        """Appends an event; never raises, see `failed`. After a failure it does nothing."""
        for each in self._bad_lines.limit(event):
            self._append(each)

    def close(self) -> None:
        """Writes what was only counted, and lets the file go."""
        for each in self._bad_lines.flush():
            self._append(each)
        os.close(self._file)
        os.close(self._folder)

    def _append(self, event: Event) -> None:
        if self.failure:
            return
        line = render_event(event).encode("ascii") + b"\n"
        try:
            self._check_place()
            if self._size and self._size + len(line) > MAX_FILE_BYTES:
                self._rotate()
            self._put(line)
        except (OSError, AuditRefusedError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.problem
            self.failure = f"the audit log '{self.path}' cannot be written: {reason}"
            self.failed.set()

    def _put(self, line: bytes) -> None:
        written = os.write(self._file, line)
        if written < len(line):  # the disk is full: no half a line stays
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise OSError(0, "no space is left on the disk")
        self._size += written

    def _check_place(self) -> None:
        """Lines in a file that nobody finds any more would be lost."""
        if not _is_same(self.path.name, self._folder, self._file):
            raise AuditRefusedError("it was removed or replaced", "leave it to its writer")

    def _rotate(self) -> None:
        names = [self.path.name, *(f"{self.path.name}.{n}" for n in range(1, KEPT_FILES))]
        for newer, older in reversed(list(pairwise(names))):
            with suppress(FileNotFoundError):
                os.replace(newer, older, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        fresh = os.open(
            self.path.name, _OPEN | os.O_CREAT | os.O_EXCL, _PRIVATE, dir_fd=self._folder
        )
        try:
            _lock(fresh)
        except BaseException:
            os.close(fresh)
            raise
        os.close(self._file)
        self._file, self._size = fresh, 0


class _BadLines:
    """Bounds the one kind of event that a server makes as fast as it can write."""

    def __init__(self) -> None:
        self._second = 0
        self._passed = 0
        self._held: BadLine | None = None
        self._count = 0

    def limit(self, event: Event) -> list[Event]:
        """What to write instead of the event."""
        if not isinstance(event, BadLine):
            return [event]
        second = int(time.monotonic())
        before = self.flush() if second != self._second else []
        if second != self._second:
            self._second, self._passed = second, 0
        if self._passed < BAD_LINES_A_SECOND:
            self._passed += 1
            return [*before, event]
        self._held, self._count = event, self._count + 1
        return before

    def flush(self) -> list[Event]:
        """The number of those that were held back, if any."""
        if self._held is None:
            return []
        held, count = self._held, self._count
        self._held, self._count = None, 0
        return [
            BadLinesSuppressed(time=held.time, server=held.server, launch=held.launch, count=count)
        ]


def _open_folder(path: Path) -> int:
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise AuditRefusedError(
            f"cannot be opened: its folder: {error.strerror}", "create the folder"
        ) from error
    found = os.fstat(folder)
    shared = found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
    if shared or found.st_uid not in {0, os.geteuid()}:
        os.close(folder)
        raise AuditRefusedError(
            "is in a folder that others can write to, so that they can replace it",
            "use a folder of your own, with mode 0700",
        )
    return folder


def _open_file(name: str, folder: int) -> tuple[int, int]:
    """The descriptor, checked and locked, and the file's size."""
    try:
        file = os.open(name, _OPEN | os.O_CREAT, _PRIVATE, dir_fd=folder)
    except OSError as error:
        raise _explain_open(name, folder, error) from error
    try:
        _check_file(os.fstat(file))
        _lock(file)
        _check_same(name, folder, file)
        return file, _end_line(file, os.fstat(file).st_size)
    except OSError as error:
        os.close(file)
        raise AuditRefusedError(f"cannot be used: {error.strerror}", "use another file") from error
    except BaseException:
        os.close(file)
        raise


def _explain_open(name: str, folder: int, error: OSError) -> AuditRefusedError:
    with suppress(OSError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            return AuditRefusedError("is a symbolic link", "name the file itself")
        if not stat.S_ISREG(found.st_mode):
            return _no_file()
    return AuditRefusedError(f"cannot be opened: {error.strerror}", "check path and permissions")


def _check_file(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _no_file()
    if found.st_uid != os.geteuid():
        raise AuditRefusedError("belongs to another user", "name a file of your own")
    if found.st_mode & _OTHERS:
        raise AuditRefusedError(
            f"has mode {stat.S_IMODE(found.st_mode):04o}, so that others can read or change it",
            "run chmod 600 on it",
        )
    if found.st_nlink != 1:
        raise AuditRefusedError("has a second name (a hard link)", "name a file of its own")


def _lock(file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _in_use() from error


def _check_same(name: str, folder: int, file: int) -> None:
    if not _is_same(name, folder, file):  # another writer has rotated it meanwhile
        raise _in_use()


def _is_same(name: str, folder: int, file: int) -> bool:
    mine = os.fstat(file)
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def _end_line(file: int, size: int) -> int:
    """Ends a line that a crash has cut off; gives the size."""
    if size and os.pread(file, 1, size - 1) != b"\n":
        size += os.write(file, b"\n")
    return size


def _no_file() -> AuditRefusedError:
    return AuditRefusedError("is not a regular file", "name a file")


def _in_use() -> AuditRefusedError:
    return AuditRefusedError(
        "is in use: another sandbox writes to it", "name a file for each sandbox that runs"
    )
