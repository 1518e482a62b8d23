"""A web server of the simulated internet: pages, redirects, large files, upgrades."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from tests.lab.servers import open_listener

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from tests.lab.netns import Namespace
    from tests.lab.tls import Authority

__all__ = ["PIECE", "Site", "blob_digest", "open_site"]

PIECE = bytes(range(256)) * 4096
"""A MiB; a large file is this over and over."""


@dataclass
class Site:
    """What the server was asked: `host path` of each request."""

    requests: list[str] = field(default_factory=list[str])
    connections: int = 0


def blob_digest(mib: int) -> str:
    """The checksum of a large file."""
    digest = hashlib.sha256()
    for _ in range(mib):
        digest.update(PIECE)
    return digest.hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, context: ssl.SSLContext, site: Site) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.context = context
        self.site = site

    def get_request(self) -> tuple[socket.socket, object]:
        connection, peer = self.socket.accept()
        self.site.connections += 1
        connection.settimeout(60)
        secured = self.context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        return secured, peer

    def handle_error(self, request: object, client_address: object) -> None:
        del request, client_address  # a client that breaks off is the client's affair


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.site.requests.append(f"{self.headers['Host']} {self.path}")
        parts = urlsplit(self.path)
        match parts.path:
            case "/redirect":
                self._answer(302, b"", Location=parse_qs(parts.query)["to"][0])
            case "/blob":
                self._send_blob(int(parts.query))
            case "/upgrade":
                self._upgrade()
            case _:
                self._answer(200, b"a page", Alpn=str(self._secured.selected_alpn_protocol()))

    @property
    def _secured(self) -> ssl.SSLSocket:
        assert isinstance(self.connection, ssl.SSLSocket)
        return self.connection

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_blob(self, mib: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(mib * len(PIECE)))
        self.end_headers()
        for _ in range(mib):
            self.wfile.write(PIECE)

    def _upgrade(self) -> None:
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.end_headers()
        while line := self.rfile.readline():
            self.wfile.write(b"echo " + line)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        del format, args


@contextlib.contextmanager
def open_site(
    namespace: Namespace, authority: Authority, address: str, port: int = 443
) -> Generator[Site, None, None]:
    """Serve HTTPS until the end."""
    site = Site()
    listener = open_listener(namespace, "tcp", address, port)
    context = authority.server_context()
    context.set_alpn_protocols(["http/1.1"])
    with _Server(listener, context, site) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
