"""The egress grammar: what is accepted, what is refused and in which words."""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.egress.rules import (
    UNRESTRICTED,
    AddressRule,
    NameRule,
    PortRange,
    Rule,
    RuleError,
    RuleLimits,
    parse_egress,
    parse_rule,
    render_egress,
    render_rule,
    render_rule_value,
)
from sandboxed_mcp.egress.sizes import parse_size, render_size

ACCEPTED = [
    ("api.example.com", "api.example.com:443"),
    ("API.Example.COM.", "api.example.com:443"),
    ("api.example.com:8443", "api.example.com:8443"),
    ("*.example.com:443", "*.example.com:443"),
    ("*.a.b.example.com", "*.a.b.example.com:443"),
    ("db.example.com:5432/tcp", "db.example.com:5432/tcp"),
    ("db.example.com/tcp", "db.example.com:443/tcp"),
    ("db.example.com:8000-8100/tcp", "db.example.com:8000-8100/tcp"),
    ("db.example.com:1-65535/tcp", "db.example.com:1-65535/tcp"),
    ("time.example.com:123/udp", "time.example.com:123/udp"),
    ("10.2.0.0/16:5432/tcp", "10.2.0.0/16:5432/tcp"),
    ("10.0.0.0/8:1/tcp", "10.0.0.0/8:1/tcp"),
    ("198.51.100.7:443/tcp", "198.51.100.7:443/tcp"),
    ("198.51.100.7/32:443/tcp", "198.51.100.7:443/tcp"),
    ("[2001:db8::/32]:443/tcp", "[2001:db8::/32]:443/tcp"),
    ("[2001:DB8:0::1]:443/udp", "[2001:db8::1]:443/udp"),
    ("[fd12:3456::/32]:443/tcp", "[fd12:3456::/32]:443/tcp"),
    ("bücher.example", "xn--bcher-kva.example:443"),
    ("xn--bcher-kva.example", "xn--bcher-kva.example:443"),
    ("1st.4chan.example", "1st.4chan.example:443"),
    ("3com.com", "3com.com:443"),
    ("a" * 63 + ".example", "a" * 63 + ".example:443"),
]


@pytest.mark.parametrize(("written", "canonical"), ACCEPTED)
def test_a_rule_has_one_canonical_text(written: str, canonical: str) -> None:
    rule = parse_rule(written)
    assert render_rule(rule) == canonical
    assert parse_rule(canonical) == rule


def test_a_bare_name_is_https_with_the_tls_name_verified() -> None:
    assert parse_rule("api.example.com") == NameRule(
        "api.example.com", PortRange(443, 443), "tcp", "verify"
    )


def test_a_written_protocol_switches_verification_off_unless_a_table_asks_for_it() -> None:
    table: dict[str, object] = {"host": "h.example", "ports": 5432, "protocol": "tcp"}
    assert parse_rule("h.example:5432/tcp") == parse_rule(table)
    assert parse_rule(table) == NameRule("h.example", PortRange(5432, 5432), "tcp", "off")
    assert parse_rule(table | {"tls": "verify"}) == parse_rule("h.example:5432")


def test_a_table_carries_leave_and_limits() -> None:
    rule = parse_rule(
        {
            "host": "nas",
            "ports": "8000-8010",
            "protocol": "tcp",
            "allow_private": True,
            "max_connections_per_minute": 60,
            "max_bytes": "10MiB",
        }
    )
    assert rule == NameRule(
        "nas", PortRange(8000, 8010), "tcp", "off", True, RuleLimits(60, 10 << 20)
    )
    assert tomllib.loads(f"rule = {render_rule(rule)}")["rule"] == render_rule_value(rule)


def test_a_metadata_address_needs_a_table_with_leave() -> None:
    table = {"host": "169.254.169.254", "ports": 80, "protocol": "tcp", "allow_private": True}
    rule = parse_rule(table)
    assert isinstance(rule, AddressRule)
    assert rule.single
    assert rule.allow_private


def test_equal_rules_have_equal_ids_and_others_do_not() -> None:
    assert parse_rule("A.example.").id == parse_rule("a.example:443").id
    assert parse_rule("a.example:443").id != parse_rule("a.example:443/tcp").id


REFUSED = [
    ("", "rule is empty", "write a host"),
    ("*", "'*' names every host", "unrestricted"),
    ("*.com", "'*.com' stands directly below a top-level name", "two labels"),
    ("*.xn--p1ai", "'*.xn--p1ai' stands directly below", "two labels"),
    ("a.*.com", "wildcard in 'a.*.com'", "at the very start"),
    ("*foo.com", "wildcard in '*foo.com'", "at the very start"),
    ("*.*.example.com", "wildcard in '*.*.example.com'", "once"),
    ("foo*.example.com", "wildcard in 'foo*.example.com'", "at the very start"),
    ("10.0.0.0/7:1/tcp", "'10.0.0.0/7' is wider than /8", "smaller networks"),
    ("0.0.0.0/0:1/tcp", "'0.0.0.0/0' is wider than /8", "smaller networks"),
    ("[2001:db8::/31]:1/tcp", "'[2001:db8::/31]' is wider than /32", "smaller networks"),
    ("[::/0]:1/tcp", "'[::/0]' is wider than /32", "smaller networks"),
    ("10.2.0.1/16:1/tcp", "'10.2.0.1/16' has bits set", "10.2.0.0/16"),
    ("[2001:db8::1/32]:1/tcp", "'[2001:db8::1/32]' has bits set", "2001:db8::/32"),
    ("10.2.0.0/33:1/tcp", "prefix length '33'", "up to 32"),
    ("10.2.0.0/016:1/tcp", "prefix length '016'", "up to 32"),
    ("[2001:db8::/129]:1/tcp", "prefix length '129'", "up to 128"),
    ("[2001:db8::/]:1/tcp", "prefix length ''", "up to 128"),
    ("h.example:0", "ports '0' holds port 0", "from 1 to 65535"),
    ("h.example:0-9", "ports '0-9' holds port 0", "from 1 to 65535"),
    ("h.example:65536", "ports '65536' goes beyond 65535", "from 1 to 65535"),
    ("h.example:1-99999", "ports '1-99999' goes beyond 65535", "from 1 to 65535"),
    ("h.example:9-8", "ports '9-8' runs backwards", "write 8-9"),
    ("h.example:", "ports '' is not a port", "from 1 to 65535"),
    ("h.example:https", "ports 'https' is not a port", "from 1 to 65535"),
    ("h.example:+443", "ports '+443' is not a port", "from 1 to 65535"),
    ("h.example:0443", "ports '0443' is not a port", "from 1 to 65535"),
    ("h.example:\uff14\uff14\uff13", "ports '\uff14\uff14\uff13' is not a port", "from 1 to 65535"),
    ("h.example:1-2-3", "ports '1-2-3' is not a port", "from 1 to 65535"),
    ("h.example/sctp", "'sctp' is not a protocol", "tcp or udp"),
    ("h.example:443/TCP", "'TCP' is not a protocol", "in lower case"),
    ("h.example:443/", "'' is not a protocol", "tcp or udp"),
    ("h.ex ample", "holds whitespace (U+0020)", "nothing else"),
    ("h.example\n", "holds whitespace (U+000A)", "nothing else"),
    ("h.example\u00a0", "holds whitespace (U+00A0)", "nothing else"),
    ("h\0.example", "holds a NUL character (U+0000)", "nothing else"),
    ("h\x1b.example", "holds a control or invisible character (U+001B)", "nothing else"),
    ("h\u200b.example", "holds a control or invisible character (U+200B)", "nothing else"),
    ("h\u202e.example", "holds a control or invisible character (U+202E)", "nothing else"),
    ("h\ud800.example", "holds a control or invisible character (U+D800)", "nothing else"),
    ("h\\.example", "holds a backslash (U+005C)", "nothing else"),
    ("x" * 400, "has 400 characters", "nothing else"),
    ("https://h.example", "'https://h.example' is a URL", "host and port alone"),
    ("https://h.example:443/path", "is a URL", "host and port alone"),
    ("h.example/path", "'path' is not a protocol", "tcp or udp"),
    ("h.example:443/a/b", "'h.example:443/a/b' has a path", "host and port alone"),
    ("u@h.example", "holds user information (U+0040)", "nothing else"),
    ("u:p@h.example:80", "holds user information", "nothing else"),
    ("0x7f.1", "host '0x7f.1' is not a name", "four decimal numbers"),
    ("127.1", "host '127.1' is not a name", "four decimal numbers"),
    ("1.2.3", "host '1.2.3' is not a name", "four decimal numbers"),
    ("2130706433", "host '2130706433' is not a name", "four decimal numbers"),
    ("0177.0.0.1", "host '0177.0.0.1' is not a name", "four decimal numbers"),
    ("127.0.0.0x1", "host '127.0.0.0x1' is not a name", "four decimal numbers"),
    ("example.123", "host 'example.123' is not a name", "four decimal numbers"),
    ("*.2.3", "host '*.2.3' is not a name", "four decimal numbers"),
    ("198.51.100.7.:443/tcp", "host '198.51.100.7.' is not a name", "four decimal numbers"),
    ("a" * 64 + ".example", "label of more than 63", "RFC 1035"),
    (".".join(["a" * 60] * 5), "more than 253", "RFC 1035"),
    ("_svc.example.com", "host '_svc.example.com' holds '_'", "service labels"),
    ("-a.example.com", "has the label '-a'", "inner hyphens"),
    ("a-.example.com", "has the label 'a-'", "inner hyphens"),
    ("a,b.example.com", "has the label 'a,b'", "letters, digits"),
    ("h.example?x", "has the label 'example?x'", "letters, digits"),
    ("h..example", "'h..example' has an empty label", "single dots"),
    (".h.example", "'.h.example' has an empty label", "single dots"),
    ("h.example..", "'h.example..' has an empty label", "single dots"),
    ("*..example.com", "'*..example.com' has an empty label", "single dots"),
    ("*.", "has an empty label", "single dots"),
    (":443", "has an empty label", "single dots"),
    ("localhost", "'localhost' means the machine", "elsewhere"),
    ("LOCALHOST.:80", "'LOCALHOST.' means the machine", "elsewhere"),
    ("x.localhost", "'x.localhost' means the machine", "elsewhere"),
    ("*.foo.localhost", "means the machine", "elsewhere"),
    ("host.docker.internal", "'host.docker.internal' means the machine", "elsewhere"),
    ("*.docker.internal", "means the machine", "elsewhere"),
    ("host.containers.internal:80", "means the machine", "elsewhere"),
    ("metadata.google.internal", "is a metadata service", "a name never opens it"),
    ("db", "host 'db' has a single label", "allow_private = true"),
    ("xn--a.example", "'xn--a.example' is not a valid IDNA 2008 name", "xn--"),
    ("ab--c.example", "'ab--c.example' is not a valid IDNA 2008 name", "lower case"),
    ("BÜCHER.example", "is not a valid IDNA 2008 name", "lower case"),
    ("h。example.com", "is not a valid IDNA 2008 name", "lower case"),
    ("☃.example", "is not a valid IDNA 2008 name", "lower case"),
    ("[::ffff:198.51.100.1]:1/tcp", "carries an IPv4 address", "IPv4 address itself"),
    ("[64:ff9b::1.2.3.4]:1/tcp", "carries an IPv4 address", "IPv4 address itself"),
    ("[2002:a9fe:a9fe::/48]:1/tcp", "carries an IPv4 address", "IPv4 address itself"),
    ("[2001::/32]:1/tcp", "carries an IPv4 address", "IPv4 address itself"),
    ("[::/32]:1/tcp", "carries an IPv4 address", "IPv4 address itself"),
    ("127.0.0.1:1/tcp", "'127.0.0.1' is loopback", "own address"),
    ("127.0.0.0/8:1/tcp", "'127.0.0.0/8' is loopback", "own address"),
    ("0.0.0.0:1/tcp", "'0.0.0.0' is unspecified", "own address"),
    ("169.254.1.1:1/tcp", "'169.254.1.1' is link-local", "own address"),
    ("169.254.0.0/16:1/tcp", "'169.254.0.0/16' is link-local", "own address"),
    ("169.254.169.254:80/tcp", "'169.254.169.254' is a metadata service", "allow_private"),
    ("169.254.170.2:80/tcp", "'169.254.170.2' is a metadata service", "allow_private"),
    ("100.100.100.200:80/tcp", "'100.100.100.200' is a metadata service", "allow_private"),
    ("168.63.129.16:80/tcp", "'168.63.129.16' is a metadata service", "allow_private"),
    ("[fd00:ec2::254]:80/tcp", "'[fd00:ec2::254]' is a metadata service", "allow_private"),
    ("224.0.0.1:1/udp", "'224.0.0.1' is multicast", "own address"),
    ("240.0.0.1:1/tcp", "'240.0.0.1' is reserved", "own address"),
    ("255.255.255.255:1/udp", "'255.255.255.255' is broadcast", "own address"),
    ("[::]:1/tcp", "'[::]' is unspecified", "own address"),
    ("[::1]:1/tcp", "'[::1]' is loopback", "own address"),
    ("[fe80::1]:1/tcp", "'[fe80::1]' is link-local", "own address"),
    ("[ff02::1]:1/udp", "'[ff02::1]' is multicast", "own address"),
    ("[fe80::1%eth0]:1/tcp", "'[fe80::1%eth0]' has a scope", "global address"),
    ("[h.example]:443", "'[h.example]' is not an IPv6 address", "brackets hold"),
    ("[198.51.100.1]:443/tcp", "is not an IPv6 address", "brackets hold"),
    ("2001:db8::1:443", "has more than one ':'", "in brackets"),
    ("h.example:443:443", "has more than one ':'", "in brackets"),
    ("[2001:db8::]/32:443/tcp", "something between its address and its port", "inside"),
    ("[2001:db8::", "is not of the grammar", "TARGET"),
    ("[]:443/tcp", "is not an IPv6 address", "brackets hold"),
    ("10.0.0.1", "names an address without its port and protocol", "write both"),
    ("10.0.0.1:80", "names an address without its port and protocol", "write both"),
    ("h.example/16", "'h.example/16' has a prefix length and is not an address", "*."),
    (5, "rule is of type int", "write a string"),
    (None, "rule is of type NoneType", "write a string"),
    (["h.example"], "rule is of type list", "write a string"),
    ({}, "rule has no host", "add host"),
    ({"host": "h.example", "port": 1}, "unknown key 'port'", "did you mean 'ports'?"),
    ({"host": "h.example", "x": 1}, "unknown key 'x'", "known are host, ports"),
    ({"host": 5}, "host is 5", "write a string"),
    ({"host": "h.example:80"}, "'h.example:80' holds more than a host", "keys of their own"),
    ({"host": "h.example/tcp"}, "'h.example/tcp' holds more than a host", "keys of their own"),
    ({"host": "h.example", "ports": True}, "ports True is not a port", "from 1 to 65535"),
    ({"host": "h.example", "ports": 4.5}, "ports 4.5 is not a port", "from 1 to 65535"),
    ({"host": "h.example", "ports": -1}, "ports -1 is not a port", "from 1 to 65535"),
    ({"host": "h.example", "ports": 10**5000}, "is not a port", "from 1 to 65535"),
    ({"host": "h.example", "ports": [80]}, "is not a port", "from 1 to 65535"),
    ({"host": "h.example", "protocol": "icmp"}, "'icmp' is not a protocol", "tcp or udp"),
    ({"host": "h.example", "tls": "on"}, "tls is 'on'", '"verify" or "off"'),
    ({"host": "h.example", "tls": True}, "tls is True", '"verify" or "off"'),
    (
        {"host": "h.example", "protocol": "udp", "tls": "verify"},
        "asks to verify TLS names over UDP",
        'protocol = "tcp"',
    ),
    (
        {"host": "10.0.0.1", "ports": 1, "protocol": "tcp", "tls": "verify"},
        "an address has none",
        "name the host",
    ),
    ({"host": "h.example", "allow_private": 1}, "allow_private is 1", "true or false"),
    ({"host": "h.example", "allow_private": "yes"}, "allow_private is 'yes'", "true or false"),
    (
        {"host": "h.example", "max_connections_per_minute": 0},
        "max_connections_per_minute is 0",
        "from 1 to",
    ),
    ({"host": "h.example", "max_bytes": "1GB"}, "'1GB' is not a size", "512MiB"),
    ({"host": "h.example", "max_bytes": 0}, "0 is not a size", "512MiB"),
    (
        {"host": "169.254.0.0/16", "ports": 80, "protocol": "tcp", "allow_private": True},
        "'169.254.0.0/16' is link-local",
        "own address",
    ),
    (
        {"host": "127.0.0.1", "ports": 80, "protocol": "tcp", "allow_private": True},
        "'127.0.0.1' is loopback",
        "own address",
    ),
    ({"host": "localhost", "allow_private": True}, "means the machine", "elsewhere"),
]


def str_or_none(item: object) -> str | None:
    return ascii(item)[:40] if isinstance(item, str) else None


@pytest.mark.parametrize(("value", "problem", "fix"), REFUSED, ids=str_or_none)
def test_a_refusal_gives_reason_and_fix(value: object, problem: str, fix: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_rule(value)
    assert problem in caught.value.problem
    assert fix in caught.value.fix
    assert str(caught.value).isprintable()


def test_an_egress_setting_is_a_list_or_the_word() -> None:
    assert parse_egress([]) == ()
    assert parse_egress("unrestricted") is UNRESTRICTED
    assert parse_egress(["a.example", "b.example:1/udp"]) == (
        parse_rule("a.example"),
        parse_rule("b.example:1/udp"),
    )


@pytest.mark.parametrize(
    ("value", "setting", "problem"),
    [
        ("Unrestricted", "", "egress is 'Unrestricted'"),
        ("a.example", "", "egress is 'a.example'"),
        (None, "", "egress is of type NoneType"),
        ({"host": "a.example"}, "", "egress is of type dict"),
        (["a.example", "*"], "[1]", "'*' names every host"),
        (["a.example", {"host": "b.example", "ports": 0}], "[1].ports", "holds port 0"),
        (["a.example", "A.example.:443"], "[1]", "the same ports as 'a.example:443'"),
        (["a.example", "a.example:1-1000/tcp"], "[1]", "the same ports"),
        (["10.0.0.0/8:1/tcp", "10.0.0.0/8:1/tcp"], "[1]", "the same ports"),
        (["a.example"] * 300, "", "300 rules"),
    ],
)
def test_a_refused_egress_setting_names_its_place(
    value: object, setting: str, problem: str
) -> None:
    with pytest.raises(RuleError) as caught:
        parse_egress(value)
    assert caught.value.setting == setting
    assert problem in caught.value.problem


def test_rules_that_differ_in_protocol_port_or_target_live_side_by_side() -> None:
    rules = ["a.example", "a.example:443/udp", "a.example:80", "*.a.example", "10.0.0.0/8:1/tcp"]
    assert len(parse_egress(rules)) == len(rules)  # pyright: ignore[reportArgumentType]


LABELS = st.from_regex(r"[a-z]([a-z0-9]{0,8}[a-z])?", fullmatch=True)


def host(star: bool, labels: list[str]) -> str:
    return ("*." if star else "") + ".".join(labels)


HOSTS = st.builds(
    host,
    st.booleans(),
    st.lists(LABELS, min_size=2, max_size=5).filter(lambda labels: labels[-1] != "localhost"),
)
PORTS = st.tuples(st.integers(1, 65535), st.integers(1, 65535)).map(
    lambda pair: f"{min(pair)}-{max(pair)}"
)
NETWORKS = st.one_of(
    st.integers(0, 2**24 - 1).map(lambda n: f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"),
    st.integers(8, 32).map(lambda length: f"10.0.0.0/{length}"),
    st.integers(32, 128).map(lambda length: f"[2001:db8::/{length}]"),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "allow_private": st.booleans(),
        "max_connections_per_minute": st.integers(1, 1000),
        "max_bytes": st.integers(1, 2**40),
    },
)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    table: dict[str, object] = {
        "ports": draw(PORTS),
        "protocol": draw(st.sampled_from(["tcp", "udp"])),
    }
    named = draw(st.booleans())
    table["host"] = draw(HOSTS if named else NETWORKS)
    if named and table["protocol"] == "tcp":
        table["tls"] = draw(st.sampled_from(["verify", "off"]))
    return parse_rule(table | draw(OPTIONS))


@given(rules())
def test_a_rendered_rule_reads_back_equal(rule: Rule) -> None:
    value = render_rule_value(rule)
    assert parse_rule(value) == rule
    assert parse_rule(json.loads(json.dumps(value))) == rule
    written = render_rule(rule)
    quoted = written if written.startswith("{") else f'"{written}"'
    assert parse_rule(tomllib.loads(f"rule = {quoted}")["rule"]) == rule


@given(st.lists(rules(), max_size=4))
def test_a_rendered_egress_reads_back_equal(listed: list[Rule]) -> None:
    try:
        egress = parse_egress(listed)
    except RuleError:
        return
    assert parse_egress(json.loads(json.dumps(render_egress(egress)))) == egress


JUNK = st.one_of(
    st.text(),
    st.text(alphabet="abxn-.*:/[]0123456789xX%@_ \\\0\n。ü", max_size=40),
    st.lists(st.text(alphabet="axn-é١", max_size=8), max_size=4).map(".".join),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(),
)
KEYS = st.sampled_from(
    ["host", "ports", "protocol", "tls", "allow_private", "max_bytes", "max_connections_per_minute"]
)


@given(
    JUNK
    | st.dictionaries(KEYS | st.text(max_size=4), JUNK)
    | st.dictionaries(KEYS, JUNK).map(lambda table: {"host": "a.example"} | table)
)
def test_junk_is_a_rule_or_a_rule_error(value: object) -> None:
    try:
        rule = parse_rule(value)
    except RuleError as refused:
        error = refused
    else:
        assert parse_rule(render_rule_value(rule)) == rule
        return
    assert error.problem
    assert error.fix


@given(JUNK | st.lists(JUNK))
def test_junk_is_an_egress_setting_or_a_rule_error(value: object) -> None:
    with suppress(RuleError):
        parse_egress(value)


@given(st.integers(1, 2**50))
def test_a_rendered_size_reads_back_equal(size: int) -> None:
    assert parse_size(render_size(size)) == size
    assert parse_size(size) == size


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1",
        "1 MiB",
        "1.5MiB",
        "1mib",
        "1M",
        "-1MiB",
        "0MiB",
        "01MiB",
        0,
        -1,
        True,
        1.0,
        None,
        2**51,
        "9999999GiB",
        "1MiB\n",
    ],
)
def test_what_is_not_a_size_is_refused(value: object) -> None:
    with pytest.raises(RuleError, match="is not a size; write bytes as a whole number"):
        parse_size(value)
