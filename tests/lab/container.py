"""Containers on the attached bridge: one that owns a network namespace, one that joins it.

Plain `docker run` with the capabilities of production, so that rulesets can be tried in real
containers without the product's launcher in between.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.internet import Pod
from tests.lab.netns import Namespace
from tests.lab.prober import AGENT, Prober

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.lab.bridge import Bridge

__all__ = ["IMAGE", "Owner", "open_member", "open_owner"]

IMAGE = "sandboxed-mcp/python:latest"
_HARDENED = ("--rm", "--cap-drop=ALL", "--read-only", "--security-opt=no-new-privileges")
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Owner:
    """The container that owns the namespace, as the gateway's does.

    Attributes:
        name: Of the container.
        pod: Its namespace, as the tests of rulesets know one; the wire is the bridge's.
    """

    name: str
    pod: Pod


@contextlib.contextmanager
def open_owner(bridge: Bridge, *options: str) -> Generator[Owner, None, None]:
    """Run a container with NET_ADMIN alone on the bridge."""
    name = _name("owner")
    power = ("--cap-add=NET_ADMIN", "--user=0:0", "--network=bridge")
    command = ("docker", "run", "-d", *_HARDENED, *power, *options, f"--name={name}")
    _run(*command, IMAGE, "sleep", "300")
    try:
        pid = _run("docker", "inspect", "-f", "{{.State.Pid}}", name).strip()
        namespace = Namespace(name, Path("/proc", pid, "ns", "net"))
        yield Owner(name, Pod(namespace, 0, bridge.wire))
    finally:
        _run("docker", "rm", "-f", name)


@contextlib.contextmanager
def open_member(owner: Owner, *, user: str = "65532:65532") -> Generator[Prober, None, None]:
    """Run the agent in a container without any capability that joins the namespace."""
    name = _name("member")
    process = subprocess.Popen(
        [
            "docker", "run", "-i", *_HARDENED, f"--user={user}", f"--name={name}",
            f"--network=container:{owner.name}", f"--volume={AGENT}:/agent.py:ro",
            IMAGE, "python3", "-I", "/agent.py",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )  # fmt: skip
    with process:
        try:
            yield Prober(process)
        finally:
            subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)
            process.kill()


def _name(role: str) -> str:
    return f"smcp-{os.getpid()}-{next(_numbers)}-{role}"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout
