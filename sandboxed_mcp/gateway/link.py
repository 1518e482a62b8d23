"""What the gateway's network looks like: the device that leads out, and who is next to it.

Read from /proc/net, which needs no capability and no library. This module changes nothing.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sandboxed_mcp.egress.addresses import IPNetwork

__all__ = ["Link", "parse_if_inet6", "parse_routes", "read_link"]

_SIOCGIFADDR: Final = 0x8915
_SIOCGIFNETMASK: Final = 0x891B
_ROUTE_UP: Final = 0x1
_GLOBAL: Final = 0x00
_LOOPBACK: Final = IPv6Address("::1")


@dataclass(frozen=True, slots=True)
class Link:
    """The way out.

    Attributes:
        name: The device of the default route, or the only device; None without a network.
        networks: The networks at it: our own address, the bridge's, the neighbours'.
        ipv6: Whether it has a global IPv6 address.
        loopbacks: Loopback addresses of the namespace.
    """

    name: str | None
    networks: tuple[IPNetwork, ...]
    ipv6: bool
    loopbacks: tuple[str, ...]


def read_link() -> Link:
    """Look at the network namespace of the calling process.

    Raises:
        OSError: /proc/net cannot be read, or the device has no IPv4 address.
    """
    name = parse_routes(Path("/proc/net/route").read_text("ascii"))
    inet6 = Path("/proc/net/if_inet6")
    devices = parse_if_inet6(inet6.read_text("ascii")) if inet6.exists() else {}
    beside = tuple(each.network for each in devices.get(name or "", ()))
    own = (_read_ipv4(name).network,) if name else ()
    loopbacks = ("127.0.0.1",)
    if any(each.ip == _LOOPBACK for each in devices.get("lo", ())):
        loopbacks += (str(_LOOPBACK),)
    return Link(name, (*own, *beside), bool(beside), loopbacks)


def parse_routes(text: str) -> str | None:
    """Find the device of the default route in /proc/net/route, else of any route."""
    found: str | None = None
    for line in text.splitlines()[1:]:
        device, destination, _gateway, flags, *_ = line.split()
        if not int(flags, 16) & _ROUTE_UP:
            continue
        if int(destination, 16) == 0:
            return device
        found = found or device
    return found


def parse_if_inet6(text: str) -> dict[str, list[IPv6Interface]]:
    """Read the global addresses of /proc/net/if_inet6, and loopback's, by device."""
    found: dict[str, list[IPv6Interface]] = {}
    for line in text.splitlines():
        digits, _index, prefix, scope, _flags, device = line.split()
        address = IPv6Address(int(digits, 16))
        if int(scope, 16) == _GLOBAL or address == _LOOPBACK:
            found.setdefault(device, []).append(IPv6Interface((address, int(prefix, 16))))
    return found


def _read_ipv4(device: str) -> IPv4Interface:
    request = struct.pack("16s240x", device.encode("ascii"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        address, mask = (
            IPv4Address(fcntl.ioctl(sock, code, request)[20:24])
            for code in (_SIOCGIFADDR, _SIOCGIFNETMASK)
        )
    return IPv4Interface(f"{address}/{mask}")
