"""Engines of these tests' own, each in a network namespace of its own: they meet nobody.

They are installed with apt when they are not there, hold copies of the images of the tests'
engine, and leave nothing but the installed packages.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hostile.arena import docker
from tests.hostile.wire import wait_until
from tests.lab.netns import open_namespace

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.lab.netns import Namespace

__all__ = ["GVISOR", "GVISOR_HOST", "GVISOR_NONE", "Own", "open_docker", "open_podman"]

IMAGES = tuple(
    f"sandboxed-mcp/{name}:latest" for name in ("base", "python", "node", "notes", "gateway")
)
INSTALL_SECONDS = 240.0
READY_SECONDS = 60.0
STOP_SECONDS = 40.0
ROOT = Path(__file__).parents[2]

GVISOR, GVISOR_HOST, GVISOR_NONE = "runsc", "runsc-host", "runsc-none"
"""Names of gVisor's runtime with its own network stack, the namespace's, and none."""

CONTAINERS_CONF = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
# Podman asks for more than some machines can give where a plain container names no limits.
DOCKER_WITH_LIMITS = """#!/bin/sh
[ "$1" = run ] || exec {docker} "$@"
shift
case "$*" in *nofile*) ;; *) set -- --ulimit=nofile=8192:8192 "$@" ;; esac
exec {docker} run --ulimit=nproc=16384:16384 "$@"
"""


@dataclass(frozen=True)
class Own:
    """A running engine.

    Attributes:
        env: Environment that names it.
        namespace: Its network namespace.
        folder: Holds all of it.
    """

    env: dict[str, str]
    namespace: Namespace
    folder: Path

    def pytest(self, *arguments: str, seconds: float) -> tuple[int, str]:
        """Runs tests against the engine, in its network namespace: exit code and output."""
        path = f"/run/netns/{self.namespace.name}"
        words = ["nsenter", f"--net={path}", sys.executable, "-m", "pytest", "-q", *arguments]
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout[-6000:] + done.stderr[-2000:]


@contextmanager
def open_podman() -> Generator[Own, None, None]:
    """Podman 4, rootful, behind its Docker-compatible socket."""
    _install("podman", "catatonit", "runc")
    with _open("podman") as own:
        conf = own.folder / "containers.conf"
        conf.write_text(CONTAINERS_CONF, encoding="utf-8")
        shim = own.folder / "bin" / "docker"
        shim.parent.mkdir()
        shim.write_text(DOCKER_WITH_LIMITS.format(docker=shutil.which("docker")), encoding="utf-8")
        shim.chmod(0o755)
        own.env["PATH"] = f"{shim.parent}:{os.environ['PATH']}"
        networks = own.folder / "net"
        shutil.copytree("/etc/cni/net.d", networks)
        command = [
            "podman",
            f"--root={own.folder}/root",
            f"--runroot={own.folder}/run",
            f"--tmpdir={own.folder}/tmp",
            f"--network-config-dir={networks}",
            "system",
            "service",
            "--time=0",
            own.env["DOCKER_HOST"],
        ]
        with _serve(own, command, {"CONTAINERS_CONF": str(conf)}):
            # The bridge is made for the first container on it.
            docker("run", "--rm", "--network=bridge", IMAGES[0], "true", env=own.env)
            yield own


@contextmanager
def open_docker(default_runtime: str = "runc") -> Generator[Own, None, None]:
    """Docker with gVisor among its runtimes."""
    _install("runsc")
    with _open("docker") as own:
        program = shutil.which("runsc")
        settings = {
            "default-runtime": default_runtime,
            "runtimes": {
                GVISOR: {"path": program},
                GVISOR_HOST: {"path": program, "runtimeArgs": ["--network=host"]},
                GVISOR_NONE: {"path": program, "runtimeArgs": ["--network=none"]},
            },
        }
        file = own.folder / "daemon.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        command = [
            "dockerd",
            f"--host={own.env['DOCKER_HOST']}",
            f"--data-root={own.folder}/data",
            f"--exec-root={own.folder}/run",
            f"--pidfile={own.folder}/pid",
            f"--config-file={file}",
        ]
        with _serve(own, command, {}):
            yield own


@contextmanager
def _open(role: str) -> Generator[Own, None, None]:
    folder = Path(tempfile.mkdtemp(prefix="engine-", dir="/tmp"))
    try:
        with open_namespace(role) as namespace:
            namespace.ip("link set lo up")
            env = {**os.environ, "DOCKER_HOST": f"unix://{folder}/engine.sock"}
            yield Own(env, namespace, folder)
    finally:
        for point in sorted(_mount_points(folder), reverse=True):
            subprocess.run(["umount", point], check=False)
        shutil.rmtree(folder)


@contextmanager
def _serve(own: Own, command: list[str], env: dict[str, str]) -> Generator[None, None, None]:
    log = own.folder / "log"
    with log.open("ab") as output:
        process = own.namespace.inside(
            lambda: subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **env},
                start_new_session=True,
            )
        )
    try:
        wait_until(lambda: _answers(own), READY_SECONDS, lambda: log.read_text()[-2000:])
        _load_images(own)
        yield
    finally:
        for container in docker("ps", "-aq", env=own.env).split():
            words = ["docker", "rm", "-fv", container]
            subprocess.run(words, env=own.env, capture_output=True, check=False)
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS)


def _answers(own: Own) -> bool:
    words = ["docker", "version"]
    return subprocess.run(words, env=own.env, capture_output=True, check=False).returncode == 0


def _load_images(own: Own) -> None:
    with subprocess.Popen(["docker", "save", *IMAGES], stdout=subprocess.PIPE) as saving:
        subprocess.run(
            ["docker", "load", "-q"],
            stdin=saving.stdout,
            env=own.env,
            check=True,
            capture_output=True,
            timeout=200,
        )


def _install(*packages: str) -> None:
    known = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ", *packages]
    asked = subprocess.run(known, capture_output=True, text=True, check=False)
    if asked.stdout.split() == ["installed"] * len(packages):
        return
    words = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(words)}: {done.stderr[-500:]}")


def _mount_points(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    points = (line.split(" ")[1] for line in lines)
    return [point for point in points if point.startswith(f"{folder}/")]
