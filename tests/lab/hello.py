"""ClientHello messages, by Python's own TLS or put together piece by piece."""

from __future__ import annotations

import ssl
import struct

__all__ = ["extension", "hello", "real_hello", "records", "server_name"]


def vector(width: int, data: bytes) -> bytes:
    """Data after its length in `width` bytes."""
    return len(data).to_bytes(width) + data


def extension(kind: int, data: bytes) -> bytes:
    """One extension."""
    return struct.pack("!H", kind) + vector(2, data)


def server_name(*names: bytes, kind: int = 0) -> bytes:
    """A server_name extension (RFC 6066, 3)."""
    entries = b"".join(bytes([kind]) + vector(2, name) for name in names)
    return extension(0, vector(2, entries))


def hello(  # noqa: PLR0913 - the fields of a hello
    *extensions: bytes,
    version: bytes = b"\3\3",
    session: bytes = b"",
    suites: bytes = b"\x13\x01",
    compression: bytes = b"\0",
    without_extensions: bool = False,
    behind: bytes = b"",
) -> bytes:
    """A ClientHello handshake message, its four-byte header included."""
    body = version + b"R" * 32 + vector(1, session) + vector(2, suites) + vector(1, compression)
    if not without_extensions:
        body += vector(2, b"".join(extensions))
    return b"\1" + vector(3, body + behind)


def records(
    message: bytes, size: int = 1 << 14, *, kind: int = 22, version: bytes = b"\3\1"
) -> bytes:
    """Cut a message into records of at most `size` bytes."""
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(bytes([kind]) + version + vector(2, part) for part in parts)


def real_hello(
    name: str | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, alpn: tuple[str, ...] = ()
) -> bytes:
    """The first flight of Python's own TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = version
    if alpn:
        context.set_alpn_protocols(list(alpn))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake needs an answer")
