"""The source distribution of the installed MCP SDK: its stories, example servers and tests.

Fetched once with pip into `build/`, for the version that this environment runs.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxed_mcp.engine.images import build_image, read_folder

if TYPE_CHECKING:
    import docker

    from sandboxed_mcp.engine.images import BuiltImage

__all__ = ["BUILD", "SDK_VERSION", "build_sdk_image", "fetch_packages", "fetch_source"]

SDK_VERSION = version("mcp")
BUILD = Path(__file__).parents[3] / "build" / "sdk"

_HERE = Path(__file__).parent
_PIP_SECONDS = 600


def fetch_source() -> Path:
    """The unpacked source distribution; downloaded unless `build/` has it already."""
    source = BUILD / f"mcp-{SDK_VERSION}"
    if not source.is_dir():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            wanted = ("--no-binary", ":all:", "--no-deps", f"mcp=={SDK_VERSION}")
            _pip("download", "--dest", folder, *wanted)
            (archive,) = Path(folder).glob("*.tar.gz")
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")
            (Path(folder) / source.name).rename(source)
    return source


def fetch_packages(*requirements: str) -> Path:
    """A folder with these pinned packages and what they need, for the end of `sys.path`."""
    folder = BUILD / "-".join(["packages", *(name.replace("==", "-") for name in requirements)])
    if not folder.is_dir():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as partial:
            _pip("install", "--target", f"{partial}/new", *requirements)
            Path(partial, "new").rename(folder)
    return folder


def _pip(command: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", *arguments],
        capture_output=True,
        text=True,
        timeout=_PIP_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def build_sdk_image(client: docker.DockerClient) -> BuiltImage:
    """An image with the SDK, its stories, its everything server and the feature server."""
    source = fetch_source()
    modules = {
        "stories": source / "examples" / "stories",
        "mcp_everything_server": source
        / "examples/servers/everything-server/mcp_everything_server",
    }
    files: dict[str, str | bytes] = {
        "Dockerfile": (_HERE / "Dockerfile").read_bytes(),
        "requirements.txt": f"mcp=={SDK_VERSION}\nclick==8.5.1\n",
        "modules/feature_server.py": (_HERE.parent / "bridge/feature_server.py").read_bytes(),
    }
    for name, folder in modules.items():
        for path, content in read_folder(folder).items():
            files[f"modules/{name}/{path}"] = content
    return build_image(client, "test-sdk", files, bases={"BASE": "sandboxed-mcp/python:latest"})
