"""An upstream DNS server of the simulated internet: answers from a table, and counts.

A name that is not in the table does not exist. For bad behaviour give `Zone.answer` a function
of your own: it returns the bytes to send, or None to be silent.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

from tests.lab.servers import open_listener, open_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from tests.lab.netns import Namespace

__all__ = ["Asked", "Zone", "open_dns"]

_POLL = 0.05


@dataclass(frozen=True)
class Asked:
    """A query that arrived; `wire` is the whole message."""

    name: str
    kind: str
    protocol: str
    source_port: int
    wire: bytes


@dataclass
class Zone:
    """What the server knows, and what it was asked.

    Attributes:
        records: `(name, type)` -> record data, as in a zone file; `CNAME` is followed.
        ttl: Of every record.
        asked: The queries, in order.
        answer: Makes the reply; a test may put its own in place.
    """

    records: dict[tuple[str, str], list[str]] = field(
        default_factory=dict[tuple[str, str], list[str]]
    )
    ttl: int = 300
    asked: list[Asked] = field(default_factory=list[Asked])
    answer: Callable[[dns.message.Message, str], bytes | None] | None = None

    def add(self, name: str, *addresses: str) -> None:
        """Give a name addresses, IPv4 and IPv6."""
        for address in addresses:
            kind = "AAAA" if ":" in address else "A"
            self.records.setdefault((name, kind), []).append(address)

    def names(self) -> list[str]:
        """The names that were asked for, lower case, without the last dot."""
        return [each.name for each in self.asked]

    def reply(self, wire: bytes, protocol: str, source_port: int) -> bytes | None:
        """Answer one message."""
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked.append(Asked(name, kind, protocol, source_port, wire))
        if self.answer is not None:
            return self.answer(query, protocol)
        return self.build(query).to_wire()

    def build(self, query: dns.message.Message) -> dns.message.Message:
        """The honest reply to a query."""
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        question = query.question[0]
        owner = question.name
        kind = dns.rdatatype.to_text(question.rdtype)
        for _ in range(32):
            name = owner.to_text(omit_final_dot=True).lower()
            alias = self.records.get((name, "CNAME"))
            if not alias:
                break
            response.answer.append(dns.rrset.from_text(owner, self.ttl, "IN", "CNAME", alias[0]))
            owner = dns.name.from_text(alias[0])
        name = owner.to_text(omit_final_dot=True).lower()
        data: Sequence[str] = self.records.get((name, kind), ())
        if data:
            response.answer.append(dns.rrset.from_text_list(owner, self.ttl, "IN", kind, data))
        elif not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response


@contextlib.contextmanager
def open_dns(
    namespace: Namespace, address: str, zone: Zone | None = None, port: int = 53
) -> Generator[Zone, None, None]:
    """Serve a zone by UDP and TCP until the end."""
    zone = zone or Zone()
    with contextlib.ExitStack() as stack:
        datagrams = stack.enter_context(open_listener(namespace, "udp", address, port))
        streams = stack.enter_context(open_listener(namespace, "tcp", address, port))
        for listener in (datagrams, streams):
            listener.settimeout(_POLL)
        stack.enter_context(open_loop(lambda: _serve_datagram(datagrams, zone), "dns-udp"))
        stack.enter_context(open_loop(lambda: _serve_stream(streams, zone), "dns-tcp"))
        yield zone


def _serve_datagram(listener: socket.socket, zone: Zone) -> None:
    with contextlib.suppress(TimeoutError, dns.message.ShortHeader):
        wire, peer = listener.recvfrom(65536)
        reply = zone.reply(wire, "udp", peer[1])
        if reply is not None:
            listener.sendto(reply, peer)


def _serve_stream(listener: socket.socket, zone: Zone) -> None:
    with contextlib.suppress(TimeoutError, ConnectionError, struct.error):
        connection, peer = listener.accept()
        with connection:
            connection.settimeout(2)
            (size,) = struct.unpack("!H", connection.recv(2, socket.MSG_WAITALL))
            reply = zone.reply(connection.recv(size, socket.MSG_WAITALL), "tcp", peer[1])
            if reply is not None:
                connection.sendall(struct.pack("!H", len(reply)) + reply)
