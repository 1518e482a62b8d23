"""What the resolver forwards, opens and answers; its upstream counts what it was asked."""

from __future__ import annotations

import itertools
import threading
from ipaddress import ip_address, ip_network

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest

from sandboxed_mcp.egress.events import NameResolved
from sandboxed_mcp.gateway.budget import Budgets
from tests.lab.desk import open_desk
from tests.lab.dns import Zone

API = "api.example.test"
ADDRESS = "198.51.100.10"
RULES = ["api.example.test", "*.wild.example.test"]


def make_zone(*addresses: str, name: str = API) -> Zone:
    zone = Zone()
    zone.add(name, *addresses)
    return zone


def answer_truncated(zone: Zone, query: dns.message.Message, protocol: str) -> bytes:
    """As a real server answers: what does not fit a datagram is to be asked for over TCP."""
    reply = zone.build(query)
    if protocol == "udp":
        reply.answer.clear()
        reply.flags |= dns.flags.TC
    return reply.to_wire(max_size=65535)


def test_a_named_name_is_resolved_and_its_addresses_are_opened_first() -> None:
    with open_desk(RULES, make_zone(ADDRESS, "2001:db8:51::10")) as desk:
        assert desk.resolve(API) == [ADDRESS]
        assert desk.resolve(API, "AAAA") == ["2001:db8:51::10"]
        assert desk.sets.addresses() == {ADDRESS, "2001:db8:51::10"}
        resolved = [event for event in desk.events if isinstance(event, NameResolved)]
        assert [(each.name, each.query_type, each.addresses) for each in resolved] == [
            (API, "A", (ADDRESS,)),
            (API, "AAAA", ("2001:db8:51::10",)),
        ]


@pytest.mark.parametrize("kind", ["A", "AAAA", "TXT", "NULL", "ANY", "MX", "HTTPS"])
@pytest.mark.parametrize(
    "name",
    [
        "68656c6c6f.evil.test",
        "evil.test",
        "example.test",
        "wild.example.test",
        "api.example.test.evil.test",
        "evilapi.example.test",
        "api.example.tes",
        "*",
        "localhost",
    ],
)
def test_a_name_that_no_rule_names_never_goes_upstream(name: str, kind: str) -> None:
    with open_desk(RULES, make_zone(ADDRESS)) as desk:
        assert desk.code(name, kind) == "NXDOMAIN"
        assert desk.zone.asked == []
        assert [(each.name, each.query_type) for each in desk.denials()] == [(name, kind)]
        assert desk.resolve(API) == [ADDRESS]


@pytest.mark.parametrize(
    "kind", ["TXT", "NULL", "ANY", "MX", "SRV", "PTR", "NS", "SOA", "HTTPS", "SVCB", "CAA"]
)
def test_other_types_of_a_named_name_are_empty_and_never_go_upstream(kind: str) -> None:
    with open_desk(RULES, make_zone(ADDRESS)) as desk:
        answer = desk.ask(API, kind)
        assert (answer.rcode(), answer.answer, answer.authority) == (0, [], [])
        assert desk.zone.asked == []


@pytest.mark.parametrize("kind", ["AXFR", "IXFR", "MAILB"])
def test_transfers_are_not_implemented(kind: str) -> None:
    with open_desk(RULES, make_zone(ADDRESS)) as desk:
        query = dns.message.make_query(API, "A").to_wire()
        number = dns.rdatatype.from_text(kind).to_bytes(2)
        reply = desk.send_raw(query[:-4] + number + query[-2:])
        assert reply is not None
        assert reply[3] & 15 == 4
        assert desk.zone.asked == []


@pytest.mark.parametrize(
    "name", ["API.Example.TEST", "api.example.test.", "aPI.exAMple.test", "API.EXAMPLE.TEST."]
)
def test_letter_case_and_trailing_dot_make_no_difference(name: str) -> None:
    with open_desk(RULES, make_zone(ADDRESS)) as desk:
        answer = desk.ask(name)
        assert len(answer.answer) == 1
        assert str(answer.question[0].name) == name.removesuffix(".") + "."
        assert desk.zone.names() == [API]


def test_a_wildcard_names_what_is_below_and_no_star() -> None:
    with open_desk(RULES, make_zone(ADDRESS, name="a.b.wild.example.test")) as desk:
        assert desk.resolve("a.b.wild.example.test") == [ADDRESS]
        assert desk.code("*.wild.example.test") == "NXDOMAIN"
        assert desk.code("wild.example.test") == "NXDOMAIN"
        assert desk.zone.names() == ["a.b.wild.example.test"]
        assert {each.reason for each in desk.denials()} == {"not a host name", "no rule names it"}


def test_many_different_names_below_a_wildcard_use_up_its_budget() -> None:
    budgets = Budgets(lookups=(1000.0, 1000.0), names=(100, 10.0))
    with open_desk(RULES, budgets=budgets) as desk:
        codes = [desk.code(f"{number:08x}.wild.example.test") for number in range(150)]
        assert codes[:100] == ["NXDOMAIN"] * 100
        assert set(codes[105:]) == {"SERVFAIL"}
        assert len(set(desk.zone.names())) <= 105
        reasons = {each.reason for each in desk.denials()}
        assert "too many different names below '*.wild.example.test'" in reasons
        assert desk.code("00000003.wild.example.test") == "NXDOMAIN"  # known before: free


def test_too_many_lookups_a_second_fail() -> None:
    with open_desk(RULES, make_zone(ADDRESS), budgets=Budgets(lookups=(1.0, 3.0))) as desk:
        desk.zone.ttl = 0
        codes = [desk.code(API) for _ in range(8)]
        assert codes[:3] == ["NOERROR"] * 3
        assert codes[-1] == "SERVFAIL"
        assert len(desk.zone.asked) <= 4
        desk.advance(60)
        assert desk.code(API) == "NOERROR"


def test_the_query_that_goes_upstream_is_built_anew() -> None:
    with open_desk(RULES, make_zone(ADDRESS)) as desk:
        query = dns.message.make_query(API, "A", use_edns=0, payload=65000, want_dnssec=True)
        options: list[dns.edns.Option] = [
            dns.edns.ECSOption("203.0.113.7"),
            dns.edns.GenericOption("COOKIE", b"cookie!!"),
            dns.edns.GenericOption("PADDING", b"\0" * 100),
            dns.edns.GenericOption("NSID", b"smuggled"),
        ]
        query.use_edns(0, payload=65000, options=options)
        query.flags |= dns.flags.AD | dns.flags.CD
        answer = desk.send_raw(query.to_wire())
        assert answer is not None
        assert answer.endswith(bytes.fromhex("000029 04d0 00000000 0000"))  # OPT, no option
        (asked,) = desk.zone.asked
        sent = dns.message.from_wire(asked.wire)
        assert (sent.payload, sent.ednsflags) == (1232, 0)
        assert sent.flags == dns.flags.RD
        assert len(asked.wire) == 12 + len(API) + 2 + 4 + 11  # an OPT record without options
        assert b"smuggled" not in asked.wire


def test_ids_ports_and_letter_case_differ_from_query_to_query() -> None:
    zone = make_zone(ADDRESS)
    zone.ttl = 0
    with open_desk(RULES, zone) as desk:
        for _ in range(20):
            assert desk.code(API) == "NOERROR"
        wires = [each.wire for each in desk.zone.asked]
        assert len({wire[:2] for wire in wires}) > 15
        assert len({wire[12:] for wire in wires}) > 15
        assert len({each.source_port for each in desk.zone.asked}) > 15


def test_an_unknown_edns_version_is_refused() -> None:
    with open_desk(RULES, make_zone(ADDRESS)) as desk:
        query = dns.message.make_query(API, "A")
        query.use_edns(edns=1)
        assert desk.send(query).rcode() == 16
        assert desk.zone.asked == []


@pytest.mark.parametrize("links", range(12))
def test_a_chain_of_aliases_counts_up_to_eight_links(links: int) -> None:
    zone = Zone()
    names = [API, *(f"alias{number}.elsewhere.test" for number in range(links))]
    for name, target in itertools.pairwise(names):
        zone.records[name, "CNAME"] = [f"{target}."]
    zone.add(names[-1], ADDRESS)
    with open_desk(RULES, zone) as desk:
        answer = desk.ask(API)
        if links > 8:
            assert dns.rcode.to_text(answer.rcode()) == "SERVFAIL"
            assert desk.sets.entries == []
            return
        assert [str(each.name) for each in answer.answer] == [f"{API}."]
        (resolved,) = [event for event in desk.events if isinstance(event, NameResolved)]
        assert resolved.aliases == tuple(names[1:])


def test_a_loop_of_aliases_opens_nothing() -> None:
    zone = Zone()
    zone.records[API, "CNAME"] = ["b.elsewhere.test."]
    zone.records["b.elsewhere.test", "CNAME"] = [f"{API}."]
    with open_desk(RULES, zone) as desk:
        assert desk.code(API) == "SERVFAIL"
        assert desk.sets.entries == []


def test_records_of_other_owners_are_never_opened() -> None:
    zone = make_zone(ADDRESS)

    def answer(query: dns.message.Message, _protocol: str) -> bytes:
        reply = zone.build(query)
        for section in (reply.answer, reply.authority, reply.additional):
            section.append(dns.rrset.from_text("evil.test.", 300, "IN", "A", "198.51.100.66"))
        reply.answer.append(
            dns.rrset.from_text("example.test.", 300, "IN", "DNAME", "elsewhere.test.")
        )
        return reply.to_wire()

    zone.answer = answer
    with open_desk(RULES, zone) as desk:
        assert desk.resolve(API) == [ADDRESS]
        assert desk.sets.addresses() == {ADDRESS}


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",  # noqa: S104 - an address of an answer
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "168.63.129.16",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "198.18.0.10",
        "198.19.0.1",
        "198.19.0.2",
        "224.0.0.251",
        "255.255.255.255",
        "240.0.0.1",
        "::1",
        "::",
        "::ffff:169.254.169.254",
        "::ffff:198.51.100.10",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::",
        "2002:a01:203::1",
        "fd00:ec2::254",
        "fd00:18::10",
        "fe80::1",
        "ff02::1",
        "2001:db8:c8::1",
    ],
)
def test_a_name_never_opens_a_private_or_reserved_address(address: str) -> None:
    kind, good = ("AAAA", "2001:db8:51::10") if ":" in address else ("A", ADDRESS)
    forbidden = (ip_network("198.19.0.0/24"), ip_network("2001:db8:c8::/64"))
    with open_desk(RULES, make_zone(address), forbidden=forbidden) as desk:
        assert desk.code(API, kind) == ("NXDOMAIN" if kind == "A" else "NOERROR")
        assert desk.resolve(API, kind) == []
        assert desk.sets.entries == []
        assert ip_address(desk.denials()[0].address) == ip_address(address)
    with open_desk(RULES, make_zone(address, good), forbidden=forbidden) as desk:
        assert desk.resolve(API, kind) == [good]
        assert desk.sets.addresses() == {good}


def test_a_name_opens_a_private_address_when_its_rule_says_so() -> None:
    rules = [{"host": API, "allow_private": True}, f"{API}:5432/tcp"]
    with open_desk(rules, make_zone("198.18.0.10", "169.254.169.254")) as desk:
        assert desk.resolve(API) == ["198.18.0.10"]
        assert [(str(e.address), e.rule.ports.first) for e in desk.sets.entries] == [
            ("198.18.0.10", 443)
        ]


def test_an_answer_that_turns_private_is_denied() -> None:
    zone = make_zone(ADDRESS)
    zone.ttl = 1
    with open_desk(RULES, zone) as desk:
        assert desk.resolve(API) == [ADDRESS]
        desk.zone.records[API, "A"] = ["198.18.0.10"]
        desk.advance(2)
        assert desk.code(API) == "NXDOMAIN"
        assert desk.sets.addresses() == {ADDRESS}


def test_of_many_addresses_a_few_are_shown_and_exactly_those_are_opened() -> None:
    zone = make_zone(*(f"198.51.100.{number}" for number in range(1, 101)))
    zone.answer = lambda query, protocol: answer_truncated(zone, query, protocol)
    with open_desk(RULES, zone) as desk:
        cut = desk.ask(API)
        assert cut.flags & dns.flags.TC
        assert len(cut.answer[0]) == 29  # without EDNS an answer has at most 512 bytes
        whole = desk.ask(API, tcp=True)
        assert not whole.flags & dns.flags.TC
        assert len(whole.answer[0]) == 32
        assert len(desk.sets.addresses()) == len(desk.sets.entries) == 32
        assert {line.split()[-1] for line in str(whole.answer[0]).split("\n")} == (
            desk.sets.addresses()
        )
        assert [each.protocol for each in desk.zone.asked] == ["udp", "tcp"]


def test_a_name_opens_at_most_256_addresses_and_the_live_ones_stay() -> None:
    zone = Zone(ttl=0)
    with open_desk(RULES, zone) as desk:
        for batch in range(12):
            zone.records[API, "A"] = [f"198.51.{batch}.{number}" for number in range(1, 31)]
            desk.code(API)
        assert len(desk.sets.addresses()) == 256
        assert "198.51.0.1" in desk.sets.addresses()
        assert desk.code(API) == "SERVFAIL"
        zone.records[API, "A"] = ["198.51.0.1"]
        assert desk.resolve(API) == ["198.51.0.1"]
        desk.advance(70)
        zone.records[API, "A"] = ["198.51.99.1"]
        assert desk.resolve(API) == ["198.51.99.1"]


@pytest.mark.parametrize(
    ("ttl", "served", "opened"),
    [(0, 0, 60), (5, 5, 65), (300, 300, 360), (3600, 3540, 3600), (2**31 - 1, 3540, 3600)],
)
def test_an_address_stays_open_for_longer_than_its_answer(
    ttl: int, served: int, opened: int
) -> None:
    zone = make_zone(ADDRESS)
    zone.ttl = ttl
    with open_desk(RULES, zone) as desk:
        assert desk.ask(API).answer[0].ttl == served
        assert desk.sets.seconds(ADDRESS) == opened


def test_a_name_never_shortens_what_another_was_promised() -> None:
    zone = make_zone(ADDRESS, name="a.wild.example.test")
    zone.ttl = 1000
    with open_desk(RULES, zone) as desk:
        desk.resolve("a.wild.example.test")
        zone.add("b.wild.example.test", ADDRESS)
        zone.ttl = 10
        desk.resolve("b.wild.example.test")
        assert desk.sets.seconds(ADDRESS) >= 1059


def test_an_answer_is_kept_for_its_ttl_and_counts_down() -> None:
    with open_desk(RULES, make_zone(ADDRESS)) as desk:
        assert desk.ask(API).answer[0].ttl == 300
        desk.advance(200)
        assert desk.ask(API).answer[0].ttl in (99, 100)
        assert len(desk.zone.asked) == 1
        desk.advance(101)
        assert desk.ask(API).answer[0].ttl == 300
        assert len(desk.zone.asked) == 2
        assert len(desk.sets.entries) == 2


def test_a_full_set_is_a_failure_and_no_answer() -> None:
    zone = make_zone(ADDRESS, "198.51.100.11")
    with open_desk(RULES, zone, room=1) as desk:
        (shown,) = desk.resolve(API)
        assert desk.sets.addresses() == {shown}
        zone.add("b.wild.example.test", "198.51.100.12")
        assert desk.code("b.wild.example.test") == "SERVFAIL"
        assert desk.denials()[-1].reason == "its addresses could not be opened: the set is full"


@pytest.mark.parametrize("code", ["SERVFAIL", "REFUSED", "NOTIMP"])
def test_a_failing_upstream_is_a_failure(code: str) -> None:
    zone = Zone()

    def answer(query: dns.message.Message, _protocol: str) -> bytes:
        reply = dns.message.make_response(query)
        reply.set_rcode(dns.rcode.from_text(code))
        return reply.to_wire()

    zone.answer = answer
    with open_desk(RULES, zone) as desk:
        assert desk.code(API) == "SERVFAIL"
        assert "no answer from upstream" in desk.denials()[0].reason


def test_equal_questions_share_one_lookup() -> None:
    zone = make_zone(ADDRESS)
    gate = threading.Event()

    def answer(query: dns.message.Message, _protocol: str) -> bytes:
        gate.wait(1)
        return zone.build(query).to_wire()

    zone.answer = answer
    with open_desk(RULES, zone) as desk:
        answers: list[list[str]] = []
        clients = [
            threading.Thread(target=lambda: answers.append(desk.resolve(API))) for _ in range(20)
        ]
        for client in clients:
            client.start()
        gate.wait(0.3)
        gate.set()
        for client in clients:
            client.join()
        assert answers == [[ADDRESS]] * 20
        assert len(desk.zone.asked) == 1


def test_without_ipv6_no_question_for_it_goes_upstream() -> None:
    with open_desk(RULES, make_zone(ADDRESS, "2001:db8:51::10"), ipv6=False) as desk:
        assert desk.code(API, "AAAA") == "NOERROR"
        assert desk.zone.asked == []
        assert desk.resolve(API) == [ADDRESS]


def test_observing_leads_every_name_to_a_sink_and_asks_nobody() -> None:
    with open_desk([API], make_zone(ADDRESS), mode="observe") as desk:
        allowed, foreign = desk.resolve(API), desk.resolve("evil.test")
        assert (allowed, foreign) == (["192.0.2.1"], ["192.0.2.2"])
        assert desk.resolve(API, "AAAA") == []
        assert desk.resolve(API) == allowed
        assert desk.zone.asked == []
        assert desk.sets.entries == []
        assert desk.learned.names(ip_address("192.0.2.2"), desk.clock()) == ("evil.test",)
        assert [each.name for each in desk.denials()] == ["evil.test"]
        for number in range(300):
            assert len(desk.resolve(f"host{number}.test")) == 1


def test_unrestricted_egress_asks_for_every_name_and_still_strips() -> None:
    zone = make_zone(ADDRESS, name="anything.test")
    zone.add("inside.test", "198.18.0.10", "169.254.169.254")
    with open_desk("unrestricted", zone) as desk:
        assert desk.resolve("anything.test") == [ADDRESS]
        assert desk.resolve("inside.test") == ["198.18.0.10"]
        assert desk.sets.entries == []
