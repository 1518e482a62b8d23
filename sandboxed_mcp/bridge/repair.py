"""Which lines are messages, and what to do about one that is not.

A line that is no JSON-RPC message must neither stall the call it was meant to answer nor end
the session. It is described for the log (`Rejection`), and for each call that it recognisably
answers an error reply is made, so that the call fails at once. The line itself is never
repaired: a byte order mark or text glued to a good reply costs that reply, too, since nobody
can know what else is wrong with it.

Only replies are answered. A request or a notification from the server that does not parse is
dropped: its `id` counts the server's own calls and must not be taken for one of the client's.

Here a message is what `JSON.parse` reads and JSON-RPC 2.0 and MCP allow: lone surrogate
escapes and integers of any length pass, `NaN` does not. Clients may be stricter; the MCP SDK
for Python refuses lone surrogates, integers of more than 4,300 digits, nesting beyond 200
levels, fractional ids and batches, and accepts `NaN`. A client that refuses a line uses
`reject_line`.

This module does no I/O, never changes a line and never fails on any bytes.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn, cast

from sandboxed_mcp.bridge.scan import Envelope, scan_ends, scan_line
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from sandboxed_mcp.bridge.framing import Line, Overlong

__all__ = [
    "HEAD_CHARS",
    "MAX_ID_BYTES",
    "PARSE_BYTES",
    "PARSE_ERROR",
    "Rejection",
    "inspect_line",
    "inspect_overlong",
    "reject_line",
]

PARSE_BYTES: Final = 1 << 20
"""Longer lines are not parsed, to bound the launcher's memory: they count as messages when
they are UTF-8 and begin and end as a JSON object or array does."""

PARSE_ERROR: Final = -32700
"""JSON-RPC 2.0, "Parse error": the code of every error reply that is made here."""

HEAD_CHARS: Final = 200
"""How much of a bad line is shown, in characters."""

MAX_ID_BYTES: Final = 1024
"""A longer `id` is not taken for one that a client sent."""

_CHUNK: Final = 65_536
_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*+)")
_BEGIN: Final = re.compile(rb"[ \t\r]*+[{\[]")
_MAX_EXACT: Final = 2.0**53


@dataclass(frozen=True, slots=True)
class Rejection:
    """A line from the server that is not passed on.

    Attributes:
        line: The line, or how it begins; `Redactor.show_head` makes it safe to show.
        reason: What is wrong with it, a clause without anything that the server wrote.
        replies: JSON-RPC error replies without newlines, one for each call that the line was
            meant to answer; the client gets them in its place.
    """

    line: Line
    reason: str
    replies: tuple[bytes, ...]


def inspect_line(line: Line) -> Rejection | None:
    """Judge a line from the server.

    Returns:
        None when the line is a message, to be passed on as it is; otherwise what is wrong.
    """
    problem = _find_problem(line)
    return None if problem is None else _describe(line, problem, scan_line(line))


def reject_line(line: Line, refusal: str) -> Rejection:
    """Describe a line that the client's own parser refused.

    Args:
        line: The line.
        refusal: The parser's reason, used where the line is a message by the rules above;
            it must not quote the line.
    """
    problem = _find_problem(line) or sanitize(refusal, HEAD_CHARS)
    return _describe(line, problem, scan_line(line))


def inspect_overlong(report: Overlong) -> Rejection:
    """Describe an overlong line; of its two reports each call is answered by only one."""
    reason = f"it is longer than limits.message_size, {report.limit} bytes"
    if report.ended:
        reason += f": {report.length} bytes"
    replies = _render_replies(reason, scan_ends(report.head, report.tail))
    if report.ended:
        early = _render_replies(reason, scan_ends(report.head, b""))
        replies = tuple(reply for reply in replies if reply not in early)
    return Rejection(report.head, reason, replies)


def _describe(line: Line, problem: str, envelopes: list[Envelope]) -> Rejection:
    return Rejection(line, problem, _render_replies(problem, envelopes))


def _render_replies(problem: str, envelopes: list[Envelope]) -> tuple[bytes, ...]:
    message = json.dumps(f"the server's reply cannot be used: {problem}").encode()
    ids = [_render_id(envelope.id) for envelope in envelopes if envelope.is_reply and envelope.id]
    return tuple(
        b'{"jsonrpc":"2.0","id":%b,"error":{"code":%d,"message":%b}}' % (id_, PARSE_ERROR, message)
        for id_ in dict.fromkeys(ids)
        if id_ is not None
    )


def _render_id(raw: bytes) -> bytes | None:
    """Return the JSON of an id as MCP allows it (string or integer), or None."""
    if len(raw) > MAX_ID_BYTES:
        return None
    if _INTEGER.fullmatch(raw):
        return raw
    try:
        value = json.loads(raw.decode())
        if isinstance(value, str):
            value.encode()
            return raw
    except ValueError:
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < _MAX_EXACT:
        return b"%d" % int(value)
    return None


def _find_problem(line: Line) -> str | None:
    if len(line) > PARSE_BYTES:
        return _find_large_problem(line)
    try:
        return _find_batch_problem(_parse(line))
    except json.JSONDecodeError as error:
        return _explain(error)
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "invalid JSON: it is nested too deeply"


def _parse(line: Line) -> object:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8 at byte {error.start}") from error
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark")
    return _DECODER.decode(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"invalid JSON: {name} is not a JSON value")


# Integers are read as floats: their length is then without limit, and only their kind matters.
_DECODER: Final = json.JSONDecoder(parse_int=float, parse_constant=_refuse_constant)


def _explain(error: json.JSONDecodeError) -> str:
    if error.msg == "Extra data":
        return f"text follows the JSON at character {error.pos}"
    if error.msg == "Expecting value" and not error.doc[: error.pos].strip():
        return "text stands before the JSON" if "{" in error.doc else "it is not JSON"
    return f"invalid JSON: {sanitize(error.msg, HEAD_CHARS)} at character {error.pos}"


def _find_large_problem(line: Line) -> str | None:
    position = _find_invalid_utf8(line)
    if position is not None:
        return f"invalid UTF-8 after byte {position}"
    begin = _BEGIN.match(line)
    end = {b"{": b"}", b"[": b"]"}[begin[0][-1:]] if begin else b""
    if not begin or not line[-_CHUNK:].rstrip(b" \t\r").endswith(end):
        return "it does not begin and end as a JSON object does"
    return None


def _find_invalid_utf8(line: Line) -> int | None:
    """Return where a chunk with invalid UTF-8 begins, without decoding the line as a whole."""
    if line.isascii():
        return None
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    view = memoryview(line)
    try:
        for position in range(0, len(view), _CHUNK):
            decoder.decode(bytes(view[position : position + _CHUNK]))
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return position
    return None


def _find_batch_problem(message: object) -> str | None:
    """Judge parsed JSON; batches are part of JSON-RPC 2.0 and of MCP 2025-03-26."""
    if not isinstance(message, list):
        return _find_shape_problem(message)
    messages = cast("list[object]", message)
    problems = (_find_shape_problem(part) for part in messages)
    return next(filter(None, problems), None) if messages else "the batch is empty"


def _find_shape_problem(message: object) -> str | None:
    if not isinstance(message, dict):
        return "it is JSON, but not an object"
    members = cast("dict[str, object]", message)
    if "jsonrpc" not in members:
        return '"jsonrpc" is missing'
    if members["jsonrpc"] != "2.0":
        return '"jsonrpc" is not "2.0"'
    return _find_call_problem(members) if "method" in members else _find_reply_problem(members)


def _find_call_problem(members: dict[str, object]) -> str | None:
    if not isinstance(members["method"], str):
        return '"method" is not a string'
    if "id" in members and not _is_id(members["id"]):
        return '"id" is neither a string nor a number'
    if not isinstance(members.get("params"), (dict, list, type(None))):
        return '"params" is not an object'
    return None


def _find_reply_problem(members: dict[str, object]) -> str | None:
    if "error" in members:
        return _find_error_problem(members)
    if "result" not in members:
        return 'it has neither "method" nor "result" nor "error"'
    if "id" not in members:
        return 'a result without "id"'
    if not _is_id(members["id"]):
        return '"id" is neither a string nor a number'
    if members["result"] is None:
        return '"result" is null'
    return None if isinstance(members["result"], dict) else '"result" is not an object'


def _find_error_problem(members: dict[str, object]) -> str | None:
    if "result" in members:
        return 'it has both "result" and "error"'
    if not isinstance(members["error"], dict):
        return '"error" is not an object'
    error = cast("dict[str, object]", members["error"])
    code = error.get("code")
    if not isinstance(code, float) or not code.is_integer():
        return 'the error\'s "code" is not an integer'
    if not isinstance(error.get("message"), str):
        return 'the error\'s "message" is not a string'
    if members.get("id") is not None and not _is_id(members["id"]):
        return '"id" is neither a string nor a number'
    return None


def _is_id(value: object) -> bool:
    return isinstance(value, (str, float))
