"""Write the query that goes upstream and read what comes back, sans-io.

The query is built anew: nothing of the client's message is in it but the name and the type.
A reply counts only when its id and its question, letter case included, are the ones we sent
(draft-vixie-dnsext-dns0x20). Of its records only those of the name itself count, or of the
end of an unbroken CNAME chain that starts there. `dnspython` reads the records; it is imported
late, by `load_reader` or with the first reply, since nothing of it is needed to get ready.
"""

from __future__ import annotations

import importlib
import secrets
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final, Protocol, cast

from sandboxed_mcp.gateway.question import MAX_UDP_ANSWER, NOERROR, NXDOMAIN, A, encode_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    import dns.message
    import dns.name
    import dns.rrset

    from sandboxed_mcp.egress.addresses import IPAddress

__all__ = [
    "MAX_CHAIN",
    "MAX_REPLY",
    "Reply",
    "ReplyError",
    "SentQuery",
    "load_reader",
    "make_query",
    "read_reply",
]

MAX_CHAIN: Final = 8
"""CNAME links that are followed."""

MAX_REPLY: Final = 16 * 1024
"""Bytes of a reply over TCP: about a thousand addresses."""

_READER: Final = (
    "dns.message",
    "dns.rdtypes.ANY.CNAME",
    "dns.rdtypes.ANY.OPT",
    "dns.rdtypes.IN.A",
    "dns.rdtypes.IN.AAAA",
)
_HEADER: Final = struct.Struct("!6H")
_RECURSION_DESIRED: Final = 0x0100
_RESPONSE_AND_OPCODE: Final = 0xF800
_RESPONSE: Final = 0x8000
_TRUNCATED: Final = 0x0200
_CNAME: Final = 5


class ReplyError(Exception):
    """A reply that is ours and cannot be used."""


@dataclass(frozen=True, slots=True)
class SentQuery:
    """A query as it goes upstream.

    Attributes:
        id: Random, 16 bits.
        type: `A` or `AAAA`.
        question: The question section, its letters in random case.
        wire: The whole message.
    """

    id: int
    type: int
    question: bytes
    wire: bytes

    def is_answered_by(self, data: bytes, *, exact_case: bool = True) -> bool:
        """Whether a message is the reply to this very query.

        Args:
            data: A message as received.
            exact_case: Whether the letter case must be ours; only a stream that nobody can
                write to but the resolver may do without.
        """
        if len(data) < _HEADER.size:
            return False
        ident, flags, questions, *_ = _HEADER.unpack_from(data)
        shown = data[_HEADER.size : _HEADER.size + len(self.question)]
        same = shown == self.question if exact_case else shown.lower() == self.question.lower()
        is_reply = flags & _RESPONSE_AND_OPCODE == _RESPONSE
        return same and is_reply and ident == self.id and questions == 1


@dataclass(frozen=True, slots=True)
class Reply:
    """What a resolver said about a name.

    Attributes:
        code: `NOERROR` or `NXDOMAIN`.
        addresses: Of the name, in the reply's order; empty when it has none of that type.
        ttl: Seconds: the shortest on the chain.
        aliases: The targets of the CNAME chain, in order.
        truncated: Whether the reply was cut and must be asked for again over TCP.
    """

    code: int
    addresses: tuple[IPAddress, ...] = ()
    ttl: int = 0
    aliases: tuple[str, ...] = ()
    truncated: bool = False


def load_reader() -> None:
    """Import what `read_reply` needs, so that the first lookup does not wait for it."""
    for name in _READER:
        importlib.import_module(name)


def make_query(name: str, query_type: int) -> SentQuery:
    """Build a query with a random id, random letter case and an EDNS record of our own.

    Args:
        name: Canonical.
        query_type: `A` or `AAAA`.
    """
    ident = secrets.randbits(16)
    question = _randomise_case(encode_name(name)) + struct.pack("!HH", query_type, 1)
    head = _HEADER.pack(ident, _RECURSION_DESIRED, 1, 0, 0, 1)
    opt = struct.pack("!BHHIH", 0, 41, MAX_UDP_ANSWER, 0, 0)
    return SentQuery(ident, query_type, question, head + question + opt)


def read_reply(data: bytes) -> Reply:
    """Read a reply that `SentQuery.is_answered_by` accepted.

    Raises:
        ReplyError: It says that the resolver failed, it is malformed, or its CNAME chain is
            too long, forks or returns to itself.
    """
    import dns.exception  # noqa: PLC0415 - see the module's docstring
    import dns.message  # noqa: PLC0415

    if _HEADER.unpack_from(data)[1] & _TRUNCATED:
        return Reply(NOERROR, truncated=True)
    try:
        message = dns.message.from_wire(data)
    except (dns.exception.DNSException, ValueError) as error:
        raise ReplyError("the resolver's reply is malformed") from error
    if message.rcode() == NXDOMAIN:
        return Reply(NXDOMAIN)
    if message.rcode() != NOERROR:
        raise ReplyError(f"the resolver answered with code {message.rcode()}")
    return _read_chain(message)


class _AddressRecord(Protocol):
    """What is read of dnspython's A and AAAA records, which it leaves untyped."""

    address: str


class _AliasRecord(Protocol):
    """What is read of its CNAME records."""

    target: dns.name.Name


def _read_chain(message: dns.message.Message) -> Reply:
    """Follow the CNAME chain inside the answer section, then take its end's addresses."""
    question = message.question[0]
    names = [question.name]
    ttls: list[int] = []
    while (link := _find(message, names[-1], _CNAME)) is not None:
        names.append(_next_name(link, names))
        ttls.append(link.ttl)
    aliases = tuple(name.to_text(omit_final_dot=True).lower() for name in names[1:])
    found = _find(message, names[-1], question.rdtype)
    if found is None:
        return Reply(NOERROR, aliases=aliases)
    to_address = IPv4Address if question.rdtype == A else IPv6Address
    records = cast("Iterable[_AddressRecord]", found)
    addresses = tuple(to_address(record.address) for record in records)
    return Reply(NOERROR, addresses, min([*ttls, found.ttl]), aliases)


def _next_name(link: dns.rrset.RRset, names: list[dns.name.Name]) -> dns.name.Name:
    if len(link) != 1:
        raise ReplyError("the CNAME chain forks")
    target = cast("_AliasRecord", link[0]).target
    if target in names:
        raise ReplyError("the CNAME chain returns to itself")
    if len(names) > MAX_CHAIN:
        raise ReplyError(f"the CNAME chain has more than {MAX_CHAIN} links")
    return target


def _find(message: dns.message.Message, owner: dns.name.Name, kind: int) -> dns.rrset.RRset | None:
    from dns.rdataclass import IN  # noqa: PLC0415 - see the module's docstring
    from dns.rdatatype import RdataType  # noqa: PLC0415

    return message.get_rrset(message.answer, owner, IN, RdataType(kind))


def _randomise_case(wire: bytes) -> bytes:
    """Flip letters by chance; length bytes are below 64 and so no letters."""
    mask = secrets.randbits(len(wire))
    return bytes(
        byte ^ 0x20 if mask >> index & 1 and chr(byte).isalpha() else byte
        for index, byte in enumerate(wire)
    )
