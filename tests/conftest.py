"""Shared fixtures: the engine is there, its images too, and nothing of the run is left behind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio
import pytest

from sandboxed_mcp.engine.connection import find_engine
from sandboxed_mcp.errors import EngineError, ImageNotFoundError
from tests.hostile.arena import EXPOSED_LABEL, RUN, docker, owner_is_this_process, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

    from sandboxed_mcp.engine.api import ContainerSummary, Engine

IMAGES = ("base", "python", "node", "notes")
SETTLE_SECONDS = 15.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "claim(id, twin=False): tries to break the promise of that id in claims.toml; with "
        "twin=True it shows that the same attack succeeds where the promise does not hold, or "
        "that what the promise allows still works",
    )


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine, with the images that servers run in."""
    try:
        return anyio.run(_find_with_images)
    except ImageNotFoundError as error:
        pytest.fail(f"{error}; run 'make images' once")
    except EngineError as error:
        pytest.fail(f"{error}\nrun 'make engine' once")


async def _find_with_images() -> Engine:
    engine = await find_engine(os.environ)
    for name in IMAGES:
        await engine.inspect_image(f"sandboxed-mcp/{name}:latest", "it is not built")
    return engine


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Generator[None]:
    """Fails at the end of a session that left a container of its own behind."""
    if all("unit" in item.path.parts for item in request.session.items):
        yield
        return
    engine: Engine = request.getfixturevalue("engine")
    yield
    wait_until(
        lambda: not _left(engine), SETTLE_SECONDS, lambda: f"containers left: {_left(engine)}"
    )


def _left(engine: Engine) -> list[str]:
    found = [summary.id for summary in anyio.run(engine.list_containers) if _is_ours(summary)]
    found += docker("ps", "-aq", "--filter", f"label={EXPOSED_LABEL}={RUN}").split()
    return found


def _is_ours(container: ContainerSummary) -> bool:
    name = container.labels.get("sandboxed-mcp.server", "")
    return name.startswith(RUN) or owner_is_this_process(container.labels)
