"""Promise *private*: a name opens no private, local, metadata or host address by itself.

The name is one that a rule names; whoever serves its zone is the attacker. What would be a hole
is tried: the address is neither answered nor reachable.
"""

from __future__ import annotations

import itertools
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp import LaunchError
from tests.hostile.egress.pods import addresses_of, ask, code_of
from tests.hostile.egress.world import DB, PRIVATE, STRANGER
from tests.lab.internet import HELD
from tests.lab.netns import run_batch

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.hostile.egress.pods import Exposed, Launchpad, Pod
    from tests.hostile.egress.world import World

pytestmark = [pytest.mark.claim("private"), pytest.mark.timeout(420)]

RULES = ["db.example.com:5432/tcp", "*.rebind.example.com:80/tcp"]
OWN, BRIDGE, NEIGHBOUR, NETWORK = "own", "bridge", "neighbour", "network"
HIDDEN = {
    "loopback": "127.0.0.1",
    "loopback_by_another_number": "127.8.8.8",
    "the_embedded_resolver": "127.0.0.11",
    "unspecified": "0.0.0.0",  # noqa: S104
    "this_network": "0.1.2.3",
    "metadata": "169.254.169.254",
    "task_credentials": "169.254.170.2",
    "pod_identity": "169.254.170.23",
    "the_wire_server": "168.63.129.16",
    "another_metadata_service": "100.100.100.200",
    "a_link_local_address": "169.254.7.7",
    "rfc_1918_ten": "10.2.0.7",
    "rfc_1918_seventeen": "172.16.5.5",
    "rfc_1918_nineteen": "192.168.65.254",
    "carrier_grade_nat": "100.64.0.1",
    "a_benchmark_network": "198.18.0.7",
    "multicast": "224.0.0.251",
    "reserved": "240.0.0.1",
    "broadcast": "255.255.255.255",
    "an_assignment_of_the_ietf": "192.0.0.192",
    "the_bridge": BRIDGE,
    "a_neighbour": NEIGHBOUR,
    "the_sandbox_itself": OWN,
    "the_last_address_of_the_bridge": NETWORK,
}
HIDDEN_SIX = {
    "mapped_metadata": "::ffff:169.254.169.254",
    "mapped_public": f"::ffff:{STRANGER}",
    "nat64_metadata": "64:ff9b::a9fe:a9fe",
    "six_to_four_metadata": "2002:a9fe:a9fe::1",
    "compatible": "::169.254.169.254",
    "loopback": "::1",
    "link_local": "fe80::1",
    "unique_local": "fd00:18::7",
    "metadata": "fd00:ec2::254",
    "multicast": "ff02::1",
}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def pod(world: World, launchpad: Launchpad) -> Generator[Pod, None, None]:
    """An attacker who controls a zone that rules name."""
    del world
    with launchpad.open(RULES) as made:
        yield made


@pytest.fixture
def place(request: pytest.FixtureRequest, pod: Pod, exposed: Exposed, world: World) -> str:
    """An address that is no number before the pod runs."""
    wanted: str = request.param
    named: dict[str, str] = {
        OWN: pod.address,
        NEIGHBOUR: exposed.address,
        BRIDGE: world.bridge.address,
        NETWORK: f"{pod.address.rsplit('.', 2)[0]}.255.254",
    }
    return named.get(wanted, wanted)


def fresh_name() -> str:
    return f"n{next(_numbers)}.rebind.example.com"


def is_held(address: str) -> bool:
    """Whether a test host holds it, so that something may be sent there."""
    return any(ip_address(address) in network for network in HELD)


@pytest.mark.parametrize("place", HIDDEN.values(), ids=HIDDEN, indirect=True)
def test_answer_is_taken_out(world: World, pod: Pod, exposed: Exposed, place: str) -> None:
    name = fresh_name()
    world.zone.add(name, place)
    with world.nothing_leaves(pod):
        assert code_of(ask(pod, name)) == "NXDOMAIN"
        assert pod.do("names.lookup", name=name).error == "EAI_NONAME"
        if is_held(place):
            assert pod.exchange("tcp", place, 80).error == "ECONNREFUSED"
    event = pod.wait_event(layer="dns", name=name, address=place)
    assert event["reason"]
    assert exposed.do("names.lookup", name=name).value == [place]  # without us it is answered


@pytest.mark.parametrize("address", HIDDEN_SIX.values(), ids=HIDDEN_SIX)
def test_answer_is_taken_out_in_ipv6_form(world: World, pod: Pod, address: str) -> None:
    name = fresh_name()
    world.zone.add(name, address)
    with world.nothing_leaves(pod):
        answer = ask(pod, name, "AAAA")
        assert not isinstance(answer, str)
        assert answer.answer == []
        assert pod.do("names.lookup", name=name).error is not None


def test_only_the_bad_part_of_an_answer_is_taken_out(world: World, pod: Pod) -> None:
    name = fresh_name()
    world.zone.add(name, PRIVATE[0], DB, "169.254.169.254", "127.0.0.1")
    assert addresses_of(ask(pod, name)) == {DB}
    with world.nothing_leaves(pod, (DB, 80)):
        assert pod.exchange("tcp", "169.254.169.254", 80).error == "ECONNREFUSED"
        assert pod.exchange("tcp", PRIVATE[0], 80).error == "ECONNREFUSED"


def test_an_answer_that_changes_to_a_private_address_is_not_followed(
    world: World, pod: Pod, launchpad: Launchpad
) -> None:
    """DNS rebinding: public at the first look, private at the second."""
    name = fresh_name()
    world.zone.add(name, DB)
    ttl, world.zone.ttl = world.zone.ttl, 0
    try:
        assert addresses_of(ask(pod, name)) == {DB}
        for address in (*PRIVATE, "169.254.169.254"):
            world.zone.records[name, "A"] = [address]
            with world.nothing_leaves(pod, (DB, 80)):
                assert code_of(ask(pod, name)) == "NXDOMAIN"
                assert pod.exchange("tcp", address, 80).error == "ECONNREFUSED"
    finally:
        world.zone.ttl = ttl
    rules = [{"host": name, "ports": 5432, "protocol": "tcp", "allow_private": True}]
    world.zone.records[name, "A"] = [PRIVATE[0]]
    with launchpad.open(rules) as permitted:
        assert addresses_of(ask(permitted, name)) == {PRIVATE[0]}
        assert permitted.exchange("tcp", PRIVATE[0], 5432).text == "echo hello"
        permitted.wire.wait(PRIVATE[0], "tcp", 5432)


def test_an_alias_to_a_private_name_opens_nothing(world: World, pod: Pod) -> None:
    name = fresh_name()
    world.zone.records[name, "CNAME"] = ["inside.example.net."]
    world.zone.add("inside.example.net", "10.2.0.7")
    with world.nothing_leaves(pod):
        assert code_of(ask(pod, name)) == "NXDOMAIN"
        assert pod.exchange("tcp", "10.2.0.7", 80).error == "ECONNREFUSED"


@pytest.mark.parametrize("address", ["169.254.169.254", "127.0.0.1", "224.0.0.251"])
def test_permission_for_private_addresses_does_not_cover(
    world: World, launchpad: Launchpad, address: str
) -> None:
    name = fresh_name()
    world.zone.add(name, address)
    rules = [
        "db.example.com:5432/tcp",
        {"host": name, "ports": 80, "protocol": "tcp", "allow_private": True},
    ]
    with launchpad.open(rules) as permitted, world.nothing_leaves(permitted):
        assert code_of(ask(permitted, name)) == "NXDOMAIN"
        if is_held(address):
            assert permitted.exchange("tcp", address, 80).error == "ECONNREFUSED"


def test_a_network_rule_does_not_reach_metadata_within_it(
    world: World, launchpad: Launchpad
) -> None:
    rules = ["100.96.0.0/11:80/tcp", "168.0.0.0/8:80/tcp", "db.example.com:5432/tcp"]
    with launchpad.open(rules) as cidr, world.nothing_leaves(cidr):
        for address in ("100.100.100.200", "168.63.129.16"):
            assert cidr.exchange("tcp", address, 80).error == "ECONNREFUSED"


@pytest.mark.claim("private", twin=True)
def test_metadata_spelled_out_is_opened(world: World, launchpad: Launchpad) -> None:
    spelled = {
        "host": "169.254.169.254",
        "ports": 80,
        "protocol": "tcp",
        "allow_private": True,
    }
    with launchpad.open(["db.example.com:5432/tcp", spelled]) as opened:
        assert opened.exchange("tcp", "169.254.169.254", 80).text == "echo hello"
        with world.nothing_leaves(opened):
            assert opened.exchange("tcp", "169.254.170.2", 80).error == "ECONNREFUSED"


@pytest.mark.parametrize("side", ["pod", "wide"])
def test_services_of_the_host_are_out_of_reach_at_the_bridge(
    request: pytest.FixtureRequest, world: World, exposed: Exposed, side: str
) -> None:
    attacker: Pod = request.getfixturevalue(side)
    address = world.bridge.address
    name = fresh_name()
    world.zone.add(name, address)
    with socket.create_server((address, 0)) as service:
        port = service.getsockname()[1]
        with world.nothing_leaves(attacker):
            assert attacker.exchange("tcp", address, port).error == "ECONNREFUSED"
            assert attacker.exchange("udp", address, port).error is not None
            assert attacker.do("names.lookup", name=name).error == "EAI_NONAME"
            assert attacker.do("ping", address=address).error is not None
        service.settimeout(0.2)
        with pytest.raises(TimeoutError):
            service.accept()
        assert exposed.dial("tcp", address, port)
        service.accept()[0].close()


@pytest.mark.parametrize("port", [22, 2375, 2376])
def test_the_engine_and_the_shell_of_the_host_are_out_of_reach(
    world: World, pod: Pod, wide: Pod, port: int
) -> None:
    for attacker in (pod, wide):
        with world.nothing_leaves(attacker):
            assert attacker.exchange("tcp", world.bridge.address, port).error == "ECONNREFUSED"


def test_a_rule_for_the_sandboxs_own_network_is_refused(
    world: World, pod: Pod, launchpad: Launchpad, exposed: Exposed
) -> None:
    problem = "address of this host or of the sandbox's link"
    for address in (world.bridge.address, exposed.address, pod.address):
        with pytest.raises(LaunchError, match=problem):
            pod.apply([*RULES, f"{address}:80/tcp"])
    with world.nothing_leaves(pod):
        assert pod.exchange("tcp", exposed.address, 80).error == "ECONNREFUSED"
    rule = f"{world.bridge.address}:80/tcp"
    with pytest.raises(LaunchError, match=problem), launchpad.open([rule]):
        raise AssertionError("it was launched")


def test_another_address_of_the_host_is_not_opened_by_a_name(
    world: World, launchpad: Launchpad, exposed: Exposed
) -> None:
    """The host has more addresses than the bridge's; a name opens none of them."""
    address, name = "198.51.100.201", fresh_name()
    world.zone.add(name, address)
    run_batch([f"addr add {address}/32 dev {world.bridge.device}"])
    try:
        with launchpad.open(RULES) as attacker, world.nothing_leaves(attacker):
            assert code_of(ask(attacker, name)) == "NXDOMAIN"
            assert attacker.exchange("tcp", address, 80).error == "ECONNREFUSED"
    finally:
        run_batch([f"addr del {address}/32 dev {world.bridge.device}"])
    assert exposed.do("names.lookup", name=name).value == [address]


@pytest.fixture(scope="module")
def pair(world: World, launchpad: Launchpad) -> Generator[tuple[Pod, Pod], None, None]:
    """Two sandboxes on the same bridge."""
    del world
    with launchpad.open(RULES) as one, launchpad.open("unrestricted") as other:
        yield one, other


def test_two_sandboxes_reach_each_other_in_neither_direction(
    world: World, pair: tuple[Pod, Pod], exposed: Exposed
) -> None:
    for here, there in (pair, pair[::-1]):
        door = there.do("listen", protocol="tcp", address="0.0.0.0", port=8080).number  # noqa: S104
        with world.nothing_leaves(here), world.nothing_leaves(there):
            assert here.exchange("tcp", there.address, 8080).error == "ECONNREFUSED"
            assert here.exchange("udp", there.address, 8080).error is not None
            assert here.do("ping", address=there.address).error is not None
            assert there.do("accept", handle=door, timeout=0.2).error == "TIMEOUT"
        # A neighbour without rules of its own cannot get in either; it can elsewhere.
        assert exposed.exchange("tcp", there.address, 8080, timeout=0.5).error == "TIMEOUT"
        assert there.do("accept", handle=door, timeout=0.2).error == "TIMEOUT"
        there.wait_event(reason="inbound", address=exposed.address)
        there.do("hang_up", handle=door)


def test_data_is_not_pulled_out_by_a_neighbour(
    world: World, pod: Pod, exposed: Exposed, launchpad: Launchpad
) -> None:
    """The reply to a connection that came in is a way out too."""
    door = pod.do("listen", protocol="tcp", address=pod.address, port=8081).number
    datagrams = pod.do("listen", protocol="udp", address=pod.address, port=8081).number
    pod.wire.clear()
    assert exposed.exchange("tcp", pod.address, 8081, timeout=0.5).error == "TIMEOUT"
    assert exposed.exchange("udp", pod.address, 8081, timeout=0.5).error == "TIMEOUT"
    assert pod.do("accept", handle=door, timeout=0.2).error == "TIMEOUT"
    assert pod.do("hear", handle=datagrams, timeout=0.2).error == "TIMEOUT"
    world.settle(pod)
    assert pod.wire.packets(exposed.address) == []
    with launchpad.open_exposed() as other:
        theirs = other.do("listen", protocol="tcp", address=other.address, port=8081).number
        other.start("accept", handle=theirs)
        assert exposed.exchange("tcp", other.address, 8081).text == "inside"
        assert other.finish().error is None


def test_no_alias_of_the_host_is_in_the_hosts_file(pod: Pod, world: World) -> None:
    lines = [
        line.split("#")[0].split() for line in pod.do("read", path="/etc/hosts").text.splitlines()
    ]
    addresses = {line[0] for line in lines if line}
    assert world.bridge.address not in addresses
    assert {each for each in addresses if "." in each} == {"127.0.0.1", pod.address}


def test_nothing_of_ours_listens_for_the_server(pod: Pod) -> None:
    """Beside resolver and relay on loopback there is no door, and no abstract socket."""
    unix = pod.do("read", path="/proc/net/unix").text
    assert "@" not in unix
    listening = [
        line.split()[1]
        for line in pod.do("read", path="/proc/net/tcp").text.splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert {each.split(":")[0] for each in listening} <= {"0100007F", _hex(pod.address)}
    ours = [each for each in listening if each.startswith("0100007F")]
    assert {int(each.split(":")[1], 16) for each in ours} == {15053, 15443}


def _hex(address: str) -> str:
    return socket.inet_aton(address)[::-1].hex().upper()
