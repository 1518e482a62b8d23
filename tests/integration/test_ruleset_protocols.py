"""Protocols other than TCP and UDP, raw and packet sockets: nothing of it leaves."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.lab.fixtures import internet, pod, server
from tests.lab.gate import open_gate
from tests.lab.prober import open_prober
from tests.lab.servers import open_echo

if TYPE_CHECKING:
    from tests.lab.internet import Internet, Pod
    from tests.lab.prober import Prober

__all__ = ["internet", "pod", "server"]

ALLOWED, OTHER = "198.51.100.10", "198.51.100.20"
ALLOWED_V6, OTHER_V6 = "2001:db8:51::10", "2001:db8:51::20"
DENIED = "ECONNREFUSED"
DATABASE = ["db.example.com:5432/tcp"]
UDP_TO_OTHER = (
    "ffffffffffff0200000000020800450000200001000040110000c6130002c633641404d20053000c000074657374"
)
ARP = "ffffffffffff02000000000208060001080006040001020000000002c6130002000000000000c6130001"


def test_nothing_but_tcp_and_udp_leaves(internet: Internet, pod: Pod, server: Prober) -> None:
    with open_echo(internet.namespace, ("tcp", ALLOWED, 5432)), open_gate(pod, DATABASE) as gate:
        gate.learn(ALLOWED, ALLOWED_V6)
        pod.wire.clear()
        pod.namespace.run("sysctl", "-qw", "net.ipv4.ping_group_range=0 2147483647")
        for address in (ALLOWED, ALLOWED_V6, OTHER, OTHER_V6, "224.0.0.1", "ff02::1%eth0"):
            assert server.do("ping", address=address, timeout=0.3).error is not None
        for address in ("224.0.0.251", "198.19.0.255", "255.255.255.255", "ff02::fb%eth0"):
            assert server.exchange("udp", address, 5353, timeout=0.3).error is not None
        assert server.do("ping", address="127.0.0.1").error is None
        assert server.exchange("tcp", ALLOWED, 5432).text == "echo hello"
        kinds = {packet.protocol for packet in pod.wire.packets()}
        assert kinds <= {"tcp", "icmpv6"}  # neighbour discovery speaks ICMPv6
        for address in (ALLOWED_V6, OTHER_V6, "ff02::1", "ff02::fb"):
            assert pod.wire.packets(address) == []
        assert {str(p.address) for p in pod.wire.packets(protocol="tcp")} == {ALLOWED}
        gate.wait_denied("protocol", ALLOWED)


def test_an_answer_that_comes_too_late_makes_no_icmp_and_no_denial(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    with (
        open_echo(internet.namespace, ("udp", ALLOWED, 123), ("udp", ALLOWED, 124)),
        open_gate(pod, [f"{ALLOWED}:123-124/udp"]) as gate,
    ):
        pod.wire.clear()
        server.do("send", protocol="udp", address=ALLOWED, port=123)  # and closes at once
        assert server.exchange("udp", ALLOWED, 124).text == "echo hello"
        assert {packet.protocol for packet in pod.wire.packets()} == {"udp"}
        assert gate.counts()["denied_protocol"].packets == 0


def test_a_process_without_power_makes_no_raw_socket(pod: Pod, server: Prober) -> None:
    with open_gate(pod, []):
        for family, kind, protocol in (
            (socket.AF_INET, socket.SOCK_RAW, 1),
            (socket.AF_INET, socket.SOCK_RAW, 255),
            (socket.AF_INET6, socket.SOCK_RAW, 58),
            (socket.AF_PACKET, socket.SOCK_RAW, 0),
            (socket.AF_PACKET, socket.SOCK_DGRAM, 0),
        ):
            tried = server.do("make", family=family, kind=kind, protocol=protocol)
            assert tried.error == "EPERM"
        assert server.do("make", family=socket.AF_INET, kind=socket.SOCK_STREAM).value is True


@pytest.mark.parametrize("backstop", [True, False])
def test_a_packet_socket_is_stopped_at_the_link(pod: Pod, *, backstop: bool) -> None:
    link = {} if backstop else {"link": None}
    with (
        open_gate(pod, [], **link),
        open_prober(pod.namespace, capabilities=["net_raw"]) as strong,
    ):
        assert strong.do("frame", device="eth0", data=UDP_TO_OTHER).error in (None, "ENOBUFS")
        if backstop:
            assert strong.do("frame", device="eth0", data=ARP).error is None
            pod.wire.wait_frames("arp")
            assert pod.wire.packets(OTHER) == []
        else:
            pod.wire.wait(OTHER, "udp")  # the frame is good: only the backstop stopped it


@pytest.mark.parametrize("number", [1, 4, 41, 47, 50, 132, 255])
def test_raw_sockets_send_no_other_protocol(pod: Pod, internet: Internet, number: int) -> None:
    header = "4500001c00010000400100000000000" + "0c6336414" + "0800f7fe00000001"
    data = header if number == 255 else "00" * 16
    with (
        open_echo(internet.namespace, ("tcp", ALLOWED, 5432)),
        open_gate(pod, DATABASE) as gate,
        open_prober(pod.namespace, capabilities=["net_raw"]) as strong,
    ):
        gate.learn(ALLOWED)
        for address in (ALLOWED, OTHER):
            assert strong.do("raw", number=number, address=address, data=data).error is not None
        assert strong.exchange("tcp", ALLOWED, 5432).text == "echo hello"
        pod.wire.wait(ALLOWED, "tcp", 5432)
        assert {packet.protocol for packet in pod.wire.packets(ALLOWED)} == {"tcp"}
        assert pod.wire.packets(OTHER) == []


def test_a_data_channel_that_a_peer_announces_stays_shut(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    places = [("tcp", ALLOWED, 21), ("tcp", ALLOWED, 40000)]
    with (
        open_echo(internet.namespace, *places) as echo,
        open_gate(pod, ["ftp.example.com:21/tcp"]) as gate,
    ):
        gate.learn(ALLOWED)
        handle = server.dial("tcp", ALLOWED, 21)
        announced = server.do(
            "say", handle=handle, text="227 Entering Passive Mode (198,51,100,10,156,64).\r\n"
        )
        assert announced.text.startswith("echo 227")
        assert server.exchange("tcp", ALLOWED, 40000).error == DENIED
        assert echo.connections == 1
        assert pod.wire.packets(ALLOWED, port=40000) == []
