"""Inputs of each target that are right or nearly so, for a fuzzer to start from."""

from __future__ import annotations

import dns.message
import dns.rrset

from sandboxed_mcp.gateway.answer import make_query
from tests.lab.hello import extension, hello, real_hello, records, server_name

__all__ = ["SEEDS"]


def _make_hellos() -> list[bytes]:
    name = server_name(b"api.example.test")
    return [
        real_hello("api.example.test"),
        real_hello(None),
        records(hello(name)),
        records(hello(extension(0xFE0D, b"\0" * 8), name), 7),
        records(hello(server_name(b"a.test", b"b.test"))),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x2e\x01\x03\x01",
    ]


def _make_queries() -> list[bytes]:
    kinds = ("A", "AAAA", "TXT", "ANY", "AXFR")
    plain = [dns.message.make_query("api.example.test", kind) for kind in kinds]
    edns = dns.message.make_query("a.b.wild.example.test", "A", use_edns=0, payload=4096)
    return [each.to_wire() for each in (*plain, edns)]


def _make_replies() -> list[bytes]:
    """What `check_reply` puts after its own id and flags: the counts, then the records."""
    query = dns.message.from_wire(make_query("api.example.test", 1).wire)
    owner = query.question[0].name
    found: list[bytes] = []
    for records_ in (
        [("A", "198.51.100.10")],
        [("CNAME", "b.test.")],
        [("CNAME", "b.test."), ("DNAME", "c.test.")],
        [("TXT", '"x"'), ("A", "198.51.100.10")],
    ):
        reply = dns.message.make_response(query)
        for kind, text in records_:
            reply.answer.append(dns.rrset.from_text(owner, 300, "IN", kind, text))
        reply.answer.append(dns.rrset.from_text("b.test.", 30, "IN", "A", "198.51.100.11"))
        wire = reply.to_wire()
        found.append(wire[6:12] + wire[12 + 22 :])
    return found


SEEDS: dict[str, list[bytes]] = {
    "control": [
        b'{"control":"policy","generation":1,"egress":["api.example.test","*.a.test:443"]}',
        b'{"control":"policy","generation":1,"egress":[],"dns":["198.51.100.53","[::2]:53"]}',
        b'{"control":"policy","generation":1,"egress":[],"forbidden":["172.17.0.0/16"]}',
        b'{"control":"policy","generation":1,"egress":[],"gateway":{"relay_port":15443}}',
        b'{"control":"update","generation":2,"mode":"observe","egress":"unrestricted"}',
        b'{"control":"stop"}',
    ],
    "hello": _make_hellos(),
    "query": _make_queries(),
    "reply": _make_replies(),
}
