"""What runs inside the container, the sandbox's and the plain one alike: tries, timed there.

A command is a JSON line `{"do": NAME, ...}` on stdin; the answer is a JSON line on stdout with
seconds. Names are looked up before the clock runs.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

AUTHORITY = "/lab/ca.pem"
CHUNK_BYTES = 256 * 1024
TIMEOUT = 20.0


def download(name: str, port: int, size: int) -> list[float]:
    """From asking for `size` bytes to the last of them, over TCP."""
    with dial(resolve(name, port)) as stream:
        return [fetch(stream, size)]


def download_tls(name: str, port: int, size: int) -> list[float]:
    """The same over TLS, the handshake not counted."""
    with secure(dial(resolve(name, port)), trust(), name) as stream:
        return [fetch(stream, size)]


def download_behind_hello(name: str, port: int, size: int) -> list[float]:
    """The same after a ClientHello, but nothing is encrypted: what carries it is measured."""
    with dial(resolve(name, port)) as stream:
        stream.sendall(render_hello(name))
        return [fetch(stream, size)]


def connect(name: str, port: int, count: int) -> list[float]:
    """TCP connects, one after the other."""
    place = resolve(name, port)
    return [_connect_once(place) for _ in range(count)]


def handshake(name: str, port: int, count: int) -> list[float]:
    """TCP connect and full TLS handshake, one after the other."""
    place, context = resolve(name, port), trust()
    return [_handshake_once(place, context, name) for _ in range(count)]


def lookup(name: str, server: str, count: int) -> list[float]:
    """Questions over UDP, each on a socket of its own."""
    return [_ask_once(name, server, number) for number in range(count)]


def work(name: str, port: int) -> list[float]:
    """A lookup, a verified handshake and a small download: everything once."""
    began = time.perf_counter()
    with secure(dial(resolve(name, port)), trust(), name) as stream:
        fetch(stream, CHUNK_BYTES)
    return [time.perf_counter() - began]


def resolve(name: str, port: int) -> tuple[str, int]:
    """The first address of a name."""
    found = socket.getaddrinfo(name, port, socket.AF_INET, socket.SOCK_STREAM)
    return str(found[0][4][0]), port


def dial(place: tuple[str, int]) -> socket.socket:
    """A connection."""
    return socket.create_connection(place, TIMEOUT)


def trust() -> ssl.SSLContext:
    """A client that checks names and trusts the laboratory alone."""
    return ssl.create_default_context(cafile=AUTHORITY)


def secure(stream: socket.socket, context: ssl.SSLContext, name: str) -> ssl.SSLSocket:
    """TLS on a connection."""
    return context.wrap_socket(stream, server_hostname=name)


def fetch(stream: socket.socket, size: int) -> float:
    """Ask for bytes and read them all; the seconds."""
    buffer, left = bytearray(CHUNK_BYTES), size
    began = time.perf_counter()
    stream.sendall(struct.pack("!Q", size))
    while left:
        count = stream.recv_into(buffer)
        if not count:
            raise ConnectionError(f"{left} bytes are missing")
        left -= count
    return time.perf_counter() - began


def render_hello(name: str) -> bytes:
    """The ClientHello of a real client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a server")


def _connect_once(place: tuple[str, int]) -> float:
    with socket.socket() as stream:
        stream.settimeout(TIMEOUT)
        began = time.perf_counter()
        stream.connect(place)
        return time.perf_counter() - began


def _handshake_once(place: tuple[str, int], context: ssl.SSLContext, name: str) -> float:
    began = time.perf_counter()
    with secure(dial(place), context, name):
        return time.perf_counter() - began


def _ask_once(name: str, server: str, number: int) -> float:
    labels = b"".join(bytes([len(each)]) + each for each in name.encode().split(b"."))
    query = struct.pack("!6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"
    began = time.perf_counter()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(TIMEOUT)
        sock.connect((server, 53))
        sock.send(query)
        answer = sock.recv(512)
    seconds = time.perf_counter() - began
    if answer[:2] != query[:2] or answer[7] != 1:
        raise ValueError(f"not an answer with one address: {answer.hex()}")
    return seconds


DEEDS: dict[str, Callable[..., list[float]]] = {
    deed.__name__: deed
    for deed in (download, download_tls, download_behind_hello, connect, handshake, lookup, work)
}


def main() -> None:
    """Carry out commands until stdin ends."""
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer: object = {"seconds": DEEDS[command.pop("do")](**command)}
        except Exception as error:  # noqa: BLE001 - the other side raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
