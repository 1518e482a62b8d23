"""Where attacker and sandbox meet: starts hostile servers, and counts what is left of them.

Every container that is started here is told apart by the name of its server, which begins with
`RUN`; those of other people on the same engine are neither counted nor touched.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from sandboxed_mcp.config.loading import load_server
from tests.hostile.wire import Wire, open_wire, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from sandboxed_mcp import ServerConfig

__all__ = [
    "EXPOSED_LABEL",
    "GONE_SECONDS",
    "IMAGE",
    "RUN",
    "Arena",
    "Hostile",
    "containers_named",
    "docker",
    "left_in",
    "watchdogs_of",
]

IMAGE = "sandboxed-mcp/python:latest"
RUN = f"h{secrets.token_hex(4)}"
EXPOSED_LABEL = "sandboxed-mcp-hostile"
GONE_SECONDS = 15.0
"""The promise is 10 s on a machine that is free; tests share theirs with others."""

_numbers = itertools.count(1)
_SERVER = "/attack/server.py"


def docker(*arguments: str, seconds: float = 60.0, env: Mapping[str, str] | None = None) -> str:
    """Docker's own command line: what it says, without the last newline."""
    done = subprocess.run(
        ["docker", *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=None if env is None else dict(env),
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout.rstrip("\n")


def containers_named(name: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Ids of the containers of that server, ended ones included."""
    label = f"label=sandboxed-mcp.server={name}"
    return docker("ps", "-aq", "--no-trunc", "--filter", label, env=env).split()


def left_in(runtime: Path) -> list[str]:
    """Files, sockets and secret folders that launches left in their runtime folder.

    The one folder that all sandboxes of a user share may stay, empty.
    """
    return [str(path) for path in runtime.rglob("*") if path != runtime / "sandboxed-mcp"]


def watchdogs_of(launcher: int) -> list[int]:
    """Process ids of the watchdogs of a launcher."""
    found: list[int] = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words: list[str] = process.info["cmdline"] or []
        if words[-1:] == [str(launcher)] and any("watchdog_process.py" in word for word in words):
            found.append(process.pid)
    return found


@dataclass(frozen=True)
class Hostile:
    """One hostile server, ready to be started.

    Attributes:
        name: Its configured name, unique in this run.
        table: Its settings, as in `[servers.NAME]`.
        folder: Holds its configuration file.
        env: Environment that names the engine; None for the tests' own.
    """

    name: str
    table: dict[str, Any]
    folder: Path
    env: Mapping[str, str] | None = None

    @property
    def file(self) -> Path:
        """Its configuration, as a client's file."""
        path = self.folder / f"{self.name}.json"
        ours = ("command", "args", "env", "cwd")
        entry = {key: self.table[key] for key in ours if key in self.table}
        entry["sandbox"] = {key: self.table[key] for key in self.table if key not in ours}
        path.write_text(json.dumps({"mcpServers": {self.name: entry}}), encoding="utf-8")
        return path

    @property
    def argv(self) -> list[str]:
        """The command line that starts it."""
        words = [sys.executable, "-m", "sandboxed_mcp", "run", self.name]
        return [*words, "--config", str(self.file)]

    @property
    def config(self) -> ServerConfig:
        """Its configuration for the library."""
        return load_server(self.file, self.name)

    def containers(self) -> list[str]:
        """Ids of its containers."""
        return containers_named(self.name, self.env)

    def container(self) -> str:
        """Id of its one container, awaited."""
        wait_until(self.containers, 30, f"a container of {self.name}")
        (one,) = self.containers()
        return one

    def wait_gone(self, seconds: float = GONE_SECONDS) -> float:
        """Waits until nothing of it is left; gives how long it took."""
        return wait_until(
            lambda: not self.containers(), seconds, lambda: f"{self.name}: {self.containers()}"
        )

    @contextmanager
    def open(self, *, start: bool = True, env: Mapping[str, str] | None = None) -> Generator[Wire]:
        """Runs it with `sandboxed-mcp run`; `start` initializes the session."""
        with open_wire(self.argv, env=env or self.env) as wire:
            if start:
                wire.initialize()
            yield wire


@dataclass(frozen=True)
class Arena:
    """Makes hostile servers.

    Attributes:
        attack: The folder with the attacker's source.
        folder: For configuration files.
        env: Environment that names the engine; None for the tests' own.
    """

    attack: Path
    folder: Path
    env: Mapping[str, str] | None = None

    def hostile(self, *options: str, tag: str = "x", **settings: Any) -> Hostile:
        """A hostile server.

        Args:
            options: Options of `attack/server.py`.
            tag: Part of its name, for a person who looks for it.
            settings: Settings of the server beside those that run the attacker.
        """
        mounts = [{"source": str(self.attack), "target": "/attack"}, *settings.pop("mounts", [])]
        table: dict[str, Any] = {
            "command": "python3",
            "args": ["-u", _SERVER, *options],
            "mounts": mounts,
            "policy": {},
            **settings,
        }
        return Hostile(f"{RUN}-{tag}-{next(_numbers)}", table, self.folder, self.env)

    @contextmanager
    def open_exposed(self, *arguments: str, image: str = IMAGE) -> Generator[Wire]:
        """The same server in a plain `docker run`, hardened by nothing but `arguments`."""
        name = f"{RUN}-exposed-{next(_numbers)}"
        words = ["docker", "run", "-i", "--rm", "--name", name]
        words += ["--label", f"{EXPOSED_LABEL}={RUN}", "-v", f"{self.attack}:/attack:ro"]
        with open_wire([*words, *arguments, image, "python3", "-u", _SERVER]) as wire:
            try:
                wire.initialize()
                yield wire
            finally:
                wire.close_stdin()
                subprocess.run(["docker", "rm", "-fv", name], capture_output=True, check=False)

    @contextmanager
    def open_image(self, *changes: str, script: str = "true") -> Generator[str]:
        """An image made from the python image by a script and Dockerfile instructions."""
        number = next(_numbers)
        container, image = f"{RUN}-image-{number}", f"{RUN}-image:{number}"
        label = f"{EXPOSED_LABEL}={RUN}"
        run = ["run", "--name", container, "--label", label, "--user", "0", "--network", "none"]
        docker(*run, IMAGE, "sh", "-ec", script)
        options = [word for change in changes for word in ("--change", change)]
        try:
            docker("commit", *options, container, image)
            yield image
        finally:
            docker("rm", "-fv", container)
            docker("rmi", "-f", image)


def owner_is_this_process(labels: Mapping[str, str]) -> bool:
    """Whether a container was started by this very process."""
    parts = labels.get("sandboxed-mcp.owner", "").split("/")
    return len(parts) == 5 and parts[3] == str(os.getpid())
