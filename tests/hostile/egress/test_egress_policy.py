"""Promise *egress* while the policy changes: what is not allowed any more ends, the rest lives."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp import LaunchError
from tests.hostile.egress.pods import ask, code_of
from tests.hostile.egress.world import API, DB, LITERAL, STRANGER
from tests.hostile.wire import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.hostile.egress.pods import Launchpad, Pod
    from tests.hostile.egress.world import World

pytestmark = [pytest.mark.claim("egress"), pytest.mark.timeout(420)]

BASE = ["db.example.com:5432/tcp"]
RULES = [
    *BASE,
    "db.example.com:8443/tcp",
    "db.example.com:5432/udp",
    "db.example.com:8443/udp",
    "198.51.100.40:7000/tcp",
    "198.51.100.40:7001/tcp",
    "api.example.com",
    "a.wild.example.com",
]
ENDED = {
    *("ECONNRESET", "EOFError", "ECONNABORTED", "EPIPE", "ECONNREFUSED", "EPERM"),
    *("EDESTADDRREQ", "SSL:None", "SSL:UNEXPECTED_EOF_WHILE_READING"),
}
SECONDS = 3.0


@pytest.fixture
def pod(world: World, launchpad: Launchpad) -> Generator[Pod, None, None]:
    """A pod with many doors open."""
    with launchpad.open(RULES) as made:
        world.settle(made)
        assert made.do("names.lookup", name="api.example.com").error is None
        assert made.do("names.lookup", name="a.wild.example.com").error is None
        yield made


def dial(pod: Pod, protocol: str, address: str, port: int) -> int:
    handle = pod.dial(protocol, address, port)
    assert pod.do("say", handle=handle).text == "echo hello"
    return handle


@pytest.mark.parametrize(
    ("protocol", "place", "rule"),
    [
        ("tcp", (DB, 8443), "db.example.com:8443/tcp"),
        ("udp", (DB, 8443), "db.example.com:8443/udp"),
        ("tcp", (LITERAL, 7001), "198.51.100.40:7001/tcp"),
    ],
    ids=["a_stream_to_a_name", "datagrams_to_a_name", "a_stream_to_an_address"],
)
def test_tightening_ends_what_is_open_and_spares_the_rest(
    world: World, pod: Pod, protocol: str, place: tuple[str, int], rule: str
) -> None:
    gone = dial(pod, protocol, *place)
    kept = [
        dial(pod, "tcp", DB, 5432),
        dial(pod, "udp", DB, 5432),
        dial(pod, "tcp", LITERAL, 7000),
    ]
    started = time.monotonic()
    pod.apply([each for each in RULES if each != rule])
    pod.wire.clear()
    outcome = pod.do("say", handle=gone, timeout=1.0)
    assert time.monotonic() - started < SECONDS
    assert outcome.error in ENDED
    with world.nothing_leaves(pod):
        assert pod.exchange(protocol, *place, timeout=0.5).error in ENDED
        assert pod.do("say", handle=gone, timeout=0.2).error is not None
    for handle in kept:
        assert pod.do("say", handle=handle).text == "echo hello"
    applied = pod.wait_event("policy", generation=2)
    assert applied["ended"] >= 1


def test_a_program_that_only_waits_hears_of_the_end(pod: Pod) -> None:
    gone = dial(pod, "tcp", DB, 8443)
    pod.start("hear", handle=gone, timeout=10)
    pod.apply([each for each in RULES if each != "db.example.com:8443/tcp"])
    started = time.monotonic()
    assert pod.finish().error in ENDED
    assert time.monotonic() - started < SECONDS


def test_data_pushed_from_outside_does_not_pass_a_tightened_policy(world: World, pod: Pod) -> None:
    gone = dial(pod, "tcp", DB, 8443)
    theirs = [each for each in world.echo.open if each.getsockname()[1] == 8443][-1]
    pod.apply(BASE)
    assert pod.do("hear", handle=gone, timeout=SECONDS).error in ENDED
    pod.wire.clear()
    with contextlib.suppress(ConnectionError):  # it was told as well
        theirs.send(b"are you there")
    assert pod.do("hear", handle=gone, timeout=0.3).error is not None
    world.settle(pod)
    answers = [each for each in pod.wire.packets(DB) if each.port == 8443 and each.size > 80]
    assert answers == []


def test_tightening_ends_a_verified_stream_and_spares_another_name(world: World, pod: Pod) -> None:
    gone = pod.do("web.open_stream", address=API, name="api.example.com").number
    kept = pod.do("web.open_stream", address=API, name="a.wild.example.com").number
    assert pod.do("web.say_on", stream=gone).text == "hello"
    pod.apply([each for each in RULES if each != "api.example.com"])
    assert pod.do("web.say_on", stream=gone).error in ENDED
    assert pod.do("web.say_on", stream=kept).text == "hello"
    assert code_of(ask(pod, "api.example.com")) == "NXDOMAIN"
    with world.nothing_leaves(pod):
        assert pod.do("web.say", address=API, name="api.example.com").error is not None
    assert pod.do("web.say", address=API, name="a.wild.example.com").text == "hello"


def test_turning_verification_on_ends_the_unverified_stream(
    world: World, launchpad: Launchpad
) -> None:
    off = {"host": "api.example.com", "ports": 443, "tls": "off"}
    with launchpad.open([off, *BASE]) as pod:
        world.settle(pod)
        assert pod.do("names.lookup", name="api.example.com").error is None
        stream = pod.do("web.open_stream", address=API, name="other.example.com").number
        assert pod.do("web.say_on", stream=stream).text == "hello"
        pod.apply(["api.example.com", *BASE])
        assert pod.do("web.say_on", stream=stream).error is not None
        with world.nothing_leaves(pod):
            assert pod.do("web.say", address=API, name="other.example.com").error is not None
        assert pod.do("names.lookup", name="api.example.com").error is None
        assert pod.do("web.say", address=API, name="api.example.com").text == "hello"


def test_everything_taken_away_leaves_nothing(world: World, pod: Pod) -> None:
    handles = [dial(pod, "tcp", DB, 5432), dial(pod, "udp", DB, 5432)]
    pod.apply([])
    pod.wire.clear()
    for handle in handles:
        assert pod.do("say", handle=handle, timeout=0.5).error is not None
    assert pod.do("names.lookup", name="db.example.com").error == "EAI_NONAME"
    assert pod.exchange("tcp", DB, 5432, timeout=0.5).error == "ECONNREFUSED"
    assert [p for p in pod.wire.packets() if p.size > 80] == []
    pod.apply(BASE)
    world.settle(pod)


def test_loosening_opens_at_once(world: World, launchpad: Launchpad) -> None:
    with launchpad.open(BASE) as pod:
        kept = None
        with world.nothing_leaves(pod):
            assert pod.exchange("tcp", LITERAL, 7000).error == "ECONNREFUSED"
            assert pod.do("names.lookup", name="a.plain.example.com").error == "EAI_NONAME"
            kept = dial(pod, "tcp", DB, 5432)
        pod.apply([*BASE, "198.51.100.40:7000/tcp", "*.plain.example.com:5432/tcp"])
        assert pod.exchange("tcp", LITERAL, 7000).text == "echo hello"
        assert pod.do("names.lookup", name="a.plain.example.com").value == [DB]
        assert pod.do("say", handle=kept).text == "echo hello"


def test_an_update_that_is_refused_leaves_the_rules_before(world: World, pod: Pod) -> None:
    kept = dial(pod, "tcp", DB, 8443)
    with pytest.raises(LaunchError, match="the policy before stays in force"):
        pod.apply([f"{world.bridge.address}:80/tcp", f"{STRANGER}:5432/tcp"])
    with world.nothing_leaves(pod):
        assert pod.exchange("tcp", STRANGER, 5432).error == "ECONNREFUSED"
    assert pod.do("say", handle=kept).text == "echo hello"
    assert pod.exchange("tcp", LITERAL, 7001).text == "echo hello"
    pod.wait_event("policy_refused")


def test_many_updates_never_open_more_than_either_policy(
    world: World, launchpad: Launchpad
) -> None:
    with launchpad.open(BASE) as pod:
        with world.nothing_leaves(pod, (LITERAL, 7002)):
            number = pod.do(
                "flood.start",
                module="flood",
                deed="send_eagerly",
                address=STRANGER,
                port=5432,
                seconds=3.0,
            ).number
            for turn in range(12):
                pod.apply([*BASE, "198.51.100.40:7002/tcp"] if turn % 2 else BASE)
            assert pod.do("flood.finish", number=number).number == 0
        wait_until(lambda: pod.events("policy"), 3, "the policies")
        assert {each["generation"] for each in pod.events("policy")} >= set(range(2, 14))


def test_rate_and_byte_bounds_of_a_rule_hold(world: World, launchpad: Launchpad) -> None:
    few = {
        "host": "198.51.100.40",
        "ports": 7000,
        "protocol": "tcp",
        "max_connections_per_minute": 5,
    }
    small = {"host": "198.51.100.40", "ports": 7001, "protocol": "tcp", "max_bytes": "64KiB"}
    with launchpad.open([*BASE, few, small]) as pod:
        before = world.echo.connections
        outcomes = pod.do("dial_many", protocol="tcp", address=LITERAL, port=7000, count=20).table
        assert 5 <= int(str(outcomes["connected"])) <= 6
        assert world.echo.connections - before <= 6
        pod.wait_event(reason="rate", address=LITERAL, port=7000)
        handle = dial(pod, "tcp", LITERAL, 7001)
        outcome = None
        for _ in range(40):
            outcome = pod.do("say", handle=handle, text="x" * 4000, timeout=1.0)
            if outcome.error:
                break
        assert outcome is not None
        assert outcome.error is not None
        pod.wait_event(reason="bytes", address=LITERAL, port=7001)
        world.settle(pod)
