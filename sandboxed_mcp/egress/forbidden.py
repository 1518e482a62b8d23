"""The networks a packet filter must refuse, written as plain prefixes.

A packet filter cannot decode an address, so the IPv6 forms that carry an IPv4 address are
expanded here: for NAT64 and 6to4 one prefix for each IPv4 network, judged by the address
inside; the forms that have no place on the wire (mapped, compatible, SIIT) and Teredo are
refused as a whole. For every other address what comes out agrees with `classify`.

Pure: constants in, tuples out.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.addresses import METADATA, NEVER, PRIVATE, TRANSLATED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandboxed_mcp.egress.addresses import IPNetwork

__all__ = ["list_never", "list_private", "split_versions"]

_NAT64: Final = IPv6Network("64:ff9b::/96")  # RFC 6052
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")  # RFC 3056
_CARRIERS: Final = (_NAT64, _SIX_TO_FOUR)


def list_never() -> tuple[IPNetwork, ...]:
    """List the networks that no name opens and no network rule reaches into.

    Returns:
        `NEVER` and `METADATA`, the translated forms of both, and the translations that have
        no place on the wire.
    """
    plain = (
        *(network for network, _ in NEVER),
        *(ip_network(address) for address in sorted(METADATA, key=str)),
    )
    whole = tuple(network for network in TRANSLATED if network not in _CARRIERS)
    return (*plain, *whole, *_translate(plain))


def list_private() -> tuple[IPNetwork, ...]:
    """List the networks that a name opens only with `allow_private`, translated forms too."""
    return (*PRIVATE, *_translate(PRIVATE))


def split_versions(
    networks: Iterable[IPNetwork],
) -> tuple[tuple[IPv4Network, ...], tuple[IPv6Network, ...]]:
    """Sort networks by IP version, without doubles."""
    known = dict.fromkeys(networks)
    return (
        tuple(network for network in known if isinstance(network, IPv4Network)),
        tuple(network for network in known if isinstance(network, IPv6Network)),
    )


def _translate(networks: Iterable[IPNetwork]) -> tuple[IPv6Network, ...]:
    inner = split_versions(networks)[0]
    return tuple(_carry(carrier, network) for carrier in _CARRIERS for network in inner)


def _carry(carrier: IPv6Network, inner: IPv4Network) -> IPv6Network:
    """The IPv6 network whose addresses carry the addresses of an IPv4 network."""
    shift = carrier.max_prefixlen - carrier.prefixlen - inner.max_prefixlen
    bits = int(carrier.network_address) | int(inner.network_address) << shift
    return IPv6Network((bits, carrier.prefixlen + inner.prefixlen))
