"""What the integration tests share: the engine, and images that are built once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio
import pytest

from sandboxed_mcp.engine.connection import find_engine, sdk_client
from sandboxed_mcp.engine.images import build_images
from tests.integration.sdk.source import build_sdk_image
from tests.integration.servers.images import build_servers

if TYPE_CHECKING:
    from collections.abc import Generator

    import docker


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def engine_client() -> Generator[docker.DockerClient]:
    """The SDK client of the engine, with the images of the product on it."""
    client = sdk_client(anyio.run(find_engine, os.environ))
    build_images(client, ["python", "node", "notes"])
    yield client
    client.close()


@pytest.fixture(scope="session")
def node_image(engine_client: docker.DockerClient) -> str:
    """The image with the reference servers for Node.js."""
    return build_servers(engine_client, "node").reference


@pytest.fixture(scope="session")
def python_image(engine_client: docker.DockerClient) -> str:
    """The image with the reference servers for Python."""
    return build_servers(engine_client, "python").reference


@pytest.fixture(scope="session")
def sdk_image(engine_client: docker.DockerClient) -> str:
    """The image with the SDK, its stories, its everything server and the feature server."""
    return build_sdk_image(engine_client).reference
