"""Sets, counters, denials and flows through the kernel's own interface."""

from __future__ import annotations

import errno
import select
import subprocess
import sys
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING

import anyio
import pytest

from sandboxed_mcp.egress.rules import NameRule, parse_egress, parse_rule
from sandboxed_mcp.egress.ruleset import render_ruleset
from sandboxed_mcp.egress.ruleset_values import Learned, RulesetSpec
from sandboxed_mcp.gateway.conntrack import read_flow
from sandboxed_mcp.gateway.netlink import NetlinkError, NetlinkSocket
from sandboxed_mcp.gateway.sets import LearnedSets
from tests.lab.fixtures import internet, pod, server
from tests.lab.gate import open_gate
from tests.lab.servers import open_echo

if TYPE_CHECKING:
    from sandboxed_mcp.gateway.conntrack import FlowEvent
    from tests.lab.gate import Gate
    from tests.lab.internet import Internet, Pod
    from tests.lab.prober import Prober

__all__ = ["internet", "pod", "server"]

ALLOWED = "198.51.100.10"
DENIED = "ECONNREFUSED"
DATABASE = ["db.example.com:5432/tcp"]


def test_a_learned_address_closes_when_its_time_is_over(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    with open_echo(internet.namespace, ("tcp", ALLOWED, 5432)), open_gate(pod, DATABASE) as gate:
        gate.learn(ALLOWED, seconds=1)
        assert server.exchange("tcp", ALLOWED, 5432).text == "echo hello"
        handle = server.dial("tcp", ALLOWED, 5432)
        wait_closed(server, 3.0)
        assert server.do("say", handle=handle).text == "echo hello"  # open connections live on


def test_learning_again_counts_the_time_anew(internet: Internet, pod: Pod, server: Prober) -> None:
    with open_echo(internet.namespace, ("tcp", ALLOWED, 5432)), open_gate(pod, DATABASE) as gate:
        gate.learn(ALLOWED, seconds=1)
        gate.learn(ALLOWED, seconds=30)
        gate.learn(ALLOWED, "198.51.100.11", seconds=60)
        listed = pod.namespace.run("nft", "list", "set", "inet", "sandboxed_mcp", set_name(gate))
        assert f"{ALLOWED} timeout 1m expires" in listed
        gate.learn(ALLOWED, seconds=1)  # and it can be cut short
        wait_closed(server, 3.0)


def test_a_full_set_is_an_error_and_what_fits_is_told(pod: Pod) -> None:
    addresses = [f"198.51.100.{n}" for n in range(1, 9)]
    with open_gate(pod, DATABASE, set_size=4) as gate:
        gate.learn(*addresses[:3])
        with pytest.raises(NetlinkError) as refused:
            gate.learn(*addresses[3:])
        assert refused.value.errno == errno.ENFILE
        gate.learn(*addresses[:3])  # what is in the set can be prolonged
        learned = anyio.run(gate.sets.learn, gate.learned(*addresses))
        assert learned == {ip_address(each) for each in addresses[:4]}


def test_an_address_of_a_rule_that_is_not_in_force_is_an_error(pod: Pod) -> None:
    with open_gate(pod, DATABASE) as gate:
        other = name_rule("elsewhere.example.com:1/tcp")
        with pytest.raises(NetlinkError) as refused:
            gate.sets.open([Learned(other, ip_address(ALLOWED), 60)])
        assert refused.value.errno == errno.ENOENT


def test_a_thousand_addresses_are_learned_in_one_transaction(pod: Pod) -> None:
    addresses = [str(ip_address("2001:db8:51::") + n) for n in range(1, 1001)]
    with open_gate(pod, DATABASE) as gate:
        gate.learn(*addresses)
        gate.learn(*addresses)
        listed = pod.namespace.run("nft", "list", "set", "inet", "sandboxed_mcp", set_name(gate, 6))
        assert listed.count("expires") == 1000


def test_counters_count_both_directions_of_each_rule_and_each_denial(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    with open_echo(internet.namespace, ("tcp", ALLOWED, 5432)), open_gate(pod, DATABASE) as gate:
        assert server.exchange("tcp", ALLOWED, 5432).error == DENIED
        gate.learn(ALLOWED)
        assert server.exchange("tcp", ALLOWED, 5432, text="x" * 1000).error is None
        counts = gate.counts()
        assert counts["denied_default"].packets == 1
        assert 1000 < counts[f"{gate.rule().id}_sent"].bytes < 1600
        assert 1000 < counts[f"{gate.rule().id}_received"].bytes < 1600


def test_a_flood_of_denials_is_counted_in_full_and_reported_at_a_bounded_rate(
    pod: Pod, server: Prober
) -> None:
    with open_gate(pod, DATABASE, log_rate=20) as gate:
        server.do("send", protocol="udp", address=ALLOWED, port=9, count=20_000)
        reported = 0
        while select.select([gate.denied], [], [], 0.3)[0]:
            reported += gate.denied.receive().total()
        assert gate.counts()["denied_default"].packets == 20_000
        assert 20 <= reported < 1000
        assert gate.denied.missed == 0
        assert pod.wire.packets(ALLOWED) == []


def test_denials_are_heard_within_a_tenth_of_a_second(pod: Pod, server: Prober) -> None:
    with open_gate(pod, DATABASE) as gate:
        for address in (ALLOWED, "2001:db8:51::10"):
            server.exchange("tcp", address, 5432)
            began = time.monotonic()
            packet = gate.wait_denied("default", address)
            assert time.monotonic() - began < 0.8
            assert (packet.protocol, packet.port, str(packet.address)) == ("tcp", 5432, address)
            assert packet.source == (pod.v6 if ":" in address else pod.v4)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_flows_are_heard_when_they_begin_and_with_their_bytes_when_they_end(
    internet: Internet, pod: Pod, server: Prober, protocol: str
) -> None:
    pod.namespace.write_sysctl("net/netfilter/nf_conntrack_udp_timeout", 1)
    pod.namespace.write_sysctl("net/netfilter/nf_conntrack_udp_timeout_stream", 1)
    with (
        open_echo(internet.namespace, (protocol, ALLOWED, 5432)),
        open_gate(pod, [f"db.example.com:5432/{protocol}"]) as gate,
    ):
        gate.learn(ALLOWED)
        assert server.exchange(protocol, ALLOWED, 5432, text="x" * 500).error is None
        opened, closed = wait_events(gate, "opened", "closed")
        assert (opened.flow.slot, opened.flow.id) == (1, closed.flow.id)
        assert (str(closed.flow.address), closed.flow.port) == (ALLOWED, 5432)
        assert 500 < closed.flow.sent < 1000
        assert 500 < closed.flow.received < 1000


def test_the_end_of_a_flow_is_told_once_and_its_bytes_grow_before(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    with open_echo(internet.namespace, ("tcp", ALLOWED, 5432)), open_gate(pod, DATABASE) as gate:
        gate.learn(ALLOWED)
        handle = server.dial("tcp", ALLOWED, 5432)
        opened = wait_events(gate, "opened")[0].flow
        assert gate.flows.poll(gate.netlink) == []
        assert server.do("say", handle=handle, text="x" * 700).error is None
        grown = read_flow(gate.netlink, opened)
        assert grown is not None
        assert grown.sent > 700
        assert gate.end_flow(opened)
        assert wait_events(gate, "closed")[0].flow.id == opened.id
        assert gate.flows.poll(gate.netlink) == gate.flows.receive() == []
        assert read_flow(gate.netlink, opened) is None


def test_loopback_makes_no_flow_events(pod: Pod, server: Prober) -> None:
    with open_echo(pod.namespace, ("tcp", "127.0.0.1", 80)), open_gate(pod, DATABASE) as gate:
        assert server.exchange("tcp", "127.0.0.1", 80).text == "echo hello"
        assert not select.select([gate.flows], [], [], 0.1)[0]
        assert gate.list_flows() == []


def test_net_admin_alone_is_enough_and_nothing_less_is(pod: Pod) -> None:
    """As in the gateway's container: user 0, and of all capabilities NET_ADMIN only."""
    rule = parse_egress(DATABASE)
    spec = RulesetSpec(egress=rule, generation=1, link="eth0", stamp=7)
    text = render_ruleset(spec, first=True)
    assert run_as_gateway(pod, text, "+net_admin") == "loaded learned counted logged tracked\n"
    pod.namespace.run("nft", "delete", "table", "inet", "sandboxed_mcp")
    pod.namespace.run("nft", "delete", "table", "netdev", "sandboxed_mcp_link")
    assert run_as_gateway(pod, text, "+net_raw") == "NftError\n"


GATEWAY = """
import sys
from ipaddress import ip_address
from sandboxed_mcp.egress.rules import NameRule, parse_egress, parse_rule
from sandboxed_mcp.egress.ruleset_values import Learned
from sandboxed_mcp.gateway.conntrack import FLOW_GROUPS, FlowListener, list_flows
from sandboxed_mcp.gateway.conntrack import read_flow
from sandboxed_mcp.gateway.netlink import NetlinkSocket
from sandboxed_mcp.gateway.nflog import DeniedListener
from sandboxed_mcp.gateway.nft import load_ruleset
from sandboxed_mcp.gateway.sets import LearnedSets, read_counts
try:
    load_ruleset(sys.stdin.read())
    with NetlinkSocket() as one, NetlinkSocket() as two, NetlinkSocket(FLOW_GROUPS) as three:
        rule = parse_egress(["db.example.com:5432/tcp"])[0]
        LearnedSets(one).open([Learned(rule, ip_address("198.51.100.10"), 60)])
        assert "denied_default" in read_counts(one)
        DeniedListener(two, 7).receive()
        FlowListener(three).receive(), list_flows(one)
    print("loaded learned counted logged tracked")
except Exception as error:
    print(type(error).__name__)
"""


def run_as_gateway(pod: Pod, text: str, capability: str) -> str:
    """Run the gateway's kernel work with one capability; its last word."""
    command = [
        "setpriv", f"--bounding-set=-all,{capability}", f"--inh-caps=-all,{capability}",
        "--no-new-privs", sys.executable, "-c", GATEWAY,
    ]  # fmt: skip
    done = pod.namespace.inside(
        lambda: subprocess.run(
            command, input=text, text=True, capture_output=True, timeout=20, check=False
        )
    )
    return done.stdout + done.stderr


def test_without_power_no_socket_joins_the_flows(pod: Pod, server: Prober) -> None:
    with open_gate(pod, DATABASE):
        made = server.do("make", family=16, kind=3, protocol=12)
        assert made.error is None  # a netlink socket can be made; it can change nothing
        command = [
            "setpriv", "--reuid=65532", "--clear-groups", "--bounding-set=-all", "nft",
            "flush", "ruleset",
        ]  # fmt: skip
        done = pod.namespace.inside(
            lambda: subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        )
        assert done.returncode != 0
        assert "Operation not permitted" in done.stderr


def test_a_namespace_without_our_table_refuses_an_address(pod: Pod) -> None:
    with pod.namespace.inside(NetlinkSocket) as netlink:
        rule = name_rule(DATABASE[0])
        with pytest.raises(NetlinkError):
            LearnedSets(netlink).open([Learned(rule, ip_address(ALLOWED), 60)])


def name_rule(text: str) -> NameRule:
    """One rule."""
    rule = parse_rule(text)
    assert isinstance(rule, NameRule)
    return rule


def set_name(gate: Gate, version: int = 4) -> str:
    """The set of the first rule."""
    return f"{gate.rule().id}_v{version}"


def wait_closed(server: Prober, seconds: float) -> None:
    """Wait until the database is not reached any more."""
    deadline = time.monotonic() + seconds
    while server.exchange("tcp", ALLOWED, 5432).error != DENIED:
        assert time.monotonic() < deadline, "it is still open"


def wait_events(gate: Gate, *kinds: str, within: float = 6.0) -> list[FlowEvent]:
    """Wait for the next events, which must be of these kinds."""
    deadline = time.monotonic() + within
    seen: list[FlowEvent] = []
    while len(seen) < len(kinds):
        assert time.monotonic() < deadline, seen
        select.select([gate.flows], [], [], 0.1)
        seen += [*gate.flows.receive(), *gate.flows.poll(gate.netlink)]
    assert tuple(event.kind for event in seen) == kinds
    return seen
