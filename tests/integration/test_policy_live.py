"""Policies of running pods against the simulated internet: applied, tested, observed, suggested."""

from __future__ import annotations

import json
import subprocess
import tomllib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from sandboxed_mcp.egress.rules import parse_egress
from tests.hostile.wire import wait_until
from tests.integration.cli_shell import COMMAND, new_name, open_run, sandboxed
from tests.lab.dns import Zone, open_dns
from tests.lab.fixtures import bridge, internet
from tests.lab.servers import EchoServer, open_echo
from tests.lab.tls import TlsServer, make_authority, open_tls_server

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.lab.bridge import Bridge
    from tests.lab.internet import Internet

__all__ = ["bridge", "internet"]

pytestmark = pytest.mark.usefixtures("engine", "bridge")

UPSTREAM = "198.51.100.53"
API, DB, STRANGER = "198.51.100.10", "198.51.100.30", "198.51.100.66"
RULES = ["api.example.test", "db.example.test:5432/tcp"]

CLIENT = """
import socket, ssl, sys
def attempt(host, port):
    with socket.create_connection((host, int(port)), 3) as plain:
        if port != "443":
            plain.sendall(b"hello")
            return plain.recv(100)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain, server_hostname=host) as secured:
            return secured.version()
for line in sys.stdin:
    try:
        print("done", attempt(*line.split()), file=sys.stderr, flush=True)
    except OSError as error:
        print("failed", error, file=sys.stderr, flush=True)
"""
"""A server that connects where its input says, and tells on stderr."""


@pytest.fixture(scope="module")
def zone(internet: Internet) -> Generator[Zone]:
    with open_dns(internet.namespace, UPSTREAM) as made:
        made.add("api.example.test", API)
        made.add("db.example.test", DB)
        made.add("evil.example.test", STRANGER)
        yield made


@pytest.fixture(scope="module")
def site(
    internet: Internet, zone: Zone, tmp_path_factory: pytest.TempPathFactory
) -> Generator[TlsServer]:
    assert zone.ttl
    authority = make_authority(tmp_path_factory.mktemp("ca"), "api.example.test")
    with open_tls_server(internet.namespace, authority, API) as made:
        yield made


@pytest.fixture
def database(internet: Internet) -> Generator[EchoServer]:
    with open_echo(internet.namespace, ("tcp", DB, 5432)) as made:
        yield made


@pytest.fixture
def stranger(internet: Internet) -> Generator[EchoServer]:
    places = [("tcp", STRANGER, port) for port in (25, 443, 5432)]
    with open_echo(internet.namespace, *places) as made:
        yield made


def write_server(folder: Path, rules: list[str]) -> tuple[str, Path]:
    folder.chmod(0o700)
    name = new_name()
    path = folder / "sandboxed-mcp.toml"
    path.write_text(
        f'[servers.{name}]\ncommand = "python3"\nargs = {json.dumps(["-c", CLIENT])}\n'
        f"policy = {{ egress = {json.dumps(rules)}, dns = [{json.dumps(UPSTREAM)}] }}\n"
        'audit = "audit.jsonl"\n'
    )
    return name, path


def write_policy(folder: Path, egress: object) -> str:
    path = folder / "policy.toml"
    path.write_text(f"egress = {json.dumps(egress)}\ndns = [{json.dumps(UPSTREAM)}]\n")
    return str(path)


class Client:
    """A running pod that connects on demand."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self._process = process

    def attempt(self, host: str, port: int) -> str:
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.write(f"{host} {port}\n")
        self._process.stdin.flush()
        return self._process.stderr.readline().strip()


@contextmanager
def running(folder: Path, rules: list[str]) -> Generator[Client]:
    name, config = write_server(folder, rules)
    with open_run(config, name) as process:
        wait_until(lambda: bool(listed(name)), 30, lambda: f"{name}: {process.poll()}")
        yield Client(name, process)


def listed(name: str) -> list[dict[str, Any]]:
    found = json.loads(sandboxed("ps", "--json").stdout)
    return [one for one in found if one["server"] == name and one["state"] == "running"]


def test_another_policy_is_in_force_at_once_and_only_if_it_is_right(
    tmp_path: Path, site: TlsServer, database: EchoServer, stranger: EchoServer
) -> None:
    with running(tmp_path, RULES) as client:
        assert listed(client.name)[0]["network"] == "rules"
        assert client.attempt("db.example.test", 5432).startswith("done")
        applied = sandboxed(
            "policy", "apply", client.name, write_policy(tmp_path, ["api.example.test"])
        )
        assert applied.returncode == 0, applied.stderr
        assert applied.stdout.startswith("in force: 1 rules")
        reached = database.connections
        assert client.attempt("db.example.test", 5432).startswith("failed")
        assert client.attempt("api.example.test", 443).startswith("done TLS")
        wrong = sandboxed("policy", "apply", client.name, write_policy(tmp_path, "unrestricted"))
        assert wrong.returncode == 125
        assert "cannot become unrestricted" in wrong.stderr
        assert client.attempt(STRANGER, 25).startswith("failed")
        assert (database.connections, stranger.connections) == (reached, 0)
        assert site.connections >= 1
        suggested = sandboxed("policy", "suggest", client.name)
        assert '"api.example.test:443",' in suggested.stdout
        assert f'"{STRANGER}:25/tcp",' in suggested.stdout
    events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    policies = [one["generation"] for one in events if one["event"] == "policy"]
    assert policies == [1, 2]
    assert any(one["event"] == "deny" and one["address"] == STRANGER for one in events)


def test_the_policy_is_tested_from_inside(
    tmp_path: Path, site: TlsServer, database: EchoServer, stranger: EchoServer
) -> None:
    rules = [*RULES, "gone.example.test:99/tcp", "*.wild.example.test", f"{DB}:81/tcp"]
    name, config = write_server(tmp_path, rules)
    before = site.connections
    done = sandboxed(
        "policy", "test", name, f"{STRANGER}:25/tcp", "--config", str(config), "--json"
    )
    found = {one["destination"]: one for one in json.loads(done.stdout)}
    assert [one for one in found.values() if not one["agreed"]] == []
    assert done.returncode == 0
    assert found["api.example.test:443/tcp"]["outcome"] == "connected, TLSv1.3"
    assert found["db.example.test:5432/tcp"]["passed"] is True
    assert found["api.example.test:443 as name-of-no-rule.invalid"]["passed"] is False
    assert found[f"{STRANGER}:25/tcp"]["expected"] == "denied"
    assert found["this host:22"]["passed"] is False
    assert "*.wild.example.test" in done.stderr
    assert stranger.connections == 0
    assert database.connections == 1
    assert site.connections == before + 1


def test_a_policy_that_the_network_contradicts_is_a_disagreement(tmp_path: Path) -> None:
    """Nobody answers the resolver's questions at this address, so that the name is not reached."""
    name, config = write_server(tmp_path, ["db.example.test:5432/tcp"])
    config.write_text(config.read_text().replace(UPSTREAM, "198.51.100.54"))
    done = sandboxed("policy", "test", name, "--config", str(config))
    assert done.returncode == 1
    assert "NO" in done.stdout


@pytest.mark.parametrize("word", ["*.example.test", "198.51.100.0/24:1/tcp", "http://a", ""])
def test_what_is_no_destination_is_not_tried(tmp_path: Path, word: str) -> None:
    name, config = write_server(tmp_path, RULES)
    done = sandboxed("policy", "test", name, word, "--config", str(config))
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr


def test_observing_tells_what_is_wanted_and_lets_nothing_out(
    tmp_path: Path, bridge: Bridge, zone: Zone, site: TlsServer, database: EchoServer
) -> None:
    name, config = write_server(tmp_path, RULES)
    asked, reached = len(zone.asked), site.connections
    wanted = "api.example.test 443\nevil.example.test 443\ndb.example.test 5432\n"
    done = subprocess.run(
        [*COMMAND, "run", name, "--observe", "--config", str(config)],
        input=wanted,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line in (
        "api.example.test on 443/tcp (once, TLS)",
        "evil.example.test on 443/tcp (once, TLS)",
        "db.example.test on 5432/tcp (once)",
    ):
        assert line in done.stderr
    assert (len(zone.asked), site.connections, database.connections) == (asked, reached, 0)
    suggested = sandboxed("policy", "suggest", str(tmp_path / "audit.jsonl"))
    rules = tomllib.loads(suggested.stdout)["egress"]
    parse_egress(rules)
    assert rules == [
        "api.example.test:443",
        "db.example.test:5432/tcp",
        "evil.example.test:443",
    ]
    assert bridge.device


def test_a_sandbox_that_observes_goes_on_so_whatever_is_applied(
    tmp_path: Path, site: TlsServer
) -> None:
    name, config = write_server(tmp_path, RULES)
    reached = site.connections
    with subprocess.Popen(
        [*COMMAND, "run", name, "--observe", "--config", str(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: bool(listed(name)), 30, lambda: f"{name}: {process.poll()}")
        assert listed(name)[0]["network"] == "observed"
        applied = sandboxed("policy", "apply", name, write_policy(tmp_path, ["api.example.test"]))
        assert applied.returncode == 0, applied.stderr
        client = Client(name, process)
        assert client.attempt("api.example.test", 443).startswith("failed")
        assert process.stdin is not None
        process.stdin.close()
        process.wait(20)
    assert site.connections == reached


def test_what_happens_last_is_recorded_too(tmp_path: Path) -> None:
    """The gateway is read to its end, also when the server ends right after what was denied."""
    name, config = write_server(tmp_path, RULES)
    done = subprocess.run(
        [*COMMAND, "run", name, "--config", str(config)],
        input=f"{STRANGER} 25\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "failed" in done.stderr
    assert '"reason": "default"' in (tmp_path / "audit.jsonl").read_text()
