"""What every input to a parser of the gateway must satisfy; each target takes any bytes.

A target returns nothing: an error of any kind is a finding. `atheris_run` feeds them with
coverage guidance, `tests/unit/test_fuzz.py` with hypothesis in every run of the suite.
"""

from __future__ import annotations

import dns.exception
import dns.message

from sandboxed_mcp.gateway.answer import MAX_CHAIN, ReplyError, make_query, read_reply
from sandboxed_mcp.gateway.control import ControlError, parse_command
from sandboxed_mcp.gateway.question import (
    NOERROR,
    A,
    Malformed,
    Query,
    encode_name,
    parse_query,
    render_answer,
    render_failure,
)
from sandboxed_mcp.gateway.tls import ClientHelloReader, Incomplete, Refused, ServerName

__all__ = ["TARGETS", "check_control", "check_hello", "check_query", "check_reply"]

_QUERY = make_query("api.example.test", A)


def check_hello(data: bytes) -> None:
    """One piece, two pieces and single bytes have one outcome; a name is canonical."""
    whole = ClientHelloReader()
    outcome = whole.receive(data)
    assert isinstance(outcome, Incomplete | ServerName | Refused)
    if isinstance(outcome, ServerName):
        name = outcome.name
        assert name == name.lower()
        assert name.isascii()
        assert name.isprintable()
        assert not {" ", "\\", ""} & {*name, *name.split(".")}
    halves = ClientHelloReader()
    middle = data[0] % (len(data) + 1) if data else 0
    halves.receive(data[:middle])
    assert halves.receive(data[middle:]) == outcome
    if len(data) <= 1024:
        single = ClientHelloReader()
        for at in range(len(data)):
            single.receive(data[at : at + 1])
        assert single.outcome == outcome


def check_query(data: bytes) -> None:
    """What we read is what dnspython reads; what we answer is a message that it reads."""
    query = parse_query(data)
    if isinstance(query, Malformed):
        answer = render_failure(query)
        assert answer[:2] == data[:2]
        dns.message.from_wire(answer)
    elif query is not None:
        _check_question(query, data)


def check_reply(data: bytes) -> None:
    """A reply is read or is a `ReplyError`, in bounded work, and opens what it answers alone."""
    _read(data)
    _read(_QUERY.wire[:2] + b"\x81\x80" + _QUERY.wire[4:6] + data[:6] + _QUERY.question + data[6:])


def check_control(data: bytes) -> None:
    """A control line is a command or is refused."""
    try:
        parse_command(data)
    except ControlError:
        return


def _check_question(query: Query, data: bytes) -> None:
    try:
        message = dns.message.from_wire(data)
    except dns.exception.DNSException:
        message = None  # options that dnspython looks into and we pass over
    if message is not None:
        (question,) = message.question
        assert question.name.to_wire() is not None
        assert question.name.canonicalize().to_wire() == encode_name(query.name)
        assert (question.rdtype, question.rdclass) == (query.type, 1)
    addresses = [bytes(4)] * 40
    for limit in (512, query.udp_limit, 65535):
        answer = render_answer(query, NOERROR, addresses, ttl=5, limit=limit)
        assert len(answer) <= limit
        assert answer[12 : 12 + len(query.question)] == query.question


def _read(data: bytes) -> None:
    if not _QUERY.is_answered_by(data):
        return
    try:
        reply = read_reply(data)
    except ReplyError:
        return
    assert len(reply.aliases) <= MAX_CHAIN
    assert all(each.version == 4 for each in reply.addresses)


TARGETS = {
    "control": check_control,
    "hello": check_hello,
    "query": check_query,
    "reply": check_reply,
}
