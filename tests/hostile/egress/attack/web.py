"""TLS and HTTP as clients speak them, well and badly."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

_streams: list[ssl.SSLSocket] = []


def _dial(address: str, port: int, name: str | None, alpn: list[str]) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    if name is None:
        context.check_hostname = False
    if alpn:
        context.set_alpn_protocols(alpn)
    plain = socket.create_connection((address, port), 5)
    return context.wrap_socket(plain, server_hostname=name)


def say(address: str, name: str | None, port: int = 443, text: str = "hello") -> str:
    """Shake hands under a name and exchange a word with a server that echoes."""
    with _dial(address, port, name, []) as secured:
        secured.sendall(text.encode())
        return secured.recv(1 << 16).decode()


def open_stream(address: str, name: str, port: int = 443) -> int:
    """Shake hands and keep the stream; gives its number."""
    _streams.append(_dial(address, port, name, []))
    return len(_streams) - 1


def say_on(stream: int, text: str = "hello") -> str:
    """Exchange a word by a kept stream; the end of the stream is an error."""
    _streams[stream].settimeout(5)
    _streams[stream].sendall(text.encode())
    data = _streams[stream].recv(1 << 16)
    if not data:
        raise EOFError
    return data.decode()


def speak(
    address: str, port: int, pieces: list[str], timeout: float = 3.0, rest: bool = True
) -> str:
    """Send bytes in pieces, each a segment of its own; the first bytes back, in hexadecimal."""
    with socket.create_connection((address, port), timeout) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            made.sendall(bytes.fromhex(piece))
        if not rest:
            made.shutdown(socket.SHUT_WR)
        data = made.recv(4096)
        if not data:
            raise EOFError
        return data.hex()


def knock(address: str, port: int, count: int, data: str) -> dict[str, int]:
    """Connect many times, say the same and close; how often each outcome came."""
    outcomes: dict[str, int] = {}
    for _ in range(count):
        outcome = "closed"
        try:
            with socket.create_connection((address, port), 2) as made:
                made.sendall(bytes.fromhex(data))
                made.settimeout(2)
                outcome = "answered" if made.recv(64) else "closed"
        except OSError as error:
            outcome = type(error).__name__
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


def fetch(url: str) -> dict[str, Any]:
    """Get a page, redirects followed."""
    with urllib.request.urlopen(url, timeout=8) as page:  # noqa: S310 - of the laboratory
        return {"status": page.status, "url": page.url, "body": page.read(1 << 16).decode()}


def fetch_failing(url: str) -> str:
    """Get a page that cannot be got; what urllib found."""
    try:
        return f"got {fetch(url)}"
    except urllib.error.URLError as error:
        reason: Any = error.reason
        return f"{type(reason).__name__}: {reason}"


def download(url: str) -> dict[str, Any]:
    """Get a large page; its size and checksum."""
    digest, size = hashlib.sha256(), 0
    with urllib.request.urlopen(url, timeout=30) as page:  # noqa: S310 - of the laboratory
        while piece := page.read(1 << 20):
            digest.update(piece)
            size += len(piece)
    return {"size": size, "sha256": digest.hexdigest()}


def upgrade(name: str, words: list[str]) -> str:
    """Upgrade a connection as WebSocket does (RFC 6455, 1.2), then echo words by frames."""
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    address = socket.gethostbyname(name)
    answers: list[str] = []
    with _dial(address, 443, name, ["http/1.1"]) as secured:
        head = f"GET /upgrade HTTP/1.1\r\nHost: {name}\r\nUpgrade: websocket\r\n"
        head += f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        secured.sendall(f"{head}\r\n".encode())
        reader = secured.makefile("rb")
        answers.append(reader.readline().decode().strip())
        while reader.readline().strip():
            pass
        for word in words:
            secured.sendall(word.encode() + b"\n")
            answers.append(reader.readline().decode().strip())
    return "\n".join(answers)


def front(name: str, host: str) -> str:
    """Ask under a verified name for another host; the status line and the body."""
    address = socket.gethostbyname(name)
    with _dial(address, 443, name, []) as secured:
        secured.sendall(
            f"GET /hello HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
        data = b""
        with suppress(OSError):
            while piece := secured.recv(1 << 16):
                data += piece
    return json.dumps(data.decode(errors="replace"))


def wait_on(stream: int, seconds: float) -> str:
    """Wait for bytes on a kept stream."""
    _streams[stream].settimeout(seconds)
    return _streams[stream].recv(1 << 16).decode()


def run_openssl(name: str, path: str) -> str:
    """Get a page with openssl(1)."""
    request = f"GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
    done = subprocess.run(
        [
            "openssl", "s_client", "-quiet", "-verify_return_error", "-connect", f"{name}:443",
            "-servername", name, "-CAfile", "/attack/ca.pem",
        ],
        input=request.encode(),
        capture_output=True,
        timeout=10,
        check=False,
    )  # fmt: skip
    return done.stdout.decode(errors="replace")
