"""Opens a byte stream to the engine's API: a socket file, TCP, TCP with TLS, or ssh.

The streams can be half-closed: the end of a server's input must reach the engine while its
output is still read. This module never speaks HTTP.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import anyio

from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from anyio.abc import ByteReceiveStream, ByteSendStream, Process

__all__ = ["RECEIVE_BYTES", "Endpoint", "EngineStream", "dial", "parse_endpoint"]

RECEIVE_BYTES = 256 * 1024
DEFAULT_PORTS = {"tcp": 2375, "tls": 2376}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine's API answers.

    Attributes:
        url: `unix:///path`, `tcp://host:port` or `ssh://[user@]host[:port]`.
        origin: What named it, for a person: `DOCKER_HOST`, `context 'x'`, `default socket`.
        tls_dir: Folder with `ca.pem`, `cert.pem`, `key.pem` (the names Docker's CLI uses);
            None for no TLS.
        tls_verify: Whether the engine's certificate must match its name and the CA.
    """

    url: str
    origin: str
    tls_dir: str | None = None
    tls_verify: bool = True

    @property
    def is_local(self) -> bool:
        """Whether the engine shares this machine's file system."""
        return self.url.startswith("unix://")

    def __str__(self) -> str:
        """The address and what named it."""
        return f"{self.url} ({self.origin})"


class EngineStream(Protocol):
    """A byte stream in both directions that can be half-closed."""

    async def receive(self, max_bytes: int = RECEIVE_BYTES) -> bytes:
        """The next bytes; raises `anyio.EndOfStream` at the end."""
        ...

    async def send(self, item: bytes) -> None:
        """Sends all bytes."""
        ...

    async def send_eof(self) -> None:
        """Ends this direction only."""
        ...

    async def aclose(self) -> None:
        """Ends both directions."""
        ...


def parse_endpoint(url: str, origin: str) -> Endpoint:
    """An engine address as Docker's CLI writes it.

    Raises:
        ConfigError: The scheme is unknown or the address is incomplete.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return Endpoint(url, origin)
    if parts.scheme in {"tcp", "ssh"} and parts.hostname:
        return Endpoint(url, origin)
    if parts.scheme == "http" and parts.hostname:
        return Endpoint("tcp://" + url.removeprefix("http://"), origin)
    raise ConfigError(
        origin,
        f"'{url}' is not an engine address",
        "write unix:///path/to/docker.sock, tcp://host:port or ssh://user@host",
    )


async def dial(endpoint: Endpoint) -> EngineStream:
    """Connects to the engine.

    Raises:
        OSError: Nobody answers.
    """
    parts = urlsplit(endpoint.url)
    if parts.scheme == "unix":
        return await anyio.connect_unix(parts.path)
    if parts.scheme == "ssh":
        return await _dial_ssh(endpoint)
    host = parts.hostname or ""
    if endpoint.tls_dir is None:
        return await anyio.connect_tcp(host, parts.port or DEFAULT_PORTS["tcp"])
    raw = await anyio.connect_tcp(host, parts.port or DEFAULT_PORTS["tls"])
    try:
        return await TlsStream.wrap(raw, _tls_context(endpoint), host)
    except BaseException:
        await raw.aclose()
        raise


def _tls_context(endpoint: Endpoint) -> ssl.SSLContext:
    folder = Path(endpoint.tls_dir or "")
    authority = folder / "ca.pem"
    context = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
    if not endpoint.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if (folder / "cert.pem").exists():
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


class TlsStream:
    """TLS (RFC 8446) that can end one direction: `close_notify` out, data still in."""

    def __init__(self, raw: EngineStream, context: ssl.SSLContext, host: str) -> None:
        self._raw = raw
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    @classmethod
    async def wrap(cls, raw: EngineStream, context: ssl.SSLContext, host: str) -> TlsStream:
        """Does the handshake.

        Raises:
            ssl.SSLError: The certificate is not acceptable.
        """
        stream = cls(raw, context, host)
        while True:
            try:
                stream._tls.do_handshake()
            except ssl.SSLWantReadError:
                await stream._flush()
                stream._incoming.write(await raw.receive(RECEIVE_BYTES))
            else:
                await stream._flush()
                return stream

    async def receive(self, max_bytes: int = RECEIVE_BYTES) -> bytes:
        """The next bytes, decrypted; raises `anyio.EndOfStream` at `close_notify`."""
        while True:
            try:
                data = self._tls.read(max_bytes)
            except ssl.SSLWantReadError:
                await self._flush()
                self._incoming.write(await self._raw.receive(RECEIVE_BYTES))
                continue
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                data = b""
            if not data:
                raise anyio.EndOfStream
            return data

    async def send(self, item: bytes) -> None:
        """Encrypts and sends all bytes."""
        self._tls.write(item)
        await self._flush()

    async def send_eof(self) -> None:
        """Sends `close_notify`; the other direction stays open."""
        with suppress(ssl.SSLError):  # the peer has not closed its side yet: the point of it
            self._tls.unwrap()
        await self._flush()

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._raw.aclose()

    async def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            await self._raw.send(data)


class SshStream:
    """The API through `docker system dial-stdio` on the other side of an ssh connection."""

    def __init__(self, process: Process, stdin: ByteSendStream, stdout: ByteReceiveStream) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout

    async def receive(self, max_bytes: int = RECEIVE_BYTES) -> bytes:
        """The next bytes; raises `anyio.EndOfStream` at the end."""
        return await self._stdout.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        """Sends all bytes."""
        await self._stdin.send(item)

    async def send_eof(self) -> None:
        """Closes the standard input of the remote command."""
        await self._stdin.aclose()

    async def aclose(self) -> None:
        """Ends the ssh process."""
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.aclose()


async def _dial_ssh(endpoint: Endpoint) -> EngineStream:
    parts = urlsplit(endpoint.url)
    target = f"{parts.username}@{parts.hostname}" if parts.username else str(parts.hostname)
    port = ["-p", str(parts.port)] if parts.port else []
    command = ["ssh", "-o", "ConnectTimeout=10", "-T", *port, "--", target]
    process = await anyio.open_process(
        [*command, "docker", "system", "dial-stdio"], start_new_session=True
    )
    if process.stdin is None or process.stdout is None:
        raise OSError("ssh was started without pipes")
    return SshStream(process, process.stdin, process.stdout)
