"""Report events at a bounded rate: equal ones are counted together, too many are only counted.

The first of a kind of happening is reported at once, its repetitions once a second with their
count. Beyond `RATE` events a second the rest is told as `suppressed`, by number. Nobody reading
is the same: lines are kept up to a bound and never wait. What the gateway says about itself
(armed, ready, policy, canary, failed) is not limited.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.event_lines import render_egress_event
from sandboxed_mcp.egress.events import (
    ConnectionClosed,
    ConnectionOpened,
    Denied,
    EgressEvent,
    EventsSuppressed,
    NameResolved,
)
from sandboxed_mcp.gateway.budget import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FLUSH_SECONDS", "LineWriter", "Reporter"]

RATE: Final = 50.0
BURST: Final = 200.0
MAX_HELD: Final = 512
"""Kinds of happening whose repetitions are counted at the same time."""

FLUSH_SECONDS: Final = 1.0
MAX_BUFFER: Final = 256 * 1024

_Counted = NameResolved | ConnectionOpened | Denied


class Reporter:
    """Turns events into lines. Time comes in through `clock`, seconds of a monotonic clock."""

    def __init__(self, write: Callable[[bytes], bool], clock: Callable[[], float]) -> None:
        """Report to `write`, which says whether it took the line."""
        self._write = write
        self._clock = clock
        self._bucket = TokenBucket(RATE, BURST)
        self._repeated: dict[_Counted, int] = {}
        self._suppressed: dict[str, int] = {}

    def report(self, event: EgressEvent) -> None:
        """Report an event now, with its repetitions later, or as a number."""
        match event:
            case NameResolved() | ConnectionOpened() | Denied():
                self._report_counted(event)
            case ConnectionClosed():
                self._emit(event, 1)
            case _:
                self._write(render_egress_event(event))

    def flush(self) -> None:
        """Report the repetitions and the suppressed events; call every `FLUSH_SECONDS`."""
        repeated, self._repeated = self._repeated, {}
        for kind, count in repeated.items():
            if count:
                self._repeated[kind] = 0
                self._emit(replace(kind, count=count), count)
        suppressed, self._suppressed = self._suppressed, {}
        for word, count in suppressed.items():
            if not self._write(render_egress_event(EventsSuppressed(of=word, count=count))):
                self._suppressed[word] = count

    def _report_counted(self, event: _Counted) -> None:
        kind = event if event.count == 1 else replace(event, count=1)
        if kind in self._repeated:
            self._repeated[kind] += event.count
            return
        if len(self._repeated) < MAX_HELD:
            self._repeated[kind] = 0
        self._emit(event, event.count)

    def _emit(self, event: EgressEvent, count: int) -> None:
        if not (self._bucket.take(self._clock()) and self._write(render_egress_event(event))):
            self._suppressed[event.kind] = self._suppressed.get(event.kind, 0) + count


class LineWriter:
    """Writes lines to a pipe without ever waiting; at most `MAX_BUFFER` bytes are kept."""

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        """Take over a file descriptor; `on_broken` is called when nobody can read it any more."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._on_broken = on_broken
        self._buffer = bytearray()
        self._waiting = False

    def write(self, line: bytes) -> bool:
        """Take a line; False when there is no room for it."""
        if len(self._buffer) + len(line) > MAX_BUFFER:
            return False
        self._buffer += line
        if not self._waiting:
            self._push()
        return True

    def finish(self) -> None:
        """Write what is kept as far as the pipe takes it, and no more after that."""
        if self._waiting:
            self._stop_waiting()
        self._push(wait=False)

    def _push(self, *, wait: bool = True) -> None:
        try:
            while self._buffer:
                del self._buffer[: os.write(self._fd, self._buffer)]
        except BlockingIOError:
            if wait and not self._waiting:
                asyncio.get_running_loop().add_writer(self._fd, self._push)
                self._waiting = True
            return
        except OSError:
            self._buffer.clear()
            self._on_broken()
        if self._waiting:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        asyncio.get_running_loop().remove_writer(self._fd)
        self._waiting = False
