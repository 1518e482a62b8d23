"""Sink addresses for observing: each name gets one of its own, so that a packet tells the name.

The addresses are from TEST-NET-1 (RFC 5737), which is routed nowhere; the ruleset lets nothing
out anyway. This module never opens an address.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandboxed_mcp.egress.addresses import IPAddress

__all__ = ["SINK_NETWORK", "Sinks"]

SINK_NETWORK: Final = IPv4Network("192.0.2.0/24")

_ADDRESSES: Final = tuple(SINK_NETWORK.hosts())


class Sinks:
    """Allots sink addresses; when all are taken, the name that was asked longest ago loses its."""

    def __init__(self, forget: Callable[[str], None]) -> None:
        """Start with none allotted; `forget` is told of a name that loses its address."""
        self._forget = forget
        self._by_name: dict[str, IPAddress] = {}

    def allot(self, name: str) -> IPAddress:
        """The sink address of a name."""
        sink = self._by_name.pop(name, None)
        if sink is None:
            sink = self._next()
        self._by_name[name] = sink
        return sink

    def _next(self) -> IPAddress:
        if len(self._by_name) < len(_ADDRESSES):
            return _ADDRESSES[len(self._by_name)]
        oldest = next(iter(self._by_name))
        self._forget(oldest)
        return self._by_name.pop(oldest)
