"""The address of a rule: a literal or a network, and the ones that no rule may name.

Pure: text -> `ipaddress` value or `RuleError`.
"""

from __future__ import annotations

import re
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.addresses import METADATA, NEVER, TRANSLATED
from sandboxed_mcp.egress.values import RuleError

if TYPE_CHECKING:
    from sandboxed_mcp.egress.addresses import IPAddress, IPNetwork

__all__ = ["check_network", "parse_network"]

WIDEST_V4: Final = 8
WIDEST_V6: Final = 32

_PREFIX: Final = re.compile(r"(?:0|[1-9][0-9]{0,2})\Z")


def parse_network(target: str) -> IPNetwork | None:
    """Read the target of a rule as an address or a network.

    Args:
        target: `192.0.2.7`, `10.2.0.0/16`, `[2001:db8::1]` or `[2001:db8::/32]`; or a name.

    Returns:
        The network, a single address with the longest prefix; None when the target is a name.

    Raises:
        RuleError: It is meant as an address and is not a good one.
    """
    bracketed = target.startswith("[") and target.endswith("]")
    literal, slash, prefix = target.strip("[]").partition("/")
    address = _parse_v6(literal, target) if bracketed else _parse_v4(literal)
    if address is None:
        if slash:
            raise RuleError(
                f"{target!r} has a prefix length and is not an address",
                "a name covers what is below it with '*.', such as '*.example.com'",
            )
        return None
    length = _parse_prefix(prefix, target, address.max_prefixlen) if slash else None
    return _network(address, length, target)


def check_network(network: IPNetwork, target: str, *, allow_private: bool) -> None:
    """Refuse a network that is too wide or that no rule may open.

    Args:
        network: As `parse_network` returned it.
        target: As written, for the message.
        allow_private: The explicit leave that a metadata address needs.

    Raises:
        RuleError: The reason, by name.
    """
    widest = WIDEST_V4 if isinstance(network, IPv4Network) else WIDEST_V6
    if network.prefixlen < widest:
        raise RuleError(f"network {target!r} is wider than /{widest}", "name smaller networks")
    if network.num_addresses == 1 and network.network_address in METADATA:
        _check_metadata(target, allow_private=allow_private)
        return
    for forbidden, reason in NEVER:
        if _covers(forbidden, network):
            raise RuleError(
                f"{target!r} is {reason}: no rule opens it", "name the server's own address"
            )
    if any(_overlaps(network, carrier) for carrier in TRANSLATED):
        raise RuleError(
            f"{target!r} carries an IPv4 address inside an IPv6 one",
            "write the IPv4 address itself",
        )


def _check_metadata(target: str, *, allow_private: bool) -> None:
    if not allow_private:
        raise RuleError(
            f"{target!r} is a metadata service, which hands out the machine's credentials",
            "to open it all the same, write a table with allow_private = true",
        )


def _parse_v4(literal: str) -> IPv4Address | None:
    try:
        return IPv4Address(literal)
    except AddressValueError:
        return None


def _parse_v6(literal: str, target: str) -> IPv6Address:
    if "%" in literal:
        raise RuleError(f"address {target!r} has a scope", "write a global address")
    try:
        return IPv6Address(literal)
    except AddressValueError as error:
        raise RuleError(
            f"{target!r} is not an IPv6 address",
            "brackets hold an IPv6 address or network, such as '[2001:db8::/32]'",
        ) from error


def _parse_prefix(prefix: str, target: str, longest: int) -> int:
    if not _PREFIX.match(prefix) or int(prefix) > longest:
        raise RuleError(
            f"network {target!r} has the prefix length {prefix!r}",
            f"write a whole number up to {longest}",
        )
    return int(prefix)


def _network(address: IPAddress, length: int | None, target: str) -> IPNetwork:
    network = ip_network((address, address.max_prefixlen if length is None else length), False)
    if network.network_address != address:
        raise RuleError(
            f"network {target!r} has bits set beyond its prefix length",
            f"write '{network}', or '{address}' for the one address",
        )
    return network


def _covers(outer: IPNetwork, inner: IPNetwork) -> bool:
    return _overlaps(outer, inner) and outer.prefixlen <= inner.prefixlen


def _overlaps(one: IPNetwork, other: IPNetwork) -> bool:
    if isinstance(one, IPv4Network) and isinstance(other, IPv4Network):
        return one.overlaps(other)
    if isinstance(one, IPv6Network) and isinstance(other, IPv6Network):
        return one.overlaps(other)
    return False
