"""Frozen event types: everything a sandbox reports besides the protocol's own bytes.

An event is a value; it never holds a secret's value, and text that came from the server is
escaped before it gets here. `render_event` gives the line of the audit log.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BadLine",
    "BadLinesSuppressed",
    "ControlUnavailable",
    "Event",
    "EventsDropped",
    "Exited",
    "MemoryLimitReached",
    "NetworkEvent",
    "Started",
    "StderrDropped",
    "render_event",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to one sandbox.

    Attributes:
        time: Seconds since the Unix epoch, by the launcher's clock.
        server: The configured name of the server.
        launch: The launch id, 32 hexadecimal digits.
    """

    time: float
    server: str
    launch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """The server's process runs.

    Attributes:
        container: The engine's container id.
        image: The image id that was started.
        network: What it can reach: `none`, `rules`, `unrestricted` or `observed`.
    """

    container: str
    image: str
    network: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine(Event):
    """The server wrote a line to stdout that is no JSON-RPC message; it was not passed on.

    Attributes:
        head: The line's beginning, escaped.
        reason: What is wrong with it, one sentence.
        answered: Whether a pending call got an error reply in its place.
    """

    head: str
    reason: str
    answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLinesSuppressed(Event):
    """More bad lines came than the audit log takes; these were only counted.

    Attributes:
        count: Bad lines that have no event of their own.
    """

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlUnavailable(Event):
    """The launch has no control socket: `watch` and `policy apply` cannot reach it.

    Attributes:
        reason: Why, one sentence.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StderrDropped(Event):
    """stderr came faster than it could be passed on.

    Attributes:
        size: Bytes that were dropped.
    """

    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped(Event):
    """Nobody read the events fast enough; the ones before this one are missing.

    Attributes:
        count: Events that were dropped.
    """

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimitReached(Event):
    """The kernel ended a process of the server at `limits.memory`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited(Event):
    """The server's container ended.

    Attributes:
        code: Exit code, or None when the engine could not tell.
        oom_killed: Whether the memory limit ended a process.
        reason: Why, when the launcher ended it or the engine went away.
    """

    code: int | None
    oom_killed: bool
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEvent(Event):
    """Something that the sandbox's gateway saw or did.

    Attributes:
        kind: What: `dns`, `connect`, `close`, `deny`, `policy`, `ready`, ...
        details: The fields of that kind; the texts in it are the server's, escaped and cut.
    """

    kind: str
    details: Mapping[str, Any]


def render_event(event: Event) -> str:
    """One line of JSON (RFC 8259) without a newline; `event` names the type or the kind."""
    values = asdict(event)
    if isinstance(event, NetworkEvent):
        details = values.pop("details")
        return json.dumps({"event": values.pop("kind"), **values, **details}, ensure_ascii=True)
    return json.dumps({"event": type(event).__name__, **values}, ensure_ascii=True)
