"""The system call filter of every container, in the engines' profile format.

Engines bring a filter of their own, but which one depends on their version: some let a program
open AF_VSOCK sockets, which belong to no network namespace and lead to the hypervisor, or use
io_uring. This one is the same everywhere, an allow-list, and no wider than what any engine gives
a container without capabilities. Never more for a capability: the gateway's filter differs in
the kinds of netlink sockets alone.

Only the machine's own kind of system calls exists. 32-bit programs are killed: their calls go
through `socketcall`, whose arguments a filter cannot see, and through kernel code that hardly
anything else exercises.

The format is that of Docker (Docker Engine API 1.41, `SecurityOpt`) and containers/common; the
names of actions and operators are libseccomp's (seccomp_rule_add(3)).
"""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from sandboxed_mcp.plan.seccomp_calls import ALLOWED, FORBIDDEN, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["name_seccomp", "render_seccomp", "render_seccomp_text"]

# Numbers of errno(3), of the kernel that runs the container and not of the launcher's system.
EPERM: Final = 1
ENOSYS: Final = 38
EPROTONOSUPPORT: Final = 93
EAFNOSUPPORT: Final = 97

# Of an int the kernel reads the lower half of the register only, and so must the filter.
INT: Final = 0xFFFF_FFFF
CLONE_FLAGS: Final = 0
# CLONE_NEW- NS, CGROUP, UTS, IPC, USER, PID and NET (clone(2)).
NAMESPACES: Final = (1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30)
# PER_LINUX, with or without UNAME26 and PER_LINUX32, and the question which one it is: what
# engines allow. Others switch off address randomisation or memory protection.
PERSONALITIES: Final = (0, 0x8, 0x20000, 0x20008, INT)

UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
FAMILIES: Final = 64  # more than the kernel has
KIND_BITS: Final = 0xF  # the rest of a socket's type is flags
STREAM, DGRAM, RAW = 1, 2, 3
ICMP, TCP, UDP, ICMPV6 = 1, 6, 17, 58
# Each protocol beside these is one more module that opening a socket would load.
PROTOCOLS: Final = tuple(
    (family, kind, protocol)
    for family, echo in ((INET, ICMP), (INET6, ICMPV6))
    for kind, protocol in ((STREAM, 0), (STREAM, TCP), (DGRAM, 0), (DGRAM, UDP), (DGRAM, echo))
)
# Those that programs ask for and do without: DCCP, L2TP, SCTP, UDP-Lite, MPTCP.
MISSING_PROTOCOLS: Final = (33, 115, 132, 136, 262)
NETLINK_ROUTE: Final = 0
# Sockets to end, elements and denied packets: what the gateway's work is.
GATEWAY_NETLINK: Final = (NETLINK_ROUTE, 4, 12)  # ROUTE, SOCK_DIAG, NETFILTER
NETLINK_KINDS: Final = 32  # MAX_LINKS of the kernel


def render_seccomp(*, net_admin: bool) -> dict[str, Any]:
    """The profile.

    Args:
        net_admin: Whether it is for the container that holds NET_ADMIN: the gateway.
    """
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        # Engines that do not know this answer EPERM, and ENOSYS to calls newer than all below.
        "defaultErrnoRet": ENOSYS,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": [
            _allow(*ALLOWED),
            _refuse(EPERM, *FORBIDDEN),
            _refuse(ENOSYS, *UNKNOWN),
            *_clone(),
            *(_allow("personality", args=(_masked(0, INT, one),)) for one in PERSONALITIES),
            *_sockets(GATEWAY_NETLINK if net_admin else (NETLINK_ROUTE,)),
        ],
    }


@cache
def render_seccomp_text(*, net_admin: bool) -> str:
    """The profile as JSON, the same text every time."""
    return json.dumps(render_seccomp(net_admin=net_admin), separators=(",", ":"), sort_keys=True)


def name_seccomp(*, net_admin: bool) -> str:
    """The profile's name for a person, with the SHA-256 of its text."""
    digest = sha256(render_seccomp_text(net_admin=net_admin).encode()).hexdigest()
    return f"sandboxed-mcp/{'gateway' if net_admin else 'server'} (sha256:{digest})"


def _clone() -> Iterator[dict[str, Any]]:
    # On s390x the flags are the second argument. Without these rules nothing starts there.
    elsewhere = {"excludes": {"arches": ["s390", "s390x"]}}
    yield _allow("clone", args=(_masked(CLONE_FLAGS, sum(NAMESPACES), 0),)) | elsewhere
    for flag in NAMESPACES:
        yield _refuse(EPERM, "clone", args=(_masked(CLONE_FLAGS, flag, flag),)) | elsewhere


def _sockets(netlink: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    yield _allow("socket", "socketpair", args=(_family(UNIX),))
    for family, kind, protocol in PROTOCOLS:
        yield _allow("socket", args=(_family(family), _kind(kind), _protocol(protocol)))
    for protocol in netlink:
        yield _allow("socket", args=(_family(NETLINK), _protocol(protocol)))
    yield from _refused_sockets(netlink)


def _refused_sockets(netlink: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """What is not allowed anyway, with the error that socket(2) names for it."""
    for family in range(FAMILIES):
        if family not in {UNIX, INET, INET6, NETLINK}:
            yield _refuse(EAFNOSUPPORT, "socket", "socketpair", args=(_family(family),))
    for family in (INET, INET6):
        yield _refuse(EPERM, "socket", args=(_family(family), _kind(RAW)))
        for protocol in MISSING_PROTOCOLS:
            args = (_family(family), _kind(STREAM), _protocol(protocol))
            yield _refuse(EPROTONOSUPPORT, "socket", args=args)
            args = (_family(family), _kind(DGRAM), _protocol(protocol))
            yield _refuse(EPROTONOSUPPORT, "socket", args=args)
    for protocol in range(NETLINK_KINDS):
        if protocol not in netlink:
            args = (_family(NETLINK), _protocol(protocol))
            yield _refuse(EPROTONOSUPPORT, "socket", args=args)


def _allow(*names: str, args: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"names": list(names), "action": "SCMP_ACT_ALLOW", "args": list(args)}


def _refuse(errno: int, *names: str, args: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    rule = {"names": list(names), "action": "SCMP_ACT_ERRNO", "args": list(args)}
    return {**rule, "errnoRet": errno}


def _family(family: int) -> dict[str, Any]:
    return _masked(0, INT, family)


def _kind(kind: int) -> dict[str, Any]:
    return _masked(1, KIND_BITS, kind)


def _protocol(protocol: int) -> dict[str, Any]:
    return _masked(2, INT, protocol)


def _masked(index: int, mask: int, value: int) -> dict[str, Any]:
    """The argument's bits in the mask are the value's."""
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
