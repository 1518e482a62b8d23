"""The packet filter in real containers on the engine's bridge, with production's capabilities."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING

import pytest

from tests.lab.bridge import Bridge, open_bridge
from tests.lab.container import Owner, open_member, open_owner
from tests.lab.fixtures import internet
from tests.lab.gate import UPSTREAM, Gate, open_gate
from tests.lab.servers import open_echo

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.lab.internet import Internet
    from tests.lab.prober import Prober

__all__ = ["bridge", "internet", "member", "owner"]

ALLOWED, OTHER, METADATA = "198.51.100.10", "198.51.100.20", "169.254.169.254"
DENIED = "ECONNREFUSED"
# What image builds of this machine need while these tests hold the bridge; nothing here sends
# to them, and what the agent does is written in this file.
BUILDS = ("203.0.113.0/24", "10.255.255.53")


@pytest.fixture(scope="module")
def bridge(internet: Internet) -> Generator[Bridge, None, None]:
    """The engine's bridge, attached."""
    with open_bridge(internet, exempt=BUILDS) as made:
        yield made


@pytest.fixture(scope="module")
def owner(bridge: Bridge) -> Generator[Owner, None, None]:
    """A container like the gateway's."""
    sysctls = ("--sysctl=net.ipv4.ip_unprivileged_port_start=1024",)
    with open_owner(bridge, *sysctls) as made:
        yield made


@pytest.fixture(scope="module")
def member(owner: Owner) -> Generator[Prober, None, None]:
    """A container like a server's."""
    with open_member(owner) as made:
        yield made


@pytest.fixture
def gate(owner: Owner, bridge: Bridge) -> Generator[Gate, None, None]:
    """A policy in force: one name, one verified name."""
    link = ip_network(f"{bridge.address}/16", strict=False)
    rules = ["db.example.com:5432/tcp", "api.example.com"]
    with open_gate(owner.pod, rules, forbidden=(link,), ipv6=False) as made:
        bridge.wire.clear()
        yield made
        owner.pod.namespace.run("nft", "delete", "table", "inet", "sandboxed_mcp")
        owner.pod.namespace.run("nft", "delete", "table", "netdev", "sandboxed_mcp_link")


def test_a_server_has_no_power(member: Prober) -> None:
    status = member.do("status").table
    assert status["CapEff"] == status["CapBnd"] == status["CapAmb"] == "0" * 16
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    for family, kind in ((2, 3), (17, 3), (10, 3)):
        assert member.do("make", family=family, kind=kind, protocol=1).error == "EPERM"


def test_a_container_reaches_what_the_rules_open_and_nothing_else(
    internet: Internet, bridge: Bridge, member: Prober, gate: Gate
) -> None:
    places = [("tcp", address, 5432) for address in (ALLOWED, OTHER, METADATA, "10.2.0.1")]
    with open_echo(internet.namespace, *places) as echo:
        gate.learn(ALLOWED, METADATA)
        for address in (OTHER, METADATA, "10.2.0.1", bridge.address):
            assert member.exchange("tcp", address, 5432).error == DENIED
        assert member.exchange("udp", ALLOWED, 5432).error == "EPERM"
        assert member.exchange("tcp", ALLOWED, 5432).text == "echo hello"
        bridge.wire.wait(ALLOWED, "tcp", 5432)
        assert {str(p.address) for p in bridge.wire.packets(protocol="tcp")} == {ALLOWED}
        assert bridge.wire.packets(protocol="udp") == []
        assert echo.connections == 1
        assert gate.wait_denied("never", METADATA).port == 5432


def test_a_container_cannot_take_the_gateways_place(
    internet: Internet, owner: Owner, gate: Gate
) -> None:
    places = [("tcp", UPSTREAM, 53), ("tcp", ALLOWED, 443)]
    with open_echo(internet.namespace, *places) as echo, open_member(owner, user="0:0") as root:
        gate.learn(ALLOWED, rule=1)
        mark = gate.spec.gateway.mark
        for address, port in ((UPSTREAM, 53), (ALLOWED, 443)):
            assert root.exchange("tcp", address, port, mark=mark).error == "EPERM"
            assert root.exchange("tcp", address, port).error == DENIED
        for flags in (0x1000_0000, 0x5000_0000):  # a user namespace, and a network one
            assert root.do("unshare", flags=flags).error == "EPERM"
        assert gate.connect("tcp", ALLOWED, 443) == "echo gateway"
        assert echo.connections == 1


def test_two_containers_reach_each_other_in_neither_direction(
    bridge: Bridge, owner: Owner, member: Prober, gate: Gate
) -> None:
    del gate
    with open_owner(bridge) as other, open_member(other) as neighbour:
        here, there = (
            each.pod.namespace.run("hostname", "-I").split()[0] for each in (owner, other)
        )
        theirs = neighbour.do("listen", protocol="tcp", address=there, port=8080).number
        ours = member.do("listen", protocol="tcp", address=here, port=8080).number
        assert member.exchange("tcp", there, 8080).error == DENIED
        assert neighbour.exchange("tcp", here, 8080, timeout=0.4).error == "TIMEOUT"
        assert member.do("accept", handle=ours, timeout=0.2).error == "TIMEOUT"
        member.do("hang_up", handle=ours)
        neighbour.start("accept", handle=theirs)
        with open_member(other) as twin:
            assert twin.exchange("tcp", there, 8080).text == "inside"  # it does listen
        assert neighbour.finish().error is None
