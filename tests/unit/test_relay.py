"""Which connections the relay admits, and that spliced streams lose and add nothing."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import threading
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.egress.events import Denied, EgressEvent
from sandboxed_mcp.egress.rules import NameRule, parse_egress
from sandboxed_mcp.gateway.relay import Relay, open_relay
from sandboxed_mcp.gateway.relay_policy import (
    Admitted,
    Rejected,
    RelayPolicy,
    Target,
    judge_hello,
    still_allowed,
)
from sandboxed_mcp.gateway.relay_sockets import reset
from sandboxed_mcp.gateway.splice import PIPE_SIZE, PipePool, SplicedPair
from sandboxed_mcp.gateway.tls import (
    ACCESS_DENIED,
    UNRECOGNIZED_NAME,
    Incomplete,
    Refused,
    ServerName,
)
from tests.lab.desk import free_port, open_service

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from sandboxed_mcp.gateway.tls import Outcome

API, WILD = "api.example.test", "a.wild.example.test"
TARGET = Target(ip_address("198.51.100.10"), 443)


def make_policy(*rules: object) -> RelayPolicy:
    egress = parse_egress(list(rules) or [API, "*.wild.example.test", "plain.example.test:22/tcp"])
    assert isinstance(egress, tuple)
    return RelayPolicy(egress)


@pytest.mark.parametrize(
    ("name", "learned", "alert"),
    [
        (API, (API,), None),
        (WILD, (API, WILD), None),
        (API, (WILD,), UNRECOGNIZED_NAME),
        (API, (), UNRECOGNIZED_NAME),
        ("evil.test", (API,), UNRECOGNIZED_NAME),
        ("evil.test", ("evil.test",), UNRECOGNIZED_NAME),
        ("wild.example.test", ("wild.example.test",), UNRECOGNIZED_NAME),
        ("xwild.example.test", (API,), UNRECOGNIZED_NAME),
        ("api.example.test.evil.test", (API,), UNRECOGNIZED_NAME),
        ("plain.example.test", ("plain.example.test",), UNRECOGNIZED_NAME),
    ],
)
def test_a_server_name_must_be_a_rules_and_the_addresss(
    name: str, learned: tuple[str, ...], alert: int | None
) -> None:
    judged = judge_hello(make_policy(), TARGET, learned, ServerName(name))
    if alert is None:
        assert isinstance(judged, Admitted)
        assert judged.name == name
    else:
        assert isinstance(judged, Rejected)
        assert (judged.alert, judged.name) == (alert, name)


@pytest.mark.parametrize(
    "target",
    [
        Target(ip_address("198.51.100.10"), 8443),
        Target(ip_address("198.18.0.10"), 443),
        Target(ip_address("169.254.169.254"), 443),
        Target(ip_address("127.0.0.1"), 443),
        Target(ip_address("::ffff:169.254.169.254"), 443),
    ],
)
def test_another_port_and_a_private_address_are_denied_whatever_the_name(target: Target) -> None:
    assert isinstance(judge_hello(make_policy(), target, (API,), ServerName(API)), Rejected)
    assert isinstance(judge_hello(make_policy(), TARGET, (API,), ServerName(API)), Admitted)


@pytest.mark.parametrize(
    ("outcome", "alert"),
    [
        (Incomplete(), None),
        (Refused("no server name"), ACCESS_DENIED),
        (Refused("not tls", is_tls=False), None),
    ],
)
def test_a_connection_without_a_name_is_denied(outcome: Outcome, alert: int | None) -> None:
    judged = judge_hello(make_policy(), TARGET, (API,), outcome)
    assert isinstance(judged, Rejected)
    assert (judged.alert, judged.name) == (alert, API)


def test_ech_is_told_and_the_outer_name_decides() -> None:
    judged = judge_hello(make_policy(), TARGET, (API,), ServerName(API, ech=True))
    assert isinstance(judged, Admitted)
    assert judged.ech
    assert isinstance(judged.rule, NameRule)
    denied = judge_hello(make_policy(), TARGET, (API,), ServerName("front.test", ech=True))
    assert isinstance(denied, Rejected)


def test_observing_admits_nothing_and_keeps_nothing_open() -> None:
    policy = RelayPolicy(make_policy().rules, "observe")
    judged = judge_hello(policy, TARGET, (API,), ServerName(API))
    assert isinstance(judged, Rejected)
    assert (judged.reason, judged.name) == ("observed", API)
    assert not still_allowed(policy, TARGET, API)
    assert still_allowed(make_policy(), TARGET, API)
    assert not still_allowed(make_policy("other.example.test"), TARGET, API)


class Wire:
    """Two programs with a spliced pair between them: `left` and `right` are their ends."""

    def __init__(self) -> None:
        """Connect; nothing moves before `serve`."""
        (self.left, first), (self.right, second) = make_pair(), make_pair()
        self.inner = (first, second)
        self.pool = PipePool()
        self.outcome: list[OSError | None] = []
        self.pair: SplicedPair | None = None
        self.done = threading.Event()

    async def serve(self, stopping: asyncio.Event, ready: Callable[[], None]) -> None:
        self.pair = SplicedPair(*self.inner, self.pool)
        running = asyncio.create_task(self.pair.run())
        ready()
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        try:
            running.cancel()
            await running
            self.outcome.append(None)
        except asyncio.CancelledError:
            pass
        except OSError as error:
            self.outcome.append(error)
        for sock in self.inner:
            reset(sock) if self.outcome and self.outcome[0] else sock.close()
        self.done.set()


def make_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = socket.create_connection(listener.getsockname(), 5)
        accepted, _ = listener.accept()
    accepted.setblocking(False)
    return dialled, accepted


@pytest.fixture
def wire() -> Generator[Wire]:
    made = Wire()
    made.left.settimeout(10)
    made.right.settimeout(10)
    with made.left, made.right, open_service(made.serve):
        yield made
    made.pool.close()


def send_all(sock: socket.socket, data: bytes) -> threading.Thread:
    def work() -> None:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def receive_all(sock: socket.socket) -> bytes:
    data = bytearray()
    while chunk := sock.recv(1 << 16):
        data += chunk
    return bytes(data)


def test_streams_arrive_unchanged_both_ways_at_once(wire: Wire) -> None:
    forth, back = os.urandom(8 << 20), os.urandom(8 << 20)
    senders = [send_all(wire.left, forth), send_all(wire.right, back)]
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(receive_all(wire.left)))
    reader.start()
    assert hashlib.sha256(receive_all(wire.right)).digest() == hashlib.sha256(forth).digest()
    for thread in (*senders, reader):
        thread.join()
    assert got == [back]
    assert wire.done.wait(5)
    assert wire.outcome == [None]
    assert wire.pair is not None
    assert (wire.pair.sent, wire.pair.received) == (len(forth), len(back))
    assert wire.pool.held == 0


def test_a_half_close_is_passed_on_and_the_other_direction_lives(wire: Wire) -> None:
    wire.left.sendall(b"question")
    wire.left.shutdown(socket.SHUT_WR)
    assert receive_all(wire.right) == b"question"
    wire.right.sendall(b"answer")
    assert wire.left.recv(100) == b"answer"
    wire.right.shutdown(socket.SHUT_WR)
    assert wire.left.recv(100) == b""
    assert wire.done.wait(5)
    assert wire.outcome == [None]


def test_a_reset_ends_both_sides(wire: Wire) -> None:
    wire.left.sendall(b"hello")
    assert wire.right.recv(100) == b"hello"
    reset(wire.left)
    with pytest.raises(ConnectionResetError):
        wire.right.recv(1)
    assert wire.done.wait(5)
    assert isinstance(wire.outcome[0], ConnectionResetError)


def test_a_reader_that_stops_holds_its_sender_back_and_no_more_than_a_pipe(wire: Wire) -> None:
    wire.left.settimeout(0.5)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 1 << 30:
            sent += wire.left.send(b"x" * 65536)
    assert sent < 64 << 20
    assert wire.pool.held <= PIPE_SIZE
    wire.right.sendall(b"the other way is open")
    assert wire.left.recv(100) == b"the other way is open"
    wire.left.settimeout(10)
    wire.left.shutdown(socket.SHUT_WR)
    assert len(receive_all(wire.right)) == sent


def test_an_idle_stream_holds_no_pipe(wire: Wire) -> None:
    wire.left.sendall(b"hello")
    assert wire.right.recv(100) == b"hello"
    wire.right.sendall(b"hello")
    assert wire.left.recv(100) == b"hello"
    assert any(wire.pool.held == 0 or wire.done.wait(0.01) for _ in range(200))


def test_the_pool_keeps_few_pipes_and_asks_for_less_when_much_is_waiting() -> None:
    pool = PipePool()
    pipes = [pool.take() for _ in range(20)]
    assert pool.move_size == PIPE_SIZE
    pool.held = 17 << 20
    assert pool.move_size < PIPE_SIZE
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counts open files
    for pipe in pipes:
        pool.give_back(pipe, empty=True)
    assert before - len(os.listdir("/proc/self/fd")) == 32  # noqa: PTH208
    pool.close()


def test_a_connection_that_was_not_redirected_is_reset() -> None:
    events: list[EgressEvent] = []
    port = free_port()

    async def serve(stopping: asyncio.Event, ready: Callable[[], None]) -> None:
        relay = Relay(
            make_policy(),
            names=lambda _address: (API,),
            report=events.append,
            clock=asyncio.get_running_loop().time,
        )
        async with open_relay(relay, hosts=("127.0.0.1",), port=port):
            ready()
            await stopping.wait()

    with open_service(serve):
        client = socket.create_connection(("127.0.0.1", port), 5)
        with client, pytest.raises(ConnectionResetError):
            client.recv(1)
        assert [event.reason for event in events if isinstance(event, Denied)] == [
            "spoke to the relay directly"
        ]
