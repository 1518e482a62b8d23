"""Promise *egress*: a packet leaves only for what a rule names, whatever sends it and how.

Each attack is tried behind rules, where nothing may leave, and where egress is unrestricted or
in a plain container, where the same attack arrives.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.hostile.egress.pods import namespace_of
from tests.hostile.egress.world import DB, LITERAL, METADATA, PRIVATE, RULES, STRANGER

if TYPE_CHECKING:
    from tests.hostile.egress.pods import Exposed, Launchpad, Pod
    from tests.hostile.egress.world import World
    from tests.lab.netns import Namespace

pytestmark = [pytest.mark.claim("egress"), pytest.mark.timeout(420)]

REFUSED = {"ECONNREFUSED", "EPERM", "EACCES", "EHOSTUNREACH"}
TCP, UDP = "tcp", "udp"
PLACES = {
    "a_stranger": (TCP, STRANGER, 5432),
    "a_stranger_over_udp": (UDP, STRANGER, 5432),
    "a_stranger_on_https": (TCP, STRANGER, 443),
    "a_stranger_on_quic": (UDP, STRANGER, 443),
    "a_stranger_on_ssh": (TCP, STRANGER, 22),
    "a_stranger_on_http": (TCP, STRANGER, 80),
    "a_stranger_on_ntp": (UDP, STRANGER, 123),
    "a_stranger_on_dns_over_tls": (TCP, STRANGER, 853),
    "a_stranger_on_dns_over_quic": (UDP, STRANGER, 853),
    "a_stranger_on_mdns": (UDP, STRANGER, 5353),
    "ssh_of_a_named_host": (TCP, DB, 22),
    "https_of_a_named_host": (TCP, DB, 443),
    "quic_of_a_named_host": (UDP, DB, 443),
    "another_port_of_a_named_host": (TCP, DB, 8443),
    "dns_over_tls_of_a_named_host": (TCP, DB, 853),
    "a_port_next_to_a_range": (TCP, LITERAL, 7004),
    "a_private_network": (TCP, PRIVATE[0], 5432),
    "a_private_network_of_rfc_1918": (TCP, PRIVATE[1], 443),
    "a_mapped_address": (TCP, f"::ffff:{STRANGER}", 5432),
    "a_mapped_address_over_udp": (UDP, f"::ffff:{STRANGER}", 5432),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_nothing_reaches(world: World, pod: Pod, wide: Pod, place: tuple[str, str, int]) -> None:
    protocol, address, port = place
    with world.nothing_leaves(pod):
        outcome = pod.exchange(protocol, address, port, timeout=1.0)
        assert outcome.error in REFUSED
    if place == (TCP, STRANGER, 443):  # speaks TLS, not echo
        assert wide.dial(protocol, address, port)
    else:
        assert wide.exchange(protocol, address, port).text == "echo hello"
    wide.wire.wait(address.removeprefix("::ffff:"), protocol, port)


@pytest.mark.parametrize("address", METADATA)
def test_metadata_is_out_of_reach_even_where_egress_is_unrestricted(
    world: World, pod: Pod, wide: Pod, exposed: Exposed, address: str
) -> None:
    with world.nothing_leaves(pod), world.nothing_leaves(wide):
        assert pod.exchange(TCP, address, 80).error in REFUSED
        assert wide.exchange(TCP, address, 80).error in REFUSED
    assert wide.wait_event(address=address, port=80)["reason"] == "never"
    assert exposed.exchange(TCP, address, 80).text == "echo hello"


def test_ping_does_not_leave(world: World, pod: Pod, exposed: Exposed) -> None:
    with world.nothing_leaves(pod):
        assert pod.do("ping", address=STRANGER).error in REFUSED
        assert pod.do("ping", address=DB).error in REFUSED  # no rule names ICMP
    assert exposed.do("ping", address=STRANGER).error is None
    world.bridge.wire.wait(STRANGER, "icmp")


RAW = {
    "icmp": (socket.AF_INET, socket.SOCK_RAW, 1),
    "tcp": (socket.AF_INET, socket.SOCK_RAW, 6),
    "udp": (socket.AF_INET, socket.SOCK_RAW, 17),
    "gre": (socket.AF_INET, socket.SOCK_RAW, 47),
    "sctp": (socket.AF_INET, socket.SOCK_RAW, 132),
    "ip_in_ip": (socket.AF_INET, socket.SOCK_RAW, 4),
    "any_protocol": (socket.AF_INET, socket.SOCK_RAW, 255),
    "icmpv6": (socket.AF_INET6, socket.SOCK_RAW, 58),
    "packets": (socket.AF_PACKET, socket.SOCK_RAW, 0x0300),
    "cooked_packets": (socket.AF_PACKET, socket.SOCK_DGRAM, 0x0300),
}


@pytest.mark.parametrize("kind", RAW.values(), ids=RAW)
def test_no_raw_socket_opens_for(pod: Pod, exposed: Exposed, kind: tuple[int, int, int]) -> None:
    family, type_, protocol = map(int, kind)
    refusal = "EAFNOSUPPORT" if family == socket.AF_PACKET else "EPERM"
    assert pod.do("make", family=family, kind=type_, protocol=protocol).error == refusal
    assert exposed.do("make", family=family, kind=type_, protocol=protocol).error is None


@pytest.mark.parametrize("number", [47, 132, 4, 136, 33])
def test_other_protocols_leave_a_plain_container_only(
    world: World, pod: Pod, exposed: Exposed, number: int
) -> None:
    with world.nothing_leaves(pod):
        assert pod.do("raw", number=number, address=STRANGER, data="00" * 32).error == "EPERM"
    exposed.wire.clear()
    assert exposed.do("raw", number=number, address=STRANGER, data="00" * 32).number > 0
    exposed.wire.wait(STRANGER, str(number))


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [(1, 132), (5, 132), (2, 136), (6, 33)],
    ids=["sctp_stream", "sctp_packets", "udp_lite", "dccp"],
)
def test_no_transport_beside_tcp_and_udp_leaves(
    world: World, pod: Pod, kind: int, protocol: int
) -> None:
    with world.nothing_leaves(pod):
        outcome = pod.do(
            "power.transport", kind=kind, protocol=protocol, address=STRANGER, port=5432
        )
        assert outcome.text != "ok"


SIX = {
    "global": "2001:db8:51::66",
    "unique_local": "fd00:18::7",
    "metadata": "fd00:ec2::254",
}


@pytest.mark.parametrize("address", SIX.values(), ids=SIX)
@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_ipv6_does_not_leave(world: World, pod: Pod, address: str, protocol: str) -> None:
    with world.nothing_leaves(pod):
        error = pod.exchange(protocol, address, 5432, timeout=1.0).error
        assert error in {*REFUSED, "ENETUNREACH", "EADDRNOTAVAIL", "EINVAL"}
        assert pod.do("ping", address=address).error is not None


def test_ipv6_cannot_be_switched_on(world: World, pod: Pod) -> None:
    with world.nothing_leaves(pod):
        assert pod.do("power.enable_ipv6").text in {"EROFS", "EACCES", "EPERM"}
        assert pod.do("power.send_to_all_nodes").error is not None


def switch_ipv6_on(namespace: Namespace) -> None:
    """Give a running pod IPv6 behind its back, with neighbours that nobody is."""
    for name, value in (("accept_dad", 0), ("accept_ra", 0), ("disable_ipv6", 0)):
        namespace.write_sysctl(f"net/ipv6/conf/eth0/{name}", value)
    namespace.ip(
        "addr add 2001:db8:51::2/64 dev eth0 nodad",
        "neigh add 2001:db8:51::66 lladdr 02:00:00:00:00:66 dev eth0",
        "neigh add fe80::66 lladdr 02:00:00:00:00:66 dev eth0",
    )


@pytest.mark.parametrize("egress", [list(RULES), "unrestricted"], ids=["rules", "unrestricted"])
def test_ipv6_that_appears_at_the_link_opens_no_more_than_the_rules(
    world: World, launchpad: Launchpad, egress: object
) -> None:
    far, near = ("2001:db8:51::66", 5353), ("fe80::66%eth0", 5353)
    allowed = [far] if egress == "unrestricted" else []
    with launchpad.open(egress) as other:
        switch_ipv6_on(namespace_of(other.gateway))
        with world.nothing_leaves(other, *allowed):
            for place in (far, near):
                sent = other.do("send", protocol=UDP, address=place[0], port=place[1]).number
                assert sent == (place in allowed)
            assert other.do("power.send_to_all_nodes").error in REFUSED
            assert other.do("ping", address="fe80::66%eth0").error is not None
        if allowed:
            other.wire.wait(far[0], UDP, far[1])
    with world.internet.open_pod() as place, launchpad.open_bare(place.namespace) as bare:
        assert bare.do("power.send_to_all_nodes").error is None
        place.wire.wait("ff02::1", UDP, 5353)


@pytest.mark.parametrize("address", ["224.0.0.251", "239.255.255.250", "255.255.255.255"])
def test_multicast_and_broadcast_do_not_leave(
    world: World, pod: Pod, wide: Pod, launchpad: Launchpad, address: str
) -> None:
    for each in (pod, wide):
        with world.nothing_leaves(each):
            assert each.do("power.shout", address=address, port=5353).error in REFUSED
    with world.internet.open_pod() as place, launchpad.open_bare(place.namespace) as bare:
        assert bare.do("power.shout", address=address, port=5353).error is None
        place.wire.wait(address, UDP, 5353)


def test_broadcast_of_the_bridge_does_not_leave(world: World, pod: Pod, wide: Pod) -> None:
    address = f"{pod.address.rsplit('.', 2)[0]}.255.255"
    for each in (pod, wide):
        with world.nothing_leaves(each):
            assert each.do("power.shout", address=address, port=5353).error in REFUSED


@pytest.mark.parametrize(
    ("level", "option"),
    [(1, 36), (0, 19), (0, 3)],
    ids=["mark", "transparent", "header_included"],
)
def test_socket_option_opens_nothing(world: World, pod: Pod, level: int, option: int) -> None:
    with world.nothing_leaves(pod):
        outcome = pod.do("power.send_with", level=level, option=option, address=STRANGER, port=5432)
        assert outcome.text in {"EPERM", "ENOPROTOOPT"}


def test_binding_to_the_link_opens_nothing(world: World, pod: Pod, wide: Pod) -> None:
    with world.nothing_leaves(pod):
        assert pod.do("power.send_by_device", address=STRANGER, port=5432).error in REFUSED
    assert wide.do("power.send_by_device", address=STRANGER, port=5432).error is None
    wide.wire.wait(STRANGER, UDP, 5432)


def test_a_source_route_does_not_leave(world: World, pod: Pod) -> None:
    with world.nothing_leaves(pod):
        for option in ("83", "89"):  # loose and strict
            outcome = pod.do("power.send_routed", address=DB, via=STRANGER, kind=option)
            assert outcome.text != "ok"


def test_fast_open_carries_no_data_out(world: World, pod: Pod, wide: Pod) -> None:
    with world.nothing_leaves(pod):
        assert pod.do("power.fast_open", address=STRANGER, port=5432).error in REFUSED
    assert wide.do("power.fast_open", address=STRANGER, port=5432).error is None


def test_a_large_datagram_leaves_whole_or_not_at_all(world: World, pod: Pod, wide: Pod) -> None:
    text = "x" * 9000  # in fragments
    with world.nothing_leaves(pod):
        assert pod.exchange(UDP, STRANGER, 5432, text=text).error in REFUSED
    assert wide.exchange(UDP, STRANGER, 5432, text=text).text.startswith("echo xxx")
    assert pod.exchange(UDP, DB, 5432, text=text).text.startswith("echo xxx")


def test_an_address_in_a_hosts_file_is_not_opened(world: World, pod: Pod) -> None:
    """As `curl --resolve` does: the name is allowed, the address was never answered for it."""
    with world.nothing_leaves(pod):
        assert pod.exchange(TCP, STRANGER, 443).error in REFUSED
        assert pod.do("web.say", address=STRANGER, name="api.example.com").error in REFUSED
    assert pod.do("names.lookup", name="api.example.com").error is None
