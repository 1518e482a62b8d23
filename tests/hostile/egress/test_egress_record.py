"""Promise *record*: every denial is recorded with its time, server, what and why."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.events import render_event
from tests.hostile.egress.pods import ask
from tests.hostile.egress.world import API, DB, LITERAL, METADATA, PRIVATE, STRANGER
from tests.lab.hello import hello, real_hello, records, server_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hostile.egress.pods import Pod
    from tests.hostile.egress.world import World

pytestmark = [pytest.mark.claim("record"), pytest.mark.timeout(420)]


def say_tls(data: bytes) -> Callable[[Pod], object]:
    def act(pod: Pod) -> None:
        pod.do("names.lookup", name="api.example.com")
        pod.do("web.speak", address=API, port=443, pieces=[data.hex()], timeout=1.0)

    return act


DENIALS: dict[str, tuple[Callable[[Pod], object], dict[str, object]]] = {
    "a_stranger": (
        lambda pod: pod.exchange("tcp", STRANGER, 22),
        {"layer": "packet", "reason": "default", "address": STRANGER, "port": 22,
         "protocol": "tcp"},
    ),
    "a_datagram": (
        lambda pod: pod.exchange("udp", STRANGER, 123),
        {"layer": "packet", "reason": "default", "address": STRANGER, "port": 123,
         "protocol": "udp"},
    ),
    "another_port_of_a_named_host": (
        lambda pod: pod.exchange("tcp", DB, 8443),
        {"layer": "packet", "reason": "default", "address": DB, "port": 8443,
         "name": "db.example.com"},
    ),
    "a_port_beside_a_range": (
        lambda pod: pod.exchange("tcp", LITERAL, 7004),
        {"layer": "packet", "address": LITERAL, "port": 7004},
    ),
    "a_private_address": (
        lambda pod: pod.exchange("tcp", PRIVATE[1], 443),
        {"layer": "packet", "reason": "private", "address": PRIVATE[1], "port": 443},
    ),
    "metadata": (
        lambda pod: pod.exchange("tcp", METADATA[0], 80),
        {"layer": "packet", "reason": "never", "address": METADATA[0], "port": 80},
    ),
    "a_ping": (
        lambda pod: pod.do("ping", address=STRANGER),
        {"layer": "packet", "reason": "protocol", "address": STRANGER, "protocol": "icmp"},
    ),
    "the_embedded_resolver": (
        lambda pod: pod.exchange("udp", "127.0.0.11", 40000),
        {"layer": "packet", "reason": "embedded", "address": "127.0.0.11"},
    ),
    "the_relay": (
        lambda pod: pod.exchange("tcp", "127.0.0.1", 15443),
        {"layer": "packet", "reason": "relay", "port": 15443},
    ),
    "a_foreign_name": (
        lambda pod: ask(pod, "record.evil.example.net"),
        {"layer": "dns", "reason": "no rule names it", "name": "record.evil.example.net"},
    ),
    "a_foreign_name_by_another_type": (
        lambda pod: ask(pod, "text.evil.example.net", "TXT"),
        {"layer": "dns", "name": "text.evil.example.net", "query_type": "TXT"},
    ),
    "a_foreign_server_name": (
        say_tls(real_hello("foreign.evil.example.net")),
        {"layer": "tls", "name": "foreign.evil.example.net", "address": API, "port": 443},
    ),
    "no_server_name": (
        say_tls(real_hello(None)),
        {"layer": "tls", "reason": "no server name", "address": API},
    ),
    "no_tls": (
        say_tls(b"GET / HTTP/1.0\r\n\r\n"),
        {"layer": "tls", "reason": "not tls", "address": API, "name": "api.example.com"},
    ),
    "two_server_names": (
        say_tls(records(hello(server_name(b"a.example", b"b.example")))),
        {"layer": "tls", "reason": "several server names", "address": API},
    ),
}  # fmt: skip


@pytest.mark.parametrize("denial", DENIALS.values(), ids=DENIALS)
def test_denial_is_recorded(
    world: World, pod: Pod, denial: tuple[Callable[[Pod], object], dict[str, object]]
) -> None:
    act, wanted = denial
    started = time.time()
    with world.nothing_leaves(pod):
        act(pod)
    details = pod.wait_event(matches=lambda each: wanted.items() <= each.items())
    (event, *_) = [each for each in pod.full_events() if dict(each.details) == details]
    assert event.server == pod.sandbox.plan.server
    assert event.launch == pod.sandbox.plan.labels["sandboxed-mcp.launch"]
    assert started - 1 <= event.time <= time.time()
    line = json.loads(render_event(event))
    assert (line["event"], line["server"]) == ("deny", event.server)
    assert line["reason"]


@pytest.mark.claim("record", twin=True)
def test_what_is_allowed_is_no_denial(world: World, pod: Pod) -> None:
    before = len(pod.events())
    for _ in range(3):
        world.settle(pod)
    assert pod.do("names.lookup", name="api.example.com").error is None
    assert pod.do("web.say", address=API, name="api.example.com").text == "hello"
    assert pod.exchange("tcp", STRANGER, 5432).error == "ECONNREFUSED"  # the one that shows
    pod.wait_event(address=STRANGER, port=5432)
    places = {(each["address"], each["port"]) for each in pod.events()[before:]}
    assert not places & {(DB, 5432), (API, 443)}


@pytest.mark.claim("record", twin=True)
def test_connections_are_recorded_with_their_bytes(world: World, pod: Pod) -> None:
    world.settle(pod)
    pod.wait_event("connect", name="db.example.com", address=DB, port=5432, protocol="tcp")
    pod.do("names.lookup", name="api.example.com")
    assert pod.do("web.say", address=API, name="api.example.com", text="x" * 5000).error is None
    closed = pod.wait_event("close", name="api.example.com", address=API)
    assert closed["sent"] > 0
    assert closed["received"] > 0
    assert closed["reason"]


def test_names_in_events_are_escaped_and_cut(pod: Pod) -> None:
    """What the server wrote cannot break the line that tells of it."""
    bidi = "\u202e".encode()
    names = [b"a\r\nb.example", b"\x1b[31mred.example", bidi + b".example", b"x" * 5000]
    for name in names:
        data = records(hello(server_name(name)))
        pod.do("names.lookup", name="api.example.com")
        pod.do("web.speak", address=API, port=443, pieces=[data.hex()], timeout=1.0)
    ask(pod, f"{'q' * 60}.{'r' * 60}.{'s' * 60}.evil.example.net")
    pod.wait_event(matches=lambda each: each["name"].startswith("qqqq"))
    pod.wait_event(layer="tls", reason="server name is malformed")
    for event in pod.full_events():
        line = render_event(event)
        assert line.isascii()
        assert line.isprintable()
        assert len(line) < 4096


def test_repeated_denials_are_counted_together(pod: Pod) -> None:
    for _ in range(20):
        ask(pod, "again.evil.example.net")
    pod.wait_event(name="again.evil.example.net", count=1)
    pod.wait_event(name="again.evil.example.net", matches=lambda each: each["count"] > 1)
    told = [each["count"] for each in pod.events() if each["name"] == "again.evil.example.net"]
    assert len(told) <= 5
