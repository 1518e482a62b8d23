"""The server name of a ClientHello, however its bytes arrive; and what is refused."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxed_mcp.gateway.tls import (
    MAX_CLIENT_HELLO,
    UNRECOGNIZED_NAME,
    ClientHelloReader,
    Incomplete,
    Outcome,
    Refused,
    ServerName,
    render_alert,
)
from tests.lab.hello import extension, hello, real_hello, records, server_name

NAME = b"api.example.test"
SERVER = ServerName("api.example.test")
ECH = extension(0xFE0D, b"\0" * 64)
GREASE = extension(0x2A2A, b"\0")


def read(data: bytes, *cuts: int) -> Outcome:
    """Give the bytes in pieces that end at the cuts."""
    reader = ClientHelloReader()
    at = 0
    for cut in sorted({min(cut, len(data)) for cut in cuts} | {len(data)}):
        reader.receive(data[at:cut])
        at = cut
    assert bytes(reader.received) == data
    return reader.outcome


ACCEPTED = {
    "plain": (records(hello(server_name(NAME))), SERVER),
    "mixed case": (records(hello(server_name(b"API.Example.TEST"))), SERVER),
    "trailing dot": (records(hello(server_name(b"api.example.test."))), SERVER),
    "grease": (records(hello(GREASE, server_name(NAME), extension(0x3A3A, b""))), SERVER),
    "grease suites": (records(hello(server_name(NAME), suites=b"\x0a\x0a\x13\x01")), SERVER),
    "session id": (records(hello(server_name(NAME), session=b"s" * 32)), SERVER),
    "TLS 1.0 hello": (records(hello(server_name(NAME), version=b"\3\1")), SERVER),
    "SSL 3.0 record": (records(hello(server_name(NAME)), version=b"\3\0"), SERVER),
    "ECH": (records(hello(ECH, server_name(NAME))), ServerName("api.example.test", ech=True)),
    "one byte a record": (records(hello(server_name(NAME)), size=1), SERVER),
    "early data behind": (
        records(hello(server_name(NAME))) + records(b"data", kind=23, version=b"\3\3"),
        SERVER,
    ),
    "punycode": (
        records(hello(server_name(b"xn--bcher-kva.example"))),
        ServerName("xn--bcher-kva.example"),
    ),
    "large": (
        records(hello(server_name(NAME), extension(21, b"\0" * 16000))),
        SERVER,
    ),
    "real TLS 1.3": (real_hello("api.example.test"), SERVER),
    "real TLS 1.2": (real_hello("api.example.test", ssl.TLSVersion.TLSv1_2), SERVER),
    "real with ALPN": (real_hello("api.example.test", alpn=("h2", "http/1.1")), SERVER),
}

MALFORMED = Refused("malformed client hello")
BAD_NAME = Refused("server name is malformed")
ADDRESS = Refused("server name is an address")
NOT_TLS = Refused("not tls", is_tls=False)
SSLV2 = Refused("sslv2 hello", is_tls=False)

REFUSED = {
    "no extension": (records(hello()), Refused("no server name")),
    "no extensions at all": (
        records(hello(without_extensions=True)),
        Refused("no server name"),
    ),
    "real without name": (real_hello(None), Refused("no server name")),
    "ECH alone": (records(hello(ECH)), Refused("no server name")),
    "two names": (
        records(hello(server_name(NAME, b"evil.test"))),
        Refused("several server names"),
    ),
    "the same name twice": (
        records(hello(server_name(NAME, NAME))),
        Refused("several server names"),
    ),
    "the extension twice": (
        records(hello(server_name(NAME), server_name(b"evil.test"))),
        MALFORMED,
    ),
    "another extension twice": (records(hello(server_name(NAME), GREASE, GREASE)), MALFORMED),
    "another kind of name": (records(hello(server_name(NAME, kind=1))), MALFORMED),
    "empty list": (records(hello(extension(0, b"\0\0"))), MALFORMED),
    "empty extension": (records(hello(extension(0, b""))), MALFORMED),
    "list longer than its extension": (records(hello(extension(0, b"\0\x09\0\0\1a"))), MALFORMED),
    "list shorter than its extension": (records(hello(extension(0, b"\0\4\0\0\1ab"))), MALFORMED),
    "name longer than its list": (records(hello(extension(0, b"\0\4\0\0\2a"))), MALFORMED),
    "empty name": (records(hello(server_name(b""))), BAD_NAME),
    "dot": (records(hello(server_name(b"."))), BAD_NAME),
    "two trailing dots": (records(hello(server_name(NAME + b".."))), BAD_NAME),
    "empty label": (records(hello(server_name(b"api..example.test"))), BAD_NAME),
    "NUL": (records(hello(server_name(b"api.example.test\0.evil.test"))), BAD_NAME),
    "space": (records(hello(server_name(b"api.example.test "))), BAD_NAME),
    "newline": (records(hello(server_name(b"api.example.test\nx"))), BAD_NAME),
    "not ASCII": (records(hello(server_name("bücher.example".encode()))), BAD_NAME),
    "label of 64": (records(hello(server_name(b"a" * 64 + b".test"))), BAD_NAME),
    "name of 300": (records(hello(server_name(b"abcdefghi." * 30))), BAD_NAME),
    "IPv4": (records(hello(server_name(b"198.51.100.10"))), ADDRESS),
    "IPv4 in hex": (records(hello(server_name(b"0xc6.0x33.0x64.0xa"))), ADDRESS),
    "IPv4 in one number": (records(hello(server_name(b"3325256714"))), ADDRESS),
    "IPv6": (records(hello(server_name(b"2001:db8::1"))), ADDRESS),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n", NOT_TLS),
    "HTTP/2 in clear": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", NOT_TLS),
    "SSH": (b"SSH-2.0-OpenSSH_9.2\r\n", NOT_TLS),
    "one wrong byte": (b"\x17", NOT_TLS),
    "high byte, no SSLv2": (b"\xff\xff\xff", NOT_TLS),
    "SSLv2": (b"\x80\x2e\x01\x03\x01\x00\x15\0\0\0\x10" + b"\0" * 37, SSLV2),
    "handshake, no TLS": (b"\x16\x02\x00\x00\x05", NOT_TLS),
    "alert": (records(b"\2\x28", kind=21), NOT_TLS),
    "empty record": (b"\x16\3\1\0\0", MALFORMED),
    "record of 16385": (b"\x16\3\1\x40\1", MALFORMED),
    "another message": (records(b"\2" + hello(server_name(NAME))[1:]), MALFORMED),
    "an alert between": (
        records(hello(server_name(NAME))[:20]) + records(b"\1\0", kind=21),
        MALFORMED,
    ),
    "another message behind in the record": (
        records(hello(server_name(NAME)) + hello(server_name(b"evil.test"))),
        MALFORMED,
    ),
    "bytes behind the extensions": (records(hello(server_name(NAME), behind=b"\0")), MALFORMED),
    "session id of 33": (records(hello(server_name(NAME), session=b"s" * 33)), MALFORMED),
    "no suites": (records(hello(server_name(NAME), suites=b"")), MALFORMED),
    "odd suites": (records(hello(server_name(NAME), suites=b"\x13\x01\0")), MALFORMED),
    "no compression": (records(hello(server_name(NAME), compression=b"")), MALFORMED),
    "version 2": (records(hello(server_name(NAME), version=b"\2\0")), MALFORMED),
    "empty hello": (records(b"\1\0\0\0"), MALFORMED),
    "too long": (
        records(hello(server_name(NAME), extension(21, b"\0" * 20000)), size=4096),
        Refused("client hello too long"),
    ),
    "claims to be longer": (
        b"\x16\3\1\x40\0\1\xff\xff\xff" + b"\0" * MAX_CLIENT_HELLO,
        Refused("client hello too long"),
    ),
}
CASES = {**ACCEPTED, **REFUSED}


@pytest.mark.parametrize("case", CASES)
def test_the_outcome_of_a_hello_is_the_same_in_one_piece_and_byte_by_byte(case: str) -> None:
    data, outcome = CASES[case]
    assert read(data) == outcome
    assert read(data, *range(len(data))) == outcome


@settings(max_examples=300, deadline=None)
@given(case=st.sampled_from(sorted(CASES)), cuts=st.lists(st.integers(0, 20000), max_size=20))
def test_any_split_of_the_bytes_gives_the_same_outcome(case: str, cuts: list[int]) -> None:
    data, outcome = CASES[case]
    assert read(data, *cuts) == outcome


@settings(max_examples=300, deadline=None)
@given(size=st.integers(1, 600), cuts=st.lists(st.integers(0, 3000), max_size=10))
def test_any_split_into_records_gives_the_same_name(size: int, cuts: list[int]) -> None:
    message = hello(GREASE, server_name(NAME), ECH)
    assert read(records(message, size), *cuts) == ServerName("api.example.test", ech=True)


@pytest.mark.parametrize("case", ACCEPTED)
def test_every_shorter_beginning_of_a_hello_is_incomplete(case: str) -> None:
    data, outcome = ACCEPTED[case]
    if case == "early data behind":
        data = data[:-9]
    assert all(isinstance(read(data[:end]), Incomplete) for end in range(0, len(data), 7))
    assert isinstance(read(data[:-1]), Incomplete)
    assert read(data) == outcome


@settings(max_examples=500, deadline=None)
@given(data=st.binary(max_size=600), cuts=st.lists(st.integers(0, 600), max_size=8))
def test_arbitrary_bytes_end_in_an_outcome_that_no_split_changes(
    data: bytes, cuts: list[int]
) -> None:
    assert read(data, *cuts) == read(data)


@settings(max_examples=1000, deadline=None)
@given(
    case=st.sampled_from(["plain", "real TLS 1.3", "ECH", "session id"]),
    at=st.integers(0, 600),
    value=st.integers(0, 255),
    cuts=st.lists(st.integers(0, 600), max_size=4),
)
def test_a_hello_with_one_wrong_byte_ends_in_an_outcome_that_no_split_changes(
    case: str, at: int, value: int, cuts: list[int]
) -> None:
    data = bytearray(ACCEPTED[case][0])
    data[at % len(data)] = value
    assert read(bytes(data), *cuts) == read(bytes(data))


def test_nothing_that_comes_later_changes_an_outcome() -> None:
    reader = ClientHelloReader()
    reader.receive(records(hello(server_name(NAME))))
    assert reader.receive(records(hello(server_name(b"evil.test")))) == SERVER
    reader = ClientHelloReader()
    reader.receive(b"GET ")
    assert reader.receive(records(hello(server_name(NAME)))) == NOT_TLS


def test_an_alert_is_a_record_that_a_client_reads() -> None:
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="api.example.test")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    incoming.write(render_alert(UNRECOGNIZED_NAME))
    with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
        client.do_handshake()
