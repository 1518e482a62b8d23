"""What the packet filter does for the gateway: names, the relay, and nobody in its place."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.egress.ruleset_values import Gateway
from tests.lab.fixtures import internet, pod, server
from tests.lab.gate import UPSTREAM, open_gate
from tests.lab.prober import open_prober
from tests.lab.servers import open_echo, open_listener

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.lab.internet import Internet, Pod
    from tests.lab.prober import Prober

__all__ = ["internet", "pod", "server"]

ALLOWED, OTHER = "198.51.100.10", "198.51.100.20"
ALLOWED_V6 = "2001:db8:51::10"
DENIED = "ECONNREFUSED"
RESOLVER, RELAY = 15053, 15443
VERIFIED = ["api.example.com"]
QUERY = "123401000001000000000000" + "07" + b"example".hex() + "0000010001"


@pytest.mark.parametrize("address", [UPSTREAM, OTHER, "2001:db8:51::53", "127.0.0.11", "10.9.9.9"])
@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_port_53_leads_to_the_resolver_whatever_the_address(
    internet: Internet, pod: Pod, server: Prober, address: str, protocol: str
) -> None:
    places = [(protocol, UPSTREAM, 53)]
    inside = [(protocol, "127.0.0.1", RESOLVER), (protocol, "::1", RESOLVER)]
    with (
        open_echo(internet.namespace, *places) as upstream,
        open_echo(pod.namespace, *inside) as resolver,
        open_gate(pod, VERIFIED),
    ):
        answer = server.do("exchange", protocol=protocol, address=address, port=53)
        assert answer.text == "echo hello"
        assert resolver.connections + resolver.datagrams == 1
        assert upstream.connections + upstream.datagrams == 0
        assert pod.wire.packets(port=53) == []


@pytest.mark.parametrize("port", [853, 5353, 5300, 784])
@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_no_other_port_of_a_resolver_is_open(
    internet: Internet, pod: Pod, server: Prober, port: int, protocol: str
) -> None:
    with (
        open_echo(internet.namespace, (protocol, UPSTREAM, port), ("tcp", UPSTREAM, 53)) as echo,
        open_gate(pod, VERIFIED) as gate,
    ):
        assert server.exchange(protocol, UPSTREAM, port).error in (DENIED, "EPERM")
        assert gate.connect("tcp", UPSTREAM, 53) == "echo gateway"
        assert (echo.connections, echo.datagrams) == (1, 0)
        assert pod.wire.packets(port=port) == []


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_the_engines_embedded_resolver_is_shut_on_every_port(
    pod: Pod, server: Prober, protocol: str
) -> None:
    """The engine's resolver listens on a random port, which /proc/net shows to the server."""
    with (
        open_echo(pod.namespace, (protocol, "127.0.0.11", 41234), (protocol, "127.0.0.12", 41234)),
        open_gate(pod, VERIFIED) as gate,
    ):
        assert server.exchange(protocol, "127.0.0.11", 41234).error in (DENIED, "EPERM")
        assert server.exchange(protocol, "127.0.0.12", 41234).text == "echo hello"
        assert gate.wait_denied("embedded").port == 41234


def test_verified_connections_lead_to_the_relay_with_their_destination(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    places = [("tcp", ALLOWED, 443), ("tcp", OTHER, 443), ("tcp", ALLOWED, 80)]
    with (
        open_echo(internet.namespace, *places) as outside,
        open_relay(pod) as relay,
        open_gate(pod, VERIFIED) as gate,
    ):
        gate.learn(ALLOWED)
        handle = server.dial("tcp", ALLOWED, 443)
        accepted, _ = relay.accept()
        with accepted:
            original = accepted.getsockopt(socket.SOL_IP, 80, 16)  # SO_ORIGINAL_DST
            port, address = struct.unpack("!2xH4s8x", original)
            assert (socket.inet_ntoa(address), port) == (ALLOWED, 443)
            accepted.sendall(b"relayed")
            assert server.do("hear", handle=handle).text == "relayed"
        assert server.exchange("tcp", ALLOWED, 80).error == DENIED
        assert server.exchange("tcp", OTHER, 443).error == DENIED
        assert outside.connections == 0
        assert pod.wire.packets(protocol="tcp") == []


def test_the_relays_own_connections_reach_verified_addresses_alone(
    internet: Internet, pod: Pod
) -> None:
    places = [("tcp", ALLOWED, 443), ("tcp", ALLOWED, 5432), ("tcp", OTHER, 443)]
    rules = ["api.example.com", "db.example.com:5432/tcp", f"{OTHER}:443/tcp"]
    with open_echo(internet.namespace, *places) as outside, open_gate(pod, rules) as gate:
        with pytest.raises(OSError, match="refused"):
            gate.connect("tcp", ALLOWED, 443)
        gate.learn(ALLOWED, rule=0)
        gate.learn(ALLOWED, rule=1)
        for address, port in ((ALLOWED, 5432), (OTHER, 443), (UPSTREAM, 443), ("10.2.0.1", 443)):
            with pytest.raises(OSError, match="refused"):
                gate.connect("tcp", address, port)
        assert gate.connect("tcp", ALLOWED, 443) == "echo gateway"
        assert outside.connections == 1
        assert {(str(p.address), p.port) for p in pod.wire.packets(protocol="tcp")} == {
            (ALLOWED, 443)
        }


def test_a_rule_without_verification_is_not_led_to_the_relay(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    rules = ["api.example.com", "plain.example.com:443/tcp"]
    with open_echo(internet.namespace, ("tcp", ALLOWED, 443)), open_gate(pod, rules) as gate:
        gate.learn(ALLOWED, rule=0)
        gate.learn(ALLOWED, rule=1)
        assert server.exchange("tcp", ALLOWED, 443).text == "echo hello"


def test_the_relay_does_not_answer_who_speaks_to_it_directly(pod: Pod, server: Prober) -> None:
    with open_relay(pod), open_gate(pod, VERIFIED) as gate:
        gate.learn(ALLOWED)
        for address in ("127.0.0.1", "127.0.0.2", str(pod.v4)):
            assert server.exchange("tcp", address, RELAY).error == DENIED
        assert gate.wait_denied("relay").port == RELAY
        server.dial("tcp", ALLOWED, 443)  # the redirect still leads there


def test_the_upstream_resolver_is_open_to_the_gateway_alone(internet: Internet, pod: Pod) -> None:
    places = [("udp", UPSTREAM, 53), ("tcp", UPSTREAM, 53), ("udp", OTHER, 53)]
    with open_echo(internet.namespace, *places) as upstream, open_gate(pod, VERIFIED) as gate:
        assert gate.connect("udp", UPSTREAM, 53) == "echo gateway"
        assert gate.connect("tcp", UPSTREAM, 53) == "echo gateway"
        with pytest.raises(PermissionError):
            gate.connect("udp", OTHER, 53)
        with pytest.raises(OSError, match="refused"):  # to the resolver, which is not there
            gate.connect("tcp", UPSTREAM, 53, mark=False)
        assert (upstream.connections, upstream.datagrams) == (1, 1)
        assert pod.wire.packets(OTHER) == []


def test_a_question_from_outside_the_guarded_ports_is_not_let_out(
    internet: Internet, pod: Pod
) -> None:
    with (
        open_echo(internet.namespace, ("udp", UPSTREAM, 53)) as upstream,
        open_gate(pod, VERIFIED) as gate,
        open_prober(pod.namespace, uid=0, capabilities=["net_admin"]) as twin,
    ):
        asked = {"mark": gate.spec.gateway.mark, "timeout": 0.5}
        refused = twin.exchange("udp", UPSTREAM, 53, source_port=40000, **asked)
        assert refused.error == "EPERM"
        assert twin.exchange("udp", UPSTREAM, 53, source_port=20001, **asked).text == "echo hello"
        assert upstream.datagrams == 1
        assert [p.source_port for p in pod.wire.packets(UPSTREAM, "udp")] == [20001]


@pytest.mark.parametrize("uid", [0, 65532])
def test_the_mark_cannot_be_taken_without_power(pod: Pod, internet: Internet, uid: int) -> None:
    with (
        open_echo(internet.namespace, ("tcp", UPSTREAM, 53), ("tcp", ALLOWED, 443)) as outside,
        open_gate(pod, VERIFIED) as gate,
        open_prober(pod.namespace, uid=uid) as weak,
    ):
        gate.learn(ALLOWED)
        mark = gate.spec.gateway.mark
        assert weak.exchange("tcp", ALLOWED, 443, mark=mark).error == "EPERM"
        assert weak.exchange("tcp", UPSTREAM, 53, mark=mark).error == "EPERM"
        assert weak.exchange("tcp", ALLOWED, 443).error == "ECONNREFUSED"  # no relay runs
        assert gate.connect("tcp", ALLOWED, 443) == "echo gateway"
        assert outside.connections == 1


def test_neither_mark_nor_user_alone_opens_what_is_the_gateways(
    internet: Internet, pod: Pod
) -> None:
    with (
        open_echo(internet.namespace, ("tcp", ALLOWED, 443), ("tcp", UPSTREAM, 853)) as outside,
        open_gate(pod, VERIFIED) as gate,
        open_prober(pod.namespace, uid=65532, capabilities=["net_raw"]) as marked,
        open_prober(pod.namespace, uid=0) as root,
    ):
        gate.learn(ALLOWED)
        mark = gate.spec.gateway.mark
        assert marked.exchange("tcp", ALLOWED, 443, mark=mark).error == "ECONNREFUSED"
        assert root.exchange("tcp", ALLOWED, 443).error == "ECONNREFUSED"
        assert root.exchange("tcp", UPSTREAM, 853).error == DENIED
        assert gate.connect("tcp", ALLOWED, 443) == "echo gateway"
        assert outside.connections == 1


def test_forged_answers_never_reach_the_gateways_port(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    """Every id, from the server's own addresses, while a question of the gateway's is open."""
    with (
        open_echo(internet.namespace, ("udp", UPSTREAM, 53)),
        pod.namespace.inside(lambda: gate_socket(Gateway().mark)) as port,
    ):
        port.settimeout(2)
        once = {"first": 20123, "last": 20123, "count": 1, "data": QUERY[4:]}
        server.start("flood_ids", addresses=["127.0.0.1"], **once)
        assert server.finish().number == 1
        assert port.recv(4096)  # without rules the forgery arrives
        with open_gate(pod, VERIFIED) as gate:
            number = port.getsockname()[1]
            listed = server.do("read", path="/proc/net/udp").text
            assert f"{number:04X}" in listed  # the server can see it
            sent = server.do(
                "flood_ids",
                addresses=["127.0.0.1", str(pod.v4)],
                first=number,
                last=number,
                count=65536,
                data=QUERY[4:],
                within=60.0,
            )
            assert sent.error is None
            port.settimeout(0.2)
            with pytest.raises(TimeoutError):
                port.recv(4096)
            assert gate.counts()["denied_injection"].packets >= 65536
            port.settimeout(2)
            port.sendto(b"question", (UPSTREAM, 53))
            assert port.recv(4096) == b"echo question"  # and the real answer does


def test_observing_leads_every_connection_to_the_relay_and_nothing_out(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    places = [
        ("tcp", ALLOWED, 443),
        ("tcp", OTHER, 22),
        ("udp", ALLOWED, 123),
        ("tcp", UPSTREAM, 53),
    ]
    with (
        open_echo(internet.namespace, *places) as outside,
        open_echo(pod.namespace, ("tcp", "127.0.0.1", RELAY), ("tcp", "::1", RELAY)) as relay,
        open_gate(pod, VERIFIED, mode="observe") as gate,
    ):
        gate.learn(ALLOWED)
        for address, port in ((ALLOWED, 443), (OTHER, 22), (ALLOWED_V6, 8080)):
            assert server.exchange("tcp", address, port).text == "echo hello"
        assert server.exchange("udp", ALLOWED, 123).error == "EPERM"
        for address, port in ((ALLOWED, 443), (UPSTREAM, 53)):
            with pytest.raises(OSError, match="refused"):
                gate.connect("tcp", address, port)
        assert relay.connections == 3
        assert outside.connections == 0
        assert gate.wait_denied("observed", ALLOWED).protocol == "udp"
        assert pod.wire.packets(protocol="tcp") == pod.wire.packets(protocol="udp") == []


def gate_socket(mark: int) -> socket.socket:
    """A socket as the gateway must not make it: bound, and connected to nobody."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, 36, mark)
    made.bind(("0.0.0.0", 20123))  # noqa: S104 - within the laboratory
    return made


@contextlib.contextmanager
def open_relay(pod: Pod) -> Generator[socket.socket, None, None]:
    """A listener at the relay's port."""

    with open_listener(pod.namespace, "tcp", "127.0.0.1", RELAY) as listener:
        listener.settimeout(2)
        yield listener
