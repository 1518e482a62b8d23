"""A running server: bytes in, bytes out, how it ended, and how it is ended.

No task of its own runs in the background: `receive` and `wait` do the work when called.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from sandboxed_mcp.egress.rules import Unrestricted
from sandboxed_mcp.engine.frames import FrameDecoder, Stream
from sandboxed_mcp.errors import EngineError, ExitStatus, LaunchError, ServerExitedError
from sandboxed_mcp.events import Exited, MemoryLimitReached
from sandboxed_mcp.text import Redactor, TailBuffer

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sandboxed_mcp.config.policy import Policy
    from sandboxed_mcp.egress.events import PolicyApplied
    from sandboxed_mcp.engine.api import Engine, HijackedStream
    from sandboxed_mcp.plan import SandboxPlan
    from sandboxed_mcp.recorder import EventQueue, Recorder
    from sandboxed_mcp.sandbox.gateway import GatewayLink

__all__ = ["EOF_GRACE_SECONDS", "KILL_GRACE_SECONDS", "TERM_GRACE_SECONDS", "Sandbox"]

EOF_GRACE_SECONDS: Final = 2.0
TERM_GRACE_SECONDS: Final = 2.0
KILL_GRACE_SECONDS: Final = 2.0
STATUS_GRACE_SECONDS: Final = 1.0
STDERR_TAIL_BYTES: Final = 16 * 1024

_STREAM_LOST = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class Sandbox:
    """A running server: bytes in, bytes out, and how it ended.

    Attributes:
        plan: What the container was made from.
        container: The engine's container id.
        exit_status: How the server ended; None while it runs.
        recorder: Takes what later stages have to report; `events` holds it all.
        on_stderr: Called with each piece of stderr as it arrives; None to only keep its tail.
        drain: Takes the rest of the output while the server is being stopped; whoever reads
            the output in another way puts a wait for its own end here.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - made in one place, from what a launch made
        self,
        engine: Engine,
        plan: SandboxPlan,
        container: str,
        stream: HijackedStream,
        exits: AsyncIterator[dict[str, Any]],
        recorder: Recorder,
        gateway: GatewayLink | None = None,
    ) -> None:
        self.plan = plan
        self.container = container
        self.exit_status: ExitStatus | None = None
        self.recorder = recorder
        self.on_stderr: Callable[[bytes | memoryview], None] | None = None
        self.drain: Callable[[], Awaitable[object]] = self._drop_output
        self.redactor = Redactor({s.name: s.value for s in plan.secrets})
        self._engine = engine
        self._gateway = gateway
        self._stream = stream
        self._decoder = FrameDecoder()
        self._tail = TailBuffer(STDERR_TAIL_BYTES, self.redactor)
        self._reason: str | None = None
        self._exits = exits
        self._asking = anyio.Lock()

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the server runs or when the engine could not tell."""
        return self.exit_status.code if self.exit_status is not None else None

    @property
    def events(self) -> EventQueue:
        """What happened so far and happens from now on: `async for event in sandbox.events`."""
        return self.recorder.events

    @property
    def stderr_tail(self) -> str:
        """The last 16 KiB of stderr, escaped, secrets redacted."""
        return self._tail.show()

    async def receive(self) -> bytes:
        """The next bytes of the server's stdout, unchanged.

        Raises:
            anyio.EndOfStream: The server's output has ended; `wait` tells why.
        """
        while True:
            stdout = self.take_output(await self.receive_frames())
            if stdout:
                return b"".join(stdout)

    async def receive_frames(self) -> bytes:
        """The next bytes of the engine's stream, for `take_output`.

        Raises:
            anyio.EndOfStream: The stream has ended.
        """
        try:
            return await self._stream.receive()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            raise anyio.EndOfStream from None

    def take_output(self, data: bytes) -> list[memoryview]:
        """Takes bytes of the attach stream: stderr is kept, stdout is given back in pieces."""
        stdout: list[memoryview] = []
        for stream, piece in self._decoder.receive(data):
            if stream is Stream.STDERR:
                self._tail.append(piece)
                if self.on_stderr is not None:
                    self.on_stderr(piece)
            else:
                stdout.append(piece)
        return stdout

    async def send(self, data: bytes) -> None:
        """Writes to the server's stdin.

        Raises:
            ServerExitedError: The server has ended.
        """
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise await self.exited_error() from error

    def detach(self) -> tuple[socket.socket, bytes] | None:
        """The raw socket of the stream and bytes read too early, for a reader in a thread.

        None when the stream is no plain socket (TLS, ssh): use `receive` and `send`.
        """
        return self._stream.detach()

    async def send_eof(self) -> None:
        """Ends the server's stdin; its output can still be read."""
        with suppress(*_STREAM_LOST):
            await self._stream.send_eof()

    async def wait(self) -> ExitStatus:
        """Waits for the server to end and tells how it did."""
        async with self._asking:
            if self.exit_status is None:
                self.exit_status = await self._ask_status()
                self.recorder.record(
                    Exited,
                    code=self.exit_status.code,
                    oom_killed=self.exit_status.oom_killed,
                    reason=self.exit_status.reason,
                )
        return self.exit_status

    async def exited_error(self) -> ServerExitedError:
        """The error that tells how the server ended, with its last words."""
        with anyio.move_on_after(STATUS_GRACE_SECONDS):
            await self.wait()
        status = self.exit_status or ExitStatus(None, reason="its stream ended")
        return ServerExitedError(self.plan.server, status, self.stderr_tail)

    async def stop(
        self, reason: str | None = None, *, eof_grace: float = EOF_GRACE_SECONDS
    ) -> ExitStatus:
        """Ends the server: end of input, SIGTERM, SIGKILL, each with a bounded wait.

        Args:
            reason: Why; becomes part of the exit status.
            eof_grace: Seconds that it may take to end by itself after the end of its input.
        """
        self._reason = self._reason or reason
        await self.send_eof()
        for signal, grace in (
            (None, eof_grace),
            ("SIGTERM", TERM_GRACE_SECONDS),
        ):
            if signal is not None:
                with suppress(EngineError):
                    await self._engine.kill(self.container, signal)
            if await self._ends_within(grace):
                return self.exit_status or ExitStatus(None)
        await self._kill()
        if self.exit_status is None:
            self.exit_status = ExitStatus(None, reason=self._reason or "it could not be stopped")
        return self.exit_status

    async def _kill(self) -> None:
        # An engine waits with a container's end until its output is read, and whoever has not
        # read it by now does not read: the connection is dropped first.
        with suppress(*_STREAM_LOST):
            await self._stream.abort()
        with suppress(EngineError):
            await self._engine.kill(self.container, "SIGKILL")
        with anyio.move_on_after(KILL_GRACE_SECONDS):
            await self.wait()

    async def fail(self, reason: str) -> None:
        """Kills the server at once: it has lost what makes it safe to run.

        Args:
            reason: Why; becomes part of the exit status.
        """
        self._reason = self._reason or reason
        with suppress(EngineError):
            await self._engine.kill(self.container, "SIGKILL")

    async def apply_policy(self, policy: Policy) -> PolicyApplied:
        """Puts other egress rules in force; what they do not allow any more is ended.

        A sandbox that observes goes on doing so: nothing leaves it, whatever the rules say.

        Args:
            policy: The policy; only its `egress` and `dns` can change while a server runs.

        Returns:
            How many rules are in force, and how many connections were ended.

        Raises:
            LaunchError: The sandbox is offline or would become unrestricted, or the gateway
                refused; the rules before stay.
        """
        if self._gateway is None:
            raise LaunchError(
                f"server '{self.plan.server}' runs offline and has no gateway to take rules; "
                "give it a policy with egress rules and start it again"
            )
        if isinstance(policy.egress, Unrestricted) and self.plan.network != "unrestricted":
            raise LaunchError(
                f"server '{self.plan.server}' is shown as one with rules, so that it cannot become "
                "unrestricted while it runs; start it again with that policy"
            )
        return await self._gateway.apply(policy)

    async def _ends_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self.drain()
            await self.wait()
        return self.exit_status is not None

    async def _drop_output(self) -> None:
        # A server that is blocked writing cannot exit: its output must be drained.
        with suppress(*_STREAM_LOST):
            while True:
                await self.receive()

    async def _ask_status(self) -> ExitStatus:
        oom_killed = False
        async for event in self._exits:
            if event.get("Action") == "oom":
                oom_killed = True
                self.recorder.record(MemoryLimitReached)
            elif event.get("Action") == "die":
                code = event["Actor"]["Attributes"].get("exitCode")
                return ExitStatus(int(code) if code else None, oom_killed, self._reason)
        return ExitStatus(None, oom_killed, self._reason or "the engine went away")
