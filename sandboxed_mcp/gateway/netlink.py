"""The wire format of netlink (RFC 3549) and one synchronous socket that speaks it.

Written out here because the gateway is started for every sandbox: the netlink library costs
0.11 s and 14 MiB at import, has no NFLOG, and needs raw attributes for most of this anyway.
A request takes microseconds, since the kernel answers within the system call that sends it; so
nothing here is asynchronous. Sockets that events arrive on are read when they are readable.

Knows messages and attributes, not what they mean; `sets`, `nflog` and `conntrack` do.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

__all__ = [
    "ACK",
    "CREATE",
    "DUMP",
    "EXCLUSIVE",
    "NETFILTER",
    "SOCK_DIAG",
    "Message",
    "NetlinkError",
    "NetlinkSocket",
    "Request",
    "netfilter_header",
    "pack_attribute",
    "pack_nested",
    "pack_text",
    "parse_attributes",
    "parse_text",
    "split_messages",
]

NETFILTER: Final = 12
SOCK_DIAG: Final = 4

ACK: Final = 0x4
DUMP: Final = 0x300
CREATE: Final = 0x400
EXCLUSIVE: Final = 0x200
_REQUEST: Final = 0x1

_ERROR: Final = 2
_DONE: Final = 3
_SOL_NETLINK: Final = 270
_ADD_MEMBERSHIP: Final = 1
_CAP_ACK: Final = 10
_RECEIVE_BUFFER_FORCE: Final = 33
_NESTED: Final = 0x8000
_TYPE_MASK: Final = 0x3FFF

_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_RECEIVE_BYTES: Final = 1 << 16
_DUMP_TIMEOUT: Final = 2.0


class NetlinkError(OSError):
    """The kernel refused a request; `errno` says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """A message to send: `kind` is subsystem << 8 | message."""

    kind: int
    payload: bytes
    flags: int = ACK


@dataclass(frozen=True, slots=True)
class Message:
    """A message that came in, without its header."""

    kind: int
    flags: int
    sequence: int
    payload: bytes


def netfilter_header(family: int, resource: int = 0) -> bytes:
    """The header that every netfilter payload starts with (struct nfgenmsg)."""
    return struct.pack("!BBH", family, 0, resource)


def pack_attribute(kind: int, payload: bytes) -> bytes:
    """Write an attribute, padded to four bytes."""
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length % 4)


def pack_nested(kind: int, *attributes: bytes) -> bytes:
    """Write an attribute that holds attributes."""
    return pack_attribute(kind | _NESTED, b"".join(attributes))


def pack_text(kind: int, text: str) -> bytes:
    """Write a NUL-terminated string."""
    return pack_attribute(kind, text.encode() + b"\0")


def parse_attributes(data: bytes) -> dict[int, bytes]:
    """Read attributes side by side; of two of one kind the last counts, a torn one ends it."""
    found: dict[int, bytes] = {}
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if not _ATTRIBUTE.size <= length <= len(data) - offset:
            break
        found[kind & _TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += length + (-length % 4)
    return found


def parse_text(payload: bytes) -> str:
    """Read a NUL-terminated string."""
    return payload.split(b"\0", 1)[0].decode("ascii", "backslashreplace")


def split_messages(data: bytes) -> Iterator[Message]:
    """Take a datagram apart; a torn message ends it."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if not _HEADER.size <= length <= len(data) - offset:
            break
        yield Message(kind, flags, sequence, data[offset + _HEADER.size : offset + length])
        offset += length + (-length % 4)


class NetlinkSocket:
    """A netlink socket in the network namespace of the calling thread.

    A context manager; one user at a time.
    """

    def __init__(
        self,
        groups: Iterable[int] = (),
        *,
        receive_bytes: int = 1 << 20,
        protocol: int = NETFILTER,
    ) -> None:
        """Open it.

        Args:
            groups: Multicast groups to join; needs NET_ADMIN.
            receive_bytes: What the kernel may queue before it drops events.
            protocol: `NETFILTER` or `SOCK_DIAG`.

        Raises:
            OSError: The kernel has no netfilter netlink, or NET_ADMIN is missing.
        """
        self._sequence = 0
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol
        )
        try:
            self._socket.bind((0, 0))
            self._socket.setblocking(False)
            _size_buffer(self._socket, receive_bytes)
            self._socket.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
            for group in groups:
                self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        """The socket itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def fileno(self) -> int:
        """The descriptor, to wait on until an event arrives."""
        return self._socket.fileno()

    def transact(self, requests: Sequence[Request]) -> None:
        """Send requests in one datagram and see each of them acknowledged.

        Raises:
            NetlinkError: The kernel refused one; of a batch none is in force then.
        """
        awaited = self._send(requests)
        failure: int | None = None
        for message in self._drain():
            if message.kind == _ERROR:
                awaited.discard(message.sequence)
                failure = failure or _errno(message) or None
        if failure is not None:
            raise NetlinkError(failure, os.strerror(failure))
        if awaited:
            raise NetlinkError(errno.EPROTO, f"{len(awaited)} requests were not acknowledged")

    def ask(self, kind: int, payload: bytes) -> Message:
        """Ask for one thing.

        Raises:
            NetlinkError: ENOENT when it is not there, or another refusal.
        """
        self._send([Request(kind, payload, 0)])
        for message in self._drain():
            if message.kind == _ERROR:
                raise NetlinkError(_errno(message), os.strerror(_errno(message)))
            return message
        raise NetlinkError(errno.EPROTO, "the kernel did not answer")

    def dump(self, kind: int, payload: bytes) -> list[Message]:
        """Ask for a list.

        Raises:
            NetlinkError: The kernel refused, or was silent for two seconds.
        """
        self._send([Request(kind, payload, DUMP)])
        found: list[Message] = []
        while select.select([self], [], [], _DUMP_TIMEOUT)[0]:
            for message in self.receive():
                if message.kind == _DONE:
                    return found
                if message.kind == _ERROR:
                    raise NetlinkError(_errno(message), os.strerror(_errno(message)))
                found.append(message)
        raise NetlinkError(errno.ETIMEDOUT, "the kernel did not finish its list")

    def receive(self) -> list[Message]:
        """Read the events that are there, without waiting.

        Raises:
            OSError: With ENOBUFS when the kernel had to drop events; reading can go on.
        """
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        return list(split_messages(data))

    def _send(self, requests: Sequence[Request]) -> set[int]:
        """Send; the sequence numbers that are to be acknowledged."""
        awaited: set[int] = set()
        parts: list[bytes] = []
        for request in requests:
            self._sequence = self._sequence % 0x7FFF_FFFF + 1
            size = _HEADER.size + len(request.payload)
            flags = request.flags | _REQUEST
            parts.append(_HEADER.pack(size, request.kind, flags, self._sequence, 0))
            parts.append(request.payload)
            if request.flags & ACK:
                awaited.add(self._sequence)
        self._socket.send(b"".join(parts))
        return awaited

    def _drain(self) -> Iterator[Message]:
        """What the kernel queued while it handled the requests."""
        while messages := self.receive():
            yield from messages


def _size_buffer(made: socket.socket, size: int) -> None:
    """NET_ADMIN may go beyond net.core.rmem_max; without it the kernel cuts the size."""
    try:
        made.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, size)
    except PermissionError:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def _errno(message: Message) -> int:
    return -struct.unpack_from("=i", message.payload)[0]
