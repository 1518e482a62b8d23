"""Malformed messages, forged replies and slow clients, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import TYPE_CHECKING

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from sandboxed_mcp.gateway.dns_server import MAX_CLIENTS
from sandboxed_mcp.gateway.question import Malformed, Query, parse_query
from tests.lab.desk import HERE, Desk, free_port, open_desk
from tests.lab.dns import Zone
from tests.lab.servers import open_listener, open_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

API = "api.example.test"
ADDRESS, FORGED = "198.51.100.10", "198.51.100.66"
FORMERR, NOTIMP = 1, 4


@pytest.fixture
def desk() -> Generator[Desk, None, None]:
    zone = Zone()
    zone.add(API, ADDRESS)
    with open_desk([API, "*.wild.example.test"], zone) as made:
        yield made


def message(  # noqa: PLR0913 - the fields of a header
    question: bytes = b"\3api\7example\4test\0\0\1\0\1",
    *,
    flags: int = 0x0100,
    questions: int = 1,
    answers: int = 0,
    authority: int = 0,
    additional: int = 0,
    rest: bytes = b"",
) -> bytes:
    head = struct.pack("!6H", 0x1234, flags, questions, answers, authority, additional)
    return head + question + rest


OPT = b"\0\0\x29\x04\xd0\0\0\0\0\0\0"

MALFORMED = {
    "no question": message(b"", questions=0),
    "two questions": message(b"\3api\7example\4test\0\0\1\0\1" * 2, questions=2),
    "an answer": message(answers=1, rest=b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\1\2\3\4"),
    "authority": message(authority=1),
    "two additional": message(additional=2, rest=OPT * 2),
    "additional is no OPT": message(additional=1, rest=b"\0\0\1\0\1\0\0\0\0\0\0"),
    "OPT cut off": message(additional=1, rest=OPT[:-1]),
    "OPT longer than the message": message(additional=1, rest=OPT[:-2] + b"\0\5"),
    "OPT with a name": message(additional=1, rest=b"\1a" + OPT),
    "bytes behind": message(rest=b"\0"),
    "compressed": message(b"\xc0\x0c\0\1\0\1"),
    "compressed within": message(b"\3api\xc0\x0c\0\1\0\1"),
    "label type 1": message(b"\x41a\0\0\1\0\1"),
    "label type 2": message(b"\x81a\0\0\1\0\1"),
    "label of 64": message(b"\x40" + b"a" * 64 + b"\0\0\1\0\1"),
    "name of 256": message((b"\x3f" + b"a" * 63) * 4 + b"\0\0\1\0\1"),
    "name cut off": message(b"\3ap"),
    "no end of the name": message(b"\3api"),
    "no type": message(b"\3api\7example\4test\0"),
    "NUL": message(b"\x04ap\0i\7example\4test\0\0\1\0\1"),
    "NUL and a named name": message(b"\x0aevil.test\0\3api\7example\4test\0\0\1\0\1"),
    "space": message(b"\4ap i\7example\4test\0\0\1\0\1"),
    "backslash": message(b"\4ap\\i\7example\4test\0\0\1\0\1"),
    "dot inside a label": message(b"\x0bapi.example\4test\0\0\1\0\1"),
    "not ASCII": message(b"\4ap\xffi\7example\4test\0\0\1\0\1"),
    "control character": message(b"\4ap\x1bi\7example\4test\0\0\1\0\1"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_query_is_a_format_error(desk: Desk, case: str) -> None:
    reply = desk.send_raw(MALFORMED[case])
    assert reply is not None
    assert (reply[:2], reply[2] & 0x80, reply[3] & 15) == (b"\x12\x34", 0x80, FORMERR)
    assert desk.zone.asked == []
    assert desk.denials()[0].reason.startswith("malformed query: ")
    assert desk.resolve(API) == [ADDRESS]


@pytest.mark.parametrize(
    "data",
    [
        message(flags=0x0900),
        message(flags=0x2100),
        message(flags=0x7900),
        message(b"\3api\7example\4test\0\0\1\0\3"),
        message(b"\3api\7example\4test\0\0\1\0\xff"),
        message(b"\3api\7example\4test\0\0\xfc\0\1"),
    ],
)
def test_other_opcodes_classes_and_transfers_are_not_implemented(desk: Desk, data: bytes) -> None:
    reply = desk.send_raw(data)
    assert reply is not None
    assert reply[3] & 15 == NOTIMP
    assert desk.zone.asked == []


@pytest.mark.parametrize("data", [b"", b"\0" * 11, message(flags=0x8180), b"\0" * 5000])
def test_a_response_and_less_than_a_header_have_no_answer(desk: Desk, data: bytes) -> None:
    assert desk.send_raw(data, timeout=0.3) is None
    assert desk.resolve(API) == [ADDRESS]


def test_names_of_the_largest_size_are_read() -> None:
    name = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])
    wire = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    assert len(wire) == 255
    query = parse_query(message(wire + b"\0\1\0\1"))
    assert isinstance(query, Query)
    assert query.name == name
    root = parse_query(message(b"\0\0\1\0\1"))
    assert isinstance(root, Query)
    assert root.name == ""
    assert isinstance(parse_query(message(b"\1." + b"\0\0\1\0\1")), Malformed)


def test_the_answer_repeats_the_question_as_it_was_asked(desk: Desk) -> None:
    reply = desk.send_raw(message(b"\3aPi\7eXample\4tESt\0\0\1\0\1"))
    assert reply is not None
    assert reply[12:34] == b"\3aPi\7eXample\4tESt\0\0\1\0\1"


@contextlib.contextmanager
def open_upstream(
    zone: Zone, replies: Callable[[bytes, int], list[bytes]]
) -> Generator[int, None, None]:
    """An upstream whose UDP side sends what it is told; its TCP side is honest.

    `replies` gets the query and the port it came from.
    """
    port = free_port()
    datagrams = open_listener(HERE, "udp", "127.0.0.1", port)
    datagrams.settimeout(0.05)

    def step() -> None:
        with contextlib.suppress(TimeoutError):
            query, peer = datagrams.recvfrom(4096)
            for reply in replies(query, peer[1]):
                datagrams.sendto(reply, peer)

    with contextlib.ExitStack() as stack:
        stack.enter_context(datagrams)
        streams = stack.enter_context(open_listener(HERE, "tcp", "127.0.0.1", port))
        streams.settimeout(0.05)
        stack.enter_context(open_loop(step, "forger"))
        stack.enter_context(open_loop(lambda: serve_stream(streams, zone), "honest"))
        yield port


def serve_stream(listener: socket.socket, zone: Zone) -> None:
    with contextlib.suppress(TimeoutError):
        connection, _ = listener.accept()
        with connection:
            (size,) = struct.unpack("!H", connection.recv(2))
            reply = zone.reply(connection.recv(size), "tcp", 0)
            assert reply is not None
            connection.sendall(struct.pack("!H", len(reply)) + reply)


def make_reply(wire: bytes, address: str) -> bytes:
    reply = dns.message.make_response(dns.message.from_wire(wire))
    reply.answer.append(dns.rrset.from_text(reply.question[0].name, 300, "IN", "A", address))
    return reply.to_wire()


def make_forgeries(wire: bytes) -> list[bytes]:
    """Replies that differ from the right one in one thing each."""
    reply = make_reply(wire, FORGED)
    name = reply[12:30]
    return [
        bytes([reply[0] ^ 1]) + reply[1:],  # the id
        reply[:2] + bytes([reply[2] & 0x7F]) + reply[3:],  # a query
        reply[:2] + bytes([reply[2] | 0x08]) + reply[3:],  # another opcode
        reply.replace(name, name.swapcase()),  # the letter case
        reply[:29] + b"u" + reply[30:],  # the name
        reply[:4] + b"\0\2" + reply[6:],  # two questions
        reply[:30] + b"\0\x1c" + reply[32:],  # the type
        reply[:11],
        b"",
    ]


@pytest.mark.parametrize("index", range(9))
def test_a_message_that_differs_in_anything_is_not_the_reply(index: int) -> None:
    zone = Zone()

    def replies(wire: bytes, _port: int) -> list[bytes]:
        return [make_forgeries(wire)[index], make_reply(wire, ADDRESS)]

    with open_upstream(zone, replies) as port, open_desk([API], upstream_port=port) as desk:
        assert desk.resolve(API) == [ADDRESS]
        assert desk.sets.addresses() == {ADDRESS}
        assert zone.asked == []


def test_a_flood_of_wrong_replies_leads_to_tcp() -> None:
    zone = Zone()
    zone.add(API, ADDRESS)

    def replies(wire: bytes, _port: int) -> list[bytes]:
        return make_forgeries(wire)[:1] * 20

    with open_upstream(zone, replies) as port, open_desk([API], upstream_port=port) as desk:
        assert desk.resolve(API) == [ADDRESS]
        assert [each.protocol for each in zone.asked] == ["tcp"]


def test_a_perfect_forgery_from_elsewhere_is_not_even_received() -> None:
    """The attacker knows the port, the id and the letter case, and is on the same machine."""
    sent: list[int] = []

    def replies(wire: bytes, port: int) -> list[bytes]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
            for _ in range(100):
                with contextlib.suppress(OSError):
                    attacker.sendto(make_reply(wire, FORGED), ("127.0.0.1", port))
                    sent.append(port)
        return [make_reply(wire, ADDRESS)]

    with open_upstream(Zone(), replies) as port, open_desk([API], upstream_port=port) as desk:
        assert desk.resolve(API) == [ADDRESS]
        assert len(sent) == 100
        assert desk.sets.addresses() == {ADDRESS}


def test_a_truncated_reply_is_asked_for_over_tcp_and_learned_once() -> None:
    zone = Zone()
    zone.add(API, ADDRESS)

    def replies(wire: bytes, _port: int) -> list[bytes]:
        reply = dns.message.make_response(dns.message.from_wire(wire))
        reply.flags |= dns.flags.TC
        return [reply.to_wire()]

    with open_upstream(zone, replies) as port, open_desk([API], upstream_port=port) as desk:
        assert desk.resolve(API) == [ADDRESS]
        assert [str(each.address) for each in desk.sets.entries] == [ADDRESS]


def test_a_reply_with_a_compression_loop_opens_nothing() -> None:
    def replies(wire: bytes, _port: int) -> list[bytes]:
        record = b"\xc0\x29\0\1\0\1\0\0\1\0\0\4\1\2\3\4"
        head = wire[:2] + b"\x81\x80\0\1\0\1\0\0\0\0"
        question = wire[12:34]
        return [head + question + b"\xc0\x22" + record[2:], head + question + record]

    with open_upstream(Zone(), replies) as port, open_desk([API], upstream_port=port) as desk:
        assert dns.rcode.to_text(desk.ask(API).rcode()) == "SERVFAIL"
        assert desk.sets.entries == []


def test_an_upstream_that_does_not_answer_is_a_failure_in_time() -> None:
    with open_upstream(Zone(), lambda _wire, _port: []) as port:  # noqa: SIM117 - reads in order
        with open_desk([API], upstream_port=port) as desk:
            started = time.monotonic()
            assert dns.rcode.to_text(desk.ask(API).rcode()) == "SERVFAIL"
            assert time.monotonic() - started < 9
            assert "no reply in time" in desk.denials()[0].reason


def test_several_queries_on_one_tcp_connection_are_answered(desk: Desk) -> None:
    query = message()
    with socket.create_connection(("127.0.0.1", desk.port), 5) as client:
        client.sendall((struct.pack("!H", len(query)) + query) * 3)
        for _ in range(3):
            (size,) = struct.unpack("!H", client.recv(2, socket.MSG_WAITALL))
            reply = client.recv(size, socket.MSG_WAITALL)
            assert reply.endswith(socket.inet_aton(ADDRESS))
    assert len(desk.sets.entries) == 1


@pytest.mark.parametrize("start", [b"", b"\0", b"\0\x22\x12", struct.pack("!H", 5000)])
def test_a_slow_or_absurd_tcp_client_is_sent_away(desk: Desk, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", desk.port), 5) as client:
        client.sendall(start)
        client.settimeout(7)
        started = time.monotonic()
        assert client.recv(1) == b""
        assert time.monotonic() - started < 6
    assert desk.resolve(API) == [ADDRESS]


def test_there_are_at_most_64_tcp_clients(desk: Desk) -> None:
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", desk.port), 5))
            for _ in range(MAX_CLIENTS)
        ]
        extra = stack.enter_context(socket.create_connection(("127.0.0.1", desk.port), 5))
        assert extra.recv(1) == b""
        query = message()
        clients[0].sendall(struct.pack("!H", len(query)) + query)
        assert clients[0].recv(2) != b""
        assert desk.resolve(API) == [ADDRESS]
        assert any(each.reason == "too many clients over TCP" for each in desk.denials())


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - it must fail
@pytest.mark.parametrize("option", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_the_server_cannot_bind_the_resolvers_port_as_well(
    desk: Desk, kind: socket.SocketKind, option: int, host: str
) -> None:
    with socket.socket(socket.AF_INET, kind) as thief:
        thief.setsockopt(socket.SOL_SOCKET, option, 1)
        with pytest.raises(OSError, match="in use"):
            thief.bind((host, desk.port))
    assert desk.resolve(API) == [ADDRESS]
