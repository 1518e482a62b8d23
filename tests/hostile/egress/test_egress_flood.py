"""Floods from inside hurt the sandbox they come from, and nobody else; each is bounded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.hostile.arena import docker
from tests.hostile.egress.world import API, DB, STRANGER
from tests.hostile.wire import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.hostile.egress.pods import Launchpad, Pod
    from tests.hostile.egress.world import World

pytestmark = [pytest.mark.timeout(420)]

RULES = [
    "db.example.com:5432/tcp",
    "198.51.100.70/31:7000-7999/udp",
    "*.wild.example.com",
    "api.example.com",
]
ANSWER_SECONDS = 5.0
GATEWAY_MIB = 128


@pytest.fixture
def flooder(world: World, launchpad: Launchpad) -> Generator[Pod, None, None]:
    """The attacker."""
    with launchpad.open(RULES) as made:
        world.settle(made)
        yield made


@pytest.fixture(scope="module")
def bystander(world: World, launchpad: Launchpad) -> Generator[Pod, None, None]:
    """Another sandbox."""
    with launchpad.open(["db.example.com:5432/tcp", "api.example.com"]) as made:
        world.settle(made)
        assert made.do("names.lookup", name="api.example.com").error is None
        yield made


def check_bystander(world: World, bystander: Pod) -> None:
    started = time.monotonic()
    world.settle(bystander)
    assert bystander.do("web.say", address=API, name="api.example.com").text == "hello"
    assert time.monotonic() - started < ANSWER_SECONDS


def memory_mib(pod: Pod) -> float:
    """What the gateway's processes hold."""
    pids = docker("top", pod.gateway, "-eo", "pid").split()[1:]
    return sum(psutil.Process(int(pid)).memory_info().rss for pid in pids) / (1 << 20)


@pytest.mark.claim("dns")
def test_a_flood_of_queries_hurts_its_own_sandbox_alone(
    world: World, flooder: Pod, bystander: Pod
) -> None:
    flooder.start("names.flood", name="x.evil.example.net", count=100_000, seconds=4.0)
    check_bystander(world, bystander)
    check_bystander(world, bystander)
    report = flooder.finish(within=30).table
    assert int(str(report["sent"])) > 3000
    assert "x.evil.example.net" not in world.zone.names()
    assert memory_mib(flooder) < GATEWAY_MIB
    wait_until(lambda: flooder.do("names.lookup", name="db.example.com").value, 10, "a lookup")
    world.settle(flooder)


@pytest.mark.claim("dns")
def test_a_flood_of_malformed_queries_is_survived(
    world: World, flooder: Pod, bystander: Pod
) -> None:
    before = len(world.zone.asked)
    assert flooder.do("names.flood_garbage", count=20_000, within=60).number > 1000
    check_bystander(world, bystander)
    wait_until(lambda: flooder.do("names.lookup", name="db.example.com").value, 10, "a lookup")
    world.settle(flooder)
    assert set(world.zone.names()[before:]) <= {"db.example.com"}
    assert memory_mib(flooder) < GATEWAY_MIB


@pytest.mark.claim("dns")
def test_streams_that_dawdle_are_ended_and_bounded(world: World, flooder: Pod) -> None:
    """A client of DNS over TCP that sends half a length and waits."""
    held = flooder.do(
        "names.hold_streams", address="198.51.100.53", port=53, count=100, data="00", within=60
    ).number
    assert held >= 64
    assert flooder.do("names.lookup", name="db.example.com").value == [DB]
    flooder.do("names.let_go")
    world.settle(flooder)


@pytest.mark.claim("egress")
def test_a_flood_of_flows_is_bounded_and_hurts_its_own_sandbox_alone(
    world: World, flooder: Pod, bystander: Pod
) -> None:
    report = flooder.do(
        "flood.open_flows", address="198.51.100.70", first=7000, last=7999, sockets=5, within=60
    ).table
    assert int(str(report["taken"])) <= 4096
    assert int(str(report["refused"])) >= 5000 - 4096
    sources = {(p.source_port, p.port) for p in flooder.wire.packets("198.51.100.70")}
    assert 1000 < len(sources) <= 4096
    flooder.wait_event(reason="connections")
    check_bystander(world, bystander)


@pytest.mark.claim("egress")
def test_a_flood_of_denied_connections_hurts_its_own_sandbox_alone(
    world: World, flooder: Pod, bystander: Pod
) -> None:
    with world.nothing_leaves(flooder):
        flooder.start("dial_many", protocol="tcp", address=STRANGER, port=5432, count=5000)
        check_bystander_only(bystander)
        outcomes = flooder.finish(within=60).table
        assert outcomes == {"ECONNREFUSED": 5000}
    check_bystander(world, bystander)


def check_bystander_only(bystander: Pod) -> None:
    started = time.monotonic()
    assert bystander.exchange("tcp", DB, 5432).text == "echo hello"
    assert time.monotonic() - started < ANSWER_SECONDS


@pytest.mark.claim("record")
def test_a_hundred_thousand_denials_stay_bounded_and_are_counted(
    world: World, flooder: Pod, bystander: Pod
) -> None:
    launcher = psutil.Process()
    before = launcher.memory_info().rss
    with world.nothing_leaves(flooder):
        report = flooder.do(
            "flood.send_many", address=STRANGER, port=5432, count=100_000, within=60
        ).table
        assert report == {"taken": 0, "refused": 100_000}
    check_bystander(world, bystander)
    wait_until(lambda: count_denied(flooder) >= 1, 10, "a denial")
    assert len(flooder.full_events()) < 1000
    assert launcher.memory_info().rss - before < 64 << 20
    assert memory_mib(flooder) < GATEWAY_MIB


@pytest.mark.claim("record")
def test_every_denial_is_at_least_counted(flooder: Pod) -> None:
    """Beyond what the log's rate lets through, as a number."""
    before = count_denied(flooder)
    flooder.do("flood.send_many", address=STRANGER, port=5432, count=20_000, within=60)
    wait_until(
        lambda: count_denied(flooder) - before >= 20_000, 10, lambda: f"{count_denied(flooder)}"
    )
    assert count_denied(flooder) - before < 20_500


def count_denied(pod: Pod) -> int:
    """Denials that the events account for, one by one or as a number."""
    told = sum(int(each["count"]) for each in pod.events("deny"))
    return told + sum(int(each["count"]) for each in pod.events("suppressed"))
