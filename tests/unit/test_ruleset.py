"""The text of the packet filter, and what it is made from."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.egress.addresses import PRIVATE, classify
from sandboxed_mcp.egress.forbidden import list_never, list_private, split_versions
from sandboxed_mcp.egress.rules import RuleError, parse_egress
from sandboxed_mcp.egress.ruleset import render_ruleset
from sandboxed_mcp.egress.ruleset_values import (
    MAX_GENERATION,
    Gateway,
    Learned,
    RulesetSpec,
    Upstream,
    ct_mark,
    list_slots,
    split_ct_mark,
)
from sandboxed_mcp.egress.values import NameRule, PortRange

EGRESS = parse_egress(
    [
        "api.example.com",
        "*.example.org:8000-8100/tcp",
        {"host": "lan.example.com", "ports": 5432, "protocol": "tcp", "allow_private": True},
        "10.2.0.0/16:5432/tcp",
        "[2001:db8::/32]:443/tcp",
        {"host": "169.254.169.254", "ports": 80, "protocol": "tcp", "allow_private": True},
        {"host": "slow.example.com", "max_connections_per_minute": 9, "max_bytes": 5000},
    ]
)
UPSTREAM = (Upstream(ip_address("198.51.100.53")),)


def chain(text: str, name: str) -> list[str]:
    """The lines of a chain."""
    found = re.search(rf"chain {name} \{{\n(.*?)\n  \}}", text, re.DOTALL)
    assert found, name
    return [line.strip() for line in found[1].splitlines()]


def position(lines: list[str], part: str) -> int:
    """Where the first line with a part stands."""
    return next(index for index, line in enumerate(lines) if part in line)


def test_the_same_spec_gives_the_same_text() -> None:
    spec = RulesetSpec(egress=EGRESS, generation=3, upstreams=UPSTREAM)
    assert render_ruleset(spec) == render_ruleset(spec)
    assert "flush ruleset" not in render_ruleset(spec)


def test_decisions_stand_in_the_order_that_the_traps_ask_for() -> None:
    text = render_ruleset(RulesetSpec(egress=EGRESS, generation=1, upstreams=UPSTREAM))
    output = chain(text, "output")
    assert [position(output, part) for part in ("jump upstream", "127.0.0.11", "dnat == 0")] == [
        1,
        2,
        3,
    ]
    assert output[-1] == "goto egress"
    assert "policy drop" in output[0]
    egress = chain(text, "egress")
    order = (
        "ct mark and 0xffff0000 == 0x00010000",
        "ct state invalid",
        "!= { tcp, udp }",
        "169.254.169.254",
        "@never_v4",
        "goto relay_egress",
        "10.2.0.0/16",
        list_slots(EGRESS)[2].id,
        "@private_v4",
        list_slots(EGRESS)[1].id,
        "goto deny_default",
    )
    positions = [position(egress, part) for part in order]
    assert positions == sorted(positions)
    assert egress[-1] == "goto deny_default"


def test_every_base_chain_drops_by_default_but_the_rewrite() -> None:
    for spec in (
        RulesetSpec(egress=EGRESS, generation=1),
        RulesetSpec(egress=EGRESS, generation=1, hook="forward", server_link="srv0"),
        RulesetSpec(egress=EGRESS, generation=1, mode="observe"),
    ):
        hooks = [line for line in render_ruleset(spec).splitlines() if "hook " in line]
        open_hooks = [line for line in hooks if "policy drop" not in line]
        assert len(hooks) == 4
        assert all("type nat" in line for line in open_hooks)
        assert len(open_hooks) == 1


def test_the_gateway_is_known_by_mark_and_user_together() -> None:
    spec = RulesetSpec(egress=EGRESS, generation=1, upstreams=UPSTREAM, gateway=Gateway(uid=7))
    lines = [line for line in render_ruleset(spec).splitlines() if "0x40005347" in line]
    assert len(lines) == 3
    assert all("meta mark 0x40005347 meta skuid 7 " in line for line in lines)
    assert all(not line.endswith("accept") for line in lines)


def test_observing_opens_nothing_whatever_the_policy() -> None:
    spec = RulesetSpec(egress=EGRESS, generation=1, upstreams=UPSTREAM, mode="observe")
    text = render_ruleset(spec)
    assert "goto granted" not in text
    assert re.search(r"chain upstream \{\s*\}", text)
    assert chain(text, "egress")[-1] == "goto deny_observed"


def test_without_rules_nothing_is_granted() -> None:
    text = render_ruleset(RulesetSpec(egress=(), generation=1))
    assert "goto granted" not in text
    assert "redirect to :15443" not in text


def test_a_set_starts_with_what_was_learned_for_its_rule() -> None:
    assert isinstance(EGRESS, tuple)
    named, other = EGRESS[0], EGRESS[1]
    assert isinstance(named, NameRule)
    assert isinstance(other, NameRule)
    learned = (
        Learned(named, ip_address("198.51.100.1"), 60),
        Learned(named, ip_address("2001:db8::1"), 61),
        Learned(other, ip_address("198.51.100.2"), 62),
        Learned(named, ip_address("198.51.100.1"), 63),
    )
    text = render_ruleset(RulesetSpec(egress=EGRESS, generation=1, learned=learned))
    sets = dict(re.findall(r"set (\w+) \{[^}]*?elements = \{ (.*?) \}", text))
    assert sets[f"{named.id}_v4"] == "198.51.100.1 timeout 63s"
    assert sets[f"{named.id}_v6"] == "2001:db8::1 timeout 61s"
    assert sets[f"{other.id}_v4"] == "198.51.100.2 timeout 62s"


def test_an_address_rule_into_the_link_is_refused_by_its_place() -> None:
    spec = RulesetSpec(
        egress=parse_egress(["198.51.100.0/24:1/tcp", "172.17.0.1:5432/tcp"]),
        generation=1,
        forbidden=(ip_network("172.17.0.0/16"),),
    )
    with pytest.raises(RuleError, match=r"172\.17\.0\.1.*host") as refused:
        render_ruleset(spec)
    assert refused.value.setting == "[1]"


@pytest.mark.parametrize(
    "wrong",
    [
        {"generation": 0},
        {"generation": MAX_GENERATION + 1},
        {"generation": 1, "hook": "forward"},
        {"generation": 1, "server_link": "eth1"},
        {"generation": 1, "link": "eth0"},
        {"generation": 1, "link": 'eth0" accept', "stamp": 1},
        {"generation": 1, "link": "eth0\nx", "stamp": 1},
        {"generation": 1, "link": "", "stamp": 1},
    ],
)
def test_a_spec_that_would_not_hold_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"generation|link|stamp|device"):
        RulesetSpec(egress=(), **wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("mark", [0, 1, 0x3FFF_FFFF, 0x8000_0000])
def test_a_gateway_mark_that_a_flow_could_have_is_refused(mark: int) -> None:
    with pytest.raises(ValueError, match="mark"):
        Gateway(mark=mark)
    assert Gateway(upstream_ports=PortRange(1, 2)).mark > ct_mark(MAX_GENERATION, 0xFFFF)


@given(st.integers(1, MAX_GENERATION), st.integers(0, 0xFFFF))
def test_a_connection_mark_gives_back_generation_and_slot(generation: int, slot: int) -> None:
    assert split_ct_mark(ct_mark(generation, slot)) == (generation, slot)


def addresses() -> st.SearchStrategy[IPv4Address | IPv6Address]:
    """Addresses, most of them in or beside a network that matters."""
    networks = (*list_never(), *list_private(), *PRIVATE)
    edges = st.sampled_from(
        [end for each in networks for end in (each.network_address, each.broadcast_address)]
    )
    beside = st.tuples(edges, st.integers(-1, 1)).map(lambda pair: shift(*pair))
    return st.one_of(st.ip_addresses(), edges, beside)


def shift(address: IPv4Address | IPv6Address, by: int) -> IPv4Address | IPv6Address:
    """The address beside, within the same version."""
    value = (int(address) + by) % (1 << address.max_prefixlen)
    return IPv4Address(value) if address.version == 4 else IPv6Address(value)


@given(addresses())
def test_the_filters_networks_agree_with_the_classes_of_addresses(
    address: IPv4Address | IPv6Address,
) -> None:
    never = any(address in network for network in list_never())
    private = any(address in network for network in list_private())
    kind = classify(address)
    translated = address in ip_network("2001::/32") or address in ip_network("::/64")
    if kind == "never":
        assert never
    elif kind == "private":
        assert never or private
    else:
        assert translated or not (never or private)


def test_networks_are_sorted_by_version_without_doubles() -> None:
    v4, v6 = split_versions(
        [ip_network("10.0.0.0/8"), ip_network("::/96"), ip_network("10.0.0.0/8")]
    )
    assert (v4, v6) == ((ip_network("10.0.0.0/8"),), (ip_network("::/96"),))
