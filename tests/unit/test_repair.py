"""A line that is no message is described, and fails the call that it was meant to answer."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, jsonrpc_message_adapter

from sandboxed_mcp.bridge.framing import EDGE_BYTES, LineAssembler, Overlong
from sandboxed_mcp.bridge.repair import (
    MAX_ID_BYTES,
    PARSE_BYTES,
    PARSE_ERROR,
    Rejection,
    inspect_line,
    inspect_overlong,
    reject_line,
)

REFUSAL = "the parser says no"
GOOD_REPLY = b'{"jsonrpc":"2.0","id":7,"result":{}}'


def reply_ids(rejection: Rejection | None) -> list[Any]:
    """The ids that get an error reply; every reply is one that the SDK itself accepts."""
    assert rejection is not None
    ids: list[Any] = []
    for reply in rejection.replies:
        assert b"\n" not in reply
        message = jsonrpc_message_adapter.validate_json(reply)
        assert isinstance(message, JSONRPCError)
        assert message.error.code == PARSE_ERROR
        assert rejection.reason in message.error.message
        ids.append(message.id)
    return ids


@pytest.mark.parametrize(
    "line",
    [
        GOOD_REPLY,
        b'{"jsonrpc":"2.0","id":"a","result":{"x":"\\ud800"}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"n":%b}}' % (b"9" * 5_000),
        b'{"jsonrpc":"2.0","id":%b,"result":{}}' % (b"9" * 40),
        b'{"jsonrpc":"2.0","id":-1,"result":{"n":1000000000000000000000000000000}}',
        b' {"jsonrpc" : "2.0", "id":1.0, "result":{}} \t\r',
        '{"jsonrpc":"2.0","id":1,"result":{"t":"\u2028\xa0\U0001f468\u200d\U0001f469"}}'.encode(),
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no","data":[1]}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}',
        b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"no"}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":null}',
        b'{"jsonrpc":"2.0","id":0,"method":"roots/list"}',
        b'[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","method":"x"}]',
        bytearray(GOOD_REPLY),
    ],
)
def test_a_message_passes(line: bytes | bytearray) -> None:
    assert inspect_line(line) is None


REPLIES_THAT_SHOW_THEIR_ID = {
    "a null result": b'{"jsonrpc":"2.0","id":7,"result":null}',
    "a result that is a list": b'{"jsonrpc":"2.0","id":7,"result":[]}',
    "a result that is text": b'{"jsonrpc":"2.0","id":7,"result":"ok"}',
    "no jsonrpc": b'{"id":7,"result":{}}',
    "no jsonrpc, an error": b'{"id":7,"error":{"code":1,"message":"m"}}',
    "jsonrpc 1.0": b'{"jsonrpc":"1.0","id":7,"result":{}}',
    "jsonrpc as a number": b'{"jsonrpc":2.0,"id":7,"result":{}}',
    "text before": b'INFO foo{"jsonrpc":"2.0","id":7,"result":{}}',
    "text with braces before": b'INFO {x} [1] {} {"jsonrpc":"2.0","id":7,"result":{}}',
    "an unbalanced quote before": b'it"s {"jsonrpc":"2.0","id":7,"result":{}}',
    "JSON before": b'{"level":"info","id":3} {"jsonrpc":"2.0","id":7,"result":{}}',
    "text after": GOOD_REPLY + b" done",
    "a brace after": GOOD_REPLY + b"}",
    "a terminal sequence before": b"\x1b[0m" + GOOD_REPLY,
    "a byte order mark": b"\xef\xbb\xbf" + GOOD_REPLY,
    "invalid UTF-8": b'{"jsonrpc":"2.0","id":7,"result":{"t":"\xff\xfe"}}',
    "invalid UTF-8 before the id": b'{"jsonrpc":"2.0","result":{"t":"\xff\xc3"},"id":7}',
    "an encoded surrogate": b'{"jsonrpc":"2.0","id":7,"result":{"t":"\xed\xa0\x80"}}',
    "a bare control character": b'{"jsonrpc":"2.0","id":7,"result":{"t":"a\x00\x01b"}}',
    "a bare escape": b'{"jsonrpc":"2.0","id":7,"result":{"t":"\x1b[31m"}}',
    "a wrong escape": b'{"jsonrpc":"2.0","id":7,"result":{"t":"\\x41"}}',
    "NaN": b'{"jsonrpc":"2.0","id":7,"result":{"x":NaN}}',
    "Infinity": b'{"jsonrpc":"2.0","id":7,"result":{"x":-Infinity}}',
    "cut short": b'{"jsonrpc":"2.0","id":7,"result":{"items":[{"id":3,"name":"x',
    "cut short at an object": b'{"jsonrpc":"2.0","id":7,"result":{"items":[{"id":3}',
    "cut short at a backslash": b'{"jsonrpc":"2.0","id":7,"result":{"t":"\\',
    "neither result nor error": b'{"jsonrpc":"2.0","id":7}',
    "result and error": b'{"jsonrpc":"2.0","id":7,"result":{},"error":{"code":1,"message":"m"}}',
    "a null error beside the result": b'{"jsonrpc":"2.0","id":7,"result":{},"error":null}',
    "an error that is text": b'{"jsonrpc":"2.0","id":7,"error":"boom"}',
    "an error that is null": b'{"jsonrpc":"2.0","id":7,"error":null}',
    "an error without code": b'{"jsonrpc":"2.0","id":7,"error":{"message":"m"}}',
    "an error with a code as text": b'{"jsonrpc":"2.0","id":7,"error":{"code":"1","message":"m"}}',
    "a fractional code": b'{"jsonrpc":"2.0","id":7,"error":{"code":1.5,"message":"m"}}',
    "an error without message": b'{"jsonrpc":"2.0","id":7,"error":{"code":1}}',
    "a comma missing after the id": b'{"jsonrpc":"2.0","id":7 "result":{}}',
    "a bare control character after the id": b'{"jsonrpc":"2.0","id":7\x15,"result":{}}',
    "a trailing comma": b'{"jsonrpc":"2.0","id":7,"result":{},}',
    "a missing brace": b'{"jsonrpc":"2.0","id":7,"result":{"a":[1,2}}',
    "a missing quote, id last": b'{"result":{"t":"a"b},"jsonrpc":"2.0","id":7}',
    "single quotes inside": b'{"jsonrpc":"2.0","id":7,"result":{\'a\':\'it"s\'}}',
    "nested ids before": b'{"result":{"id":1,"a":[{"id":2}]},"id":7,"jsonrpc":"2.0","error":1}',
    "text that looks like an id": b'{"result":{"t":"\\"id\\":1,"},"id":7,"jsonrpc":"1.0"}',
    "a member of its own": b'{"jsonrpc":"2.0","x":{"id":1},"id":7,"result":null}',
    "spaces everywhere": b'{ "jsonrpc" : "2.0" , "id" :\t7 , "result" : null }\r',
    "too deep": b'{"jsonrpc":"2.0","id":7,"result":{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
    "too deep and cut": b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 90_000,
    "an id written twice": b'{"jsonrpc":"2.0","id":1,"id":7,"result":null}',
    "a batch with a bad reply": b'[{"jsonrpc":"2.0","method":"x"},{"id":7,"result":null}]',
}


@pytest.mark.parametrize(
    "line", REPLIES_THAT_SHOW_THEIR_ID.values(), ids=REPLIES_THAT_SHOW_THEIR_ID
)
def test_a_bad_reply_that_shows_its_id_fails_that_call(line: bytes) -> None:
    assert reply_ids(inspect_line(line)) == [7]
    assert reply_ids(reject_line(bytearray(line), REFUSAL)) == [7]


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        (b"0", 0),
        (b"-5", -5),
        (b"9" * 60, int("9" * 60)),
        (b'"7"', "7"),
        (b'"a\\"b\\u00e9"', 'a"bé'),
        ('"ü"'.encode(), "ü"),
        (b"7.0", 7),
        (b"7e0", 7),
        (b'""', ""),
    ],
)
def test_the_id_of_the_error_reply_is_the_one_that_was_shown(raw: bytes, parsed: object) -> None:
    assert reply_ids(inspect_line(b'{"jsonrpc":"2.0","id":%b,"result":null}' % raw)) == [parsed]
    assert reply_ids(inspect_line(b'{"jsonrpc":"2.0","result":null,"id":%b}' % raw)) == [parsed]


@pytest.mark.parametrize(
    "raw",
    [
        b"null",
        b"true",
        b"1.5",
        b"1e400",
        b"007",
        b"[7]",
        b'{"id":7}',
        b'"\\ud800"',
        b'"\xff"',
        b'"a\x01b"',
        b"9" * (MAX_ID_BYTES + 1),
        b'"' + b"x" * MAX_ID_BYTES + b'"',
        b"",
    ],
)
def test_an_id_that_no_client_sends_is_not_answered(raw: bytes) -> None:
    assert reply_ids(inspect_line(b'{"jsonrpc":"2.0","id":%b,"result":null}' % raw)) == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"method":"roots/list","params":{"t":"\xff"}}',
        b'{"method":"sampling/createMessage","params":{"t":"\xff"},"jsonrpc":"2.0","id":7}',
        b'{"jsonrpc":"2.0","id":7,"method":3}',
        b'{"jsonrpc":"2.0","id":7,"method":"x","params":"text"}',
        b'{"id":7,"method":"x"}',
        b'INFO {"jsonrpc":"2.0","id":7,"method":"x"}',
        b'{"jsonrpc":"2.0","id":true,"method":"x"}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"id":7,"result":NaN}}',
        b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"result":"\xff',
        b'{"jsonrpc":"2.0","id":7,"result":null,"method":"x","params":1}',
        b'{"jsonrpc":"2.0","id":7,"met\x08od":"x","params":{"result":{}}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"t":"x"},"params":{}',
        b'{"jsonrpc":"2.0","result":null,"id":7',
        b'{"jsonrpc":"2.0","id":7',
        b'{"jsonrpc":"2.0","id":7,',
        b'{"jsonrpc":"2.0","result":{},"id":7',
        b'{"jsonrpc":"2.0","result":{},"nested":{"id":7}}x',
        b'{"level":"error","id":7,"error":"a log record"}',
        b'{"id":7,"name":"a record"}',
        b'text "id":7,"result":{}',
        b'{"jsonrpc":"2.0","result":{"items":[{"name":"x","id":7}',
        b'bar"},"jsonrpc":"2.0","id":7}',
        b"INFO starting",
        b"[]",
        b"7",
        b'"id"',
        b"null",
        b"\x00",
        b"{",
        b'{"',
        b"}",
        b"\xff\xfe{\x00}\x00",
        '{"jsonrpc":"2.0","id":7,"result":{}}'.encode("utf-16"),
    ],
)
def test_what_is_not_recognisably_a_reply_is_described_but_not_answered(line: bytes) -> None:
    rejection = inspect_line(line)

    assert rejection is not None
    assert rejection.reason
    assert rejection.replies == ()


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        (GOOD_REPLY + b'{"jsonrpc":"2.0","id":"b","result":{}}', [7, "b"]),
        (GOOD_REPLY + b" \x1b " + GOOD_REPLY, [7]),
        (b'{"jsonrpc":"2.0","id":8,"method":"x"}' + GOOD_REPLY, [7]),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":{"jsonrpc":"2.0","id":7,"result":{}}', [1, 7]),
        (b'{"jsonrpc":"2.0","id":1,"resu{"jsonrpc":"2.0","id":7,"result":{}}', [7]),
        (b'[{"id":1,"result":null},{"id":2,"result":null},{"id":1,"result":{}}]', [1, 2]),
        (GOOD_REPLY * 1_000, [7]),
    ],
)
def test_each_reply_on_a_line_is_answered_once(line: bytes, ids: list[object]) -> None:
    assert reply_ids(inspect_line(line)) == ids


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":null}', '"result" is null'),
        (b'{"id":7,"result":{}}', '"jsonrpc" is missing'),
        (b'{"jsonrpc":"\x1b[31m","id":7,"result":{}}', "invalid JSON: Invalid control character"),
        (b'{"jsonrpc":"evil","id":7,"result":{}}', '"jsonrpc" is not "2.0"'),
        (b"\xef\xbb\xbf{}", "it begins with a byte order mark"),
        (b"INFO " + GOOD_REPLY, "text stands before the JSON"),
        (GOOD_REPLY + b"x", "text follows the JSON at character 36"),
        (b"INFO starting", "it is not JSON"),
        (b'{"a":"\xff"}', "invalid UTF-8 at byte 6"),
        (b'{"a":NaN}', "NaN is not a JSON value"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"jsonrpc":"2.0","id":7,"error":"boom"}', '"error" is not an object'),
        (b'{"jsonrpc":"2.0","id":7,"result":{},"error":{}}', 'both "result" and "error"'),
        (b'{"jsonrpc":"2.0","result":{}}', 'a result without "id"'),
        (b"[]", "the batch is empty"),
        (b"3", "it is JSON, but not an object"),
    ],
)
def test_the_reason_names_what_is_wrong(line: bytes, reason: str) -> None:
    rejection = inspect_line(line)
    assert rejection is not None
    assert reason in rejection.reason


@pytest.mark.parametrize(
    "result",
    [b'{"t":"\\ud800"}', b'{"n":%b}' % (b"9" * 5_000), b'{"x":%b1%b}' % (b"[" * 300, b"]" * 300)],
)
def test_a_message_that_only_a_strict_client_refuses_fails_its_call_with_the_refusal(
    result: bytes,
) -> None:
    line = b'{"jsonrpc":"2.0","id":7,"result":%b}' % result
    with pytest.raises(ValueError, match="Invalid JSON"):
        jsonrpc_message_adapter.validate_json(line)

    rejection = reject_line(line, REFUSAL)

    assert inspect_line(line) is None
    assert rejection.reason == REFUSAL
    assert reply_ids(rejection) == [7]


def test_the_sdk_keeps_integers_that_are_longer_than_a_machine_word() -> None:
    line = b'{"jsonrpc":"2.0","id":7,"result":{"n":%b}}' % (b"9" * 4_000)
    message = jsonrpc_message_adapter.validate_json(line)
    assert message.model_dump()["result"]["n"] == 10**4_000 - 1


FILLER = b'{"text":"' + b"x" * (2 * PARSE_BYTES) + b'","id":1}'


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":%b}', None),
        (b'{"result":%b,"jsonrpc":"2.0","id":7}', None),
        (b' [{"result":%b,"jsonrpc":"2.0","id":7}] \r', None),
        (b'INFO {"jsonrpc":"2.0","id":7,"result":%b}', [7]),
        (b'\xef\xbb\xbf{"result":%b,"jsonrpc":"2.0","id":7}', [7]),
        (b'{"result":%b,"t":"\xff","jsonrpc":"2.0","id":7}', [7]),
        (b'{"jsonrpc":"2.0","id":7,"result":%b', None),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":%b', None),
        (b'{"jsonrpc":"2.0","id":7,"result":[%b,', [7]),
        (b'{"method":"x","params":%b,"jsonrpc":"2.0","id":7}\xff', []),
    ],
)
def test_of_a_large_line_encoding_and_ends_are_checked(
    line: bytes, ids: list[object] | None
) -> None:
    rejection = inspect_line(line.replace(b"%b", FILLER))
    assert (None if rejection is None else reply_ids(rejection)) == ids


def test_invalid_utf8_is_found_wherever_a_large_line_is_cut_for_checking() -> None:
    prefix = b'{"a":"' + b"x" * PARSE_BYTES
    for offset in range(65_530, 65_540):
        line = prefix + b"x" * offset
        assert inspect_line(line + "漢".encode() + b'"}') is None
        assert inspect_line(line + "漢".encode()[:2] + b'"}') is not None
        assert inspect_line(line + b'"}' + b"\xe6") is not None


@pytest.mark.parametrize("filler", [b"[]", b'"",', b'"id":1,', b"{", b'"\\"', b'{"id":2}', b"\xff"])
@pytest.mark.parametrize("size", [300_000, 12_000_000])
def test_the_last_id_of_a_line_too_long_to_walk_over_is_found(filler: bytes, size: int) -> None:
    body = filler * (size // len(filler))
    line = b'{"result":{"a":[' + body + b'"]}]},"jsonrpc":"2.0","id":7}x'

    assert reply_ids(reject_line(line[:-1], REFUSAL)) == [7]


def assemble_overlong(line: bytes) -> tuple[Overlong, Overlong]:
    first, last = LineAssembler(10_000).receive(line + b"\n")
    assert isinstance(first, Overlong)
    assert isinstance(last, Overlong)
    return first, last


LONG = b'{"id":1,"t":"' + b"x" * 20_000 + b'"}'


@pytest.mark.parametrize(
    ("line", "early", "late"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":%b}', [7], []),
        (b'{"result":%b,"jsonrpc":"2.0","id":7}', [], [7]),
        (b'{"result":%b,"id":7}', [], [7]),
        (b'{"jsonrpc":"2.0","error":%b,"id":"x"}\r', [], ["x"]),
        (GOOD_REPLY + b'{"result":%b,"jsonrpc":"2.0","id":8}', [7], [8]),
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":%b}', [], []),
        (b'{"method":"x","params":%b,"jsonrpc":"2.0","id":7}', [], []),
        (b"%b", [], []),
        (b"x%bx", [], []),
    ],
)
def test_an_overlong_reply_fails_its_call_as_soon_as_its_id_is_seen(
    line: bytes, early: list[object], late: list[object]
) -> None:
    first, last = assemble_overlong(line.replace(b"%b", LONG))

    assert reply_ids(inspect_overlong(first)) == early
    assert reply_ids(inspect_overlong(last)) == late
    assert "10000 bytes" in inspect_overlong(first).reason


@given(st.binary(max_size=300))
def test_any_bytes_are_judged_without_failing(line: bytes) -> None:
    inspect_line(line)
    inspect_overlong(Overlong(line, line[-EDGE_BYTES:], 1, len(line), ended=True))
    reply_ids(reject_line(line, REFUSAL))


TOKENS = (
    b'{ } [ ] " : , \\ "id" "result" "jsonrpc" "method" "error" 1 "2.0" null \xff \x00 x'.split()
)


@given(st.lists(st.sampled_from([*TOKENS, b" ", b'{"id":1,"result":']), max_size=60).map(b"".join))
def test_any_mixture_of_json_is_judged_without_failing(line: bytes) -> None:
    inspect_line(line)
    reply_ids(reject_line(line, REFUSAL))


json_strategy = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "result", "method", "a", '"id":1,']), inner)
    ),
    max_leaves=12,
)


@given(
    st.permutations(["jsonrpc", "id", "result"]),
    st.integers() | st.text(max_size=10),
    st.dictionaries(st.text(max_size=4), json_strategy, max_size=4),
    st.booleans(),
)
def test_the_top_level_id_is_found_in_any_reply(
    order: list[str], id_: int | str, result: dict[str, Any], ascii_only: bool
) -> None:
    members = {"jsonrpc": "2.0", "id": id_, "result": result}
    text = json.dumps({name: members[name] for name in order}, ensure_ascii=ascii_only)
    line = text.encode()

    assert inspect_line(line) is None
    assert reply_ids(reject_line(line, REFUSAL)) == [id_]
    assert reply_ids(inspect_line(b"log: " + line)) == [id_]
    assert reply_ids(inspect_line(line + b" log")) == [id_]


HOSTILE = {
    "brackets": b"[",
    "braces": b'{"',
    "glued starts": b'{"jsonrpc":',
    "quotes": b'"',
    "escapes": b'\\"',
    "backslashes": b"\\",
    "spaces in braces": b"{ ",
    "spaces": b" ",
    "digits": b"9",
    "members": b'"id":1,',
    "invalid bytes": b"\xff",
    "messages": b'{"id":1,"result":1}',
}


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("prefix", [b"", b'{"jsonrpc":"2.0","result":'])
def test_a_hostile_line_of_64_mib_is_judged_in_bounded_time_and_memory(
    unit: bytes, prefix: bytes
) -> None:
    line = prefix + unit * ((64 << 20) // len(unit))

    tracemalloc.start()
    try:
        start = time.process_time()
        reject_line(line, REFUSAL)
        seconds = time.process_time() - start
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seconds < 2
    assert peak < 16 << 20


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_judging_takes_time_linear_in_the_length_of_a_line(unit: bytes) -> None:
    def seconds(size: int) -> float:
        line = b'{"jsonrpc":"2.0","result":' + unit * (size // len(unit))
        start = time.process_time()
        inspect_line(line)
        return time.process_time() - start

    small = min(seconds(50_000) for _ in range(3))
    large = min(seconds(500_000) for _ in range(3))
    assert large < 40 * small + 0.01
