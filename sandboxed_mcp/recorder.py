"""Stamps events with time, server and launch, and queues them for whoever reads.

The queue is bounded: without a reader the oldest events give way, and their number is told.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import anyio

from sandboxed_mcp.events import Event, EventsDropped

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
    """Makes the events of one launch."""

    def __init__(self, server: str, launch: str) -> None:
        self._server = server
        self._launch = launch
        self.events = EventQueue()

    def record(self, event_type: type[Event], /, **fields: Any) -> None:  # noqa: ANN401 - the event's own
        """Queues an event of this launch, stamped now."""
        self.events.put(
            event_type(time=time.time(), server=self._server, launch=self._launch, **fields)
        )
