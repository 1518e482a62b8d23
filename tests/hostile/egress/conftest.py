"""Fixtures of the egress suite: the laboratory on the engine's bridge, and attackers in pods.

The bridge is held for one module at a time; other runs wait meanwhile.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from anyio.from_thread import start_blocking_portal

from tests.hostile.egress.pods import Exposed, Launchpad, Pod
from tests.hostile.egress.world import CERTIFIED, RULES, World, open_world
from tests.lab.bridge import Bridge, open_bridge
from tests.lab.fixtures import internet
from tests.lab.prober import AGENT
from tests.lab.tls import Authority, make_authority

if TYPE_CHECKING:
    from collections.abc import Generator

    from anyio.from_thread import BlockingPortal

    from sandboxed_mcp.engine.api import Engine
    from tests.lab.internet import Internet

__all__ = ["internet"]

ATTACK = Path(__file__).with_name("attack")
KERNEL = Path(__file__).parent.with_name("attack") / "kernel.py"


@pytest.fixture(scope="session")
def portal() -> Generator[BlockingPortal, None, None]:
    """The launcher's event loop, on a thread of its own."""
    with start_blocking_portal() as made:
        yield made


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the laboratory's certificates."""
    return make_authority(tmp_path_factory.mktemp("authority"), *CERTIFIED, "evil.example.net")


@pytest.fixture(scope="session")
def launchpad(
    portal: BlockingPortal,
    authority: Authority,
    engine: Engine,
    tmp_path_factory: pytest.TempPathFactory,
) -> Launchpad:
    """Opens pods."""
    del engine  # its images are there
    folder = tmp_path_factory.mktemp("egress")
    programs = [*ATTACK.glob("*.py"), *ATTACK.glob("*.mjs"), KERNEL, AGENT]
    for source in (*programs, authority.folder / "ca.pem"):
        shutil.copy(source, folder / source.name)
        (folder / source.name).chmod(0o644)
    folder.chmod(0o755)
    return Launchpad(portal, folder)


@pytest.fixture(scope="module")
def bridge(internet: Internet) -> Generator[Bridge, None, None]:
    """The engine's bridge, attached to the laboratory and shut to everything else."""
    with open_bridge(internet) as made:
        yield made


@pytest.fixture(scope="module")
def world(internet: Internet, bridge: Bridge, authority: Authority) -> Generator[World, None, None]:
    """The furnished laboratory."""
    with open_world(internet, bridge, authority) as made:
        yield made


@pytest.fixture(scope="module")
def pod(world: World, launchpad: Launchpad) -> Generator[Pod, None, None]:
    """An attacker behind rules."""
    del world
    with launchpad.open(list(RULES)) as made:
        yield made


@pytest.fixture(scope="module")
def wide(world: World, launchpad: Launchpad) -> Generator[Pod, None, None]:
    """The same attacker where egress is unrestricted."""
    del world
    with launchpad.open("unrestricted") as made:
        yield made


@pytest.fixture(scope="module")
def exposed(world: World, launchpad: Launchpad) -> Generator[Exposed, None, None]:
    """The same attacker in a plain container, root with the engine's capabilities."""
    del world
    with launchpad.open_exposed() as made:
        yield made
