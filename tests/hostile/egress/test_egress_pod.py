"""Promise *egress*: the pod is no way out: its power, its start, its end, its gateway's end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hostile.arena import GONE_SECONDS, Arena, containers_named, docker
from tests.hostile.egress.pods import RESOLVER, namespace_of
from tests.hostile.egress.world import DB, OPEN, STRANGER
from tests.hostile.wire import open_wire, wait_until
from tests.lab.desk import HERE
from tests.lab.sniffer import open_sniffer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.hostile.egress.pods import Exposed, Launchpad, Pod
    from tests.hostile.egress.world import World
    from tests.lab.prober import Outcome, Prober

pytestmark = [pytest.mark.claim("egress"), pytest.mark.timeout(420)]

RULES = ["db.example.com:5432/tcp", "db.example.com:5432/udp"]
NO = {"EPERM", "EACCES"}
NETLINK = [
    "add_table",
    "delete_tables",
    "list_tables",
    "list_flows",
    "listen_to_log",
    "add_address",
    "add_route",
]
DESTRUCTIVE = ["shut_link", "delete_link"]
KERNEL: dict[str, Callable[[Prober], Outcome]] = {
    "a_user_and_network_namespace": lambda each: each.do("kernel.unshare", flag=0x5000_0000),
    "a_network_namespace": lambda each: each.do("kernel.unshare", flag=0x4000_0000),
    "joining_a_network_namespace": lambda each: each.do("kernel.join_namespace", kind="net"),
    "marking_a_packet": lambda each: each.do("kernel.set_mark"),
    "a_transparent_socket": lambda each: each.do("kernel.bind_transparent"),
}


@pytest.fixture(scope="module")
def root(world: World, launchpad: Launchpad) -> Generator[Pod, None, None]:
    """The most that a policy can make of a server: user 0, as the gateway is."""
    del world
    with launchpad.open(RULES, policy={"user": "0:0"}) as made:
        yield made


@pytest.fixture(scope="module")
def mighty(world: World, launchpad: Launchpad) -> Generator[Exposed, None, None]:
    """The same program in a plain container that may administer its network."""
    del world
    unconfined = ("--security-opt=seccomp=unconfined", "--cap-add=SYS_ADMIN")
    with launchpad.open_exposed("--cap-add=NET_ADMIN", *unconfined) as made:
        yield made


@pytest.mark.parametrize("deed", [*NETLINK, *DESTRUCTIVE])
def test_the_packet_filter_and_the_link_cannot_be_touched(
    world: World, pod: Pod, root: Pod, deed: str
) -> None:
    for attacker in (pod, root):
        with world.nothing_leaves(attacker):
            assert attacker.do(f"power.{deed}").text in {*NO, "EPROTONOSUPPORT"}
            assert attacker.exchange("tcp", STRANGER, 5432).error == "ECONNREFUSED"


@pytest.mark.claim("egress", twin=True)
def test_a_container_that_may_administer_its_network_touches_them(
    world: World, launchpad: Launchpad
) -> None:
    del world
    with launchpad.open_exposed("--cap-add=NET_ADMIN") as mighty:
        outcomes = {deed: mighty.do(f"power.{deed}").text for deed in (*NETLINK, *DESTRUCTIVE)}
    assert set(outcomes.values()) == {"ok"}, outcomes


@pytest.mark.parametrize("attack", KERNEL.values(), ids=KERNEL)
def test_no_namespace_or_mark_leads_out(
    world: World, pod: Pod, root: Pod, mighty: Exposed, attack: Callable[[Prober], Outcome]
) -> None:
    for attacker in (pod, root):
        with world.nothing_leaves(attacker):
            assert attack(attacker).text in {*NO, "ENOSYS"}
    assert attack(mighty).text == "ok"


def test_root_inside_has_the_gateways_user_and_nothing_of_its_rights(
    world: World, root: Pod
) -> None:
    status = root.do("status").table
    assert str(status["Uid"]).split() == ["0"] * 4
    assert status["CapEff"] == status["CapBnd"] == "0" * 16
    with world.nothing_leaves(root):
        for port in (53, 853, 443):
            mark = root.exchange("tcp", RESOLVER, port, mark=0x4000_5347, timeout=0.5)
            assert mark.error in NO
        assert root.exchange("udp", RESOLVER, 853).error in NO
        for port in (20000, 22000, 24095):  # where the gateway's questions come from
            sent = root.exchange("udp", STRANGER, 5432, source_port=port)
            assert sent.error in NO


def test_the_gateways_process_is_out_of_sight(pod: Pod, root: Pod) -> None:
    for attacker in (pod, root):
        lines = attacker.do("power.processes").text
        assert "main.py" in lines
        assert "gateway" not in lines
        assert attacker.do("power.visible_of_others").value == []


def test_nothing_leaves_in_the_first_moment(world: World, launchpad: Launchpad) -> None:
    """The entry point sends from its first instruction on, and does little else for a while."""
    eager = ("--eager", STRANGER, "5432", "1.0")
    with open_sniffer(HERE, world.bridge.device) as all_pods:
        for _ in range(2):
            with launchpad.open(RULES, *eager) as pod:
                assert pod.do("status", within=30).table
                world.settle(pod)
                left = [p for p in all_pods.packets() if str(p.source) == pod.address]
                assert {(str(p.address), p.port) for p in left} <= {
                    (address, port) for address, port in OPEN
                }
                assert any(str(p.address) == DB for p in left)
                assert pod.wait_event(address=STRANGER, port=5432)["reason"] == "default"
        all_pods.clear()
        with launchpad.open("unrestricted", *eager) as wide:
            assert wide.do("status", within=30).table
            assert all_pods.packets(STRANGER, "udp", 5432)
            assert all_pods.packets(STRANGER, "tcp", 5432)


def test_no_variable_names_a_proxy(pod: Pod) -> None:
    names = {name.lower() for name in pod.do("power.environment").table}
    assert not {name for name in names if "proxy" in name}


def test_the_gateway_killed_ends_the_server_at_once(world: World, launchpad: Launchpad) -> None:
    with open_sniffer(HERE, world.bridge.device) as all_pods:
        with launchpad.open(RULES) as pod:
            world.settle(pod)
            pod.do("flood.start", module="flood", deed="send_eagerly", address=STRANGER, port=5432,
                   seconds=20)  # fmt: skip
            docker("kill", "--signal=KILL", pod.gateway)
            assert "its gateway ended" in pod.end(within=5)
            assert pod.sandbox.exit_code == 137
        left = [p for p in all_pods.packets() if str(p.source) == pod.address]
        assert {(str(p.address), p.port) for p in left} <= {(RESOLVER, 53), (DB, 5432)}
        assert (DB, 5432) in {(str(p.address), p.port) for p in left}


def gateway_process(pod: Pod) -> int:
    """The gateway's own process, on this host."""
    rows = docker("top", pod.gateway, "-eo", "pid,args").splitlines()[1:]
    (pid,) = [
        int(row.split()[0]) for row in rows if "sandboxed_mcp.gateway" in row and "init" not in row
    ]
    return pid


def test_the_gateways_process_killed_ends_the_server_at_once(
    world: World, launchpad: Launchpad
) -> None:
    with launchpad.open(RULES) as pod:
        world.settle(pod)
        os.kill(gateway_process(pod), signal.SIGKILL)
        assert "its gateway ended" in pod.end(within=5)


def test_the_gateway_out_of_memory_ends_the_server_at_once(
    world: World, launchpad: Launchpad
) -> None:
    """A cap below what it holds: the kernel ends it at its next allocation."""
    with launchpad.open(RULES) as pod:
        world.settle(pod)
        group = next(Path("/sys/fs/cgroup/memory").glob(f"**/{pod.gateway}"), None) or next(
            Path("/sys/fs/cgroup").glob(f"**/*{pod.gateway}*")
        )
        starve(group)
        assert "its gateway ended" in pod.end(within=10)


def starve(group: Path) -> None:
    """Have the kernel kill the gateway's process as it does when memory runs out."""
    for process in (group / "cgroup.procs").read_text().split():
        Path("/proc", process, "oom_score_adj").write_text("1000")
    eater = (
        "import os\n"
        f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "open('/proc/self/oom_score_adj', 'w').write('-1000')\n"
        "hoard = []\n"
        "for _ in range(200): hoard.append(bytearray(b'x' * (1 << 20)))\n"
    )
    subprocess.run([sys.executable, "-c", eater], timeout=20, check=False, capture_output=True)


def test_a_stopped_gateway_opens_nothing_and_goes_on_afterwards(
    world: World, launchpad: Launchpad
) -> None:
    rules = [*RULES, "api.example.com"]
    with launchpad.open(rules) as pod:
        world.settle(pod)
        pid = gateway_process(pod)
        os.kill(pid, signal.SIGSTOP)
        try:
            pod.wire.clear()
            assert pod.do("names.lookup", name="api.example.com", within=60).error is not None
            assert pod.exchange("tcp", STRANGER, 5432).error == "ECONNREFUSED"
            assert pod.exchange("udp", STRANGER, 5432).error == "EPERM"
            assert pod.exchange("tcp", DB, 5432).text == "echo hello"  # was open before
            pod.wire.wait(DB, "tcp", 5432)
            assert {str(each.address) for each in pod.wire.packets()} == {DB}
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(
            lambda: pod.do("names.lookup", name="api.example.com").error is None, 10, "a lookup"
        )


def test_rules_flushed_by_somebody_else_end_the_server(world: World, launchpad: Launchpad) -> None:
    with launchpad.open(RULES) as pod:
        world.settle(pod)
        namespace_of(pod.gateway).run("nft", "delete", "table", "netdev", "sandboxed_mcp_link")
        assert "its gateway ended" in pod.end(within=15)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_launcher_killed_leaves_neither_container(
    world: World, arena: Arena, number: signal.Signals
) -> None:
    del world
    hostile = arena.hostile("--stubborn", tag="egress", policy={"egress": RULES, "dns": [RESOLVER]})
    with open_wire(hostile.argv) as wire:
        wire.initialize()
        assert len(hostile.containers()) == 2
        os.kill(wire.pid, number)
        hostile.wait_gone(GONE_SECONDS)
    assert containers_named(hostile.name) == []


def test_the_pod_is_what_the_plan_says(pod: Pod) -> None:
    of_server, of_gateway = (
        json.loads(docker("inspect", each))[0] for each in (pod.sandbox.container, pod.gateway)
    )
    assert of_server["HostConfig"]["NetworkMode"] == f"container:{pod.gateway}"
    assert of_server["HostConfig"]["CapAdd"] in (None, [])
    assert of_gateway["HostConfig"]["CapAdd"] == ["NET_ADMIN"]
    for each in (of_server, of_gateway):
        host = each["HostConfig"]
        assert host["CapDrop"] == ["ALL"]
        assert host["ReadonlyRootfs"] is True
        assert "no-new-privileges" in host["SecurityOpt"]
        assert host["PortBindings"] in (None, {})
        assert host["ExtraHosts"] in (None, [])
        assert host["Memory"] == host["MemorySwap"] > 0


def test_unrestricted_egress_is_shown_wherever_the_sandbox_is(wide: Pod, pod: Pod) -> None:
    assert (wide.sandbox.plan.network, pod.sandbox.plan.network) == ("unrestricted", "rules")
    labels = json.loads(docker("inspect", wide.sandbox.container))[0]["Config"]["Labels"]
    assert "unrestricted" in labels.values()


def sink_of(pod: Pod, name: str) -> str:
    """The one address that a name leads to."""
    return pod.do("names.lookup_one", name=name).text


def test_observing_lets_nothing_out_and_tells_what_is_wanted(
    world: World, launchpad: Launchpad
) -> None:
    with launchpad.open(["db.example.com:5432/tcp", "api.example.com"], observe=True) as seen:
        assert seen.sandbox.plan.network == "observed"
        before = len(world.zone.asked)
        sink, other = (sink_of(seen, name) for name in ("api.example.com", "evil.example.net"))
        assert sink != other
        said = seen.do("web.say", address=sink, name="api.example.com")
        assert said.error is not None
        said = seen.do("web.say", address=other, name="evil.example.net")
        assert said.error is not None
        assert seen.exchange("tcp", sink_of(seen, "db.example.com"), 5432).error is not None
        assert seen.exchange("udp", STRANGER, 5432).error == "EPERM"
        seen.wait_event(layer="tls", reason="observed", name="api.example.com")
        seen.wait_event(layer="tls", reason="observed", name="evil.example.net")
        seen.wait_event(layer="dns", name="evil.example.net")
        seen.wait_event("dns", name="api.example.com")
        seen.wait_event(layer="packet", reason="observed", address=STRANGER, port=5432)
        assert world.zone.asked[before:] == []
        assert seen.wire.packets() == []
