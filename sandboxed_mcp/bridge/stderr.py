"""Passes a server's stderr on without ever making the server wait for whoever reads it.

A thread writes; what arrives faster than it can be written is dropped, and its size is told.
Each line is searched for the secrets' values before it is written.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.bridge.fd import write_all

if TYPE_CHECKING:
    from sandboxed_mcp.text import Redactor

__all__ = ["QUEUE_BYTES", "StderrWriter"]

QUEUE_BYTES: Final = 1024 * 1024
LINE_BYTES: Final = 64 * 1024


class StderrWriter:
    """Writes to a descriptor from a bounded queue. Thread-safe."""

    def __init__(self, descriptor: int, redactor: Redactor) -> None:
        self._descriptor = descriptor
        self._redactor = redactor
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._rest = b""
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Starts the writing thread."""
        self._thread.start()

    def write(self, piece: bytes | memoryview) -> None:
        """Takes bytes of the server's stderr; whole lines go on, redacted."""
        whole, newline, rest = (self._rest + bytes(piece)).rpartition(b"\n")
        shown = self._redactor.redact_bytes(whole + newline)
        if len(rest) > LINE_BYTES:
            part, rest = self._redactor.split(rest)
            shown += part
        self._rest = rest
        if shown:
            self._put(shown)

    def note(self, text: str) -> None:
        """Writes a line of our own."""
        self._put(f"sandboxed-mcp: {text}\n".encode(errors="backslashreplace"))

    def close(self, seconds: float) -> int:
        """Writes what is queued, within `seconds`; gives the bytes that were dropped."""
        if self._rest:
            self._put(self._redactor.redact_bytes(self._rest) + b"\n")
            self._rest = b""
        with self._changed:
            if self._dropped:
                notice = f"sandboxed-mcp: {self._dropped} bytes of stderr dropped\n"
                self._queue.append(notice.encode())
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        return self._dropped

    def _put(self, data: bytes) -> None:
        with self._changed:
            if self._size + len(data) > QUEUE_BYTES:
                self._dropped += len(data)
                return
            self._queue.append(data)
            self._size += len(data)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                data = b"".join(self._queue)
                self._queue.clear()
            try:
                write_all(self._descriptor, data)
            except OSError:
                data = b""  # nobody reads our stderr; the server must not notice
            with self._changed:
                self._size = sum(map(len, self._queue))
