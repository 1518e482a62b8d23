"""Netlink messages, NFLOG packets: any bytes give a value or nothing, never an exception."""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.gateway.netlink import (
    netfilter_header,
    pack_attribute,
    pack_nested,
    pack_text,
    parse_attributes,
    parse_text,
    split_messages,
)
from sandboxed_mcp.gateway.nflog import DeniedPacket, parse_packet

PAYLOAD, PREFIX = 9, 10


def packet(head: bytes, prefix: str = "default") -> bytes:
    """An NFLOG payload."""
    return netfilter_header(2) + pack_text(PREFIX, prefix) + pack_attribute(PAYLOAD, head)


def ipv4(protocol: int, rest: bytes, options: bytes = b"") -> bytes:
    """An IPv4 packet from 198.19.0.2 to 198.51.100.20."""
    first = 0x45 + len(options) // 4
    start = struct.pack("!BBHHHBBH", first, 0, 20 + len(options) + len(rest), 0, 0, 64, protocol, 0)
    ends = socket.inet_aton("198.19.0.2") + socket.inet_aton("198.51.100.20")
    return start + ends + options + rest


def ipv6(protocol: int, rest: bytes) -> bytes:
    """An IPv6 packet from 2001:db8::2 to 2001:db8::20."""
    start = struct.pack("!IHBB", 6 << 28, len(rest), protocol, 64)
    return start + ip_address("2001:db8::2").packed + ip_address("2001:db8::20").packed + rest


PORTS = struct.pack("!HH", 40000, 443)


@pytest.mark.parametrize(
    ("head", "protocol", "ports"),
    [
        (ipv4(6, PORTS), "tcp", (40000, 443)),
        (ipv4(17, PORTS), "udp", (40000, 443)),
        (ipv4(17, PORTS, b"\1" * 8), "udp", (40000, 443)),
        (ipv4(1, b"\10\0\0\0"), "icmp", (0, 0)),
        (ipv4(47, PORTS), "47", (0, 0)),
        (ipv4(6, b"\1\2"), "tcp", (0, 0)),
        (ipv6(6, PORTS), "tcp", (40000, 443)),
        (ipv6(0, b"\x11\0\0\0\0\0\0\0" + PORTS), "udp", (40000, 443)),
        (ipv6(44, b"\x11\0\0\0\0\0\0\0" + PORTS), "udp", (40000, 443)),
        (ipv6(58, b"\x80\0\0\0"), "icmpv6", (0, 0)),
    ],
)
def test_a_denied_packet_is_read(head: bytes, protocol: str, ports: tuple[int, int]) -> None:
    found = parse_packet(packet(head, "rate:r0123456789ab"))
    assert found is not None
    assert (found.reason, found.rule, found.protocol) == ("rate", "r0123456789ab", protocol)
    assert (found.source_port, found.port) == ports
    assert str(found.address) in ("198.51.100.20", "2001:db8::20")


@given(st.binary(max_size=120))
def test_any_head_gives_a_packet_or_nothing(head: bytes) -> None:
    found = parse_packet(packet(head))
    assert found is None or isinstance(found, DeniedPacket)


@given(st.binary(max_size=300))
def test_any_payload_gives_a_packet_or_nothing(payload: bytes) -> None:
    parse_packet(payload)
    parse_attributes(payload)
    list(split_messages(payload))


@given(st.dictionaries(st.integers(0, 0x3FFF), st.binary(max_size=40), max_size=8))
def test_attributes_are_read_back(attributes: dict[int, bytes]) -> None:
    written = b"".join(pack_attribute(kind, data) for kind, data in attributes.items())
    assert parse_attributes(written) == attributes
    nested = parse_attributes(pack_nested(5, written))
    assert parse_attributes(nested[5]) == attributes


@given(st.text(st.characters(min_codepoint=1, max_codepoint=127)))
def test_text_is_read_back(text: str) -> None:
    assert parse_text(parse_attributes(pack_text(3, text))[3]) == text
