"""Fixtures: hostile servers on an engine of their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engines.own import open_docker, open_podman
from tests.hostile.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Generator

    from sandboxed_mcp.engine.api import Engine
    from tests.engines.own import Own

ATTACK = Path(__file__).parents[1] / "hostile" / "attack"


@pytest.fixture(scope="session")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The attacker's programs, where the server's user may read them."""
    folder = tmp_path_factory.mktemp("engines") / "attack"
    shutil.copytree(ATTACK, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture(scope="module")
def podman(engine: Engine) -> Generator[Own, None, None]:
    """Podman."""
    del engine  # its images are there
    with open_podman() as own:
        yield own


@pytest.fixture(scope="module")
def docker_with_gvisor(engine: Engine) -> Generator[Own, None, None]:
    """Docker with gVisor among its runtimes."""
    del engine
    with open_docker() as own:
        yield own


def make_arena(attack: Path, own: Own) -> Arena:
    """Starts hostile servers on that engine."""
    return Arena(attack, attack.parent, own.env)
