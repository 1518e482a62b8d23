"""What is read of the host's own network, from files as the kernel and the system write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.engine.host_network import (
    host_addresses,
    parse_fib_trie,
    parse_if_inet6,
    usable_resolvers,
)

if TYPE_CHECKING:
    from pathlib import Path

FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 198.51.100.0/24 2 0 2
        |-- 198.51.100.7
           /32 host LOCAL
        |-- 198.51.100.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
"""
IF_INET6 = (
    "00000000000000000000000000000001 01 80 10 80       lo\n"
    "20010db8000000000000000000000002 02 40 00 80     eth0\n"
    "fe800000000000000000000000000002 02 40 20 80     eth0\n"
)


def test_local_addresses_are_found_and_loopback_is_left_out() -> None:
    assert parse_fib_trie(FIB_TRIE) == ["198.51.100.7"]


def test_only_global_ipv6_addresses_count() -> None:
    assert parse_if_inet6(IF_INET6) == ["2001:db8::2"]


def test_own_addresses_of_this_machine_are_told_without_loopback() -> None:
    found = host_addresses()
    assert found
    assert not {"127.0.0.1", "::1"} & set(found)


@pytest.mark.parametrize(
    ("direct", "behind", "usable"),
    [
        ("nameserver 198.51.100.53\n", "", ("198.51.100.53",)),
        ("# nameserver 198.51.100.1\nnameserver 127.0.0.1\n", "", ()),
        ("nameserver 127.0.0.53\n", "nameserver 198.51.100.53\n", ("198.51.100.53",)),
        ("nameserver 127.0.0.53\n", "", ()),
        ("nameserver ::1\nnameserver 2001:db8::53\nsearch example\n", "", ("2001:db8::53",)),
        ("nameserver\nnameserver not-an-address\n", "", ()),
        ("", "", ()),
    ],
)
def test_resolvers_are_those_that_a_container_can_ask(
    direct: str, behind: str, usable: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "resolv.conf").write_text(direct)
    (tmp_path / "behind").write_text(behind)
    assert usable_resolvers(tmp_path / "resolv.conf", tmp_path / "behind") == usable
