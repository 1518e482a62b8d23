"""TLS servers of the simulated internet, under a certificate authority of the test's own."""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import ssl
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.lab.servers import open_listener

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.lab.internet import Pod
    from tests.lab.netns import Namespace

__all__ = ["Authority", "TlsServer", "connect", "make_authority", "open_tls_server"]


@dataclass(frozen=True)
class Authority:
    """A certificate authority and one certificate that is good for `names`."""

    folder: Path
    names: tuple[str, ...]

    def server_context(self) -> ssl.SSLContext:
        """What a server presents."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server-key.pem")
        return context

    def client_context(self) -> ssl.SSLContext:
        """A client that trusts this authority alone and checks names."""
        return ssl.create_default_context(cafile=self.folder / "ca.pem")


@dataclass
class TlsServer:
    """Echoes; counts the connections that arrived and the names they asked for."""

    connections: int = 0
    names: list[str | None] = field(default_factory=list[str | None])


def make_authority(folder: Path, *names: str) -> Authority:
    """Make keys and certificates, good for a day."""
    issuer_key, key = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    issuer = _name("laboratory authority")
    root = _certificate(issuer, issuer_key.public_key(), issuer).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    leaf = _certificate(_name("laboratory server"), key.public_key(), issuer).add_extension(
        alternative, critical=False
    )
    _write(folder / "ca.pem", root.sign(issuer_key, hashes.SHA256()))
    _write(folder / "server.pem", leaf.sign(issuer_key, hashes.SHA256()))
    (folder / "server-key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Authority(folder, names)


@contextlib.contextmanager
def open_tls_server(
    namespace: Namespace, authority: Authority, *addresses: str, port: int = 443
) -> Generator[TlsServer, None, None]:
    """Serve at addresses until the end."""
    server = TlsServer()
    context = authority.server_context()
    context.sni_callback = lambda _socket, name, _context: server.names.append(name)
    listeners = [open_listener(namespace, "tcp", address, port) for address in addresses]
    threads = [
        threading.Thread(target=_accept, args=(each, context, server), daemon=True)
        for each in listeners
    ]
    for thread in threads:
        thread.start()
    try:
        yield server
    finally:
        for listener in listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in threads:
            thread.join()


def connect(pod: Pod, address: str, port: int = 443, timeout: float = 5.0) -> socket.socket:
    """Connect from a sandbox's namespace, without TLS yet."""
    return pod.namespace.inside(lambda: socket.create_connection((address, port), timeout))


def _accept(listener: socket.socket, context: ssl.SSLContext, server: TlsServer) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        server.connections += 1
        threading.Thread(target=_echo, args=(connection, context), daemon=True).start()


def _echo(connection: socket.socket, context: ssl.SSLContext) -> None:
    with (
        contextlib.suppress(OSError),
        connection,
        context.wrap_socket(connection, server_side=True) as secured,
    ):
        while data := secured.recv(1 << 16):
            secured.sendall(data)


def _certificate(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _write(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
