"""Network namespaces of the laboratory: made, entered by a thread, removed.

Names are `smcp-<pid>-<number>-<role>`, so that what a killed test run left behind is found and
removed by the next one. Needs root and iproute2.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["Namespace", "open_namespace", "run_batch", "sweep"]

_Result = TypeVar("_Result")

_CLONE_NEWNET = 0x4000_0000
_RUN = Path("/run/netns")
_PREFIX = "smcp"
_numbers = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network namespace with a name."""

    def __init__(self, name: str, path: Path | None = None) -> None:
        """Refer to a namespace that exists: a named one, or by a path such as /proc/1/ns/net."""
        self.name = name
        self._path = path or _RUN / name

    def inside(self, work: Callable[[], _Result]) -> _Result:
        """Do something on a thread inside: sockets and processes made there stay there."""
        outcome: list[_Result] = []
        failure: list[BaseException] = []

        def enter() -> None:
            try:
                _enter(self._path)
                outcome.append(work())
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                failure.append(error)

        thread = threading.Thread(target=enter, name=self.name)
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
        return outcome[0]

    def ip(self, *commands: str) -> None:
        """Run commands of ip(8), such as `link set lo up`, in one process."""
        self.inside(lambda: run_batch(commands))

    def run(self, *command: str, text: str = "", check: bool = True) -> str:
        """Run a command inside and return its output."""
        return self.inside(
            lambda: subprocess.run(
                command, input=text, text=True, capture_output=True, timeout=30, check=check
            )
        ).stdout

    def write_sysctl(self, name: str, value: int) -> None:
        """Set a sysctl of the namespace, such as `net/ipv4/ip_forward`."""
        self.inside(lambda: Path("/proc/sys", name).write_text(str(value)))


@contextmanager
def open_namespace(role: str) -> Generator[Namespace, None, None]:
    """Make a namespace with loopback up; it is removed at the end, and its devices with it."""
    name = f"{_PREFIX}-{os.getpid()}-{next(_numbers)}-{role}"
    run_batch([f"netns add {name}"])
    try:
        namespace = Namespace(name)
        namespace.ip("link set lo up")
        yield namespace
    finally:
        run_batch([f"netns del {name}"])


def run_batch(commands: Sequence[str]) -> None:
    """Run commands of ip(8) in one process; raises with its own words."""
    done = subprocess.run(
        ["ip", "-batch", "-"],
        input="\n".join(commands),
        text=True,
        capture_output=True,
        timeout=30,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"ip: {done.stderr.strip()} in {commands}")


def sweep() -> None:
    """Remove the namespaces of test runs that are gone."""
    for path in _RUN.glob(f"{_PREFIX}-*-*-*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            run_batch([f"netns del {path.name}"])


def _enter(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(descriptor)
