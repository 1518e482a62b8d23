"""Read a DNS query and write its answer (RFC 1035, RFC 6891), sans-io.

The server's queries are hostile input, so only one shape is read: one question, no answers, at
most one OPT record, nothing behind it, no compression. Everything else has a response code.
Answers hold the question as it was asked and addresses of that very name: no aliases, no
other sections, no options. This module never opens a socket and never decides about a name.
"""

# ruff: noqa: PLR2004 - the numbers are the widths and bounds of fields on the wire

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AAAA",
    "BADVERS",
    "FORMERR",
    "MAX_UDP_ANSWER",
    "NOERROR",
    "NOTIMP",
    "NXDOMAIN",
    "SERVFAIL",
    "A",
    "Malformed",
    "Query",
    "encode_name",
    "parse_query",
    "render_answer",
    "render_failure",
    "type_name",
]

NOERROR: Final = 0
FORMERR: Final = 1
SERVFAIL: Final = 2
NXDOMAIN: Final = 3
NOTIMP: Final = 4
BADVERS: Final = 16

A: Final = 1
AAAA: Final = 28

MAX_UDP_ANSWER: Final = 1232
"""What we send and accept over UDP (DNS flag day 2020), whatever the other side offers."""

_IN: Final = 1
_OPT: Final = 41
_PLAIN_UDP: Final = 512
_TRANSFERS: Final = range(249, 255)  # TKEY, TSIG, IXFR, AXFR, MAILB, MAILA
_TYPE_NAMES: Final = {
    1: "A",
    2: "NS",
    5: "CNAME",
    6: "SOA",
    10: "NULL",
    12: "PTR",
    15: "MX",
    16: "TXT",
    28: "AAAA",
    33: "SRV",
    64: "SVCB",
    65: "HTTPS",
    252: "AXFR",
    255: "ANY",
}

_HEADER: Final = struct.Struct("!6H")
_RESPONSE: Final = 0x8000
_TRUNCATED: Final = 0x0200
_RECURSION_DESIRED: Final = 0x0100
_RECURSION_AVAILABLE: Final = 0x0080


@dataclass(frozen=True, slots=True)
class Query:
    """A question of class IN.

    Attributes:
        id: As the client chose it.
        name: Lower-case, without the trailing dot; the root is the empty string.
        type: The query type, such as `A`.
        question: The question section as received, echoed in the answer.
        recursion_desired: The client's RD flag, echoed.
        edns_size: The client's UDP payload size; None without EDNS.
    """

    id: int
    name: str
    type: int
    question: bytes
    recursion_desired: bool = True
    edns_size: int | None = None

    @property
    def udp_limit(self) -> int:
        """The most bytes that an answer over UDP may have."""
        if self.edns_size is None:
            return _PLAIN_UDP
        return min(max(self.edns_size, _PLAIN_UDP), MAX_UDP_ANSWER)


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that is no such question.

    Attributes:
        id: As received.
        code: The response code: `FORMERR`, `NOTIMP` or `BADVERS`.
        reason: Why, a few words.
        question: The question section, where it could be read; echoed in the answer.
    """

    id: int
    code: int
    reason: str
    question: bytes = b""


class _FormatError(Exception):
    """The bytes do not have the shape of a query."""


def parse_query(data: bytes) -> Query | Malformed | None:
    """Read one message.

    Returns:
        None for what must not be answered at all: a response, or less than a header.
    """
    if len(data) < _HEADER.size:
        return None
    ident, flags, *counts = _HEADER.unpack_from(data)
    if flags & _RESPONSE:
        return None
    if flags >> 11 & 15:
        return Malformed(ident, NOTIMP, "opcode is not QUERY")
    if counts[0] != 1 or counts[1] or counts[2] or counts[3] > 1:
        return Malformed(ident, FORMERR, "not exactly one question")
    try:
        return _parse_sections(data, ident, flags, additional=counts[3])
    except _FormatError as error:
        return Malformed(ident, FORMERR, str(error))


def render_answer(
    query: Query,
    code: int,
    addresses: Sequence[bytes] = (),
    *,
    ttl: int = 0,
    limit: int = 65535,
) -> bytes:
    """Write the answer to a query.

    Args:
        query: What was asked.
        code: The response code, below 16.
        addresses: Packed addresses of the query's type.
        ttl: Seconds.
        limit: The most bytes; what does not fit is left out and the message marked truncated.
    """
    size = 12 + len(query.question) + (11 if query.edns_size is not None else 0)
    record_size = 12 + (len(addresses[0]) if addresses else 0)
    shown = addresses[: max(0, limit - size) // record_size]
    flags = _RESPONSE | _RECURSION_AVAILABLE | code
    flags |= _RECURSION_DESIRED if query.recursion_desired else 0
    flags |= _TRUNCATED if len(shown) < len(addresses) else 0
    additional = 0 if query.edns_size is None else 1
    head = _HEADER.pack(query.id, flags, 1, len(shown), 0, additional)
    records = [
        struct.pack("!3HIH", 0xC00C, query.type, _IN, ttl, len(each)) + each for each in shown
    ]
    opt = _render_opt(0) if additional else b""
    return b"".join((head, query.question, *records, opt))


def render_failure(message: Malformed) -> bytes:
    """Write the answer to a message that is no question we answer."""
    flags = _RESPONSE | _RECURSION_AVAILABLE | message.code & 15
    extended = message.code >> 4
    counts = (1 if message.question else 0, 0, 0, 1 if extended else 0)
    head = _HEADER.pack(message.id, flags, *counts)
    return head + message.question + (_render_opt(extended) if extended else b"")


def encode_name(name: str) -> bytes:
    """Write a canonical name in wire form, without compression."""
    labels = [label.encode("ascii") for label in name.split(".")] if name else []
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


def type_name(number: int) -> str:
    """The mnemonic of a query type, or `TYPE123` (RFC 3597)."""
    return _TYPE_NAMES.get(number, f"TYPE{number}")


def _parse_sections(data: bytes, ident: int, flags: int, *, additional: int) -> Query | Malformed:
    name, end = _parse_name(data, _HEADER.size)
    if len(data) < end + 4:
        raise _FormatError("question is cut off")
    kind, rdclass = struct.unpack_from("!HH", data, end)
    end += 4
    question = data[_HEADER.size : end]
    edns_size = None
    if additional:
        edns_size, version, end = _parse_opt(data, end)
        if version:
            return Malformed(ident, BADVERS, "EDNS version is not 0", question)
    if end != len(data):
        raise _FormatError("bytes behind the message")
    if rdclass != _IN:
        return Malformed(ident, NOTIMP, "class is not IN", question)
    if kind in _TRANSFERS:
        return Malformed(ident, NOTIMP, "transfers are not served", question)
    recursion = bool(flags & _RECURSION_DESIRED)
    return Query(ident, name, kind, question, recursion, edns_size)


def _parse_name(data: bytes, at: int) -> tuple[str, int]:
    """Read a name without compression; a label may hold visible ASCII, no dot, no backslash."""
    labels: list[str] = []
    start = at
    while True:
        if at >= len(data):
            raise _FormatError("name is cut off")
        length = data[at]
        label = data[at + 1 : at + 1 + length]
        at += 1 + length
        if length > 63:
            raise _FormatError("label is compressed or too long")
        if at - start > 255:
            raise _FormatError("name is too long")
        if not length:
            return ".".join(labels), at
        if len(label) < length or not _plain(label):
            raise _FormatError("label holds a character that no host name has")
        labels.append(label.decode("ascii").lower())


def _plain(label: bytes) -> bool:
    return all(0x21 <= byte <= 0x7E for byte in label) and not set(b".\\") & set(label)


def _parse_opt(data: bytes, at: int) -> tuple[int, int, int]:
    """Read an OPT record; returns payload size, version and where it ends. Options are skipped."""
    if len(data) < at + 11 or data[at]:
        raise _FormatError("additional record is not OPT")
    kind, size, _extended, version, _flags, length = struct.unpack_from("!HHBBHH", data, at + 1)
    if kind != _OPT:
        raise _FormatError("additional record is not OPT")
    if len(data) < at + 11 + length:
        raise _FormatError("OPT record is cut off")
    return size, version, at + 11 + length


def _render_opt(extended: int) -> bytes:
    """Write our OPT record: our size, version 0, no flags, no options."""
    return struct.pack("!BHHBBHH", 0, _OPT, MAX_UDP_ANSWER, extended, 0, 0, 0)
