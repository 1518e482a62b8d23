"""End the sockets of flows that a policy does not allow any more.

The packet filter stops what such a flow sends; a program that only listens would wait for
ever. SOCK_DESTROY (linux/sock_diag.h) fails its socket at once with ECONNABORTED. Kernels
without CONFIG_INET_DIAG_DESTROY cannot do it; the filter holds there all the same.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.gateway.netlink import SOCK_DIAG, NetlinkError, NetlinkSocket, Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandboxed_mcp.gateway.conntrack import Flow

__all__ = ["destroy_sockets"]

_DESTROY: Final = 21
_ANY_COOKIE: Final = b"\xff" * 8
_ALL_STATES: Final = 0xFFFF_FFFF
_NUMBERS: Final = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}
_MISSING: Final = (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL)


def destroy_sockets(flows: Iterable[Flow]) -> int:
    """End the local sockets of flows; needs NET_ADMIN.

    Returns:
        How many were ended; fewer than flows where a socket is gone or the kernel cannot.

    Raises:
        NetlinkError: The kernel refused for another reason.
    """
    with NetlinkSocket(protocol=SOCK_DIAG) as netlink:
        return sum(_destroy(netlink, flow) for flow in flows)


def _destroy(netlink: NetlinkSocket, flow: Flow) -> bool:
    try:
        netlink.transact([Request(_DESTROY, _pack(flow))])
    except NetlinkError as error:
        if error.errno not in _MISSING:
            raise
        return False
    return True


def _pack(flow: Flow) -> bytes:
    """A struct inet_diag_req_v2 that names one socket by both its ends."""
    four = flow.address.version == 4  # noqa: PLR2004 - the IP version
    family = socket.AF_INET if four else socket.AF_INET6
    return (
        struct.pack("=BBBxI", family, _NUMBERS[flow.protocol], 0, _ALL_STATES)
        + struct.pack("!HH", flow.source_port, flow.port)
        + flow.source.packed.ljust(16, b"\0")
        + flow.address.packed.ljust(16, b"\0")
        + struct.pack("=I", 0)
        + _ANY_COOKIE
    )
