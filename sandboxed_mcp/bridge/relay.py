"""The command line's bridge: the launcher's own stdin, stdout and stderr to a sandbox.

Two threads move the bytes, each blocked in one system call at a time, so that a message costs
no event loop; the event loop watches over them: signals, the start-up limit, the end. What the
server writes to stdout passes unchanged, line by line, if it is a JSON-RPC message; any other
line goes to stderr, escaped, and a call that it should have answered gets an error reply.

This module never imports the MCP SDK.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from anyio.lowlevel import current_token

from sandboxed_mcp.bridge.fd import read_some, recv_some, send_all, write_all
from sandboxed_mcp.bridge.framing import Line, LineAssembler, Overlong
from sandboxed_mcp.bridge.repair import HEAD_CHARS, Rejection, inspect_line, inspect_overlong
from sandboxed_mcp.bridge.stderr import StderrWriter
from sandboxed_mcp.errors import EngineError, ExitStatus
from sandboxed_mcp.events import BadLine, StderrDropped
from sandboxed_mcp.sandbox import EOF_GRACE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup

    from sandboxed_mcp.sandbox import Sandbox

__all__ = ["STDIN_END_SECONDS", "relay_stdio"]

READ_BYTES: Final = 256 * 1024
BATCH_BYTES: Final = 64 * 1024
STDIN_END_SECONDS: Final = 4.0
FLUSH_SECONDS: Final = 1.0
NOTES_A_SECOND: Final = 100
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def relay_stdio(
    sandbox: Sandbox, *, stdin: int = 0, stdout: int = 1, stderr: int = 2
) -> ExitStatus:
    """Relays until the server ends, stdin has ended, or a signal asks for the end.

    Args:
        sandbox: A sandbox just opened.
        stdin: Descriptor to read the client's lines from.
        stdout: Descriptor for the server's lines, and nothing else.
        stderr: Descriptor for everything else.

    Returns:
        How the server ended. After the end of stdin it has 4 s to finish by itself.
    """
    relay = _Relay(sandbox, stdin, stdout, stderr)
    async with anyio.create_task_group() as tasks:
        relay.start(tasks)
        for watch in (relay.watch_signals, relay.watch_start, relay.watch_stdin):
            tasks.start_soon(watch)
        await relay.over.wait()
        await relay.finish()
        tasks.cancel_scope.cancel()
    return await sandbox.wait()


class _Relay:
    """Two threads, and the events they set."""

    def __init__(self, sandbox: Sandbox, stdin: int, stdout: int, stderr: int) -> None:
        self.over = anyio.Event()
        self._sandbox = sandbox
        self._stdin = stdin
        self._stdout = stdout
        self._errors = StderrWriter(stderr, sandbox.redactor)
        self._lines = LineAssembler(sandbox.plan.limits.message_size)
        self._first_input = anyio.Event()
        self._first_output = anyio.Event()
        self._stdin_ended = anyio.Event()
        self._output_ended = anyio.Event()
        self._reason: str | None = None
        self._stopped = threading.Event()
        self._notes = _Rate(NOTES_A_SECOND)

    def start(self, tasks: TaskGroup) -> None:
        """Starts the threads on the sandbox's stream."""
        self._token = current_token()
        self._sandbox.on_stderr = self._errors.write
        self._sandbox.drain = self._output_ended.wait
        raw = self._sandbox.detach()
        if raw is None:
            raw = self._bridge_socket(tasks)
        connection, early = raw
        self._errors.start()
        for run in (self._run_input, self._run_output):
            threading.Thread(target=run, args=(connection, early), daemon=True).start()

    def _bridge_socket(self, tasks: TaskGroup) -> tuple[socket.socket, bytes]:
        """A local socket in front of a stream that is none (TLS, ssh)."""
        ours, theirs = socket.socketpair()
        tasks.start_soon(_copy_to_sandbox, theirs, self._sandbox)
        tasks.start_soon(_copy_from_sandbox, self._sandbox, theirs)
        return ours, b""

    async def watch_signals(self) -> None:
        """Ends the relay at the first SIGTERM, SIGINT or SIGHUP."""
        with anyio.open_signal_receiver(*SIGNALS) as received:
            async for number in received:
                self._end(f"the launcher received {signal.Signals(number).name}")

    async def watch_start(self) -> None:
        """Ends the relay when the server does not answer the first message in time."""
        await self._first_input.wait()
        limit = self._sandbox.plan.limits.start_timeout
        with anyio.move_on_after(limit) as waiting:
            await self._first_output.wait()
        if waiting.cancelled_caught:
            self._end(f"no answer within limits.start_timeout = {limit:g} s")

    async def watch_stdin(self) -> None:
        """Ends the relay some time after the end of stdin."""
        await self._stdin_ended.wait()
        await anyio.sleep(STDIN_END_SECONDS)
        self._end(None)

    async def finish(self) -> None:
        """Stops the server if it still runs; waits for its last output."""
        # After the end of stdin it has had its time to end by itself.
        grace = 0.0 if self._stdin_ended.is_set() else EOF_GRACE_SECONDS
        status = await self._sandbox.stop(self._reason, eof_grace=grace)
        self._stopped.set()
        with anyio.move_on_after(FLUSH_SECONDS):
            await self._output_ended.wait()
        if self._reason or status.reason or not self._stdin_ended.is_set():
            self._errors.note(f"server '{self._sandbox.plan.server}' ended ({status})")
        dropped = self._errors.close(FLUSH_SECONDS)
        if dropped:
            self._sandbox.recorder.record(StderrDropped, size=dropped)

    def _end(self, reason: str | None) -> None:
        self._reason = self._reason or reason
        self.over.set()

    def _tell(self, event: anyio.Event) -> None:
        self._in_loop(event.set)

    def _in_loop(self, step: Callable[[], object]) -> None:
        """Does a step in the event loop, from a thread; the loop may be gone already."""
        with suppress(RuntimeError):
            anyio.from_thread.run_sync(step, token=self._token)

    def _run_input(self, connection: socket.socket, _: bytes) -> None:
        data = read_some(self._stdin, READ_BYTES)
        self._tell(self._first_input)
        with suppress(OSError):
            while data:
                send_all(connection, data)
                data = read_some(self._stdin, READ_BYTES)
            connection.shutdown(socket.SHUT_WR)
        self._tell(self._stdin_ended)

    def _run_output(self, connection: socket.socket, early: bytes) -> None:
        try:
            self._take(early)
            while data := recv_some(connection, READ_BYTES):
                self._take(data)
            rest = self._lines.finish()
            self._pass([] if rest is None else [rest])
        except (OSError, EngineError) as error:
            self._reason = f"the relay ended: {error}"
        self._tell(self._output_ended)
        self._tell(self.over)

    def _take(self, data: bytes) -> None:
        for piece in self._sandbox.take_output(data):
            found = self._lines.receive(piece)
            if found:
                self._pass(found)

    def _pass(self, found: list[Line | Overlong]) -> None:
        """Writes the good lines in as few system calls as their size allows."""
        batch: list[Line] = []
        size = 0
        for line in found:
            if self._stopped.is_set():
                return
            batch += self._check(line)
            size += 0 if isinstance(line, Overlong) else len(line)
            if size > BATCH_BYTES:
                self._write(batch)
                batch, size = [], 0
        self._write(batch)

    def _write(self, batch: list[Line]) -> None:
        if not batch:
            return
        if len(batch) == 1 and len(batch[0]) > BATCH_BYTES:
            write_all(self._stdout, batch[0])
            write_all(self._stdout, b"\n")
        else:
            write_all(self._stdout, b"\n".join([*batch, b""]))
        if not self._first_output.is_set():
            self._tell(self._first_output)

    def _check(self, line: Line | Overlong) -> list[Line]:
        """The lines to pass on: the line itself, or error replies in its place."""
        if isinstance(line, Overlong):
            bad = inspect_overlong(line)
        else:
            bad = inspect_line(line)
            if bad is None:
                return [line]
        if self._notes.allows():
            self._report(bad)
        return list(bad.replies)

    def _report(self, bad: Rejection) -> None:
        head = self._sandbox.redactor.show_head(bad.line, HEAD_CHARS)
        answered = bool(bad.replies)
        if self._notes.missed:
            self._errors.note(f"{self._notes.missed} more stdout lines were not passed on")
            self._notes.missed = 0
        self._errors.note(f"stdout line not passed on: {bad.reason}: {head}")
        self._in_loop(
            partial(
                self._sandbox.recorder.record,
                BadLine,
                head=head,
                reason=bad.reason,
                answered=answered,
            )
        )


class _Rate:
    """How many bad lines are told of: a flood of them must not keep the relay from its work.

    Attributes:
        missed: How many were not told of since this was last set to 0.
    """

    def __init__(self, a_second: int) -> None:
        self.missed = 0
        self._a_second = a_second
        self._window = 0.0
        self._told = 0

    def allows(self) -> bool:
        """Whether one more may be told of now; it is counted either way."""
        now = time.monotonic()
        if now - self._window >= 1:
            self._window, self._told = now, 0
        self._told += 1
        if self._told <= self._a_second:
            return True
        self.missed += 1
        return False


async def _copy_to_sandbox(local: socket.socket, sandbox: Sandbox) -> None:
    while True:
        await anyio.wait_readable(local)
        data = local.recv(READ_BYTES)
        if not data:
            await sandbox.send_eof()
            return
        await sandbox.send(data)


async def _copy_from_sandbox(sandbox: Sandbox, local: socket.socket) -> None:
    with suppress(anyio.EndOfStream):
        while True:
            await anyio.to_thread.run_sync(send_all, local, await sandbox.receive_frames())
    local.shutdown(socket.SHUT_WR)
