"""Fixtures of the laboratory; import those a test module uses.

from tests.lab.fixtures import internet, pod
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.lab.bridge import Bridge, open_bridge
from tests.lab.internet import Internet, Pod
from tests.lab.prober import Prober, open_prober

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["bridge", "internet", "neighbour", "pod", "server"]


@pytest.fixture(scope="module")
def internet() -> Generator[Internet, None, None]:
    """The simulated internet."""
    assert os.geteuid() == 0, "the laboratory makes network namespaces and needs root"
    with Internet.open() as made:
        yield made


@pytest.fixture
def pod(internet: Internet) -> Generator[Pod, None, None]:
    """A sandbox's network namespace, still without any rule."""
    with internet.open_pod(2) as made:
        yield made


@pytest.fixture
def neighbour(internet: Internet) -> Generator[Pod, None, None]:
    """Another one on the same bridge."""
    with internet.open_pod(9) as made:
        yield made


@pytest.fixture
def server(pod: Pod) -> Generator[Prober, None, None]:
    """A process without privilege in the sandbox's namespace."""
    with open_prober(pod.namespace) as made:
        yield made


@pytest.fixture(scope="module")
def bridge(internet: Internet) -> Generator[Bridge, None, None]:
    """The engine's bridge, attached to the simulated internet and shut to everything else."""
    with open_bridge(internet) as made:
        yield made
        assert made.count_strays() == 0, "a container sent to an address of no test"
