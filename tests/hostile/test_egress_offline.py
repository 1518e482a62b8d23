"""Promise *egress* without a rule: no packet has a way out, whatever sends it."""

from __future__ import annotations

import secrets
import socket
from contextlib import contextmanager
from ipaddress import ip_network
from typing import TYPE_CHECKING

import pytest

from tests.hostile.arena import docker

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.hostile.arena import Arena
    from tests.hostile.wire import Wire

TCP, UDP = int(socket.SOCK_STREAM), int(socket.SOCK_DGRAM)
V4, V6 = int(socket.AF_INET), int(socket.AF_INET6)
NO_WAY = {"ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL", "EPERM", "EACCES", "EINVAL"}

DESTINATIONS = {
    "tcp": (V4, TCP, "198.51.100.9", 443),
    "udp": (V4, UDP, "198.51.100.9", 53),
    "broadcast": (V4, UDP, "255.255.255.255", 67),
    "multicast": (V4, UDP, "224.0.0.251", 5353),
    "metadata": (V4, TCP, "169.254.169.254", 80),
    "private": (V4, TCP, "10.0.0.1", 443),
    "tcp_over_ipv6": (V6, TCP, "2001:db8::9", 443),
    "udp_over_ipv6": (V6, UDP, "2001:db8::9", 53),
    "link_local_ipv6": (V6, UDP, "fe80::1", 53),
    "mapped_ipv4": (V6, TCP, "::ffff:198.51.100.9", 443),
}


@pytest.fixture(scope="module")
def bridged(arena: Arena) -> Generator[Wire]:
    """The attacker in a plain container on the engine's default bridge."""
    with arena.open_exposed() as wire:
        yield wire


@pytest.fixture
def listener() -> Iterator[tuple[str, int]]:
    """A listener on the bridge's own address: no packet leaves this machine."""
    subnet = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Subnet}}")
    address = str(next(ip_network(subnet).hosts()))
    with socket.create_server((address, 0)) as server:
        yield address, server.getsockname()[1]


@pytest.mark.claim("egress")
@pytest.mark.parametrize("where", DESTINATIONS.values(), ids=DESTINATIONS)
@pytest.mark.parametrize("side", ["inside", "inside_as_root"])
def test_destination_is_unreachable(
    request: pytest.FixtureRequest, side: str, where: tuple[int, int, str, int]
) -> None:
    wire: Wire = request.getfixturevalue(side)
    assert wire.probe("kernel.connect", *where) in NO_WAY


@pytest.mark.claim("egress")
def test_host_is_unreachable_at_its_bridge_address(inside: Wire, listener: tuple[str, int]) -> None:
    assert inside.probe("kernel.connect", V4, TCP, *listener) in NO_WAY


@pytest.mark.claim("egress", twin=True)
def test_bridged_container_reaches_the_host(bridged: Wire, listener: tuple[str, int]) -> None:
    assert bridged.probe("kernel.connect", V4, TCP, *listener) == "ok"
    assert bridged.probe("kernel.connect", V4, UDP, *listener) == "ok"


@pytest.mark.claim("egress")
def test_loopback_is_the_only_interface_and_there_is_no_route(inside: Wire, bridged: Wire) -> None:
    # Tunnel devices that the kernel puts into every new namespace are down and lead nowhere.
    assert inside.probe("insight.interfaces")[:1] == ["lo"]
    assert not any(name.startswith("eth") for name in inside.probe("insight.interfaces"))
    assert inside.probe("insight.routes") == []
    assert "eth0" in bridged.probe("insight.interfaces")
    assert bridged.probe("insight.routes") != []


@pytest.mark.claim("egress")
def test_loopback_of_the_host_is_another_one(arena: Arena, inside: Wire) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert inside.probe("kernel.connect", V4, TCP, "127.0.0.1", port) == "ECONNREFUSED"
        with arena.open_exposed("--network=host") as shared:
            assert shared.probe("kernel.connect", V4, TCP, "127.0.0.1", port) == "ok"


@contextmanager
def open_abstract(name: str) -> Generator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        yield


@pytest.mark.claim("egress")
def test_abstract_socket_of_the_host_is_unreachable(arena: Arena, inside: Wire) -> None:
    name = f"hostile-{secrets.token_hex(8)}"
    with open_abstract(name):
        assert inside.probe("kernel.connect_abstract", name) == "ECONNREFUSED"
        with arena.open_exposed("--network=host") as shared:
            assert shared.probe("kernel.connect_abstract", name) == "ok"


@pytest.mark.claim("egress")
def test_no_name_resolves(inside: Wire) -> None:
    # `localhost` shows that the resolver itself works.
    assert inside.probe("insight.resolve", "localhost") == "ok"
    assert inside.probe("insight.resolve", f"{secrets.token_hex(8)}.example.com") != "ok"


@pytest.mark.claim("egress")
@pytest.mark.parametrize("side", ["inside", "inside_as_root"])
def test_no_address_family_leads_past_the_network_namespace(
    request: pytest.FixtureRequest, side: str
) -> None:
    wire: Wire = request.getfixturevalue(side)
    confined = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    assert set(wire.probe("kernel.list_families")) <= set(map(int, confined))


@pytest.mark.claim("egress", twin=True)
def test_packet_sockets_open_outside(outside: Wire) -> None:
    assert int(socket.AF_PACKET) in outside.probe("kernel.list_families")


@pytest.mark.claim("egress")
def test_two_sandboxes_do_not_reach_each_other(arena: Arena, inside: Wire) -> None:
    with arena.hostile(tag="other").open() as other:
        mine = inside.probe("insight.namespaces")["net"]
        theirs = other.probe("insight.namespaces")["net"]
    assert mine != theirs


@pytest.mark.claim("egress", twin=True)
def test_loopback_works_inside(inside: Wire) -> None:
    assert inside.probe("kernel.connect", V4, UDP, "127.0.0.1", 9) == "ok"
