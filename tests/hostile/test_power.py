"""Promise *power*: no capability, no privilege gain, no host namespace, no device."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.hostile.attack import kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hostile.arena import Arena
    from tests.hostile.wire import Wire

REFUSED = {"EPERM", "EACCES", "ENOSYS", "EROFS", "ENOENT", "EAFNOSUPPORT", "EPROTONOSUPPORT"}

KERNEL: dict[str, tuple[str, tuple[Any, ...]]] = {
    "a_new_user_namespace": ("kernel.unshare", (kernel.NEWUSER,)),
    "a_new_user_and_network_namespace": ("kernel.unshare", (kernel.NEWUSER | kernel.NEWNET,)),
    "a_new_mount_namespace": ("kernel.unshare", (kernel.NEWNS,)),
    "a_new_network_namespace": ("kernel.unshare", (kernel.NEWNET,)),
    "a_new_pid_namespace": ("kernel.unshare", (kernel.NEWPID,)),
    "a_new_cgroup_namespace": ("kernel.unshare", (kernel.NEWCGROUP,)),
    "a_new_ipc_namespace": ("kernel.unshare", (kernel.NEWIPC,)),
    "a_user_namespace_by_clone": ("kernel.clone_flag", (kernel.NEWUSER,)),
    "a_network_namespace_by_clone": ("kernel.clone_flag", (kernel.NEWNET,)),
    "a_mount_namespace_by_clone": ("kernel.clone_flag", (kernel.NEWNS,)),
    "a_user_namespace_by_clone3": ("kernel.clone_user", ()),
    "joining_a_network_namespace": ("kernel.join_namespace", ("net",)),
    "joining_a_uts_namespace": ("kernel.join_namespace", ("uts",)),
    "mounting_a_tmpfs": ("kernel.mount_tmpfs", ()),
    "mounting_proc": ("kernel.mount_proc", ()),
    "a_bind_mount_of_the_root": ("kernel.mount_bind", ()),
    "mounting_a_cgroup": ("kernel.mount_cgroup", ()),
    "remounting_the_root_writable": ("kernel.remount_writable", ("/",)),
    "remounting_proc_sys_writable": ("kernel.remount_writable", ("/etc/hosts",)),
    "unmounting": ("kernel.unmount", ("/etc/hosts",)),
    "the_new_mount_api": ("kernel.new_mount_api", ()),
    "open_tree_clone": ("kernel.open_tree_clone", ()),
    "mount_setattr": ("kernel.mount_setattr", ()),
    "pivot_root": ("kernel.pivot_root", ()),
    "chroot": ("kernel.chroot", ()),
    "a_bpf_map": ("kernel.load_bpf", ()),
    "perf_event_open": ("kernel.perf_event", ()),
    "add_key": ("kernel.add_key", ()),
    "keyctl": ("kernel.keyctl", ()),
    "userfaultfd": ("kernel.userfaultfd", ()),
    "fanotify": ("kernel.fanotify", ()),
    "io_uring": ("kernel.io_uring", ()),
    "asking_where_memory_lies": ("kernel.ask_memory_policy", ()),
    "mapping_pages_into_a_pipe": ("kernel.map_into_pipe", ()),
    "tracing_a_child": ("kernel.trace_child", ()),
    "reading_the_memory_of_a_child": ("kernel.read_child", ()),
    "comparing_processes": ("kernel.compare_files", ()),
    "taking_a_descriptor": ("kernel.take_descriptor", ()),
    "addresses_that_are_not_random": ("kernel.weaken_addresses", ()),
    "naming_a_file_by_its_handle": ("kernel.name_handle", ()),
    "opening_a_file_by_its_handle": ("kernel.open_handle", ()),
    "reading_the_kernel_log": ("kernel.read_kernel_log", ()),
    "reboot": ("kernel.reboot", ()),
    "swapon": ("kernel.swapon", ()),
    "process_accounting": ("kernel.accounting", ()),
    "vhangup": ("kernel.hang_up", ()),
    "setting_the_host_name": ("kernel.set_hostname", ()),
    "a_raw_icmp_socket": ("kernel.open_socket", (2, 3, 1)),
    "a_raw_tcp_socket": ("kernel.open_socket", (2, 3, 6)),
    "a_raw_ipv6_socket": ("kernel.open_socket", (10, 3, 58)),
    "a_packet_socket": ("kernel.open_socket", (17, 3, 0x300)),
    "a_packet_socket_in_wide_words": ("kernel.open_wide_family", (17,)),
    "a_socket_for_events_of_devices": ("kernel.open_socket", (16, 3, 15)),
    "changing_addresses_by_netlink": ("kernel.change_route", ()),
    "marking_a_packet": ("kernel.set_mark", ()),
    "a_transparent_socket": ("kernel.bind_transparent", ()),
    "raising_the_priority": ("kernel.raise_priority", ()),
    "raising_the_core_limit": ("kernel.raise_core", ()),
    "making_a_device": ("kernel.make_device", ()),
    "giving_a_file_away": ("kernel.give_file_away", ()),
    "giving_a_file_a_capability": ("kernel.give_file_capability", ()),
    "opening_kmsg": ("kernel.opens", ("/dev/kmsg", os.O_RDONLY)),
    "opening_a_disk": ("kernel.opens", ("/dev/loop-control", os.O_RDWR)),
    "opening_drop_caches": ("kernel.opens", ("/proc/sys/vm/drop_caches", os.O_WRONLY)),
    "opening_core_pattern": ("kernel.opens", ("/proc/sys/kernel/core_pattern", os.O_WRONLY)),
    "opening_ip_forward": ("kernel.opens", ("/proc/sys/net/ipv4/ip_forward", os.O_WRONLY)),
    "opening_a_sys_file": ("kernel.opens", ("/sys/kernel/mm/ksm/run", os.O_WRONLY)),
}
ROOTS_OWN = {"become_root": "kernel.become_root", "root_group": "kernel.set_group_of_user"}

both_ways = pytest.mark.parametrize("probe", KERNEL.values(), ids=KERNEL)


@pytest.mark.claim("power")
@both_ways
def test_refused_inside(inside: Wire, probe: tuple[str, tuple[Any, ...]]) -> None:
    assert inside.probe(probe[0], *probe[1]) in REFUSED


@pytest.mark.claim("power")
@both_ways
def test_refused_inside_even_to_root(
    inside_as_root: Wire, probe: tuple[str, tuple[Any, ...]]
) -> None:
    assert inside_as_root.probe(probe[0], *probe[1]) in REFUSED


@pytest.mark.claim("power", twin=True)
@both_ways
def test_granted_outside(outside: Wire, probe: tuple[str, tuple[Any, ...]]) -> None:
    assert outside.probe(probe[0], *probe[1]) == "ok"


@pytest.mark.claim("power")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="asks with instructions of x86_64")
@pytest.mark.parametrize("probe", ["call_32_bit", "call_x32"])
def test_program_of_another_kind_is_killed(
    inside: Wire, inside_as_root: Wire, outside: Wire, probe: str
) -> None:
    assert inside.probe(f"kernel.{probe}") == "SIGSYS"
    assert inside_as_root.probe(f"kernel.{probe}") == "SIGSYS"
    # A kernel may be built without that kind; none kills a program for asking.
    assert outside.probe(f"kernel.{probe}") in {"ok", "ENOSYS", "SIGSEGV"}


@pytest.mark.claim("power")
@pytest.mark.parametrize("side", ["inside", "inside_as_root"])
def test_kernel_talks_of_addresses_and_routes_alone(
    request: pytest.FixtureRequest, outside: Wire, side: str
) -> None:
    wire: Wire = request.getfixturevalue(side)
    assert wire.probe("kernel.list_netlink") == [0]
    assert set(outside.probe("kernel.list_netlink")) > {0, 4}


@pytest.mark.claim("power")
@pytest.mark.parametrize("family", [2, 10], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("side", ["inside", "inside_as_root"])
def test_sockets_are_of_tcp_udp_and_echo_alone(
    request: pytest.FixtureRequest, outside: Wire, side: str, family: int
) -> None:
    wire: Wire = request.getfixturevalue(side)
    opened = {tuple(each) for each in wire.probe("kernel.list_protocols", family)}
    assert opened >= {(1, 0), (1, 6), (2, 0), (2, 17)}
    assert opened <= {(1, 0), (1, 6), (2, 0), (2, 17), (2, 1 if family == 2 else 58)}
    assert opened < {tuple(each) for each in outside.probe("kernel.list_protocols", family)}


@pytest.mark.claim("power", twin=True)
@pytest.mark.parametrize("side", ["inside", "inside_as_root"])
def test_ordinary_program_notices_nothing(request: pytest.FixtureRequest, side: str) -> None:
    wire: Wire = request.getfixturevalue(side)
    assert wire.probe("kernel.live") == "ok"


@pytest.mark.claim("power")
@pytest.mark.parametrize("probe", ROOTS_OWN.values(), ids=ROOTS_OWN)
def test_unprivileged_user_cannot(inside: Wire, outside: Wire, probe: str) -> None:
    assert inside.probe(probe) == "EPERM"
    assert outside.probe(probe) == "ok"


@pytest.mark.claim("power")
def test_no_group_is_held_beside_the_users_own(inside: Wire, outside: Wire) -> None:
    assert set(inside.probe("insight.identity")["groups"]) <= {65532}
    assert inside.probe("kernel.change_groups") == "EPERM"
    assert outside.probe("kernel.change_groups") == "ok"


@pytest.mark.claim("power")
def test_loading_a_module_needs_a_capability_that_is_not_there(inside: Wire, outside: Wire) -> None:
    assert inside.probe("kernel.load_module") in REFUSED
    # A kernel without modules has nothing to load, for nobody.
    assert outside.probe("kernel.load_module") in {"ok", "ENOSYS"}


@pytest.mark.claim("power")
@pytest.mark.parametrize("which", ["status", "status_of_first"])
@pytest.mark.parametrize("side", ["inside", "inside_as_root"])
def test_every_capability_set_is_empty(
    request: pytest.FixtureRequest, outside: Wire, side: str, which: str
) -> None:
    wire: Wire = request.getfixturevalue(side)
    status = wire.probe(f"insight.{which}")
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    assert {int(status[name], 16) for name in sets} == {0}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert int(outside.probe("insight.status")["CapEff"], 16) != 0


@pytest.mark.claim("power")
def test_user_is_the_unprivileged_one(inside: Wire) -> None:
    identity = inside.probe("insight.identity")
    assert identity["uids"] == [65532] * 3
    assert identity["gids"] == [65532] * 3
    assert identity["host"] == "sandbox"


@pytest.mark.claim("power")
@pytest.mark.parametrize("kind", ["cgroup", "ipc", "mnt", "net", "pid", "uts"])
def test_namespace_is_not_the_hosts(inside: Wire, arena: Arena, kind: str) -> None:
    host = os.readlink(f"/proc/self/ns/{kind}")  # noqa: PTH115
    assert inside.probe("insight.namespaces")[kind] != host
    with arena.hostile(tag="second").open() as second:
        theirs = second.probe("insight.namespaces")[kind]
    assert theirs not in {host, inside.probe("insight.namespaces")[kind]}


@pytest.mark.claim("power", twin=True)
def test_namespace_probe_sees_a_shared_namespace(outside: Wire) -> None:
    host = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    assert outside.probe("insight.namespaces")["pid"] == host


@pytest.fixture
def victim() -> Iterator[int]:
    """A process of the host."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        yield process.pid
        process.kill()


@pytest.mark.claim("power")
@pytest.mark.parametrize("probe", ["ptrace", "read_memory", "signal_process"])
def test_process_of_the_host_is_out_of_reach(
    inside: Wire, inside_as_root: Wire, outside: Wire, victim: int, probe: str
) -> None:
    assert inside.probe(f"kernel.{probe}", victim) in {"ESRCH", "EPERM"}
    assert inside_as_root.probe(f"kernel.{probe}", victim) in {"ESRCH", "EPERM"}
    assert outside.probe(f"kernel.{probe}", victim) == "ok"


@pytest.mark.claim("power")
def test_only_its_own_processes_are_visible(inside: Wire, outside: Wire) -> None:
    lines = inside.probe("insight.command_lines")
    programs = {line.split(" ")[0].rpartition("/")[2] for line in lines.values()}
    assert programs <= {"docker-init", "python3"}
    assert len(lines) <= 4
    assert len(outside.probe("insight.processes")) > len(lines)


@pytest.mark.claim("power")
def test_devices_are_the_harmless_ones(inside: Wire, outside: Wire) -> None:
    harmless = {"full", "null", "random", "tty", "urandom", "zero", "pts/ptmx"}
    found = {path.removeprefix("/dev/") for path in inside.probe("insight.devices")}
    assert found == harmless
    assert set(outside.probe("insight.devices")) > {f"/dev/{name}" for name in harmless}


@pytest.mark.claim("power")
def test_no_socket_of_an_engine_is_visible(inside_as_root: Wire, arena: Arena) -> None:
    assert inside_as_root.probe("insight.sockets") == []
    with arena.open_exposed("-v", "/var/run/docker.sock:/docker.sock") as exposed:
        assert exposed.probe("insight.sockets") == ["/docker.sock"]
