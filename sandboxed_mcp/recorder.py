"""Stamps events with time, server and launch, and queues them for whoever reads.

The queue is bounded: without a reader the oldest events give way, and their number is told. A
sink, such as the audit log, gets every event at once. No event leaves here with the value of a
secret in it: what a server asks for, a host name say, may hold one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import anyio

from sandboxed_mcp.events import Event, EventsDropped
from sandboxed_mcp.text import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["QUEUED_EVENTS", "EventQueue", "Recorder"]

QUEUED_EVENTS = 1024


class EventQueue:
    """The events of one sandbox: `async for event in queue`, ending when the sandbox does."""

    def __init__(self) -> None:
        self._items: deque[Event] = deque()
        self._changed = anyio.Event()
        self._closed = False
        self._dropped = 0

    def put(self, event: Event) -> None:
        """Adds an event; the oldest one goes when the queue is full."""
        if len(self._items) >= QUEUED_EVENTS:
            self._items.popleft()
            self._dropped += 1
        self._items.append(event)
        self._wake()

    def close(self) -> None:
        """No more events will come; what is queued can still be read."""
        self._closed = True
        self._wake()

    def take_queued(self) -> list[Event]:
        """Every event that is queued now, without waiting."""
        items = [*self._take_dropped(), *self._items]
        self._items.clear()
        return items

    def __aiter__(self) -> EventQueue:
        """The queue itself."""
        return self

    async def __anext__(self) -> Event:
        """The next event."""
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            await self._changed.wait()
        for notice in self._take_dropped():
            return notice
        return self._items.popleft()

    def _take_dropped(self) -> list[Event]:
        if not self._dropped:
            return []
        first = self._items[0]
        notice = EventsDropped(
            time=first.time, server=first.server, launch=first.launch, count=self._dropped
        )
        self._dropped = 0
        return [notice]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Recorder:
    """Makes the events of one launch.

    Attributes:
        events: The events, for one reader.
        sinks: Called with each event, in order, when it happens; none of them may raise.
    """

    def __init__(self, server: str, launch: str, secrets: Mapping[str, str] | None = None) -> None:
        """Start without any event.

        Args:
            server: The configured name.
            launch: The launch id.
            secrets: The server's secrets: their values by name.
        """
        self._server = server
        self._launch = launch
        secrets = secrets or {}
        lower = {name: value.lower() for name, value in secrets.items()}  # as in a host name
        self._redactors = [Redactor(secrets), Redactor(lower)] if secrets else []
        self.events = EventQueue()
        self.sinks: list[Callable[[Event], None]] = []

    def record(self, event_type: type[Event], /, **fields: Any) -> None:  # noqa: ANN401 - the event's own
        """Queues an event of this launch, stamped now, and hands it to the sinks."""
        if self._redactors:
            fields = {name: self._redact(value) for name, value in fields.items()}
        event = event_type(time=time.time(), server=self._server, launch=self._launch, **fields)
        self.events.put(event)
        for sink in self.sinks:
            sink(event)

    def _redact(self, value: Any) -> Any:  # noqa: ANN401 - of the value's own type
        if isinstance(value, str):
            for redactor in self._redactors:
                value = redactor.redact(value)
            return value
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {name: self._redact(item) for name, item in items}
        if isinstance(value, tuple):
            return tuple(self._redact(item) for item in cast("tuple[Any, ...]", value))
        return value
