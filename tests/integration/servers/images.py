"""Images of servers under test: built on the images of the product, once for each content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from sandboxed_mcp.engine.images import build_image, read_folder

if TYPE_CHECKING:
    import docker

    from sandboxed_mcp.engine.images import BuiltImage

__all__ = ["NODE_SERVERS", "build_servers"]

FOLDERS: Final = Path(__file__).parent / "images"

NODE_SERVERS: Final = "/usr/local/lib/servers"
"""Where the image for Node.js holds its `node_modules`."""


def build_servers(client: docker.DockerClient, kind: Literal["node", "python"]) -> BuiltImage:
    """The image with the reference servers of one kind."""
    files = read_folder(FOLDERS / kind)
    bases = {"BASE": f"sandboxed-mcp/{kind}:latest"}
    return build_image(client, f"test-{kind}-servers", files, bases=bases)
