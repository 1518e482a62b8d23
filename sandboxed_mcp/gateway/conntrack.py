"""The flows of the sandbox: what is open, what closed with how many bytes, ending some.

Speaks ctnetlink (linux/netfilter/nfnetlink_conntrack.h) in the namespace of the caller. Only
flows that a rule let out have a connection mark; the others (loopback, both halves that a
redirect made) are passed over. Byte counts need the ruleset's `ct bytes` or the sysctl
nf_conntrack_acct, and exist for flows that began after it.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Literal

from sandboxed_mcp.egress.ruleset_values import split_ct_mark
from sandboxed_mcp.gateway.netlink import (
    ACK,
    EXCLUSIVE,
    Message,
    NetlinkError,
    NetlinkSocket,
    Request,
    netfilter_header,
    pack_attribute,
    pack_nested,
    parse_attributes,
)

if TYPE_CHECKING:
    from sandboxed_mcp.egress.addresses import IPAddress

__all__ = [
    "FLOW_GROUPS",
    "Flow",
    "FlowEvent",
    "FlowListener",
    "end_flow",
    "list_flows",
    "read_flow",
]

MAX_FLOWS: Final = 8192
"""Open flows that a listener keeps account of; of more it tells the beginning alone."""

FLOW_GROUPS: Final = (1, 3)
"""Multicast groups of the listener's socket: flows that begin, flows that end."""

_CTNETLINK: Final = 1
_NEW: Final = _CTNETLINK << 8 | 0
_GET: Final = _CTNETLINK << 8 | 1
_DELETE: Final = _CTNETLINK << 8 | 2

_TUPLE_ORIGINAL, _MARK, _COUNTERS_ORIGINAL, _COUNTERS_REPLY, _ID = 1, 8, 9, 10, 12
_TUPLE_IP, _TUPLE_PROTOCOL = 1, 2
_PROTOCOL_NUMBER, _SOURCE_PORT, _PORT = 1, 2, 3
_BYTES: Final = 2
_PROTOCOL_INFO, _INFO_TCP, _TCP_STATE = 4, 1, 1
_OVER: Final = (7, 8)  # TIME_WAIT, CLOSE
_NAMES: Final[dict[int, Literal["tcp", "udp"]]] = {6: "tcp", 17: "udp"}
_NUMBERS: Final = {name: number for number, name in _NAMES.items()}


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow that a rule let out.

    Attributes:
        protocol: `tcp` or `udp`.
        source: The sandbox's address.
        source_port: Its port.
        address: The other side.
        port: The other side's port.
        generation: Of the ruleset that let it out.
        slot: Which rule did; 0 is a question of the gateway's resolver.
        id: The kernel's number for it, unique while it lives.
        sent: Bytes that left, IP headers included.
        received: Bytes that came back.
        over: Whether both sides of a TCP connection have ended it, or one has reset it.
    """

    protocol: Literal["tcp", "udp"]
    source: IPAddress
    source_port: int
    address: IPAddress
    port: int
    generation: int
    slot: int
    id: int
    sent: int = 0
    received: int = 0
    over: bool = False


@dataclass(frozen=True, slots=True)
class FlowEvent:
    """A flow began or ended; bytes are known at the end only."""

    kind: Literal["opened", "closed"]
    flow: Flow


class FlowListener:
    """Hears of flows that begin and end; needs NET_ADMIN. Wait on `fileno`, then `receive`.

    By itself the kernel tells of an end late: a finished TCP connection lingers for two
    minutes, and what has run out is swept up to a minute later. `poll` every second or two
    tells of it then: it looks at each open flow, which takes microseconds.
    """

    def __init__(self, netlink: NetlinkSocket) -> None:
        """Use a socket of its own that joined `FLOW_GROUPS`."""
        self._netlink = netlink
        self._open: dict[int, Flow] = {}
        self._gone: set[int] = set()
        self.missed = 0
        """How many times the kernel had to drop events since they were read too slowly."""

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._netlink.fileno()

    def receive(self) -> list[FlowEvent]:
        """Read what is there without waiting."""
        try:
            messages = self._netlink.receive()
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self.missed += 1
            return []
        events = (_parse_event(message) for message in messages)
        return [event for event in events if event is not None and self._note(event)]

    def poll(self, requests: NetlinkSocket) -> list[FlowEvent]:
        """Look for flows that have ended and were not heard of.

        Args:
            requests: Another socket than the listener's.

        Raises:
            NetlinkError: The kernel refused.
        """
        return [event for flow in list(self._open.values()) for event in self._look(requests, flow)]

    def _note(self, event: FlowEvent) -> bool:
        """Keep account of what is open; whether the event is news."""
        flow = event.flow
        if event.kind == "closed":
            self._gone.discard(flow.id)
            return self._open.pop(flow.id, None) is not None
        if len(self._open) < MAX_FLOWS:
            self._open[flow.id] = flow
        return True

    def _look(self, requests: NetlinkSocket, flow: Flow) -> list[FlowEvent]:
        """The end of a flow, if it has ended; one that is gone is told at the second look."""
        found = read_flow(requests, flow)
        if found is None and flow.id not in self._gone:
            self._gone.add(flow.id)  # looking made the kernel tell: the event is on its way
            return []
        if found is not None and not found.over:
            self._open[flow.id] = found
            return []
        event = FlowEvent("closed", found or flow)
        self._note(event)
        return [event]


def read_flow(netlink: NetlinkSocket, flow: Flow) -> Flow | None:
    """Read a flow as it is now; None when it is gone.

    Raises:
        NetlinkError: The kernel refused.
    """
    try:
        found = _parse_flow(netlink.ask(_GET, _pack_flow(flow)).payload)
    except NetlinkError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return found if found is not None and found.id == flow.id else None


def list_flows(netlink: NetlinkSocket) -> list[Flow]:
    """List the open flows that a rule let out, IPv4 and IPv6."""
    messages = netlink.dump(_GET, netfilter_header(0))
    flows = (_parse_flow(message.payload) for message in messages)
    return [flow for flow in flows if flow is not None]


def end_flow(netlink: NetlinkSocket, flow: Flow) -> bool:
    """Forget a flow: what still comes in for it is dropped, what goes out is judged anew.

    Returns:
        Whether it was still there.

    Raises:
        NetlinkError: The kernel refused.
    """
    payload = _pack_flow(flow) + pack_attribute(_ID, struct.pack("!I", flow.id))
    try:
        netlink.transact([Request(_DELETE, payload, ACK)])
    except NetlinkError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    return True


@dataclass(frozen=True, slots=True)
class _Key:
    family: int
    source: int
    address: int


_TUPLE_V4: Final = _Key(2, 1, 2)
_TUPLE_V6: Final = _Key(10, 3, 4)


def _pack_flow(flow: Flow) -> bytes:
    key = _TUPLE_V4 if flow.address.version == 4 else _TUPLE_V6  # noqa: PLR2004 - IP version
    ends = pack_nested(_TUPLE_ORIGINAL, _pack_addresses(key, flow), _pack_ports(flow))
    return netfilter_header(key.family) + ends


def _pack_addresses(key: _Key, flow: Flow) -> bytes:
    return pack_nested(
        _TUPLE_IP,
        pack_attribute(key.source, flow.source.packed),
        pack_attribute(key.address, flow.address.packed),
    )


def _pack_ports(flow: Flow) -> bytes:
    return pack_nested(
        _TUPLE_PROTOCOL,
        pack_attribute(_PROTOCOL_NUMBER, bytes([_NUMBERS[flow.protocol]])),
        pack_attribute(_SOURCE_PORT, struct.pack("!H", flow.source_port)),
        pack_attribute(_PORT, struct.pack("!H", flow.port)),
    )


def _parse_event(message: Message) -> FlowEvent | None:
    flow = _parse_flow(message.payload)
    if flow is None:
        return None
    if message.kind == _DELETE:
        return FlowEvent("closed", flow)
    return FlowEvent("opened", flow) if message.flags & EXCLUSIVE else None


def _parse_flow(payload: bytes) -> Flow | None:
    """The flow; None when no rule let it out, or when it is neither TCP nor UDP."""
    found = parse_attributes(payload[4:])
    mark = int.from_bytes(found.get(_MARK, b""), "big")
    parts = parse_attributes(found.get(_TUPLE_ORIGINAL, b""))
    addresses = parse_attributes(parts.get(_TUPLE_IP, b""))
    ports = parse_attributes(parts.get(_TUPLE_PROTOCOL, b""))
    protocol = _NAMES.get(int.from_bytes(ports.get(_PROTOCOL_NUMBER, b""), "big"))
    key = _TUPLE_V4 if _TUPLE_V4.address in addresses else _TUPLE_V6
    if not mark or protocol is None or key.address not in addresses:
        return None
    generation, slot = split_ct_mark(mark)
    flow = Flow(
        protocol=protocol,
        source=ip_address(addresses[key.source]),
        source_port=int.from_bytes(ports[_SOURCE_PORT], "big"),
        address=ip_address(addresses[key.address]),
        port=int.from_bytes(ports[_PORT], "big"),
        generation=generation,
        slot=slot,
        id=int.from_bytes(found.get(_ID, b""), "big"),
    )
    sent, received = found.get(_COUNTERS_ORIGINAL), found.get(_COUNTERS_REPLY)
    over = _read_tcp_state(found) in _OVER
    return replace(flow, sent=_read_bytes(sent), received=_read_bytes(received), over=over)


def _read_tcp_state(found: dict[int, bytes]) -> int:
    tcp = parse_attributes(found.get(_PROTOCOL_INFO, b"")).get(_INFO_TCP, b"")
    return int.from_bytes(parse_attributes(tcp).get(_TCP_STATE, b""), "big")


def _read_bytes(counters: bytes | None) -> int:
    return int.from_bytes(parse_attributes(counters or b"").get(_BYTES, b""), "big")
