"""The simulated internet and the places of sandboxes in it.

One namespace holds every outside address and routes between them; each sandbox has one of its
own, on a bridge that it shares with its neighbours as on the engine's:

    internet   198.51.100.0/24, 2001:db8:51::/64     the internet
               198.18.0.0/16, 10.2.0.0/16, fd00:18::/64   private networks
               169.254.169.254 and the other metadata addresses
               198.19.0.1, 2001:db8:c8::1            the bridge: host and gateway of sandboxes
    pod n      198.19.0.n, 2001:db8:c8::n            a sandbox, or a neighbour

The internet has no other route: what is not held here is unreachable. Every address of those
networks answers, so a test may choose any.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from tests.lab.netns import Namespace, open_namespace, run_batch, sweep
from tests.lab.sniffer import Sniffer, open_sniffer

if TYPE_CHECKING:
    from collections.abc import Generator
    from ipaddress import IPv4Address, IPv6Address

__all__ = ["HELD", "HOST_V4", "HOST_V6", "LINK_V4", "LINK_V6", "METADATA", "Internet", "Pod"]

LINK_V4 = IPv4Network("198.19.0.0/24")
LINK_V6 = IPv6Network("2001:db8:c8::/64")
HOST_V4 = "198.19.0.1"
HOST_V6 = "2001:db8:c8::1"
METADATA = (
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "fd00:ec2::254",
)
HELD = tuple(
    ip_network(text)
    for text in (
        "198.51.100.0/24",
        "198.18.0.0/16",
        "10.2.0.0/16",
        "2001:db8:51::/64",
        "fd00:18::/64",
        *METADATA,
    )
)
"""The networks that the internet's namespace holds."""


@dataclass(frozen=True)
class Pod:
    """A sandbox's network namespace, and the frames that came out of it.

    Attributes:
        namespace: With the device `eth0`.
        number: The last part of its addresses.
        wire: What arrived at the other end of `eth0`, before anything could filter it.
    """

    namespace: Namespace
    number: int
    wire: Sniffer

    @property
    def v4(self) -> IPv4Address | IPv6Address:
        """Its IPv4 address."""
        return LINK_V4[self.number]

    @property
    def v6(self) -> IPv4Address | IPv6Address:
        """Its IPv6 address."""
        return ip_address(f"2001:db8:c8::{self.number:x}")


class Internet:
    """The namespace of every outside address; make one with `open`."""

    def __init__(self, namespace: Namespace) -> None:
        """Use a namespace that is set up."""
        self.namespace = namespace

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Generator[Internet, None, None]:
        """Make the internet; remove it at the end."""
        sweep()
        with open_namespace("internet") as namespace:
            namespace.write_sysctl("net/ipv4/ip_forward", 1)
            namespace.write_sysctl("net/ipv6/conf/all/forwarding", 1)
            namespace.write_sysctl("net/ipv6/ip_nonlocal_bind", 1)  # servers on held networks
            namespace.ip(
                "link add pods type bridge",
                "link set pods up",
                f"addr add {HOST_V4}/{LINK_V4.prefixlen} dev pods",
                f"addr add {HOST_V6}/{LINK_V6.prefixlen} dev pods nodad",
                *(f"route add local {network} dev lo" for network in HELD),
            )
            yield cls(namespace)

    @contextlib.contextmanager
    def open_pod(self, number: int = 2, *, ipv6: bool = True) -> Generator[Pod, None, None]:
        """Make a sandbox's namespace on the bridge, routed to the internet and nowhere else."""
        outer = f"pod{number}"
        with open_namespace(outer) as namespace:
            inner = f"name eth0 netns {namespace.name}"
            run_batch(
                [f"link add {outer} netns {self.namespace.name} type veth peer {inner}"],
            )
            self.namespace.ip(f"link set {outer} master pods up")
            if not ipv6:
                namespace.write_sysctl("net/ipv6/conf/all/disable_ipv6", 1)
            namespace.ip(*_list_pod_commands(number, ipv6=ipv6))
            try:
                with open_sniffer(self.namespace, outer) as wire:
                    yield Pod(namespace, number, wire)
            finally:
                self.namespace.ip(f"link del {outer}")


def _list_pod_commands(number: int, *, ipv6: bool) -> list[str]:
    four = [
        "link set eth0 up",
        f"addr add 198.19.0.{number}/{LINK_V4.prefixlen} dev eth0",
        f"route add default via {HOST_V4}",
    ]
    six = [
        f"addr add 2001:db8:c8::{number:x}/{LINK_V6.prefixlen} dev eth0 nodad",
        f"route add default via {HOST_V6}",
    ]
    return [*four, *six] if ipv6 else four
