"""Which kind of place an IP address is: global, private, or never to be reached.

The lists are explicit. The standard library's `is_private` and `is_global` are not used: they
also cover the documentation ranges, which mirrors and test networks use; here those count as
global. IPv6 forms that carry an IPv4 address (mapped, compatible, NAT64, 6to4, Teredo) are
judged by the address inside, and by the strictest answer where they carry two.

This module never resolves a name and never opens a socket.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, Literal

__all__ = [
    "METADATA",
    "NEVER",
    "PRIVATE",
    "TRANSLATED",
    "AddressClass",
    "IPAddress",
    "IPNetwork",
    "classify",
    "embedded_ipv4",
    "never_reason",
]

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network
AddressClass = Literal["global", "private", "never"]

PRIVATE: Final[tuple[IPNetwork, ...]] = (
    IPv4Network("10.0.0.0/8"),  # RFC 1918
    IPv4Network("172.16.0.0/12"),  # RFC 1918
    IPv4Network("192.168.0.0/16"),  # RFC 1918
    IPv4Network("100.64.0.0/10"),  # RFC 6598, carrier-grade NAT
    IPv4Network("198.18.0.0/15"),  # RFC 2544, benchmarks
    IPv6Network("fc00::/7"),  # RFC 4193, unique local
)
"""Networks that a name opens only when its rule says `allow_private`."""

METADATA: Final[frozenset[IPAddress]] = frozenset(
    {
        IPv4Address("169.254.169.254"),  # the common instance metadata service
        IPv4Address("169.254.170.2"),  # AWS ECS task credentials
        IPv4Address("169.254.170.23"),  # AWS EKS pod identity
        IPv4Address("100.100.100.200"),  # Alibaba Cloud
        IPv4Address("168.63.129.16"),  # Azure wire server
        IPv4Address("192.0.0.192"),  # Oracle Cloud, classic
        IPv6Address("fd00:ec2::254"),  # AWS, IPv6
        IPv6Address("fd00:ec2::23"),  # AWS EKS pod identity, IPv6
        IPv6Address("fd20:ce::254"),  # Google Cloud, IPv6
    }
)
"""Addresses that hand out a machine's credentials; opened only one by one, by literal."""

NEVER: Final[tuple[tuple[IPNetwork, str], ...]] = (
    (IPv4Network("0.0.0.0/8"), "unspecified"),
    (IPv4Network("127.0.0.0/8"), "loopback"),
    (IPv4Network("169.254.0.0/16"), "link-local"),
    (IPv4Network("192.0.0.0/24"), "reserved"),
    (IPv4Network("224.0.0.0/4"), "multicast"),
    (IPv4Network("255.255.255.255/32"), "broadcast"),
    (IPv4Network("240.0.0.0/4"), "reserved"),
    (IPv6Network("::/128"), "unspecified"),
    (IPv6Network("::1/128"), "loopback"),
    (IPv6Network("64:ff9b:1::/48"), "reserved"),  # RFC 8215: the form inside is not knowable
    (IPv6Network("100::/64"), "reserved"),  # RFC 6666, discard only
    (IPv6Network("fe80::/10"), "link-local"),
    (IPv6Network("fec0::/10"), "reserved"),  # RFC 3879, the old site-local
    (IPv6Network("ff00::/8"), "multicast"),
)
"""Networks that no rule opens, each with the word for it."""

_NAT64: Final = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL: Final = IPv6Network("64:ff9b:1::/48")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_TEREDO: Final = IPv6Network("2001::/32")
_COMPATIBLE: Final = IPv6Network("::/96")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_TRANSLATED_SIIT: Final = IPv6Network("::ffff:0:0:0/96")  # RFC 2765

TRANSLATED: Final[tuple[IPv6Network, ...]] = (
    _MAPPED,
    _TRANSLATED_SIIT,
    _COMPATIBLE,
    _NAT64,
    _NAT64_LOCAL,
    _SIX_TO_FOUR,
    _TEREDO,
)
"""IPv6 networks whose addresses carry an IPv4 address."""

_LAST_32: Final = (_MAPPED, _TRANSLATED_SIIT, _COMPATIBLE, _NAT64)
_LOW_32: Final = 0xFFFF_FFFF


@lru_cache(maxsize=1024)
def classify(address: IPAddress) -> AddressClass:
    """Say whether an address is `global`, `private` or `never`.

    Args:
        address: Any IPv4 or IPv6 address; a scope id is ignored.

    Returns:
        `never` when the address or one it carries is in `NEVER` or `METADATA`; else `private`
        when one of them is in `PRIVATE`; else `global`.
    """
    inner = embedded_ipv4(address)
    judged = (address, *inner)
    if any(never_reason(one) for one in judged):
        return "never"
    if any(_within(one, network) for one in judged for network in PRIVATE):
        return "private"
    return "global"


def never_reason(address: IPAddress) -> str | None:
    """Name the reason why no rule opens an address, judged as written.

    Returns:
        A word such as `loopback` or `metadata`; None when the address is in no such list.
    """
    if _without_scope(address) in METADATA:
        return "metadata"
    for network, reason in NEVER:
        if _within(address, network):
            return reason
    return None


def embedded_ipv4(address: IPAddress) -> tuple[IPv4Address, ...]:
    """Decode the IPv4 addresses that an IPv6 address carries.

    Returns:
        The inner addresses: two for Teredo (server and client, RFC 4380), one for mapped,
        compatible, SIIT, NAT64 (RFC 6052) and 6to4 (RFC 3056) forms, otherwise none.
    """
    if isinstance(address, IPv4Address):
        return ()
    bits = int(address)
    if _within(address, _SIX_TO_FOUR):
        return (IPv4Address(bits >> 80 & _LOW_32),)
    if _within(address, _TEREDO):
        return (IPv4Address(bits >> 64 & _LOW_32), IPv4Address(~bits & _LOW_32))
    if bits > 1 and any(_within(address, network) for network in _LAST_32):
        return (IPv4Address(bits & _LOW_32),)
    return ()


def _within(address: IPAddress, network: IPNetwork) -> bool:
    return address.version == network.version and _without_scope(address) in network


def _without_scope(address: IPAddress) -> IPAddress:
    return IPv6Address(int(address)) if isinstance(address, IPv6Address) else address
