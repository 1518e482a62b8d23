"""The engine is found as Docker's own command line finds it, over every kind of connection."""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import socket
import ssl
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from sandboxed_mcp import ServerConfig, connect, open_sandbox
from sandboxed_mcp.engine.connection import find_engine
from sandboxed_mcp.errors import ConfigError, EngineNotFoundError
from tests.integration.tls_material import write_tls_material

if TYPE_CHECKING:
    from collections.abc import Generator

DOCKER_SOCKET = "/var/run/docker.sock"
NOTES = ServerConfig(name="notes", image="sandboxed-mcp/notes:latest")
ECHO_LINE = (
    "import sys; print(end=sys.stdin.readline(), flush=True); sys.stdin.read(); print('end')"
)
ECHO = ServerConfig(name="echo", command="python3", args=["-c", ECHO_LINE])


def test_default_socket_is_used_when_nothing_is_named(tmp_path: Path) -> None:
    engine = anyio.run(find_engine, {"HOME": str(tmp_path)})
    assert engine.endpoint.url == f"unix://{DOCKER_SOCKET}"


def test_dead_socket_never_wins_over_a_live_one(tmp_path: Path) -> None:
    dead = tmp_path / "dead.sock"
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(dead))
    sockets = [tmp_path / "missing.sock", dead, Path(DOCKER_SOCKET)]
    engine = anyio.run(find_engine, {"HOME": str(tmp_path)}, sockets)
    assert engine.endpoint.url == f"unix://{DOCKER_SOCKET}"


def test_error_lists_every_address_and_its_reason(tmp_path: Path) -> None:
    plain = tmp_path / "file"
    plain.write_text("")
    dead = tmp_path / "dead.sock"
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(dead))
    with pytest.raises(EngineNotFoundError) as raised:
        anyio.run(find_engine, {"HOME": str(tmp_path)}, [tmp_path / "missing", plain, dead])
    assert len(raised.value.tried) == 3
    text = str(raised.value)
    assert f"unix://{tmp_path}/missing (default socket): No such file or directory" in text
    assert f"unix://{plain} (default socket): not a socket" in text
    assert "Connection refused" in text
    assert "set DOCKER_HOST" in text


def test_named_engine_is_the_only_one_tried(tmp_path: Path) -> None:
    with pytest.raises(EngineNotFoundError) as raised:
        anyio.run(find_engine, {"HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/no"})
    assert len(raised.value.tried) == 1
    assert "DOCKER_HOST" in raised.value.tried[0]


@pytest.mark.parametrize("url", ["docker.sock", "unix://relative", "tcp://", "ftp://host", "ssh:"])
def test_malformed_docker_host_is_refused_by_name(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"DOCKER_HOST.*not an engine address.*write unix://"):
        anyio.run(find_engine, {"HOME": str(tmp_path), "DOCKER_HOST": url})


def write_context(config: Path, name: str, host: str) -> None:
    folder = config / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    folder.mkdir(parents=True)
    meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host}}}
    (folder / "meta.json").write_text(json.dumps(meta))


def test_current_context_of_dockers_configuration_is_honoured(tmp_path: Path) -> None:
    link = tmp_path / "engine.sock"
    link.symlink_to(DOCKER_SOCKET)
    write_context(tmp_path, "work", f"unix://{link}")
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "work"}))
    engine = anyio.run(find_engine, {"HOME": "/nowhere", "DOCKER_CONFIG": str(tmp_path)})
    assert engine.endpoint.url == f"unix://{link}"
    assert engine.endpoint.origin == "context 'work'"


def test_docker_context_variable_wins_over_the_current_context(tmp_path: Path) -> None:
    write_context(tmp_path, "other", f"unix://{DOCKER_SOCKET}")
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "gone"}))
    environ = {"HOME": "/nowhere", "DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "other"}
    assert anyio.run(find_engine, environ).endpoint.origin == "context 'other'"


def test_context_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(EngineNotFoundError, match=r"context 'gone'.*docker context ls"):
        anyio.run(find_engine, {"HOME": str(tmp_path), "DOCKER_CONTEXT": "gone"})


def test_broken_docker_configuration_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: currentContext"):
        anyio.run(find_engine, {"HOME": "/nowhere", "DOCKER_CONFIG": str(tmp_path)})


@pytest.fixture
def tls_engine(tmp_path: Path) -> Generator[dict[str, str]]:
    """A TLS terminator in front of the engine's socket, as `dockerd --tlsverify` would be."""
    write_tls_material(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server-key.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve_tls, args=(listener, context), daemon=True).start()
    port = listener.getsockname()[1]
    yield {
        "HOME": "/nowhere",
        "DOCKER_HOST": f"tcp://127.0.0.1:{port}",
        "DOCKER_TLS_VERIFY": "1",
        "DOCKER_CERT_PATH": str(tmp_path),
    }
    listener.close()


def serve_tls(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=serve_one, args=(plain, context), daemon=True).start()


def serve_one(plain: socket.socket, context: ssl.SSLContext) -> None:
    """One connection, by one thread: TLS is not for two threads at once."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    with closing(plain), closing(socket.socket(socket.AF_UNIX)) as engine, suppress(OSError):
        engine.connect(DOCKER_SOCKET)
        reading = [plain, engine]
        while engine in reading:
            ready, _, _ = select.select(reading, [], [], 60)
            if engine in ready:
                data = engine.recv(65536)
                tls.write(data) if data else reading.remove(engine)
            if plain in ready:
                arrived = plain.recv(65536)
                incoming.write(arrived) if arrived else incoming.write_eof()
                if not pass_on(tls, engine):
                    reading.remove(plain)
            plain.sendall(outgoing.read())


def pass_on(tls: ssl.SSLObject, engine: socket.socket) -> bool:
    """Decrypts what has arrived; False once the client has ended its direction."""
    with suppress(ssl.SSLWantReadError):
        while True:
            try:
                data = tls.read(65536)
            except ssl.SSLZeroReturnError:
                data = b""
            if not data:
                engine.shutdown(socket.SHUT_WR)
                return False
            engine.sendall(data)
    return True


def test_server_runs_over_tls_and_sees_the_end_of_its_input(tls_engine: dict[str, str]) -> None:
    async def main() -> None:
        engine = await find_engine(tls_engine)
        assert engine.endpoint.tls_verify
        async with open_sandbox(ECHO, engine=engine) as sandbox:
            await sandbox.send(b"hello\n")
            assert await sandbox.receive() == b"hello\n"
            await sandbox.send_eof()
            assert await sandbox.receive() == b"end\n"
            assert (await sandbox.wait()).code == 0

    anyio.run(main)


def test_engine_with_a_foreign_certificate_is_refused(
    tls_engine: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    write_tls_material(other)
    with pytest.raises(EngineNotFoundError, match="CERTIFICATE_VERIFY_FAILED"):
        anyio.run(find_engine, tls_engine | {"DOCKER_CERT_PATH": str(other)})


def test_server_runs_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In place of the network's part of ssh: the same remote command, run here.
    docker = shutil.which("docker")
    assert docker is not None, "Docker's command line is the remote command of ssh:// addresses"
    script = tmp_path / "ssh"
    script.write_text('#!/bin/sh\nwhile [ "$1" != docker ]; do shift; done\nexec "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async def main() -> str:
        engine = await find_engine({"HOME": "/nowhere", "DOCKER_HOST": "ssh://me@engine.test"})
        async with connect(NOTES, engine=engine) as client:
            result = await client.call_tool("note_stats", {})
            return result.model_dump_json()

    assert "notes" in anyio.run(main)
