"""The launcher's end of the watchdog: one small process that watches this one.

`Watchdog.watch` comes before a container is created and `Watchdog.done` after it is gone. One
watchdog serves all sandboxes of a process; it starts with the first and ends after the last.
Should it die itself, the next `watch` starts another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxed_mcp.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandboxed_mcp.engine.api import Engine

__all__ = ["Watchdog", "watchdog_of_this_process"]

PROCESS = Path(__file__).with_name("watchdog_process.py")
# What ssh needs to reach a remote engine; nothing else of the environment is passed on.
KEPT_ENV = frozenset({"HOME", "PATH", "SSH_AUTH_SOCK"})


class Watchdog:
    """The watchdog of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._watched: dict[str, bytes] = {}
        self._pid = os.getpid()

    @property
    def pid(self) -> int | None:
        """Process id of the running watchdog, or None."""
        return self._process.pid if self._process is not None else None

    @property
    def belongs_here(self) -> bool:
        """Whether this object was made in this process, not before a fork."""
        return self._pid == os.getpid()

    def watch(self, launch: str, engine: Engine, paths: Sequence[str] = ()) -> None:
        """From now on the launch's containers and files do not outlive this process.

        Args:
            launch: Launch id that every container of it carries as a label.
            engine: The engine that the containers are created on.
            paths: Folders and files to remove: secret files, the control socket.

        Raises:
            LaunchError: The watchdog cannot be started.
        """
        message = {
            "watch": launch,
            "endpoint": asdict(engine.endpoint),
            "version": engine.version,
            "paths": list(paths),
        }
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            self._watched[launch] = line
            if not self._tell(line):
                self._start()

    def done(self, launch: str) -> None:
        """Nothing of the launch is left; the watchdog may forget it."""
        with self._lock:
            self._watched.pop(launch, None)
            self._tell(json.dumps({"done": launch}).encode() + b"\n")
            if not self._watched:
                self._stop()

    def _tell(self, line: bytes) -> bool:
        if self._process is None or self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(line)
        except OSError:
            self._stop()
            return False
        return True

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own file, our own interpreter
                [sys.executable, "-I", "-S", str(PROCESS), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env={k: v for k, v in os.environ.items() if k in KEPT_ENV},
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"the watchdog process cannot be started: {error}") from error
        if not self._tell(b"".join(self._watched.values())):
            raise LaunchError("the watchdog process ended at once; see that Python can start")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        # It ends by itself; a thread takes its exit status so that no zombie stays.
        threading.Thread(target=process.wait, daemon=True).start()


_watchdog: Watchdog | None = None


def watchdog_of_this_process() -> Watchdog:
    """The process's one watchdog: it watches a process, so a process has one."""
    global _watchdog  # noqa: PLW0603
    if _watchdog is None or not _watchdog.belongs_here:
        _watchdog = Watchdog()
    return _watchdog
