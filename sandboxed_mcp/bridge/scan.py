"""A tolerant look at a line that is not a message: which calls does it answer?

A line that does not parse may still show the `id` of the call that it was meant for. The
scanner walks over brackets and strings, so that it takes the `id` of the message itself and
never one inside its result; it does not mind invalid UTF-8, bare control characters, text
around the message, several messages on one line or a missing end.

Its work is bounded: at most the first `SCAN_BYTES` bytes and `SCAN_TOKENS` brackets and
strings are walked over. Where that does not reach the end, the `id` is looked for among the
last members of the line, where many servers write it. This module never fails on any bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from sandboxed_mcp.bridge.framing import EDGE_BYTES, Line

__all__ = ["SCAN_BYTES", "SCAN_TOKENS", "Envelope", "scan_ends", "scan_line"]

SCAN_BYTES: Final = 8 << 20
"""How much of a line is walked over; about 0.1 s."""

SCAN_TOKENS: Final = 100_000
"""How many brackets and strings are walked over; about 0.05 s."""

# A message cut short by another one is looked into this often: each look costs a full walk.
_RESTARTS: Final = 2

# Possessive throughout: no input makes these patterns go back. An unfinished string, and a
# backslash at the very end, match up to the end.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SPACE: Final = rb"[ \t\r]*+"
_SCALAR: Final = _STRING + rb"|-?\d++(?:\.\d++)?+(?:[eE][+-]?\d++)?+|true|false|null"
_TOKEN: Final = re.compile(_STRING + rb"?|[{}\[\]]", re.DOTALL)
_START: Final = re.compile(rb"\{" + _SPACE + rb'"')
_GLUED: Final = re.compile(rb"\{" + _SPACE + rb'"jsonrpc"' + _SPACE + rb":")
_COLON: Final = re.compile(_SPACE + rb":" + _SPACE)
# Something must follow: a number at the very end may have been longer.
_VALUE: Final = re.compile(rb"(" + _SCALAR + rb")(?=[^0-9A-Za-z.+-])", re.DOTALL)
_NAMES: Final = {
    b'"%b"' % name.encode(): name
    for name in ("jsonrpc", "id", "method", "params", "result", "error")
}
_LAST_MEMBER: Final = re.compile(
    rb",?" + _SPACE + rb'("(?:jsonrpc|id|method|params|result|error)")' + _SPACE + rb":" + _SPACE
    + rb"(" + _SCALAR + rb")" + _SPACE,
    re.DOTALL,
)  # fmt: skip
_QUOTE: Final = ord('"')
_OPENING: Final = frozenset(b"{[")


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a line shows of one message.

    Attributes:
        id: The raw JSON text of the message's `id`; None when it is not shown.
        names: Which of `jsonrpc`, `id`, `method`, `params`, `result`, `error` it has.
        foreign: Whether it has members that JSON-RPC does not know.
        closed: Whether its end was seen.
    """

    id: bytes | None = None
    names: frozenset[str] = frozenset()
    foreign: bool = False
    closed: bool = False

    @property
    def is_call(self) -> bool:
        """Whether it is the server's own request or notification."""
        return not self.names.isdisjoint({"method", "params"})

    @property
    def has_outcome(self) -> bool:
        """Whether it has a result or an error, and is no call."""
        return not self.names.isdisjoint({"result", "error"}) and not self.is_call

    @property
    def is_reply(self) -> bool:
        """Whether it can only be a reply, and to which call.

        Without `jsonrpc`, a log record with an `id` and an `error` must not pass for a reply,
        so every member has to be one of JSON-RPC's.
        """
        if self.id is None or self.is_call:
            return False
        if "jsonrpc" in self.names:
            return self.closed or self.has_outcome
        return self.has_outcome and not self.foreign


def scan_line(line: Line) -> list[Envelope]:
    """Return what a whole line shows, in order."""
    found, finished = _Walk(line).find_all()
    last = _scan_tail(line[-EDGE_BYTES:])
    # A nested object's end may look like the line's own where the line was cut short.
    return _add_tail(found, last) if not finished or "jsonrpc" in last else found


def scan_ends(head: bytes, tail: bytes) -> list[Envelope]:
    """Return what the two ends of an overlong line show, in order."""
    found, _ = _Walk(head, restarts=0).find_all()
    return _add_tail(found, _scan_tail(tail))


def _add_tail(found: list[Envelope], last: dict[str, bytes]) -> list[Envelope]:
    """Complete the last message, when its `id` is missing, with a line's last members."""
    if not found or not found[-1].has_outcome or found[-1].id is not None:
        return found
    names = found[-1].names.union(last)
    return [*found[:-1], replace(found[-1], id=last.get("id"), names=names)]


def _scan_tail(tail: Line) -> dict[str, bytes]:
    """Return the members of JSON-RPC just before the brace that ends the line."""
    body = tail.rstrip(b" \t\r")
    members: dict[str, bytes] = {}
    position = 0
    for match in _LAST_MEMBER.finditer(body):
        if match.start() != position:
            members = {}
        members[_NAMES[match[1]]] = match[2]
        position = match.end()
    return members if body[position:] == b"}" else {}


class _Walk:
    """One walk over a line, with what is left of its allowance."""

    def __init__(self, line: Line, restarts: int = _RESTARTS) -> None:
        self._line = line
        self._stop = min(len(line), SCAN_BYTES)
        self._tokens = SCAN_TOKENS
        self._restarts = restarts

    def find_all(self) -> tuple[list[Envelope], bool]:
        """Return the messages, and whether the walk came to the end of the line."""
        found: list[Envelope] = []
        start = _START.search(self._line, 0, self._stop)
        while start:
            envelope, end = self._walk_object(start.start())
            found.append(envelope)
            if not self._tokens:
                return found, False
            if envelope.closed:
                start = _START.search(self._line, end, self._stop)
            else:
                start = self._restart(start.end())
        return found, self._stop == len(self._line)

    def _restart(self, position: int) -> re.Match[bytes] | None:
        """Find another message that begins inside one that does not end."""
        if not self._restarts or self._stop < len(self._line):
            return None
        self._restarts -= 1
        return _GLUED.search(self._line, position, self._stop)

    def _walk_object(self, start: int) -> tuple[Envelope, int]:
        line, depth, left = self._line, 0, self._tokens
        members: dict[str, bytes | None] = {}
        foreign = False
        for token in _TOKEN.finditer(line, start, self._stop):
            left -= 1
            byte = line[token.start()]
            if byte == _QUOTE:
                if depth == 1 and not self._note_member(token, members):
                    foreign = True
            elif byte in _OPENING:
                depth += 1
            else:
                depth -= 1
            if not depth or not left:
                self._tokens = left
                return _make_envelope(members, foreign, closed=not depth), token.end()
        self._tokens = left
        return _make_envelope(members, foreign, closed=False), self._stop

    def _note_member(self, token: re.Match[bytes], members: dict[str, bytes | None]) -> bool:
        """Record a member of JSON-RPC; return False when it is another one's name."""
        colon = _COLON.match(self._line, token.end())
        if colon is None:
            return True
        name = _NAMES.get(token[0]) if token.end() - token.start() <= len(b'"jsonrpc"') else None
        if name is None:
            return False
        value = _VALUE.match(self._line, colon.end()) if name == "id" else None
        members[name] = value[1] if value else None
        return True


def _make_envelope(members: dict[str, bytes | None], foreign: bool, *, closed: bool) -> Envelope:
    return Envelope(members.get("id"), frozenset(members), foreign, closed)
