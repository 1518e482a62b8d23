"""A server under gVisor on the namespace's network stack, behind rules; run by `test_gvisor.py`.

It runs in the network namespace of the engine that has gVisor, where the laboratory is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engines.own import GVISOR_HOST
from tests.hostile.egress.conftest import authority, bridge, internet, launchpad, portal, world
from tests.hostile.egress.world import DB, LITERAL, RULES, STRANGER

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.hostile.egress.pods import Launchpad, Pod
    from tests.hostile.egress.world import World

__all__ = ["authority", "bridge", "internet", "launchpad", "portal", "world"]


@pytest.fixture(scope="module")
def gvisor_pod(world: World, launchpad: Launchpad) -> Generator[Pod, None, None]:
    """An attacker behind rules, under gVisor."""
    del world
    with launchpad.open(list(RULES), policy={"runtime": GVISOR_HOST}) as made:
        yield made


def test_what_the_rules_name_is_reached(world: World, gvisor_pod: Pod) -> None:
    world.settle(gvisor_pod)
    assert gvisor_pod.exchange("tcp", LITERAL, 7000).text == "echo hello"


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize(("address", "port"), [(STRANGER, 5432), (STRANGER, 443), (DB, 8443)])
def test_what_no_rule_names_never_leaves(
    world: World, gvisor_pod: Pod, protocol: str, address: str, port: int
) -> None:
    with world.nothing_leaves(gvisor_pod):
        assert gvisor_pod.exchange(protocol, address, port, timeout=2).error is not None


def test_a_name_that_no_rule_names_is_never_asked_for(world: World, gvisor_pod: Pod) -> None:
    with world.nothing_leaves(gvisor_pod):
        assert gvisor_pod.do("names.lookup", name="evil.example.net").error is not None
    assert not any(b"evil" in each.wire for each in world.zone.asked)


@pytest.mark.parametrize("kind", [(17, 3, 0x300), (2, 3, 1), (10, 3, 58)])
def test_no_raw_socket_opens(gvisor_pod: Pod, kind: tuple[int, int, int]) -> None:
    family, type_, protocol = kind
    assert gvisor_pod.do("make", family=family, kind=type_, protocol=protocol).error is not None
