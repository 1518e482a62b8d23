"""Open learned addresses in the kernel's sets, and read what the rules counted.

An address counts as open only after the kernel acknowledged it. Adding an element again does
not prolong it before Linux 6.12, so each one is added, deleted and added in one transaction,
which no packet sees half done.

Speaks nf_tables netlink (linux/netfilter/nf_tables.h); never runs `nft`, never changes a rule.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.ruleset_values import TABLE, name_set
from sandboxed_mcp.gateway.netlink import (
    ACK,
    CREATE,
    NetlinkError,
    NetlinkSocket,
    Request,
    netfilter_header,
    pack_attribute,
    pack_nested,
    pack_text,
    parse_attributes,
    parse_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandboxed_mcp.egress.addresses import IPAddress
    from sandboxed_mcp.egress.ruleset_values import Learned

__all__ = ["Count", "LearnedSets", "read_counts"]

_INET: Final = 1  # NFPROTO_INET
_NF_TABLES: Final = 10
_BATCH_BEGIN: Final = 0x10
_BATCH_END: Final = 0x11
_NEW_ELEMENTS: Final = _NF_TABLES << 8 | 12
_DELETE_ELEMENTS: Final = _NF_TABLES << 8 | 14
_GET_OBJECTS: Final = _NF_TABLES << 8 | 19

_LIST_TABLE, _LIST_SET, _LIST_ELEMENTS, _ELEMENT = 1, 2, 3, 1
_ELEMENT_KEY, _ELEMENT_TIMEOUT, _DATA_VALUE = 1, 4, 1
_OBJECT_TABLE, _OBJECT_NAME, _OBJECT_TYPE, _OBJECT_DATA = 1, 2, 3, 4
_COUNTER, _QUOTA = 1, 2
_COUNTER_BYTES, _COUNTER_PACKETS, _QUOTA_CONSUMED = 1, 2, 4

_CHUNK: Final = 256  # elements a message, which holds at most 64 KiB
_FULL: Final = (errno.ENFILE, errno.ENOSPC, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Count:
    """What a counter or quota has seen; a quota does not count packets."""

    packets: int
    bytes: int


class LearnedSets:
    """The sets of learned addresses of the ruleset in force."""

    def __init__(self, netlink: NetlinkSocket) -> None:
        """Use a socket that nothing else uses."""
        self._netlink = netlink

    def open(self, entries: Sequence[Learned]) -> None:
        """Open addresses, or prolong them: all of them or none.

        Raises:
            NetlinkError: ENFILE when a set is full; ENOENT when the ruleset in force has no
                such rule.
        """
        groups: dict[str, dict[IPAddress, int]] = {}
        for entry in entries:
            name = name_set(entry.rule, entry.address.version)
            groups.setdefault(name, {})[entry.address] = entry.seconds
        requests = [
            request for name, addresses in groups.items() for request in _renew(name, addresses)
        ]
        if requests:
            begin = Request(_BATCH_BEGIN, netfilter_header(0, _NF_TABLES), 0)
            end = Request(_BATCH_END, netfilter_header(0, _NF_TABLES), 0)
            self._netlink.transact([begin, *requests, end])

    async def learn(self, entries: Sequence[Learned]) -> frozenset[IPAddress]:
        """Open addresses as far as there is room.

        Returns:
            The addresses of which every entry is in force.

        Raises:
            NetlinkError: The kernel refused for another reason than a full set.
        """
        if self._fits(entries):
            return frozenset(entry.address for entry in entries)
        refused = {entry.address for entry in entries if not self._fits([entry])}
        return frozenset(entry.address for entry in entries) - refused

    def _fits(self, entries: Sequence[Learned]) -> bool:
        try:
            self.open(entries)
        except NetlinkError as error:
            if error.errno not in _FULL:
                raise
            return False
        return True


def read_counts(netlink: NetlinkSocket) -> dict[str, Count]:
    """Read every named counter and quota of our table.

    Returns:
        By name: `RULE_sent`, `RULE_received`, `RULE_bytes` (the quota) and `denied_REASON`.
    """
    ask = netfilter_header(_INET) + pack_text(_OBJECT_TABLE, TABLE)
    counts: dict[str, Count] = {}
    for message in netlink.dump(_GET_OBJECTS, ask):
        found = parse_attributes(message.payload[4:])
        if parse_text(found[_OBJECT_TABLE]) == TABLE:
            count = _parse_count(found)
            if count is not None:
                counts[parse_text(found[_OBJECT_NAME])] = count
    return counts


def _parse_count(found: dict[int, bytes]) -> Count | None:
    kind = int.from_bytes(found[_OBJECT_TYPE], "big")
    data = parse_attributes(found.get(_OBJECT_DATA, b""))
    if kind == _COUNTER:
        return Count(_number(data, _COUNTER_PACKETS), _number(data, _COUNTER_BYTES))
    return Count(0, _number(data, _QUOTA_CONSUMED)) if kind == _QUOTA else None


def _number(data: dict[int, bytes], kind: int) -> int:
    return int.from_bytes(data.get(kind, b""), "big")


def _renew(name: str, addresses: dict[IPAddress, int]) -> list[Request]:
    """Add, delete, add: only then is an element's time counted anew."""
    items = list(addresses.items())
    requests: list[Request] = []
    for start in range(0, len(items), _CHUNK):
        payload = _pack_elements(name, items[start : start + _CHUNK])
        add = Request(_NEW_ELEMENTS, payload, ACK | CREATE)
        requests += [add, Request(_DELETE_ELEMENTS, payload, ACK), add]
    return requests


def _pack_elements(name: str, items: list[tuple[IPAddress, int]]) -> bytes:
    return (
        netfilter_header(_INET)
        + pack_text(_LIST_TABLE, TABLE)
        + pack_text(_LIST_SET, name)
        + pack_nested(_LIST_ELEMENTS, *(_pack_element(*item) for item in items))
    )


def _pack_element(address: IPAddress, seconds: int) -> bytes:
    key = pack_nested(_ELEMENT_KEY, pack_attribute(_DATA_VALUE, address.packed))
    timeout = pack_attribute(_ELEMENT_TIMEOUT, struct.pack("!Q", seconds * 1000))
    return pack_nested(_ELEMENT, key, timeout)
