"""The gateway's process against a simulated internet: what it lets through, counted there."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.egress.events import (
    CanaryChecked,
    ConnectionClosed,
    ConnectionOpened,
    Denied,
    GatewayFailed,
    NameResolved,
    PolicyApplied,
    PolicyRefused,
)
from tests.lab.dns import Zone, open_dns
from tests.lab.fixtures import internet, pod, server
from tests.lab.gateway import UPSTREAM, open_gateway_process, start_gateway
from tests.lab.hello import hello, records, server_name
from tests.lab.servers import open_echo
from tests.lab.tls import Authority, connect, make_authority, open_tls_server

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.lab.gateway import GatewayProcess
    from tests.lab.internet import Internet, Pod
    from tests.lab.prober import Prober
    from tests.lab.tls import TlsServer

__all__ = ["internet", "pod", "server"]

API, OTHER, WILD = "api.example.test", "other.example.test", "a.wild.example.test"
ADDRESS, SHARED, ADDRESS_V6 = "198.51.100.10", "198.51.100.11", "2001:db8:51::10"
RULES = [API, "*.wild.example.test"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("ca"), API, OTHER, WILD)


@pytest.fixture(autouse=True)
def zone(internet: Internet) -> Generator[Zone]:
    with open_dns(internet.namespace, UPSTREAM) as made:
        made.add(API, ADDRESS, ADDRESS_V6)
        made.add(WILD, SHARED)
        yield made


@pytest.fixture(autouse=True)
def site(internet: Internet, authority: Authority) -> Generator[TlsServer]:
    with open_tls_server(internet.namespace, authority, ADDRESS, SHARED, ADDRESS_V6) as made:
        yield made


def look_up(pod: Pod, name: str, family: socket.AddressFamily = socket.AF_INET) -> list[str]:
    """Ask the resolver that the sandbox is led to, whatever the address."""
    import dns.message
    import dns.query

    kind = "A" if family == socket.AF_INET else "AAAA"
    query = dns.message.make_query(name, kind)
    answer = pod.namespace.inside(lambda: dns.query.udp(query, "198.51.100.99", timeout=5))
    lines = [line for rrset in answer.answer for line in rrset.to_text().split("\n")]
    return [line.split()[-1] for line in lines]


def talk(pod: Pod, authority: Authority, address: str, name: str, text: bytes = b"hello") -> bytes:
    """A whole TLS conversation: handshake, certificate checked, echo, end."""
    context = authority.client_context()
    with (
        connect(pod, address) as plain,
        context.wrap_socket(plain, server_hostname=name) as secured,
    ):
        secured.sendall(text)
        return secured.recv(1 << 16)


def test_a_verified_name_is_reached_end_to_end(
    pod: Pod, zone: Zone, site: TlsServer, authority: Authority
) -> None:
    with open_gateway_process(pod, RULES) as gateway:
        assert look_up(pod, API) == [ADDRESS]
        assert talk(pod, authority, ADDRESS, API) == b"hello"
        opened = gateway.wait(ConnectionOpened)
        assert (opened.name, opened.address, opened.port) == (API, ADDRESS, 443)
        closed = gateway.wait(ConnectionClosed)
        assert closed.sent > 300
        assert closed.received > 500
        assert (closed.reason, closed.rule) == ("closed", opened.rule)
        assert site.names == [API]
        assert zone.names() == [API]


def test_a_verified_name_is_reached_over_ipv6(
    pod: Pod, site: TlsServer, authority: Authority
) -> None:
    with open_gateway_process(pod, RULES) as gateway:
        assert look_up(pod, API, socket.AF_INET6) == [ADDRESS_V6]
        assert talk(pod, authority, ADDRESS_V6, API) == b"hello"
        assert gateway.wait(ConnectionOpened).address == ADDRESS_V6
        assert site.connections == 1


@pytest.mark.parametrize("name", [OTHER, WILD, "evil.test", "example.test"])
def test_another_server_name_on_an_open_address_is_denied(
    pod: Pod, site: TlsServer, authority: Authority, name: str
) -> None:
    """`a.wild.example.test` is a name of the policy, but not one of this address."""
    with open_gateway_process(pod, RULES) as gateway:
        look_up(pod, API)
        look_up(pod, WILD)
        with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
            talk(pod, authority, ADDRESS, name)
        denied = gateway.wait(Denied)
        assert (denied.layer, denied.name, denied.address) == ("tls", name, ADDRESS)
        assert site.connections == 0
        assert talk(pod, authority, ADDRESS, API) == b"hello"


@pytest.mark.parametrize(
    ("data", "reason", "answer"),
    [
        (records(hello()), "no server name", b"\x15\3\3\0\2\2\x31"),
        (records(hello(server_name(b"198.51.100.10"))), "server name is an address", b"\x15"),
        (
            records(hello(server_name(API.encode(), b"evil.test"))),
            "several server names",
            b"\x15",
        ),
        (b"GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n", "not tls", b""),
        (b"\x80\x2e\x01\x03\x01\x00\x15\0\0\0\x10", "sslv2 hello", b""),
        (b"SSH-2.0-x\r\n", "not tls", b""),
    ],
)
def test_what_shows_no_server_name_is_denied(
    pod: Pod, site: TlsServer, data: bytes, reason: str, answer: bytes
) -> None:
    with open_gateway_process(pod, RULES) as gateway:
        look_up(pod, API)
        with connect(pod, ADDRESS) as client:
            client.sendall(data)
            try:
                said = client.recv(100)
            except ConnectionResetError:
                said = b""
            assert said[: len(answer) or 1] == answer
        assert gateway.wait(Denied).reason == reason
        assert site.connections == 0


def test_a_hello_in_many_segments_and_mixed_case_is_read(
    pod: Pod, site: TlsServer, authority: Authority
) -> None:
    context = authority.client_context()
    context.check_hostname = False
    with open_gateway_process(pod, RULES):
        look_up(pod, API)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="API.Example.TEST")
        with connect(pod, ADDRESS) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    for byte in outgoing.read():
                        client.sendall(bytes([byte]))
                    incoming.write(client.recv(1 << 16))
            assert site.connections == 1


def test_a_hello_that_does_not_come_in_time_is_denied(pod: Pod, site: TlsServer) -> None:
    with open_gateway_process(pod, RULES) as gateway:
        look_up(pod, API)
        with connect(pod, ADDRESS, timeout=8) as client:
            client.sendall(b"\x16\3\1")
            started = time.monotonic()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
            assert 4 < time.monotonic() - started < 30
        assert gateway.wait(Denied).reason == "client hello did not arrive"
        assert site.connections == 0


def test_the_relay_spoken_to_directly_leads_nowhere(
    pod: Pod, site: TlsServer, server: Prober
) -> None:
    with open_gateway_process(pod, RULES):
        for address in ("127.0.0.1", str(pod.v4), "::1"):
            assert server.exchange("tcp", address, 15443).error is not None
        assert site.connections == 0


def test_a_stream_may_be_idle_and_large(pod: Pod, authority: Authority) -> None:
    context = authority.client_context()
    block = bytes(range(256)) * 4096
    with open_gateway_process(pod, RULES) as gateway:
        look_up(pod, API)
        with (
            connect(pod, ADDRESS, timeout=20) as plain,
            context.wrap_socket(plain, server_hostname=API) as secured,
        ):
            wait_quietly(6.0)  # beyond every bound of the handshake
            for _ in range(32):
                secured.sendall(block)
                got = bytearray()
                while len(got) < len(block):
                    got += secured.recv(1 << 16)
                assert got == block
        closed = gateway.wait(ConnectionClosed)
        assert closed.sent > 32 << 20
        assert closed.received > 32 << 20


def test_a_plain_rule_goes_through_the_kernel_and_is_told_of(
    internet: Internet, pod: Pod, zone: Zone, server: Prober
) -> None:
    zone.add("db.example.test", "198.51.100.30")
    with (
        open_echo(internet.namespace, ("tcp", "198.51.100.30", 5432)) as echo,
        open_gateway_process(pod, ["db.example.test:5432/tcp"]) as gateway,
    ):
        assert server.exchange("tcp", "198.51.100.30", 5432).error is not None
        assert look_up(pod, "db.example.test") == ["198.51.100.30"]
        assert server.exchange("tcp", "198.51.100.30", 5432).text == "echo hello"
        assert echo.connections == 1
        denied = gateway.wait(Denied)
        assert (denied.layer, denied.reason, denied.port) == ("packet", "default", 5432)
        opened = gateway.wait(ConnectionOpened)
        assert (opened.name, opened.port) == ("db.example.test", 5432)
        closed = gateway.wait(ConnectionClosed)
        assert min(closed.sent, closed.received) > 0


def test_a_tightened_policy_ends_what_it_forbids_and_nothing_else(
    pod: Pod, authority: Authority
) -> None:
    context = authority.client_context()
    with open_gateway_process(pod, RULES) as gateway:
        look_up(pod, API)
        look_up(pod, WILD)
        with (
            connect(pod, ADDRESS) as plain_kept,
            context.wrap_socket(plain_kept, server_hostname=API) as kept,
            connect(pod, SHARED) as plain_ended,
            context.wrap_socket(plain_ended, server_hostname=WILD) as ended,
        ):
            gateway.send(control="update", generation=2, egress=[API], dns=[UPSTREAM])
            applied = gateway.wait(PolicyApplied, lambda event: event.generation == 2)
            assert applied.ended >= 1
            started = time.monotonic()
            assert is_over(ended)
            assert time.monotonic() - started < 10
            kept.sendall(b"still")
            assert kept.recv(10) == b"still"
        closed = gateway.wait(ConnectionClosed, lambda event: event.name == WILD)
        assert closed.reason != "closed"
        assert look_up(pod, WILD) == []
        assert talk(pod, authority, ADDRESS, API) == b"hello"  # without another lookup
        with pytest.raises(OSError, match=r"."):
            connect(pod, SHARED)


def test_a_refused_update_leaves_the_policy_in_force(pod: Pod, authority: Authority) -> None:
    with open_gateway_process(pod, RULES) as gateway:
        look_up(pod, API)
        for number, bad in enumerate(
            (
                {"generation": 2, "egress": ["*"]},
                {"generation": 1, "egress": [API]},
                {"generation": 2, "egress": [API], "surprise": 1},
                {"generation": 2, "egress": [f"{pod.v4}:80/tcp"]},
            ),
            1,
        ):
            gateway.send(control="update", **bad)
            gateway.wait(PolicyRefused, lambda _event, n=number: count(gateway) >= n)
        assert talk(pod, authority, ADDRESS, API) == b"hello"


def count(gateway: GatewayProcess) -> int:
    return sum(isinstance(event, PolicyRefused) for event in gateway.events)


def test_observing_records_names_and_lets_nothing_out(
    pod: Pod, zone: Zone, site: TlsServer, authority: Authority
) -> None:
    with open_gateway_process(pod, [API], mode="observe") as gateway:
        (sink,) = look_up(pod, "telemetry.evil.test")
        assert look_up(pod, API) != [sink]
        pod.wire.clear()
        with pytest.raises(ssl.SSLError, match=r"(?i)access.denied"):
            talk(pod, authority, sink, "telemetry.evil.test")
        denied = gateway.wait(Denied, lambda event: event.layer == "tls")
        assert (denied.reason, denied.name, denied.address) == (
            "observed",
            "telemetry.evil.test",
            sink,
        )
        assert gateway.wait(NameResolved).name == API
        assert zone.asked == []
        assert site.connections == 0
        assert pod.wire.packets(protocol="tcp") == []
        assert pod.wire.packets(protocol="udp") == []


def test_the_network_is_shut_before_the_policy_and_after_the_end(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    with open_echo(internet.namespace, ("tcp", "198.51.100.30", 80)) as echo:
        assert server.exchange("tcp", "198.51.100.30", 80).text == "echo hello"
        with start_gateway(pod) as gateway:
            assert server.exchange("tcp", "198.51.100.30", 80).error is not None
            gateway.send(control="policy", generation=1, egress=["198.51.100.30:80/tcp"])
            gateway.wait(CanaryChecked)
            assert server.exchange("tcp", "198.51.100.30", 80).text == "echo hello"
            handle = server.dial("tcp", "198.51.100.30", 80)
            assert gateway.process.stdin is not None
            gateway.process.stdin.close()
            assert gateway.finish() == 0
        assert server.exchange("tcp", "198.51.100.30", 80).error is not None
        assert server.do("say", handle=handle).error is not None
        assert echo.connections == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_regularly(pod: Pod, number: int) -> None:
    with open_gateway_process(pod, RULES) as gateway:
        gateway.process.send_signal(number)
        assert gateway.finish() == 0


def test_killed_it_leaves_the_rules_standing(internet: Internet, pod: Pod, server: Prober) -> None:
    places = [("tcp", "198.51.100.30", port) for port in (80, 81)]
    with (
        open_echo(internet.namespace, *places),
        open_gateway_process(pod, ["198.51.100.30:80/tcp"]) as gateway,
    ):
        gateway.process.kill()
        gateway.process.wait()
        assert server.exchange("tcp", "198.51.100.30", 80).text == "echo hello"
        assert server.exchange("tcp", "198.51.100.30", 81).error is not None


def test_a_first_policy_that_cannot_be_honoured_ends_it(pod: Pod) -> None:
    policies: list[dict[str, object]] = [
        {"egress": ["*"]},
        {"egress": [f"{pod.v4}:80/tcp"]},
        {"egress": [API], "dns": ["127.0.0.11"]},
        {"egress": [], "surprise": 1},
    ]
    for policy in policies:
        with start_gateway(pod) as gateway:
            gateway.send(control="policy", generation=1, **policy)
            assert gateway.finish() == 1
            assert isinstance(gateway.events[-1], GatewayFailed)


@pytest.mark.parametrize(
    "command",
    [
        ["nft", "flush", "ruleset"],
        ["nft", "add", "rule", "inet", "sandboxed_mcp", "egress", "accept"],
        ["nft", "insert", "rule", "inet", "sandboxed_mcp", "output", "accept"],
    ],
)
def test_rules_that_somebody_changed_end_it(pod: Pod, command: list[str]) -> None:
    with open_gateway_process(pod, RULES) as gateway:
        pod.namespace.run(*command)
        assert gateway.finish(within=15) == 1
        checked = [each for each in gateway.events if isinstance(each, CanaryChecked)]
        assert [each.passed for each in checked] == [True, False]
        assert isinstance(gateway.events[-1], GatewayFailed)


def test_its_memory_is_small(
    pod: Pod,
) -> None:
    with open_gateway_process(pod, RULES) as gateway:
        look_up(pod, API)
        status = Path(f"/proc/{gateway.process.pid}/status").read_text()
        (resident,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        assert int(resident.split()[1]) < 35 * 1024


def is_over(stream: ssl.SSLSocket) -> bool:
    """Whether nothing more comes, by a reset or by an end; waits for it."""
    try:
        return stream.recv(1) == b""
    except ConnectionResetError:
        return True


def wait_quietly(seconds: float) -> None:
    """Let time pass while nothing happens, which is what is tested."""
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(seconds)
        with pytest.raises(TimeoutError):
            left.recv(1)
