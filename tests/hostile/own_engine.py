"""A second engine, made for one test module: it may be killed, and nobody else uses it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.hostile.arena import IMAGE, docker
from tests.hostile.wire import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["OwnEngine", "open_engine"]

READY_SECONDS = 60.0
STOP_SECONDS = 40.0


class OwnEngine:
    """An engine with its own data, state and socket, and without networks.

    Attributes:
        folder: Holds all of it; short, since socket paths are.
        env: Environment that names it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "DOCKER_HOST": f"unix://{folder}/docker.sock"}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self._end_containerd()
        (self.folder / "pid").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    # An engine without a bridge removes docker0 where it finds one: not here.
                    "unshare",
                    "--net",
                    "dockerd",
                    f"--host=unix://{self.folder}/docker.sock",
                    f"--data-root={self.folder}/data",
                    f"--exec-root={self.folder}/run",
                    f"--pidfile={self.folder}/pid",
                    "--bridge=none",
                    "--iptables=false",
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self.answers, READY_SECONDS, lambda: self.log.read_text()[-2000:])

    def _end_containerd(self) -> None:
        """A crashed daemon leaves its containerd, or a pid file by which the next is misled."""
        file = self.folder / "run" / "containerd" / "containerd.pid"
        if not file.exists():
            return
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(file.read_text(encoding="ascii")))
            if any(str(self.folder) in word for word in process.cmdline()):
                process.kill()
                process.wait(STOP_SECONDS)
        file.unlink()

    def answers(self) -> bool:
        asked = subprocess.run(
            ["docker", "version"], env=self.env, capture_output=True, check=False
        )
        return asked.returncode == 0

    def load(self, image: str) -> None:
        """Copies an image from the tests' engine."""
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
            subprocess.run(
                ["docker", "load", "-q"],
                stdin=saving.stdout,
                env=self.env,
                check=True,
                capture_output=True,
                timeout=90,
            )

    def end(self, number: int) -> None:
        """Ends the daemon by a signal; a crash leaves its containers to themselves."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(STOP_SECONDS)

    def close(self) -> None:
        """Removes every container, then the daemon and its data."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        for container in docker("ps", "-aq", env=self.env).split():
            subprocess.run(
                ["docker", "rm", "-fv", container], env=self.env, capture_output=True, check=False
            )
        self.end(signal.SIGTERM)
        for point in sorted(self._mount_points(), reverse=True):
            subprocess.run(["umount", point], check=True)
        shutil.rmtree(self.folder)

    def _mount_points(self) -> list[str]:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        points = (line.split(" ")[1] for line in lines)
        return [point for point in points if point.startswith(f"{self.folder}/")]


@contextmanager
def open_engine() -> Generator[OwnEngine]:
    """A running engine of its own that holds the image that attackers run in."""
    engine = OwnEngine(Path(tempfile.mkdtemp(prefix="hostile-", dir="/tmp")))
    try:
        engine.start()
        engine.load(IMAGE)
        yield engine
    finally:
        engine.close()
