"""Read the server name out of a TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3), sans-io.

Bytes in, an outcome out, at the earliest byte that decides it; how the bytes were split over
segments and records makes no difference. What a server might read in another way than this
parser does (a name twice, an extension twice, bytes after the hello in its record) is refused.
This module never opens a socket, never answers a handshake and never decides about a name.
"""

# ruff: noqa: PLR2004 - the numbers are the widths and bounds of fields on the wire

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from sandboxed_mcp.egress.names import canonical_name, ends_in_number
from sandboxed_mcp.egress.values import RuleError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ACCESS_DENIED",
    "MAX_CLIENT_HELLO",
    "UNRECOGNIZED_NAME",
    "ClientHelloReader",
    "Incomplete",
    "Outcome",
    "Refused",
    "RefusedReason",
    "ServerName",
    "render_alert",
]

MAX_CLIENT_HELLO: Final = 16 * 1024
"""Bytes of a connection that may pass before its ClientHello is complete."""

ACCESS_DENIED: Final = 49
UNRECOGNIZED_NAME: Final = 112

RefusedReason = Literal[
    "not tls",
    "sslv2 hello",
    "malformed client hello",
    "client hello too long",
    "no server name",
    "several server names",
    "server name is an address",
    "server name is malformed",
]

_MALFORMED: Final = "malformed client hello"
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_MAX_RECORD: Final = 1 << 14
_EXTENSION_SERVER_NAME: Final = 0
_EXTENSION_ECH: Final = 0xFE0D
_HOST_NAME: Final = 0


@dataclass(frozen=True, slots=True)
class Incomplete:
    """More bytes are needed."""


@dataclass(frozen=True, slots=True)
class ServerName:
    """The hello is complete and names one server.

    Attributes:
        name: In canonical form: lower-case, no trailing dot.
        ech: Whether an encrypted client hello is present (RFC 9849). The name is then the
            outer one; clients also send the extension as grease, so it proves nothing.
    """

    name: str
    ech: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The bytes are not a hello that names one server.

    Attributes:
        reason: Why, as the audit log words it.
        is_tls: Whether the other side spoke TLS, so that an alert means something to it.
    """

    reason: RefusedReason
    is_tls: bool = True


Outcome = Incomplete | ServerName | Refused

_INCOMPLETE: Final = Incomplete()


class _MalformedError(Exception):
    """A length does not fit, or a value is none that the standard allows."""


class ClientHelloReader:
    """Collects the first bytes of a connection until its ClientHello is decided.

    Attributes:
        received: Every byte given so far, to be forwarded once the name is accepted.
        outcome: The latest outcome; final once it is not `Incomplete`.
    """

    def __init__(self) -> None:
        """Start with nothing received."""
        self.received = bytearray()
        self.outcome: Outcome = _INCOMPLETE
        self._handshake = bytearray()
        self._record_start = 0

    def receive(self, data: bytes) -> Outcome:
        """Take the next bytes; after a final outcome they are only kept.

        Returns:
            `Incomplete`, `ServerName` or `Refused`: the outcome so far.
        """
        self.received += data
        if self.outcome is _INCOMPLETE:
            self.outcome = self._read_records()
        return self.outcome

    def _read_records(self) -> Outcome:
        """Move each complete record to the handshake until that is complete or cannot be."""
        unread = bytes(self.received[self._record_start : MAX_CLIENT_HELLO])
        try:
            while (payload := _next_record(unread)) is not None:
                unread = unread[5 + len(payload) :]
                self._record_start += 5 + len(payload)
                self._handshake += payload
                hello = _take_client_hello(self._handshake)
                if hello is not None:
                    return _read_hello(hello)
        except _MalformedError:
            return _refuse_first(unread) if not self._record_start else Refused(_MALFORMED)
        if len(self.received) >= MAX_CLIENT_HELLO:
            return Refused("client hello too long")
        return _INCOMPLETE


def render_alert(description: int) -> bytes:
    """Render a fatal alert record (RFC 8446, 6), such as `UNRECOGNIZED_NAME`."""
    return bytes((21, 3, 3, 0, 2, 2, description))


def _next_record(data: bytes) -> bytes | None:
    """Return the payload of the record at the start of `data`; None while it is incomplete."""
    if len(data) >= 1 and data[0] != _HANDSHAKE:
        if data[0] & 0x80 and len(data) < 3:
            return None  # the third byte tells an SSLv2 hello from other bytes
        raise _MalformedError
    if len(data) >= 2 and data[1] != 3:
        raise _MalformedError
    if len(data) < 5:
        return None
    length = data[3] << 8 | data[4]
    if not 0 < length <= _MAX_RECORD:
        raise _MalformedError
    return data[5 : 5 + length] if len(data) >= 5 + length else None


def _take_client_hello(handshake: bytearray) -> bytes | None:
    """Return the body of the ClientHello; None while it is incomplete."""
    if handshake[0] != _CLIENT_HELLO:
        raise _MalformedError
    if len(handshake) < 4:
        return None
    end = 4 + int.from_bytes(handshake[1:4])
    if len(handshake) > end:
        raise _MalformedError  # a second message behind the hello, in the same record
    return bytes(handshake[4:]) if len(handshake) == end else None


def _refuse_first(data: bytes) -> Refused:
    """Word the refusal of bytes that do not start with a record of a handshake."""
    if data[0] == _HANDSHAKE and data[1] == 3:
        return Refused(_MALFORMED)
    if data[0] & 0x80 and data[2] == _CLIENT_HELLO:
        return Refused("sslv2 hello", is_tls=False)
    return Refused("not tls", is_tls=False)


def _read_hello(body: bytes) -> ServerName | Refused:
    try:
        extensions = _read_extensions(body)
        names = _read_server_names(extensions.get(_EXTENSION_SERVER_NAME))
    except _MalformedError:
        return Refused(_MALFORMED)
    if not names:
        return Refused("no server name")
    if len(names) > 1:
        return Refused("several server names")
    return _read_name(names[0], ech=_EXTENSION_ECH in extensions)


def _read_name(raw: bytes, *, ech: bool) -> ServerName | Refused:
    """Bring the one name into canonical form; RFC 6066 allows no address in its place."""
    try:
        name = canonical_name(raw.decode("ascii"))
    except (UnicodeDecodeError, RuleError):
        return Refused("server name is malformed")
    if ends_in_number(name) or ":" in name:
        return Refused("server name is an address")
    return ServerName(name, ech)


class _Cursor:
    """Takes fields off the front of a byte string; running short is `_MalformedError`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise _MalformedError
        self._at += count
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> bytes:
        """A vector of the presentation language, after a length field of `size` bytes."""
        return self.take(self.number(size))


def _read_extensions(body: bytes) -> dict[int, bytes]:
    """Walk a ClientHello's fields; each extension may stand once (RFC 8446, 4.2)."""
    fields = _Cursor(body)
    version, _random = fields.take(2), fields.take(32)
    session_id, suites, compression = fields.vector(1), fields.vector(2), fields.vector(1)
    if version[0] != 3 or len(session_id) > 32 or not compression:
        raise _MalformedError
    if len(suites) < 2 or len(suites) % 2:
        raise _MalformedError
    if fields.at_end:
        return {}
    found: dict[int, bytes] = {}
    block = _Cursor(fields.vector(2))
    if not fields.at_end:
        raise _MalformedError
    for kind, value in _extensions(block):
        if kind in found:
            raise _MalformedError
        found[kind] = value
    return found


def _extensions(block: _Cursor) -> Iterator[tuple[int, bytes]]:
    while not block.at_end:
        yield block.number(2), block.vector(2)


def _read_server_names(extension: bytes | None) -> list[bytes]:
    """Read the server_name extension; a kind of name other than host_name is malformed."""
    if extension is None:
        return []
    fields = _Cursor(extension)
    entries = _Cursor(fields.vector(2))
    if not fields.at_end or entries.at_end:
        raise _MalformedError
    names: list[bytes] = []
    while not entries.at_end:
        if entries.number(1) != _HOST_NAME:
            raise _MalformedError
        names.append(entries.vector(2))
    return names
