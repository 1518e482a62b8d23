"""What the packet filter lets out and what not, counted at the far side of the link."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.fixtures import internet, neighbour, pod, server
from tests.lab.gate import open_gate
from tests.lab.internet import HOST_V4, HOST_V6, METADATA
from tests.lab.prober import open_prober
from tests.lab.servers import open_echo

if TYPE_CHECKING:
    from tests.lab.internet import Internet, Pod
    from tests.lab.prober import Prober

__all__ = ["internet", "neighbour", "pod", "server"]

ALLOWED, OTHER = "198.51.100.10", "198.51.100.20"
ALLOWED_V6, OTHER_V6 = "2001:db8:51::10", "2001:db8:51::20"
LAN, LAN_V6 = "198.18.0.10", "fd00:18::10"
DENIED, DENIED_UDP = "ECONNREFUSED", "EPERM"
ANY = "0.0.0.0"  # noqa: S104 - within a namespace of the laboratory
DATABASE = ["db.example.com:5432/tcp"]


def test_only_a_learned_address_is_reached(internet: Internet, pod: Pod, server: Prober) -> None:
    places = [("tcp", address, 5432) for address in (ALLOWED, OTHER, ALLOWED_V6, OTHER_V6)]
    with open_echo(internet.namespace, *places), open_gate(pod, DATABASE) as gate:
        assert server.exchange("tcp", ALLOWED, 5432).error == DENIED
        gate.learn(ALLOWED, ALLOWED_V6)
        assert server.exchange("tcp", OTHER, 5432).error == DENIED
        assert server.exchange("tcp", OTHER_V6, 5432).error == DENIED
        assert server.exchange("tcp", ALLOWED, 5432).text == "echo hello"
        assert server.exchange("tcp", ALLOWED_V6, 5432).text == "echo hello"
        pod.wire.wait(ALLOWED_V6, "tcp", 5432)
        assert pod.wire.packets(OTHER) == []
        assert pod.wire.packets(OTHER_V6) == []
        denied = gate.wait_denied("default", OTHER)
        assert (denied.protocol, denied.port, denied.rule) == ("tcp", 5432, None)


def test_an_open_address_is_open_on_the_rules_ports_and_protocol_alone(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    places = [(protocol, ALLOWED, port) for protocol in ("tcp", "udp") for port in (22, 443, 8001)]
    rules = ["a.example.com:443/tcp", "a.example.com:8000-8100/udp"]
    with open_echo(internet.namespace, *places) as echo, open_gate(pod, rules) as gate:
        gate.learn(ALLOWED, rule=0)
        gate.learn(ALLOWED, rule=1)
        assert server.exchange("tcp", ALLOWED, 22).error == DENIED
        assert server.exchange("tcp", ALLOWED, 8001).error == DENIED
        assert server.exchange("udp", ALLOWED, 443).error == DENIED_UDP
        assert server.exchange("udp", ALLOWED, 7999).error == DENIED_UDP
        assert server.exchange("udp", ALLOWED, 8101).error == DENIED_UDP
        assert server.exchange("udp", ALLOWED, 8001).text == "echo hello"
        assert server.exchange("tcp", ALLOWED, 443).text == "echo hello"
        assert {(p.protocol, p.port) for p in pod.wire.packets(ALLOWED)} == {
            ("tcp", 443),
            ("udp", 8001),
        }
        assert (echo.connections, echo.datagrams) == (1, 1)


def test_address_rules_open_their_network_private_ones_too(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    places = [
        ("tcp", "10.2.0.7", 5432),
        ("tcp", LAN, 5432),
        ("tcp", ALLOWED_V6, 443),
        ("tcp", LAN_V6, 443),
    ]
    rules = ["10.2.0.0/16:5432/tcp", "[2001:db8:51::/64]:443/tcp"]
    with open_echo(internet.namespace, *places), open_gate(pod, rules) as gate:
        assert server.exchange("tcp", LAN, 5432).error == DENIED
        assert server.exchange("tcp", LAN_V6, 443).error == DENIED
        assert server.exchange("tcp", "10.2.0.7", 5432).text == "echo hello"
        assert server.exchange("tcp", ALLOWED_V6, 443).text == "echo hello"
        assert pod.wire.packets(LAN) == pod.wire.packets(LAN_V6) == []
        assert gate.wait_denied("private", LAN_V6).port == 443


@pytest.mark.parametrize("address", [LAN, LAN_V6])
def test_a_name_opens_a_private_address_only_with_leave(
    internet: Internet, pod: Pod, server: Prober, address: str
) -> None:
    allowing = {"host": "db.example.com", "ports": 5432, "protocol": "tcp", "allow_private": True}
    with open_echo(internet.namespace, ("tcp", address, 5432)), open_gate(pod, DATABASE) as gate:
        gate.learn(address)
        assert server.exchange("tcp", address, 5432).error == DENIED
        assert pod.wire.packets(address) == []
        assert gate.wait_denied("private", address).port == 5432
        gate.apply([allowing])
        gate.learn(address)
        assert server.exchange("tcp", address, 5432).text == "echo hello"


@pytest.mark.parametrize("address", [*METADATA, HOST_V4, HOST_V6, "198.19.0.9", "fe80::1"])
def test_no_name_opens_metadata_or_the_link(
    internet: Internet, pod: Pod, server: Prober, address: str
) -> None:
    rule = {"host": "a.example.com", "ports": 80, "protocol": "tcp", "allow_private": True}
    network = ["169.0.0.0/8:80/tcp", "198.18.0.0/15:80/tcp"]
    places = [("tcp", ALLOWED, 80)] + [("tcp", HOST_V4, 80)] * (address == HOST_V4)
    with open_echo(internet.namespace, *places), open_gate(pod, [rule, *network]) as gate:
        gate.learn(address, ALLOWED)
        assert server.exchange("tcp", address, 80).error not in ("TIMEOUT", None)
        assert server.exchange("tcp", ALLOWED, 80).text == "echo hello"
        pod.wire.wait(ALLOWED, "tcp", 80)
        assert pod.wire.packets(address) == []


def test_a_metadata_address_spelled_out_with_leave_is_open(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    address = METADATA[0]
    rule = {"host": address, "ports": 80, "protocol": "tcp", "allow_private": True}
    with open_echo(internet.namespace, ("tcp", address, 80)), open_gate(pod, [rule]):
        assert server.exchange("tcp", METADATA[1], 80).error == DENIED
        assert server.exchange("tcp", address, 80).text == "echo hello"
        assert pod.wire.packets(METADATA[1]) == []


@pytest.mark.parametrize("port", [1, 22, 80, 2375, 2376, 8080])
def test_the_host_is_not_reached_at_the_bridge(
    internet: Internet, pod: Pod, server: Prober, port: int
) -> None:
    with (
        open_echo(internet.namespace, ("tcp", HOST_V4, port), ("tcp", HOST_V6, port)) as echo,
        open_gate(pod, "unrestricted"),
    ):
        assert server.exchange("tcp", HOST_V4, port).error == DENIED
        assert server.exchange("tcp", HOST_V6, port).error == DENIED
        assert echo.connections == 0
        assert pod.wire.packets(HOST_V4) == pod.wire.packets(HOST_V6) == []


def test_neighbours_reach_each_other_in_neither_direction(
    pod: Pod, neighbour: Pod, server: Prober
) -> None:
    with open_prober(neighbour.namespace) as other:
        inside = server.do("listen", protocol="tcp", address=ANY, port=8080).number
        outside = other.do("listen", protocol="tcp", address=ANY, port=8080).number
        there, here = str(neighbour.v4), str(pod.v4)
        other.start("accept", handle=outside)
        assert server.exchange("tcp", there, 8080).text == "inside"  # no rules yet: it works
        assert other.finish().text == here
        with open_gate(pod, "unrestricted") as gate:
            pod.wire.clear()
            assert server.exchange("tcp", there, 8080).error == DENIED
            assert other.exchange("tcp", here, 8080, timeout=0.5).error == "TIMEOUT"
            assert other.exchange("udp", here, 8080, timeout=0.2).error == "TIMEOUT"
            assert server.do("accept", handle=inside, timeout=0.2).error == "TIMEOUT"
            assert gate.wait_denied("inbound", here).port == 8080
        assert pod.wire.packets(there) == []


@pytest.mark.parametrize("address", ["::ffff:198.51.100.20", "64:ff9b::a9fe:a9fe", "2002:a00::1"])
def test_translated_addresses_are_judged_by_what_they_carry(
    internet: Internet, pod: Pod, server: Prober, address: str
) -> None:
    places = [("tcp", ALLOWED, 5432), ("tcp", OTHER, 5432)]
    with open_echo(internet.namespace, *places) as echo, open_gate(pod, DATABASE) as gate:
        gate.learn(ALLOWED, address)
        assert server.exchange("tcp", address, 5432).error == DENIED
        assert server.exchange("tcp", "::ffff:" + ALLOWED, 5432).text == "echo hello"
        assert echo.connections == 1
        assert {str(p.address) for p in pod.wire.packets(protocol="tcp")} == {ALLOWED}


def test_no_rule_is_no_network(internet: Internet, pod: Pod, server: Prober) -> None:
    with (
        open_echo(internet.namespace, ("tcp", ALLOWED, 80), ("udp", ALLOWED, 80)),
        open_gate(pod, []) as gate,
    ):
        assert server.exchange("tcp", ALLOWED, 80).error == DENIED
        assert server.exchange("udp", ALLOWED, 80).error == DENIED_UDP
        gate.apply("unrestricted")
        assert server.exchange("udp", ALLOWED, 80).text == "echo hello"
        assert [p.protocol for p in pod.wire.packets(ALLOWED)] == ["udp"]


def test_unrestricted_is_everything_but_metadata_and_the_link(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    open_to = [ALLOWED, OTHER_V6, LAN, LAN_V6, "10.2.3.4"]
    shut = [*METADATA, HOST_V4, HOST_V6]
    places = [("tcp", address, 9999) for address in (*open_to, *shut)]
    with open_echo(internet.namespace, *places) as echo, open_gate(pod, "unrestricted"):
        for address in shut:
            assert server.exchange("tcp", address, 9999).error == DENIED
        for address in open_to:
            assert server.exchange("tcp", address, 9999).text == "echo hello"
        assert echo.connections == len(open_to)
        assert {str(p.address) for p in pod.wire.packets(protocol="tcp")} == set(open_to)


def test_without_ipv6_not_even_neighbour_discovery_leaves(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    with (
        open_echo(internet.namespace, ("tcp", ALLOWED, 80)),
        open_gate(pod, "unrestricted", ipv6=False),
    ):
        pod.wire.clear()
        server.do("exchange", protocol="tcp", address=ALLOWED_V6, port=80, timeout=0.3)
        assert server.exchange("tcp", ALLOWED, 80).text == "echo hello"
        pod.wire.wait(ALLOWED, "tcp", 80)
        assert {packet.protocol for packet in pod.wire.packets()} == {"tcp"}


def test_traffic_that_never_pauses_is_shut_in_from_the_rules_first_instant(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    """A server that sends before, while and after the rules are put in force."""
    with open_echo(internet.namespace, ("tcp", ALLOWED, 80), ("udp", OTHER, 80)):
        server.start("busy", protocol="udp", address=OTHER, port=80, seconds=0.6)
        pod.wire.wait(OTHER, "udp", 80)
        with open_gate(pod, ["a.example.com:80/tcp"]) as gate, open_prober(pod.namespace) as twin:
            gate.learn(ALLOWED)
            assert twin.exchange("tcp", ALLOWED, 80).text == "echo hello"
            before = len(pod.wire.packets(OTHER))
            assert server.finish().number > 100
            assert twin.exchange("tcp", ALLOWED, 80).text == "echo hello"
            pod.wire.wait(ALLOWED, "tcp", 80, count=8)
            assert len(pod.wire.packets(OTHER)) == before
