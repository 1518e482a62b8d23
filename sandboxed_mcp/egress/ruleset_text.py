"""The words of a ruleset: blocks and matches in the syntax of nft(8). Pure strings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandboxed_mcp.egress.ruleset_values import Gateway
    from sandboxed_mcp.egress.values import PortRange, Protocol

__all__ = ["block", "either_version", "hexadecimal", "match_gateway", "match_ports"]


def block(head: str, body: Iterable[str]) -> list[str]:
    """Wrap lines in braces; the closing one stands alone, as nft 1.0.6 needs it."""
    return [f"{head} {{", *(f"  {line}" for line in body), "}"]


def either_version(template: str) -> list[str]:
    """Write a line once for IPv4 and once for IPv6.

    Args:
        template: Text in which `{ip}` stands for the header and `{version}` for 4 or 6.
    """
    return [
        template.replace("{ip}", header).replace("{version}", version)
        for header, version in (("ip", "4"), ("ip6", "6"))
    ]


def hexadecimal(mark: int) -> str:
    """A mark as nft shows it."""
    return f"{mark:#010x}"


def match_gateway(gateway: Gateway) -> str:
    """The match for a packet of the gateway's own sockets: mark and user together."""
    return f"meta mark {hexadecimal(gateway.mark)} meta skuid {gateway.uid}"


def match_ports(protocol: Protocol, ports: PortRange) -> str:
    """The match for destination ports of a protocol."""
    return f"{protocol} dport {ports}"
