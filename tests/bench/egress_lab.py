"""The laboratory of the egress benchmarks, and the two sides that are compared in it.

The engine's bridge is attached to it only while a `Lab` is open, and a guard on the host drops
whatever does not lead there. Both sides run the same program in the same image, on the same
bridge, against the same server: one in a sandbox with rules, one in a plain container.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio.from_thread import start_blocking_portal
from egress_server import DNS

from sandboxed_mcp import Policy, Sandbox, ServerConfig, open_sandbox
from tests.lab.bridge import open_bridge
from tests.lab.internet import Internet
from tests.lab.tls import make_authority

if TYPE_CHECKING:
    from collections.abc import Generator

    from anyio.from_thread import BlockingPortal

__all__ = ["Contained", "Lab", "Sandboxed", "open_lab", "read_answer"]

HERE = Path(__file__).parent
IMAGE = "sandboxed-mcp/notes:latest"
AGENT = ["python3", "/bench/egress_agent.py"]
CERTIFIED = ("web.example.com",)
RULES = ("blob.example.com:7000-7001/tcp", "web.example.com:443", "web.example.com:8443")


@dataclass(frozen=True)
class Lab:
    """The laboratory, with its server running and the bridge attached.

    Attributes:
        portal: Where sandboxes are opened.
        folder: What both sides have at `/lab`: whom to trust.
    """

    portal: BlockingPortal
    folder: Path

    def config(self, program: list[str], number: int = 0) -> ServerConfig:
        """A program in a sandbox with rules."""
        return ServerConfig.model_validate(
            {
                "name": f"bench{number}",
                "image": IMAGE,
                "args": program,
                "mounts": [f"{HERE}:/bench", f"{self.folder}:/lab"],
                "policy": Policy.model_validate(
                    {"egress": RULES, "dns": [DNS], "limits": {"cpus": 2}}
                ),
            }
        )

    def docker(self, program: list[str]) -> list[str]:
        """The same in a plain container, as a command."""
        mounts = [f"--volume={HERE}:/bench:ro", f"--volume={self.folder}:/lab:ro"]
        plain = ["docker", "run", "-i", "--rm", "--network=bridge", f"--dns={DNS}"]
        return [*plain, *mounts, IMAGE, *program]

    @contextlib.contextmanager
    def open_sandboxed(self, number: int = 0) -> Generator[Sandboxed, None, None]:
        """The agent in a sandbox."""
        opening = open_sandbox(self.config(AGENT, number))
        with self.portal.wrap_async_context_manager(opening) as sandbox:
            yield Sandboxed(self.portal, sandbox)

    @contextlib.contextmanager
    def open_contained(self) -> Generator[Contained, None, None]:
        """The agent in a plain container."""
        command = self.docker(AGENT)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            yield Contained(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=30)


class Sandboxed:
    """The agent in a sandbox."""

    def __init__(self, portal: BlockingPortal, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._portal = portal

    def ask(self, deed: str, **arguments: object) -> float:
        """Has the agent try something; the median of the seconds it took."""
        return self._portal.call(self.ask_async, {"do": deed, **arguments})

    async def ask_async(self, command: dict[str, object]) -> float:
        """The same, on the sandboxes' own event loop."""
        await self.sandbox.send(json.dumps(command).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            line += await self.sandbox.receive()
        return read_answer(line)


class Contained:
    """The agent in a plain container."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ask(self, deed: str, **arguments: object) -> float:
        """Has the agent try something; the median of the seconds it took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": deed, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        return read_answer(self._process.stdout.readline())


def read_answer(line: bytes) -> float:
    """The median of an agent's answer."""
    answer: dict[str, Any] = json.loads(line)
    assert "error" not in answer, answer["error"]
    return statistics.median(answer["seconds"])


@contextlib.contextmanager
def open_lab() -> Generator[Lab, None, None]:
    """Attach the bridge to a laboratory with a running server until the end.

    Others who need the bridge, image builds among them, wait meanwhile: keep it short.
    """
    assert os.geteuid() == 0, "the laboratory makes network namespaces and needs root"
    with contextlib.ExitStack() as stack:
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-keys-")))
        make_authority(keys, *CERTIFIED)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-lab-")))
        shutil.copy(keys / "ca.pem", folder / "ca.pem")
        folder.chmod(0o755)
        (folder / "ca.pem").chmod(0o644)
        internet = stack.enter_context(Internet.open())
        stack.enter_context(open_bridge(internet))
        stack.enter_context(_open_server(internet, keys))
        yield Lab(stack.enter_context(start_blocking_portal()), folder)


@contextlib.contextmanager
def _open_server(internet: Internet, keys: Path) -> Generator[None, None, None]:
    command = [sys.executable, str(HERE / "egress_server.py"), str(keys)]
    process = internet.namespace.inside(
        lambda: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n", "the server did not start"
            yield
        finally:
            process.kill()
