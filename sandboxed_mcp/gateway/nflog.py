"""Hear of the packets that the ruleset denied: NFLOG datagrams -> `DeniedPacket`.

The kernel gathers packets and would hold them for up to a second; the listener asks for them
after 50 ms. It copies only the head of each packet. Packets that the kernel could not report
are counted by the ruleset all the same (`denied_REASON`).

`parse_packet` is pure. What a packet holds is written by the server: only numbers are taken.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.gateway.netlink import (
    NetlinkSocket,
    Request,
    netfilter_header,
    pack_attribute,
    parse_attributes,
    parse_text,
)

if TYPE_CHECKING:
    from collections import Counter

    from sandboxed_mcp.egress.addresses import IPAddress

__all__ = ["DeniedListener", "DeniedPacket", "parse_packet"]

_ULOG: Final = 4
_PACKET: Final = _ULOG << 8 | 0
_CONFIG: Final = _ULOG << 8 | 1
_CONFIG_COMMAND, _CONFIG_MODE, _CONFIG_TIMEOUT, _CONFIG_THRESHOLD = 1, 2, 4, 5
_BIND: Final = b"\1"
_COPY_PACKET: Final = 2
_HEAD_BYTES: Final = 96
_FLUSH_HUNDREDTHS: Final = 5
_THRESHOLD: Final = 64
_PAYLOAD, _PREFIX = 9, 10

_NAMES: Final = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6"}
_PORTS: Final = frozenset({6, 17, 33, 132, 136})  # TCP, UDP, DCCP, SCTP, UDP-Lite
_EXTENSIONS: Final = frozenset({0, 43, 60})  # RFC 8200: hop-by-hop, routing, destination
_FRAGMENT: Final = 44
_V4_BYTES, _V6_BYTES, _PORTS_BYTES = 20, 40, 4


@dataclass(frozen=True, slots=True)
class DeniedPacket:
    """A packet that was denied.

    Attributes:
        reason: A `Reason` of the ruleset.
        rule: The id of the rule whose bound was reached, for `rate` and `bytes`; else None.
        protocol: `tcp`, `udp`, `icmp`, `icmpv6`, or the protocol's number.
        source: Where it came from.
        source_port: 0 for protocols without ports.
        address: Where it wanted to go.
        port: 0 for protocols without ports.
    """

    reason: str
    rule: str | None
    protocol: str
    source: IPAddress
    source_port: int
    address: IPAddress
    port: int


class DeniedListener:
    """Listens to one NFLOG group; needs NET_ADMIN. Wait on `fileno`, then `receive`."""

    def __init__(self, netlink: NetlinkSocket, group: int) -> None:
        """Bind a socket of its own to the group.

        Raises:
            NetlinkError: The kernel has no NFLOG, or another listener holds the group.
        """
        self._netlink = netlink
        self.missed = 0
        """How many times the kernel had to drop reports since they were read too slowly."""
        mode = pack_attribute(_CONFIG_MODE, struct.pack("!IBB", _HEAD_BYTES, _COPY_PACKET, 0))
        timeout = pack_attribute(_CONFIG_TIMEOUT, struct.pack("!I", _FLUSH_HUNDREDTHS))
        threshold = pack_attribute(_CONFIG_THRESHOLD, struct.pack("!I", _THRESHOLD))
        header = netfilter_header(0, group)
        netlink.transact([Request(_CONFIG, header + pack_attribute(_CONFIG_COMMAND, _BIND))])
        netlink.transact([Request(_CONFIG, header + mode + timeout + threshold)])

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._netlink.fileno()

    def receive(self) -> Counter[DeniedPacket]:
        """Read what is there without waiting, equal packets counted together."""
        from collections import Counter  # noqa: PLC0415 - not needed before the first denial

        try:
            messages = self._netlink.receive()
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self.missed += 1
            return Counter()
        packets = (parse_packet(m.payload) for m in messages if m.kind == _PACKET)
        return Counter(packet for packet in packets if packet is not None)


def parse_packet(payload: bytes) -> DeniedPacket | None:
    """Read the payload of one NFLOG message.

    Returns:
        The packet; None when it is no IP packet, or too short to say where it wanted to go.
    """
    found = parse_attributes(payload[4:])
    head = found.get(_PAYLOAD, b"")
    reason, _, rule = parse_text(found.get(_PREFIX, b"")).partition(":")
    match head[:1] and head[0] >> 4:
        case 4 if len(head) >= _V4_BYTES:
            protocol, rest = head[9], head[(head[0] & 0xF) * 4 :]
            source, address = ip_address(head[12:16]), ip_address(head[16:20])
        case 6 if len(head) >= _V6_BYTES:
            protocol, rest = _skip_extensions(head[6], head[_V6_BYTES:])
            source, address = ip_address(head[8:24]), ip_address(head[24:40])
        case _:
            return None
    has_ports = protocol in _PORTS and len(rest) >= _PORTS_BYTES
    ports = struct.unpack_from("!HH", rest) if has_ports else (0, 0)
    name = _NAMES.get(protocol, str(protocol))
    return DeniedPacket(reason, rule or None, name, source, ports[0], address, ports[1])


def _skip_extensions(protocol: int, rest: bytes) -> tuple[int, bytes]:
    """The upper protocol of an IPv6 packet and its bytes, as far as they were copied."""
    while protocol in _EXTENSIONS and len(rest) > 1:
        protocol, rest = rest[0], rest[(rest[1] + 1) * 8 :]
    if protocol == _FRAGMENT and rest:
        return rest[0], rest[8:]
    return protocol, rest
