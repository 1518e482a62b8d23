"""Move bytes between two sockets inside the kernel, both ways, with back-pressure.

`os.splice` moves pages from a socket to a pipe and from the pipe to the other socket; they are
never copied to user space. A pipe is held only while it holds bytes, so idle streams cost two
sockets and no more, for as long as they like. The end of one direction is passed on as a
half-close; an error ends both at once with a reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PipePool", "SplicedPair"]

PIPE_SIZE: Final = 1 << 20
SMALL_MOVE: Final = 1 << 16
BRIEF_MOVE: Final = 1 << 13
"""What is less than this was probably all: the messages of a handshake, not of a download."""

MAX_HELD: Final = 16 << 20
"""Bytes waiting in pipes, beyond which each stream may have only `SMALL_MOVE` waiting."""

MAX_SPARE: Final = 4
MOVES_AT_ONCE: Final = 4
"""Moves of one stream before others have their turn."""

_FLAGS: Final = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


class PipePool:
    """Pipes for the streams that have bytes under way, and how many bytes that are."""

    def __init__(self) -> None:
        """Start with no pipe."""
        self.held = 0
        self._spare: list[tuple[int, int]] = []

    @property
    def move_size(self) -> int:
        """The most bytes that one stream may take up next."""
        return PIPE_SIZE if self.held < MAX_HELD else SMALL_MOVE

    def take(self) -> tuple[int, int]:
        """Take an empty pipe, its end for reading first; OSError when there is none."""
        if self._spare:
            return self._spare.pop()
        pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # beyond the user's share pipes stay small, and work
            fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        return pipe

    def give_back(self, pipe: tuple[int, int], *, empty: bool) -> None:
        """Give a pipe back; one that is not empty is closed."""
        if empty and len(self._spare) < MAX_SPARE:
            self._spare.append(pipe)
        else:
            _close_pipe(pipe)

    def close(self) -> None:
        """Close the spare pipes."""
        while self._spare:
            _close_pipe(self._spare.pop())


class SplicedPair:
    """Two connected sockets whose bytes go to each other. The sockets stay the caller's.

    Attributes:
        sent: Bytes from the first socket to the second.
        received: Bytes from the second to the first.
    """

    def __init__(self, first: socket.socket, second: socket.socket, pool: PipePool) -> None:
        """Prepare the streams; both sockets must be non-blocking."""
        loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = loop.create_future()
        self._forth = _Stream(first, second, pool, self._on_end)
        self._back = _Stream(second, first, pool, self._on_end)

    @property
    def sent(self) -> int:
        """Bytes from the first socket to the second."""
        return self._forth.moved

    @property
    def received(self) -> int:
        """Bytes from the second socket to the first."""
        return self._back.moved

    async def run(self) -> None:
        """Move bytes until both directions have ended.

        Raises:
            OSError: A socket failed; the other direction is ended too.
        """
        try:
            self._forth.start()
            self._back.start()
            await self._done
        finally:
            self._forth.stop()
            self._back.stop()

    def abort(self, reason: OSError) -> None:
        """End both directions: `run` raises the reason."""
        if not self._done.done():
            self._done.set_exception(reason)

    def _on_end(self, error: OSError | None) -> None:
        if error is not None:
            self.abort(error)
        elif self._forth.ended and self._back.ended and not self._done.done():
            self._done.set_result(None)


class _Stream:
    """One direction."""

    def __init__(
        self,
        source: socket.socket,
        sink: socket.socket,
        pool: PipePool,
        on_end: Callable[[OSError | None], None],
    ) -> None:
        self.moved = 0
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._source = source.fileno()
        self._sink_socket = sink
        self._sink = sink.fileno()
        self._pool = pool
        self._on_end = on_end
        self._pipe: tuple[int, int] | None = None
        self._held = 0
        self._reading = self._writing = False

    def start(self) -> None:
        self._reading = True
        self._loop.add_reader(self._source, self._step, self._move)

    def stop(self) -> None:
        """Give everything back; bytes under way are dropped."""
        if self._reading:
            self._loop.remove_reader(self._source)
        if self._writing:
            self._loop.remove_writer(self._sink)
        self._reading = self._writing = False
        self._release()

    def _step(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self.ended = True
            self.stop()
            self._on_end(error)

    def _move(self) -> None:
        """Take bytes up and pass them on, until there are none or the sink is full."""
        for _ in range(MOVES_AT_ONCE):
            if not self._fill():
                return
            brief = self._held < BRIEF_MOVE
            if not self._drain():
                self._loop.remove_reader(self._source)
                self._loop.add_writer(self._sink, self._step, self._resume)
                self._reading, self._writing = False, True
                return
            if brief:
                return  # that was all; if not, the loop calls again

    def _resume(self) -> None:
        if self._drain():
            self._loop.remove_writer(self._sink)
            self._writing = False
            self.start()

    def _fill(self) -> bool:
        """Move bytes from the source to a pipe; False when there are none."""
        if self._pipe is None:
            self._pipe = self._pool.take()
        try:
            count = os.splice(self._source, self._pipe[1], self._pool.move_size, flags=_FLAGS)
        except BlockingIOError:
            self._release()
            return False
        if count == 0:
            self._end()
            return False
        self._held = count
        self._pool.held += count
        return True

    def _drain(self) -> bool:
        """Move the pipe's bytes to the sink; False when it takes no more for now."""
        while self._pipe is not None and self._held:
            try:
                count = os.splice(self._pipe[0], self._sink, self._held, flags=_FLAGS)
            except BlockingIOError:
                return False
            self._held -= count
            self._pool.held -= count
            self.moved += count
        self._release()
        return True

    def _release(self) -> None:
        if self._pipe is not None:
            self._pool.give_back(self._pipe, empty=not self._held)
            self._pool.held -= self._held
            self._pipe, self._held = None, 0

    def _end(self) -> None:
        self.stop()
        self.ended = True
        with contextlib.suppress(OSError):  # the sink may be gone; its own stream tells
            self._sink_socket.shutdown(socket.SHUT_WR)
        self._on_end(None)


def _close_pipe(pipe: tuple[int, int]) -> None:
    for end in pipe:
        os.close(end)
