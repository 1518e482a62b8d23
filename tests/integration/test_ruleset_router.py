"""The same rules where the gateway routes: the server has a namespace, and power, of its own."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.egress.ruleset_values import Upstream
from tests.lab.fixtures import internet, neighbour, pod
from tests.lab.gate import UPSTREAM, open_gate
from tests.lab.netns import Namespace, open_namespace, run_batch
from tests.lab.prober import Prober, open_prober
from tests.lab.servers import open_echo

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.lab.internet import Internet, Pod

__all__ = ["internet", "neighbour", "pod", "routed"]

ALLOWED, OTHER = "198.51.100.10", "198.51.100.20"
INSIDE, GATEWAY = "198.19.7.2", "198.19.7.1"
DENIED = "ECONNREFUSED"
ROUTER = {"hook": "forward", "server_link": "srv0"}


@dataclass(frozen=True)
class Routed:
    """A server behind a gateway, with every power in its own namespace."""

    namespace: Namespace
    server: Prober


@pytest.fixture
def routed(pod: Pod, internet: Internet) -> Generator[Routed, None, None]:
    """A namespace for the server, reached through the pod's."""
    with open_namespace("server") as inner:
        run_batch(
            [f"link add srv0 netns {pod.namespace.name} type veth peer eth0 netns {inner.name}"]
        )
        pod.namespace.ip("link set srv0 up", f"addr add {GATEWAY}/30 dev srv0")
        inner.ip("link set eth0 up", f"addr add {INSIDE}/30 dev eth0")
        inner.ip(f"route add default via {GATEWAY}")
        pod.namespace.write_sysctl("net/ipv4/ip_forward", 1)
        internet.namespace.ip(f"route add {INSIDE}/32 via {pod.v4}")
        with contextlib.ExitStack() as stack:
            stack.callback(internet.namespace.ip, f"route del {INSIDE}/32")
            powers = ["net_admin", "net_raw"]
            server = stack.enter_context(open_prober(inner, uid=0, capabilities=powers))
            yield Routed(inner, server)


def test_a_routed_server_reaches_what_its_rules_open(
    internet: Internet, pod: Pod, routed: Routed
) -> None:
    places = [("tcp", ALLOWED, 5432), ("tcp", OTHER, 5432), ("tcp", ALLOWED, 22)]
    with (
        open_echo(internet.namespace, *places) as echo,
        open_gate(pod, ["db.example.com:5432/tcp"], **ROUTER) as gate,
    ):
        gate.learn(ALLOWED)
        assert routed.server.exchange("tcp", OTHER, 5432).error == DENIED
        assert routed.server.exchange("tcp", ALLOWED, 22).error == DENIED
        assert routed.server.exchange("tcp", ALLOWED, 5432).text == "echo hello"
        assert echo.connections == 1
        assert {(str(p.address), p.port) for p in pod.wire.packets(protocol="tcp")} == {
            (ALLOWED, 5432)
        }


def test_power_and_the_mark_in_its_own_namespace_open_nothing(
    internet: Internet, pod: Pod, routed: Routed
) -> None:
    places = [("tcp", UPSTREAM, 53), ("tcp", ALLOWED, 443), ("tcp", OTHER, 443)]
    rules = ["api.example.com", f"{OTHER}:443/tcp"]
    with (
        open_echo(internet.namespace, *places) as echo,
        open_gate(pod, rules, upstreams=(Upstream(ip_address(UPSTREAM)),), **ROUTER) as gate,
    ):
        gate.learn(ALLOWED)
        mark = gate.spec.gateway.mark
        for address, port in ((UPSTREAM, 53), (ALLOWED, 443), (UPSTREAM, 853)):
            tried = routed.server.exchange("tcp", address, port, mark=mark)
            assert tried.error == DENIED
        routed.namespace.run("nft", "flush", "ruleset")
        assert routed.server.exchange("tcp", UPSTREAM, 853).error == DENIED
        frame = "ffffffffffff0200000000020800" + "4500001c00010000401100000a0000020a00000100"
        routed.server.do("frame", device="eth0", data=frame + "00" * 30)
        assert routed.server.exchange("tcp", OTHER, 443).text == "echo hello"
        assert gate.connect("tcp", ALLOWED, 443) == "echo gateway"
        assert echo.connections == 2
        assert {str(p.address) for p in pod.wire.packets(protocol="tcp")} == {OTHER, ALLOWED}
        assert pod.wire.packets(protocol="udp") == []


def test_names_and_verified_connections_of_a_routed_server_reach_the_gateway(
    internet: Internet, pod: Pod, routed: Routed
) -> None:
    inside = [("udp", GATEWAY, 15053), ("tcp", GATEWAY, 15443), ("tcp", GATEWAY, 8080)]
    with (
        open_echo(internet.namespace, ("tcp", ALLOWED, 443)) as outside,
        open_echo(pod.namespace, *inside) as gateway,
        open_gate(pod, ["api.example.com"], **ROUTER) as gate,
    ):
        gate.learn(ALLOWED)
        assert routed.server.exchange("udp", UPSTREAM, 53).text == "echo hello"
        assert routed.server.exchange("tcp", ALLOWED, 443).text == "echo hello"
        for port in (15443, 8080):
            assert routed.server.exchange("tcp", GATEWAY, port, timeout=0.3).error == "TIMEOUT"
        assert (gateway.datagrams, gateway.connections, outside.connections) == (1, 1, 0)
        assert pod.wire.packets(protocol="tcp") == pod.wire.packets(protocol="udp") == []


def test_a_neighbour_does_not_reach_a_routed_server(
    pod: Pod, neighbour: Pod, routed: Routed
) -> None:
    listener = routed.server.do("listen", protocol="tcp", address=INSIDE, port=8080).number
    neighbour.namespace.ip(f"route add {INSIDE}/32 via {pod.v4}")
    with open_prober(neighbour.namespace) as other:
        routed.server.start("accept", handle=listener)
        assert other.exchange("tcp", INSIDE, 8080).text == "inside"  # without rules it does
        assert routed.server.finish().error is None
        with open_gate(pod, "unrestricted", **ROUTER) as gate:
            assert other.exchange("tcp", INSIDE, 8080, timeout=0.4).error == "TIMEOUT"
            assert routed.server.do("accept", handle=listener, timeout=0.2).error == "TIMEOUT"
            assert gate.wait_denied("inbound", INSIDE).port == 8080
