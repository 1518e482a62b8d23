"""The far side of the egress benchmarks, a process of its own in the laboratory's namespace.

As quick as Python allows, so that what is measured is the way to it: files are sent from the
page cache, answers to DNS are made from the question. Says `ready` on stdout, ends with stdin.

    BLOB:7000   asks for 8 bytes of size, sends that much
    BLOB:7001   takes connections in the kernel and closes them a moment later, many at once
    WEB:443     the same over TLS
    WEB:8443    reads one TLS record, then the same without TLS
    DNS:53      every name of the laboratory, over UDP
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

DNS, BLOB, WEB = "198.51.100.53", "198.51.100.40", "198.51.100.20"
BLOB_PORT, CLOSE_PORT, TLS_PORT, HELLO_PORT = 7000, 7001, 443, 8443
BACKLOG = 4096
CLOSE_SECONDS = 0.01
NAMES = {b"blob.example.com": BLOB, b"web.example.com": WEB}
TTL = 300
PIECE_BYTES = 1 << 20
PIECE = os.urandom(PIECE_BYTES)


def serve_blob(stream: socket.socket) -> None:
    """Send what is asked for, without copying."""
    size = _receive_size(stream)
    if size is None:
        return
    with open_piece() as piece:
        while size:
            size -= os.sendfile(stream.fileno(), piece, 0, min(size, PIECE_BYTES))


def serve_behind_hello(stream: socket.socket) -> None:
    """Pass over a ClientHello, then send what is asked for."""
    head = stream.recv(5, socket.MSG_WAITALL)
    stream.recv(int.from_bytes(head[3:5], "big"), socket.MSG_WAITALL)
    serve_blob(stream)


def serve_tls(context: ssl.SSLContext) -> Callable[[socket.socket], None]:
    """The same over TLS."""

    def serve(stream: socket.socket) -> None:
        with context.wrap_socket(stream, server_side=True) as secured:
            size = _receive_size(secured)
            view = memoryview(PIECE)
            while size:
                part = view[: min(size, PIECE_BYTES)]
                secured.sendall(part)
                size -= len(part)

    return serve


@contextlib.contextmanager
def open_piece() -> Generator[int, None, None]:
    """A file in memory with `PIECE`."""
    number = os.memfd_create("piece")
    try:
        os.write(number, PIECE)
        yield number
    finally:
        os.close(number)


def answer(query: bytes) -> bytes | None:
    """The answer to a question for an address; None for what is no question."""
    end, labels = 12, list[bytes]()
    while end < len(query) and query[end]:
        labels.append(query[end + 1 : end + 1 + query[end]])
        end += 1 + query[end]
    question = query[12 : end + 5]
    address = NAMES.get(b".".join(labels).lower())
    known = address is not None and question[-4:] == b"\0\1\0\1"
    code = 0 if address is not None else 3
    head = query[:2] + struct.pack("!5H", 0x8180 | code, 1, int(known), 0, 0)
    if address is None or not known:
        return head + question
    record = struct.pack("!HHHIH", 0xC00C, 1, 1, TTL, 4) + socket.inet_aton(address)
    return head + question + record


def _receive_size(stream: socket.socket) -> int | None:
    data = b""
    while len(data) < 8:
        more = stream.recv(8 - len(data))
        if not more:
            return None
        data += more
    return struct.unpack("!Q", data)[0]


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=_serve, args=(stream, serve), daemon=True).start()


def _serve(stream: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    with contextlib.suppress(OSError), stream:
        serve(stream)


def _close(listener: socket.socket) -> None:
    """Close what has come, out of the way of a client that measures its connects."""
    listener.setblocking(False)
    while True:
        time.sleep(CLOSE_SECONDS)  # noqa: TID251 - the client is not to be disturbed meanwhile
        with contextlib.suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()


def _serve_dns(sock: socket.socket) -> None:
    while True:
        query, peer = sock.recvfrom(4096)
        reply = answer(query)
        if reply is not None:
            sock.sendto(reply, peer)


def main(folder: str) -> None:
    """Serve until stdin ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/server.pem", f"{folder}/server-key.pem")
    for place, serve in (
        ((BLOB, BLOB_PORT), serve_blob),
        ((WEB, TLS_PORT), serve_tls(context)),
        ((WEB, HELLO_PORT), serve_behind_hello),
    ):
        listener = socket.create_server(place, backlog=BACKLOG)
        threading.Thread(target=_accept, args=(listener, serve), daemon=True).start()
    closing = socket.create_server((BLOB, CLOSE_PORT), backlog=BACKLOG)
    threading.Thread(target=_close, args=(closing,), daemon=True).start()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((DNS, 53))
    threading.Thread(target=_serve_dns, args=(datagrams,), daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
