"""The gateway's small parts: control lines, event lines, budgets, names, reports, the link."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from ipaddress import ip_address

import pytest

from sandboxed_mcp.egress.event_lines import (
    MAX_LINE,
    EventError,
    parse_egress_event,
    render_egress_event,
)
from sandboxed_mcp.egress.events import (
    EVENT_TYPES,
    ConnectionClosed,
    Denied,
    EgressEvent,
    EventsSuppressed,
    GatewayReady,
    NameResolved,
)
from sandboxed_mcp.egress.rules import parse_egress
from sandboxed_mcp.egress.ruleset_values import MAX_GENERATION
from sandboxed_mcp.gateway.budget import MAX_KNOWN_NAMES, NameBudget, TokenBucket
from sandboxed_mcp.gateway.control import ControlError, Policy, Stop, Update, parse_command
from sandboxed_mcp.gateway.dns_policy import NamePolicy, keep_learned
from sandboxed_mcp.gateway.learned import LearnedNames
from sandboxed_mcp.gateway.link import parse_if_inet6, parse_routes
from sandboxed_mcp.gateway.reporter import BURST, MAX_BUFFER, LineWriter, Reporter
from sandboxed_mcp.gateway.upstream import parse_resolv_conf

POLICY = {"control": "policy", "generation": 1, "egress": ["api.example.test"]}


def command(**changes: object) -> object:
    return parse_command(json.dumps({**POLICY, **changes}).encode())


def test_a_policy_line_is_read_in_full() -> None:
    policy = command(
        mode="observe",
        dns=["198.51.100.53", "198.51.100.54:5353", "2001:db8:51::53", "[2001:db8:51::53]:54"],
        forbidden=["172.17.0.0/16", "2001:db8:c8::/64"],
        gateway={"mark": 0x40000001, "relay_port": 1, "upstream_ports": "3000-4000"},
    )
    assert isinstance(policy, Policy)
    assert policy.egress == parse_egress(["api.example.test"])
    assert [(str(each.address), each.port) for each in policy.dns] == [
        ("198.51.100.53", 53),
        ("198.51.100.54", 5353),
        ("2001:db8:51::53", 53),
        ("2001:db8:51::53", 54),
    ]
    assert (policy.gateway.relay_port, policy.gateway.upstream_ports.last) == (1, 4000)
    assert isinstance(command(control="update"), Update)
    assert isinstance(parse_command(b'{"control":"stop"}'), Stop)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"control": "allow"}, "control"),
        ({"generation": 0}, "generation"),
        ({"generation": MAX_GENERATION}, "generation"),
        ({"generation": True}, "generation"),
        ({"generation": "1"}, "generation"),
        ({"mode": "permissive"}, "mode"),
        ({"mode": None}, "mode"),
        ({"egress": None}, "egress"),
        ({"egress": "all"}, "egress"),
        ({"egress": ["*"]}, "egress[0]"),
        ({"egress": ["a.test", "b.test:0"]}, "egress[1]"),
        ({"egress": [{"host": "a.test", "allowprivate": True}]}, "egress[0]"),
        ({"dns": "198.51.100.53"}, "dns"),
        ({"dns": [53]}, "dns"),
        ({"dns": ["dns.example.test"]}, "dns"),
        ({"dns": ["127.0.0.11"]}, "dns"),
        ({"dns": ["::1"]}, "dns"),
        ({"dns": ["169.254.169.253"]}, "dns"),
        ({"dns": ["198.51.100.53:0"]}, "dns"),
        ({"dns": ["198.51.100.53:dns"]}, "dns"),
        ({"forbidden": ["172.17.0.1/16"]}, "forbidden"),
        ({"gateway": []}, "gateway"),
        ({"gateway": {"port": 1}}, "port"),
        ({"gateway": {"relay_port": 70000}}, "relay_port"),
        ({"gateway": {"mark": 1}}, "mark"),
        ({"gateway": {"upstream_ports": "4000-3000"}}, "ports"),
        ({"control": "update", "gateway": {}}, "gateway"),
        ({"control": "stop"}, "generation"),
        ({"allow": []}, "allow"),
    ],
)
def test_a_control_line_that_is_not_understood_is_refused_by_name(
    changes: dict[str, object], named: str
) -> None:
    with pytest.raises(ControlError) as caught:
        command(**changes)
    assert named in str(caught.value)


@pytest.mark.parametrize("line", [b"", b"null", b"[]", b"{", b"\xff", b'"policy"', b"[" * 100_000])
def test_a_line_that_is_no_object_is_refused(line: bytes) -> None:
    with pytest.raises(ControlError):
        parse_command(line)


def test_an_event_line_is_ascii_bounded_and_read_back_equal() -> None:
    event = NameResolved(
        name="a\n\x1b[31m\u202e\U0001f600", query_type="A", addresses=("198.51.100.10",)
    )
    line = render_egress_event(event)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert b"\x1b" not in line
    assert parse_egress_event(line) == event
    long = "\U0001f600" * 5000
    huge = NameResolved(name=long, query_type=long, rules=(long,) * 99, aliases=(long,) * 99)
    assert len(render_egress_event(huge)) < MAX_LINE
    closed = ConnectionClosed(
        rule="r1", address="198.51.100.10", port=443, sent=1, received=2, seconds=1.5
    )
    assert parse_egress_event(render_egress_event(closed)) == closed
    assert len(EVENT_TYPES) == 11


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"{}",
        b'{"event":"nothing"}',
        b'{"event":"deny"}',
        b'{"event":"deny","layer":"dns","reason":1}',
        b'{"event":"deny","layer":"dns","reason":"x","port":"443"}',
        b'{"event":"deny","layer":"dns","reason":"x","port":true}',
        b'{"event":"deny","layer":"dns","reason":"x","surprise":1}',
        b'{"event":"dns","name":"x","query_type":"A","addresses":[1]}',
        b'{"event":"dns","name":"x","query_type":"A","addresses":"198.51.100.10"}',
    ],
)
def test_a_line_that_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(EventError):
        parse_egress_event(line)


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    bucket = TokenBucket(2.0, 4.0)
    assert [bucket.take(0.0) for _ in range(5)] == [True] * 4 + [False]
    assert [bucket.take(1.0) for _ in range(3)] == [True, True, False]
    assert not bucket.take(0.5)  # a clock that goes back gives nothing
    assert [bucket.take(1000.0) for _ in range(5)] == [True] * 4 + [False]


def test_known_names_are_free_and_few_are_remembered() -> None:
    budget = NameBudget(2, 60.0)
    assert [budget.take(name, 0.0) for name in "aabbc"] == [True, True, True, True, False]
    assert budget.take("c", 1.0)
    budget = NameBudget(10_000, 0.0)
    for number in range(MAX_KNOWN_NAMES + 1):
        budget.take(str(number), 0.0)
    assert not NameBudget(0, 0.0).take("a", 0.0)


def test_learned_names_run_out_and_are_never_pushed_out() -> None:
    names = LearnedNames(max_entries=3)
    first, second, third, fourth = (ip_address(f"198.51.100.{number}") for number in range(1, 5))
    names.add("a", names.room("a", [first, second], 2, 0.0), 10.0)
    names.add("b", names.room("b", [first], 2, 0.0), 20.0)
    assert names.names(first, 5.0) == ("a", "b")
    assert names.room("a", [third, first], 2, 5.0) == [first]
    assert names.room("c", [third], 2, 5.0) == []
    assert names.names(first, 15.0) == ("b",)
    assert names.room("c", [third, fourth], 2, 15.0) == [third, fourth]
    names.add("b", [first], 1.0)
    assert names.seconds_left(first, 0.0) == [("b", 20.0)]
    names.keep(lambda name, _address: name == "a")
    assert len(names) == 0
    assert names.names(first, 0.0) == ()


def test_what_a_new_policy_names_stays_open_for_its_time() -> None:
    egress = parse_egress(["*.example.test", "10.0.0.0/8:1/tcp"])
    policy = NamePolicy(egress)
    address, private = ip_address("198.51.100.10"), ip_address("10.0.0.1")
    kept = keep_learned(
        policy,
        [
            ("a.example.test", address, 30.0),
            ("b.example.test", address, 90.0),
            ("b.example.test", private, 90.0),
            ("evil.test", ip_address("198.51.100.66"), 90.0),
        ],
    )
    assert [(entry.address, entry.seconds) for entry in kept] == [(address, 91)]


class Tape:
    def __init__(self) -> None:
        self.lines: list[EgressEvent] = []
        self.open = True
        self.now = 0.0

    def write(self, line: bytes) -> bool:
        if self.open:
            self.lines.append(parse_egress_event(line))
        return self.open

    def clock(self) -> float:
        return self.now


def denied(name: str) -> Denied:
    return Denied(layer="dns", reason="no rule names it", name=name)


def test_equal_events_are_told_once_and_then_counted() -> None:
    tape = Tape()
    reporter = Reporter(tape.write, tape.clock)
    for _ in range(1000):
        reporter.report(denied("evil.test"))
    assert tape.lines == [denied("evil.test")]
    reporter.flush()
    assert tape.lines[1:] == [
        Denied(layer="dns", reason="no rule names it", name="evil.test", count=999)
    ]
    reporter.flush()
    reporter.flush()
    assert len(tape.lines) == 2
    reporter.report(denied("evil.test"))
    assert len(tape.lines) == 3


def test_a_flood_of_different_events_is_told_as_a_number_and_none_is_lost() -> None:
    tape = Tape()
    reporter = Reporter(tape.write, tape.clock)
    for number in range(100_000):
        reporter.report(denied(f"{number}.evil.test"))
    assert len(tape.lines) == BURST
    reporter.report(GatewayReady(generation=1, resolvers=()))
    assert isinstance(tape.lines[-1], GatewayReady)
    reporter.flush()
    assert tape.lines[-1] == EventsSuppressed(of="deny", count=100_000 - int(BURST))


def test_events_that_nobody_takes_are_counted_until_somebody_does() -> None:
    tape = Tape()
    tape.open = False
    reporter = Reporter(tape.write, tape.clock)
    reporter.report(denied("a.test"))
    reporter.flush()
    tape.open = True
    reporter.flush()
    assert tape.lines == [EventsSuppressed(of="deny", count=1)]


def test_a_pipe_that_nobody_reads_never_blocks_and_keeps_a_bounded_rest() -> None:
    async def run() -> int:
        reading, writing = os.pipe()
        writer = LineWriter(writing, lambda: None)
        taken = 0
        while writer.write(b"x" * 1023 + b"\n"):
            taken += 1
        got = 0
        os.set_blocking(reading, False)
        while got < taken * 1024:
            await asyncio.sleep(0)
            with contextlib.suppress(BlockingIOError):
                got += len(os.read(reading, 65536))
        assert writer.write(b"more\n")
        assert os.read(reading, 100) == b"more\n"
        writer.finish()
        os.close(reading)
        os.close(writing)
        return taken

    assert MAX_BUFFER // 1024 <= asyncio.run(run()) < 2 * MAX_BUFFER // 1024


def test_a_pipe_that_nobody_can_read_any_more_is_noticed() -> None:
    async def run() -> list[str]:
        reading, writing = os.pipe()
        os.close(reading)
        noticed: list[str] = []
        LineWriter(writing, lambda: noticed.append("broken")).write(b"line\n")
        os.close(writing)
        return noticed

    assert asyncio.run(run()) == ["broken"]


def test_the_way_out_is_the_default_routes_device() -> None:
    head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
    own = "eth1\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\n"
    default = "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\n"
    down = "eth2\t00000000\t010011AC\t0002\t0\t0\t0\t00000000\n"
    assert parse_routes(head + own + down + default) == "eth0"
    assert parse_routes(head + own) == "eth1"
    assert parse_routes(head) is None


def test_global_ipv6_addresses_are_told_from_link_local_ones() -> None:
    text = (
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "20010db800c800000000000000000002 05 40 00 80     eth0\n"
        "fe8000000000000000fc00fffe000001 05 40 20 80     eth0\n"
    )
    found = parse_if_inet6(text)
    assert {name: [str(each) for each in held] for name, held in found.items()} == {
        "lo": ["::1/128"],
        "eth0": ["2001:db8:c8::2/64"],
    }


def test_nameservers_are_read_from_resolv_conf() -> None:
    text = "# nameserver 198.51.100.1\nsearch corp.test\nnameserver 198.51.100.53\nnameserver\n"
    text += "options ndots:0\nnameserver 2001:db8:51::53\n"
    assert parse_resolv_conf(text) == ("198.51.100.53", "2001:db8:51::53")
