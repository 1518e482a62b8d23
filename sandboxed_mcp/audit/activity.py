"""What a sandbox wanted and got on the network, summed up by destination. Pure.

`Activity` takes events as the audit log has them (`schema` describes each) and keeps a bounded
table. The texts in it are the server's choice: whoever shows them sanitizes them first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LOOKUP", "MAX_PLACES", "Activity", "Place", "Traffic"]

MAX_PLACES: Final = 2048
"""A server can ask for any number of names; what comes after that many is only counted."""

LOOKUP: Final = "dns"
"""The protocol of a place that stands for looking a name up."""

MAX_ADDRESSES: Final = 8
LATEST: Final = 253_370_764_800.0
"""The year 9999; what is later is no time."""

_NAMELESS: Final = frozenset(
    {
        "not tls",
        "sslv2 hello",
        "no server name",
        "several server names",
        "server name is malformed",
        "server name is an address",
        "client hello too long",
        "client hello did not arrive",
    }
)
"""Why a connection has no TLS name that could be verified, as the gateway words it."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A destination.

    Attributes:
        host: The name, or the address when no name is known.
        port: 1 to 65535; 0 for a lookup, and where the protocol has none.
        protocol: `tcp`, `udp`, `dns` for a lookup, or another one's name or number.
    """

    host: str
    port: int
    protocol: str


@dataclass(slots=True)
class Traffic:
    """What happened with a destination.

    Attributes:
        allowed: Lookups or connections that were let through.
        ended: Connections that have ended.
        denied: Lookups, connections or packets that were not let through.
        sent: Bytes from the server, of connections that have ended.
        received: Bytes to the server, of connections that have ended.
        reason: Why the last one was denied.
        named: Connections that showed their TLS server name.
        nameless: Connections that could not be verified: no TLS, or no server name in it.
        rules: Ids of the rules that let it through.
        kinds: Types of the records that were looked up.
        addresses: Addresses it had, the first eight.
        private: Addresses of a name that were refused for what they are.
        first: When it first happened, seconds since the Unix epoch.
        last: When it last happened.
    """

    allowed: int = 0
    ended: int = 0
    denied: int = 0
    sent: int = 0
    received: int = 0
    reason: str = ""
    named: int = 0
    nameless: int = 0
    rules: set[str] = field(default_factory=set[str])
    kinds: set[str] = field(default_factory=set[str])
    addresses: list[str] = field(default_factory=list[str])
    private: list[str] = field(default_factory=list[str])
    first: float = 0.0
    last: float = 0.0

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return max(0, self.allowed - self.ended)


class Activity:
    """The table.

    Attributes:
        places: What happened, by destination, in the order of their first event.
        left_out: Events about destinations for which there was no room.
        suppressed: Events that the gateway only counted, since there were too many.
    """

    def __init__(self) -> None:
        self.places: dict[Place, Traffic] = {}
        self.left_out = 0
        self.suppressed = 0

    def take(self, event: Mapping[str, object]) -> None:
        """Takes an event; those that are not about destinations change nothing."""
        match event.get("event"):
            case "dns":
                self._take_lookup(event)
            case "connect":
                self._take_connection(event)
            case "close":
                self._take_end(event)
            case "deny":
                self._take_denial(event)
            case "suppressed":
                self.suppressed += _count(event)
            case _:
                return

    def _take_lookup(self, event: Mapping[str, object]) -> None:
        traffic = self._find(Place(_text(event, "name"), 0, LOOKUP), event)
        if traffic is None:
            return
        traffic.allowed += _count(event)
        traffic.kinds.add(_text(event, "query_type"))
        traffic.rules.update(_texts(event, "rules"))
        for address in _texts(event, "addresses"):
            _keep(traffic.addresses, address)

    def _take_connection(self, event: Mapping[str, object]) -> None:
        traffic = self._find(_place(event), event)
        if traffic is None:
            return
        traffic.allowed += _count(event)
        traffic.rules.add(_text(event, "rule"))
        _keep(traffic.addresses, _text(event, "address"))

    def _take_end(self, event: Mapping[str, object]) -> None:
        traffic = self._find(_place(event), event)
        if traffic is None:
            return
        traffic.ended += 1
        traffic.rules.add(_text(event, "rule"))
        traffic.sent += _number(event, "sent")
        traffic.received += _number(event, "received")

    def _take_denial(self, event: Mapping[str, object]) -> None:
        layer, count, reason = _text(event, "layer"), _count(event), _text(event, "reason")
        is_lookup = layer == LOOKUP
        place = Place(_text(event, "name"), 0, LOOKUP) if is_lookup else _place(event)
        traffic = self._find(place, event)
        if traffic is None:
            return
        traffic.denied += count
        traffic.reason = reason
        address = _text(event, "address")
        _keep(traffic.private if is_lookup else traffic.addresses, address)
        if is_lookup:
            traffic.kinds.add(_text(event, "query_type"))
        elif layer == "tls":
            traffic.nameless += count * (reason in _NAMELESS)
            traffic.named += count * (reason not in _NAMELESS)

    def _find(self, place: Place, event: Mapping[str, object]) -> Traffic | None:
        traffic = self.places.get(place)
        time = event.get("time")
        now = float(time) if isinstance(time, int | float) and abs(time) < LATEST else 0.0
        if traffic is None:
            if len(self.places) >= MAX_PLACES:
                self.left_out += 1
                return None
            traffic = self.places[place] = Traffic(first=now)
        traffic.last = max(traffic.last, now)
        return traffic


def _place(event: Mapping[str, object]) -> Place:
    host = _text(event, "name") or _text(event, "address")
    return Place(host, _number(event, "port"), _text(event, "protocol") or "tcp")


def _keep(addresses: list[str], address: str) -> None:
    if address and address not in addresses and len(addresses) < MAX_ADDRESSES:
        addresses.append(address)


def _text(event: Mapping[str, object], key: str) -> str:
    value = event.get(key)
    return value if isinstance(value, str) else ""


def _texts(event: Mapping[str, object], key: str) -> list[str]:
    value = event.get(key)
    items = cast("list[object]", list(value)) if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownArgumentType]
    return [item for item in items if isinstance(item, str)]


def _number(event: Mapping[str, object], key: str) -> int:
    value = event.get(key)
    return value if isinstance(value, int) and value >= 0 else 0


def _count(event: Mapping[str, object]) -> int:
    return _number(event, "count") or 1
