"""A throw-away certificate authority, a server and a client, under the names Docker uses."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_tls_material"]


def write_tls_material(folder: Path) -> None:
    """Writes ca.pem, server.pem, server-key.pem, cert.pem and key.pem, good for a day."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("test authority")
    authority = _sign(authority_name, authority_key, authority_name, authority_key, is_ca=True)
    _write(folder, "ca.pem", None, authority)
    for certificate, key_file in (("server.pem", "server-key.pem"), ("cert.pem", "key.pem")):
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = _sign(_name(certificate), key, authority_name, authority_key, is_ca=False)
        _write(folder, certificate, None, leaf)
        _write(folder, key_file, key, None)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _sign(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_ca: bool,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _write(
    folder: Path,
    name: str,
    key: ec.EllipticCurvePrivateKey | None,
    certificate: x509.Certificate | None,
) -> None:
    if certificate is not None:
        (folder / name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    if key is not None:
        text = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (folder / name).write_bytes(text)
