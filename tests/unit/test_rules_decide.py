"""Names, address classes and the decision."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.egress.addresses import classify, embedded_ipv4
from sandboxed_mcp.egress.rules import (
    UNRESTRICTED,
    Destination,
    NameRule,
    RuleError,
    Verdict,
    canonical_name,
    decide,
    matches_name,
    parse_destination,
    parse_egress,
    parse_rule,
    rules_for_name,
)


def name_rule(text: str) -> NameRule:
    rule = parse_rule(text)
    assert isinstance(rule, NameRule)
    return rule


def judge(rules: list[object], text: str, **changes: object) -> Verdict:
    asked = parse_destination(text)
    parts: dict[str, object] = {
        "host": asked.host,
        "address": asked.address,
        "port": asked.port,
        "protocol": asked.protocol,
        "tls_server_name": asked.tls_server_name,
    }
    return decide(parse_egress(rules), Destination(**(parts | changes)))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("example.com", "example.com", True),
        ("example.com", "a.example.com", False),
        ("example.com", "evilexample.com", False),
        ("example.com", "example.com.evil.test", False),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("*.example.com", "*.example.com", True),
        ("*.example.com", "a.example.com.evil.test", False),
        ("*.example.com", "com", False),
    ],
)
def test_names_are_compared_label_by_label(pattern: str, name: str, *, matches: bool) -> None:
    assert matches_name(name_rule(pattern), name) is matches


def test_a_query_name_becomes_canonical() -> None:
    assert canonical_name("EXAMPLE.com.") == "example.com"
    assert canonical_name("_dmarc.Example.com") == "_dmarc.example.com"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a..b",
        ".a",
        "a..",
        "evil.test\0.example.com",
        "a b.example",
        "a\\.b.example",
        "a\n.example",
        "é.example",
        "a" * 64 + ".example",
        ".".join(["a" * 60] * 5),
        "\x7f.example",
    ],
)
def test_a_query_name_with_a_foreign_character_or_length_is_refused(name: str) -> None:
    with pytest.raises(RuleError) as caught:
        canonical_name(name)
    assert str(caught.value).isprintable()


@given(st.text())
def test_any_text_is_a_canonical_name_or_a_rule_error(text: str) -> None:
    try:
        name = canonical_name(text)
    except RuleError:
        return
    assert canonical_name(name) == name
    assert len(name) <= 253
    assert all(0 < len(label) <= 63 for label in name.split("."))


CLASSES = [
    ("1.1.1.1", "global"),
    ("192.0.2.1", "global"),
    ("198.51.100.1", "global"),
    ("203.0.113.1", "global"),
    ("2001:db8::1", "global"),
    ("2606:4700::1", "global"),
    ("10.0.0.1", "private"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("172.32.0.1", "global"),
    ("192.168.1.1", "private"),
    ("100.64.0.1", "private"),
    ("100.128.0.1", "global"),
    ("198.18.0.1", "private"),
    ("198.19.255.255", "private"),
    ("198.20.0.1", "global"),
    ("fd00::1", "private"),
    ("fc00::1", "private"),
    ("0.0.0.0", "never"),  # noqa: S104
    ("0.1.2.3", "never"),
    ("127.0.0.1", "never"),
    ("127.255.255.254", "never"),
    ("169.254.169.254", "never"),
    ("169.254.0.1", "never"),
    ("100.100.100.200", "never"),
    ("168.63.129.16", "never"),
    ("168.63.129.17", "global"),
    ("192.0.0.192", "never"),
    ("224.0.0.251", "never"),
    ("239.255.255.250", "never"),
    ("240.0.0.1", "never"),
    ("255.255.255.255", "never"),
    ("::", "never"),
    ("::1", "never"),
    ("fe80::1", "never"),
    ("fe80::1%eth0", "never"),
    ("fec0::1", "never"),
    ("ff02::1", "never"),
    ("100::1", "never"),
    ("fd00:ec2::254", "never"),
    ("fd20:ce::254", "never"),
    ("::ffff:198.51.100.1", "global"),
    ("::ffff:10.0.0.1", "private"),
    ("::ffff:169.254.169.254", "never"),
    ("::ffff:127.0.0.1", "never"),
    ("::127.0.0.1", "never"),
    ("::10.0.0.1", "private"),
    ("64:ff9b::a9fe:a9fe", "never"),
    ("64:ff9b::10.0.0.1", "private"),
    ("64:ff9b::198.51.100.1", "global"),
    ("64:ff9b:1::198.51.100.1", "never"),
    ("2002:a9fe:a9fe::", "never"),
    ("2002:0a00:0001::1", "private"),
    ("2002:c633:6401::1", "global"),
    ("2001:0:c633:6401::39cc:9bfe", "global"),
    ("2001:0:7f00:1::39cc:9bfe", "never"),
    ("2001:0:c633:6401::80ff:fffe", "never"),
]


@pytest.mark.parametrize(("address", "kind"), CLASSES)
def test_an_address_has_its_class(address: str, kind: str) -> None:
    assert classify(ip_address(address)) == kind


@given(st.ip_addresses())
def test_an_ipv6_form_is_judged_at_least_as_strictly_as_the_address_inside(
    address: IPv4Address | IPv6Address,
) -> None:
    order = ["global", "private", "never"]
    kind = order.index(classify(address))
    assert all(kind >= order.index(classify(inner)) for inner in embedded_ipv4(address))


@given(st.ip_addresses(v=4))
def test_every_mapped_address_is_judged_as_its_ipv4_address(address: IPv4Address) -> None:
    for form in (f"::ffff:{address}", f"64:ff9b::{address}"):
        assert classify(IPv6Address(form)) == classify(address)
    assert classify(IPv6Address(int(address) << 80 | 0x2002 << 112)) == classify(address)


@pytest.mark.parametrize(
    ("rules", "asked", "reason"),
    [
        (["a.example"], "a.example", "rule 'a.example:443' opens it"),
        (["*.a.example"], "x.y.a.example:443", "rule '*.a.example:443' opens it"),
        (["a.example:5432/tcp"], "a.example:5432", "rule 'a.example:5432/tcp' opens it"),
        (["a.example:1-99/udp"], "a.example:53/udp", "rule 'a.example:1-99/udp' opens it"),
        (["10.0.0.0/8:1/tcp"], "10.1.2.3:1", "rule '10.0.0.0/8:1/tcp' opens it"),
        (["[2001:db8::/32]:1/tcp"], "[2001:db8::5]:1", "opens it"),
        (["b.example", "a.example"], "a.example", "rule 'a.example:443' opens it"),
    ],
)
def test_a_named_destination_is_allowed(rules: list[object], asked: str, reason: str) -> None:
    verdict = judge(rules, asked)
    assert verdict.allowed
    assert reason in verdict.reason
    assert verdict.rule is not None


@pytest.mark.parametrize(
    ("rules", "asked", "reason"),
    [
        ([], "a.example", "no egress rule"),
        (["a.example"], "b.example", "no rule names b.example on 443/tcp"),
        (["a.example"], "x.a.example", "no rule names x.a.example"),
        (["*.a.example"], "a.example", "no rule names a.example"),
        (["a.example"], "a.example:80", "rule 'a.example:443' opens 443/tcp only"),
        (["a.example"], "a.example:443/udp", "opens 443/tcp only"),
        (["10.0.0.0/8:1/tcp"], "11.0.0.1:1", "no rule names 11.0.0.1"),
        (["10.0.0.0/8:1/tcp"], "[::ffff:10.0.0.1]:1", "no rule names"),
        (["10.0.0.0/8:1/tcp"], "10.0.0.1:2", "opens 1/tcp only"),
        (["a.example"], "198.51.100.1", "no rule names 198.51.100.1 on 443/tcp"),
        (["168.0.0.0/8:80/tcp"], "168.63.129.16:80", "never opens 168.63.129.16 (metadata)"),
        (["100.0.0.0/8:80/tcp"], "100.100.100.200:80", "never opens 100.100.100.200"),
    ],
)
def test_an_unnamed_destination_is_denied(rules: list[object], asked: str, reason: str) -> None:
    verdict = judge(rules, asked)
    assert not verdict.allowed
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("169.254.169.254", "metadata"),
        ("::ffff:127.0.0.1", "loopback"),
        ("2002:7f00:1::", "loopback"),
        ("fe80::1", "link-local"),
        ("224.0.0.1", "multicast"),
    ],
)
def test_no_name_opens_a_never_address_even_with_leave(address: str, kind: str) -> None:
    rules: list[object] = [{"host": "a.example", "allow_private": True}]
    verdict = judge(rules, "a.example", address=ip_address(address))
    assert not verdict.allowed
    assert kind in verdict.reason


def test_a_name_opens_a_private_address_only_with_leave() -> None:
    private = IPv4Address("10.0.0.1")
    without = judge(["a.example"], "a.example", address=private)
    assert not without.allowed
    assert "does not say allow_private, and 10.0.0.1 is private" in without.reason
    given_leave: list[object] = [{"host": "a.example", "allow_private": True}]
    assert judge(given_leave, "a.example", address=private).allowed


def test_a_metadata_address_is_open_by_its_literal_with_leave_alone() -> None:
    rule = {"host": "169.254.169.254", "ports": 80, "protocol": "tcp", "allow_private": True}
    assert judge([rule], "169.254.169.254:80").allowed
    assert not judge([rule], "169.254.169.253:80").allowed


def test_a_verified_rule_needs_the_tls_server_name() -> None:
    assert judge(["*.a.example"], "x.a.example", tls_server_name="y.a.example").allowed
    missing = judge(["a.example"], "a.example", tls_server_name=None)
    assert not missing.allowed
    assert "the connection shows none" in missing.reason
    foreign = judge(["a.example"], "a.example", tls_server_name="b.example")
    assert not foreign.allowed
    assert "does not name the TLS server name 'b.example'" in foreign.reason
    assert judge(["a.example:443/tcp"], "a.example", tls_server_name=None).allowed


def test_unrestricted_allows_everything() -> None:
    for text in ("a.example", "10.0.0.1:1/udp"):
        assert decide(UNRESTRICTED, parse_destination(text)).allowed
    assert rules_for_name(UNRESTRICTED, "a.example") == ()


def test_the_resolver_finds_the_rules_of_a_name_whatever_the_port() -> None:
    egress = parse_egress(["a.example", "a.example:53/udp", "*.a.example", "10.0.0.0/8:1/tcp"])
    found = rules_for_name(egress, "a.example")
    assert [rule.text for rule in found] == ["a.example:443", "a.example:53/udp"]
    assert rules_for_name(egress, "b.example") == ()


@pytest.mark.parametrize(
    "text", ["*.a.example", "10.0.0.0/8:1", "a.example:1-2", "", "a b", "http://a"]
)
def test_what_is_not_one_destination_is_refused(text: str) -> None:
    with pytest.raises(RuleError):
        parse_destination(text)


@given(st.text())
def test_any_text_is_a_destination_or_a_rule_error(text: str) -> None:
    egress = parse_egress(["a.example"])
    try:
        asked = parse_destination(text)
    except RuleError:
        return
    assert decide(egress, asked).reason
