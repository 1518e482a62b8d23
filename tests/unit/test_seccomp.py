"""The system call filter as a value: what it allows, and that nothing else slips through it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandboxed_mcp.plan.seccomp import name_seccomp, render_seccomp, render_seccomp_text
from sandboxed_mcp.plan.seccomp_calls import ALLOWED, FORBIDDEN, UNKNOWN

LISTS = {"allowed": ALLOWED, "forbidden": FORBIDDEN, "unknown": UNKNOWN}
CONDITIONAL = {"clone", "personality", "socket", "socketpair"}
UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK = 1, 2, 10, 16, 17, 38, 40
STREAM, DGRAM, RAW, CLOEXEC = 1, 2, 3, 0o2000000
UPPER = 1 << 32
BY_CAPABILITY = """
    acct add_key bpf chroot clock_settime delete_module fanotify_init finit_module init_module
    ioperm iopl kcmp kexec_load keyctl lookup_dcookie mbind mount name_to_handle_at
    open_by_handle_at perf_event_open pivot_root process_vm_readv process_vm_writev ptrace quotactl
    reboot request_key set_mempolicy setdomainname sethostname setns settimeofday swapon syslog
    umount2 unshare userfaultfd vhangup
"""
BY_KERNELS = """
    clone3 fsconfig fsmount fsopen fspick io_uring_enter io_uring_register io_uring_setup
    mount_setattr move_mount open_tree pidfd_getfd process_madvise quotactl_fd
"""
CURRENT_LIBRARIES = """
    cachestat close_range epoll_pwait2 faccessat2 fchmodat2 futex futex_waitv getrandom
    landlock_create_ruleset map_shadow_stack membarrier memfd_create mseal openat2 pidfd_open
    rseq seccomp statx
"""


@pytest.fixture(params=[False, True], ids=["server", "gateway"])
def net_admin(request: pytest.FixtureRequest) -> bool:
    return request.param


def decide(call: str, *arguments: int, net_admin: bool = False) -> tuple[str, int | None]:
    """The action of all rules that match, and its errno: no two of them may differ."""
    profile = render_seccomp(net_admin=net_admin)
    found = {
        (rule["action"], rule.get("errnoRet"))
        for rule in profile["syscalls"]
        if call in rule["names"] and all(matches(each, arguments) for each in rule["args"])
    }
    assert len({action for action, _ in found}) <= 1
    return min(found) if found else (profile["defaultAction"], profile["defaultErrnoRet"])


def matches(condition: dict[str, Any], arguments: tuple[int, ...]) -> bool:
    assert condition["op"] == "SCMP_CMP_MASKED_EQ"
    index: int = condition["index"]
    value = arguments[index] if index < len(arguments) else 0
    return value & int(condition["value"]) == condition["valueTwo"]


def allows(call: str, *arguments: int, net_admin: bool = False) -> bool:
    return decide(call, *arguments, net_admin=net_admin)[0] == "SCMP_ACT_ALLOW"


def test_what_no_rule_names_is_refused(net_admin: bool) -> None:
    profile = render_seccomp(net_admin=net_admin)
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {rule["action"] for rule in profile["syscalls"]} == {"SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"}
    assert decide("a_call_of_tomorrow", net_admin=net_admin) == ("SCMP_ACT_ERRNO", 38)


def test_32_bit_programs_have_no_calls(net_admin: bool) -> None:
    machines = render_seccomp(net_admin=net_admin)["archMap"]
    assert {each["architecture"] for each in machines} == {"SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"}
    assert not any(each["subArchitectures"] for each in machines)
    assert not {"socketcall", "ipc", "syscall"} & {*ALLOWED, *CONDITIONAL}


@pytest.mark.parametrize("names", LISTS.values(), ids=LISTS)
def test_list_is_sorted_and_names_each_call_once(names: tuple[str, ...]) -> None:
    assert list(names) == sorted(set(names))
    others = [one for each in LISTS.values() if each is not names for one in each]
    assert not set(names) & {*others, *CONDITIONAL}


@pytest.mark.parametrize("call", BY_CAPABILITY.split())
def test_call_that_takes_power_is_refused_to_both(net_admin: bool, call: str) -> None:
    assert decide(call, net_admin=net_admin) == ("SCMP_ACT_ERRNO", 1)


@pytest.mark.parametrize("call", BY_KERNELS.split())
def test_newer_call_seems_to_be_missing(net_admin: bool, call: str) -> None:
    assert decide(call, net_admin=net_admin) == ("SCMP_ACT_ERRNO", 38)


@pytest.mark.parametrize("call", CURRENT_LIBRARIES.split())
def test_call_of_current_libraries_is_allowed(net_admin: bool, call: str) -> None:
    assert allows(call, net_admin=net_admin)


@pytest.mark.parametrize("bit", [17, 25, 26, 27, 28, 29, 30])
@pytest.mark.parametrize("beside", [0, 17, 0x3D0F00, UPPER])
def test_process_gets_no_namespace_of_its_own(net_admin: bool, bit: int, beside: int) -> None:
    assert decide("clone", 1 << bit | beside, net_admin=net_admin) == ("SCMP_ACT_ERRNO", 1)
    assert allows("clone", beside, net_admin=net_admin)


@pytest.mark.parametrize("value", [0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF])
def test_harmless_personality_is_allowed(value: int) -> None:
    assert allows("personality", value)


@pytest.mark.parametrize("value", [0x0040000, 0x0100000, 0x0400000, UPPER | 0x0040000])
def test_personality_that_weakens_the_process_is_refused(value: int) -> None:
    assert not allows("personality", value)


@pytest.mark.parametrize(
    ("family", "kind", "protocol"),
    [
        (UNIX, STREAM, 0),
        (UNIX, 5, 0),
        (INET, STREAM, 0),
        (INET, STREAM | CLOEXEC, 6),
        (INET, DGRAM, 17),
        (INET, DGRAM, 1),
        (INET6, STREAM, 6),
        (INET6, DGRAM | CLOEXEC, 0),
        (INET6, DGRAM, 58),
        (NETLINK, RAW | CLOEXEC, 0),
        (UPPER | INET, UPPER | STREAM, UPPER | 6),
    ],
)
def test_ordinary_socket_is_allowed(net_admin: bool, family: int, kind: int, protocol: int) -> None:
    assert allows("socket", family, kind, protocol, net_admin=net_admin)


@pytest.mark.parametrize("family", sorted({*range(64)} - {UNIX, INET, INET6, NETLINK}))
def test_other_family_is_not_supported(net_admin: bool, family: int) -> None:
    for call in ("socket", "socketpair"):
        for word in (family, UPPER | family):
            for kind in (STREAM, DGRAM, RAW):
                found = decide(call, word, kind, 0, net_admin=net_admin)
                assert found == ("SCMP_ACT_ERRNO", 97)


@pytest.mark.parametrize("family", [64, 255, 1 << 16, 1 << 31, (1 << 32) - 1])
def test_family_that_no_kernel_has_is_refused(net_admin: bool, family: int) -> None:
    assert not allows("socket", family, STREAM, 0, net_admin=net_admin)


@pytest.mark.parametrize("family", [INET, INET6])
@pytest.mark.parametrize(
    ("kind", "protocol"),
    [(RAW, 0), (RAW, 6), (RAW, 255), (10, 0x300), (5, 132), (STREAM, 132), (STREAM, 262), (6, 33)],
)
def test_socket_that_is_neither_tcp_nor_udp_nor_echo_is_refused(
    net_admin: bool, family: int, kind: int, protocol: int
) -> None:
    assert not allows("socket", family, kind, protocol, net_admin=net_admin)
    assert not allows("socketpair", family, kind, protocol, net_admin=net_admin)


def test_kernel_talks_of_more_to_the_gateway_than_to_a_server() -> None:
    def kinds(*, net_admin: bool) -> list[int]:
        asked = ((one, net_admin) for one in range(300))
        return [one for one, admin in asked if allows("socket", 16, 3, one, net_admin=admin)]

    assert kinds(net_admin=False) == [0]
    assert kinds(net_admin=True) == [0, 4, 12]


def test_profiles_differ_in_nothing_else() -> None:
    server, gateway = (
        [rule for rule in render_seccomp(net_admin=each)["syscalls"] if not of_netlink(rule)]
        for each in (False, True)
    )
    assert server == gateway


def of_netlink(rule: dict[str, Any]) -> bool:
    return any(each["index"] == 0 and each["valueTwo"] == NETLINK for each in rule["args"])


def test_text_says_what_the_profile_says_and_its_name_tells_it_apart(net_admin: bool) -> None:
    text = render_seccomp_text(net_admin=net_admin)
    assert json.loads(text) == render_seccomp(net_admin=net_admin)
    assert name_seccomp(net_admin=net_admin) != name_seccomp(net_admin=not net_admin)
