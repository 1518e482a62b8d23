"""Carries a plan out and undoes it: one server in one container, as an `async with`.

Opening: engine, image, secret files, watchdog, create, compare with the plan, attach, start.
Closing, in reverse and shielded from cancellation, every wait bounded: end of input, SIGTERM,
SIGKILL, remove, secret files, watchdog; then what dead launchers left behind goes too. Whatever
fails on the way in undoes what was done, and the error that made it fail is the one that is
raised.

No task runs in the background: `receive` and `wait` do the work when they are called, so a
sandbox may be opened in one task and closed in another.
"""

from __future__ import annotations

import os
import uuid
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from sandboxed_mcp.config.resolve import resolve_server
from sandboxed_mcp.config.resolved import ResolvedServer
from sandboxed_mcp.engine.connection import find_engine
from sandboxed_mcp.engine.frames import FrameDecoder, Stream
from sandboxed_mcp.engine.orphans import sweep_orphans
from sandboxed_mcp.engine.owner import describe_owner
from sandboxed_mcp.engine.secret_files import make_secret_folder, open_secret_files
from sandboxed_mcp.engine.verify import compare_plan
from sandboxed_mcp.engine.watchdog import watchdog_of_this_process
from sandboxed_mcp.errors import (
    ConfigError,
    EngineError,
    ExitStatus,
    PlanMismatchError,
    ServerExitedError,
    StartTimeoutError,
)
from sandboxed_mcp.events import Exited, MemoryLimitReached, Started
from sandboxed_mcp.plan import LaunchIdentity, SandboxPlan, plan_sandbox, render_create
from sandboxed_mcp.recorder import EventQueue, Recorder
from sandboxed_mcp.text import Redactor, TailBuffer

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from sandboxed_mcp.config.servers import ServerConfig
    from sandboxed_mcp.engine.api import Engine, HijackedStream

__all__ = [
    "EOF_GRACE_SECONDS",
    "KILL_GRACE_SECONDS",
    "TERM_GRACE_SECONDS",
    "Sandbox",
    "open_sandbox",
    "plan_launch",
]

EOF_GRACE_SECONDS = 2.0
TERM_GRACE_SECONDS = 2.0
KILL_GRACE_SECONDS = 2.0
STATUS_GRACE_SECONDS = 1.0
REMOVE_SECONDS = 10.0
REMOVE_POLL_SECONDS = 0.02
STDERR_TAIL_BYTES = 16 * 1024

_T = TypeVar("_T")
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

    def __init__(
        self,
        engine: Engine,
        plan: SandboxPlan,
        container: str,
        stream: HijackedStream,
        exits: AsyncIterator[dict[str, Any]],
    ) -> None:
        self.plan = plan
        self.container = container
        self.exit_status: ExitStatus | None = None
        self.recorder = Recorder(plan.server, plan.launch)
        self.on_stderr: Callable[[bytes | memoryview], None] | None = None
        self.drain: Callable[[], Awaitable[object]] = self._drop_output
        self.redactor = Redactor({s.name: s.value for s in plan.secrets})
        self._engine = engine
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

    async def stop(self, reason: str | None = None) -> ExitStatus:
        """Ends the server: end of input, SIGTERM, SIGKILL, each with a bounded wait.

        Args:
            reason: Why; becomes part of the exit status.
        """
        self._reason = self._reason or reason
        await self.send_eof()
        for signal, grace in (
            (None, EOF_GRACE_SECONDS),
            ("SIGTERM", TERM_GRACE_SECONDS),
            ("SIGKILL", KILL_GRACE_SECONDS),
        ):
            if signal is not None:
                with suppress(EngineError):
                    await self._engine.kill(self.container, signal)
            if await self._ends_within(grace):
                break
        if self.exit_status is None:
            self.exit_status = ExitStatus(None, reason=self._reason or "it could not be stopped")
        return self.exit_status

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


async def plan_launch(
    resolved: ResolvedServer, engine: Engine, *, launch: str = "", secrets_dir: str | None = None
) -> SandboxPlan:
    """The plan of a launch, as `--dry-run` shows it; nothing is created.

    Args:
        resolved: Resolved settings.
        engine: The engine that holds the image.
        launch: Launch id, 32 hexadecimal digits; empty makes a new one.
        secrets_dir: Host folder behind `/run/secrets`.

    Raises:
        ConfigError: A setting cannot be enforced.
        EngineError: The image is missing, or the engine refuses.
    """
    image = await engine.inspect_image(resolved.image, image_fix(resolved.image))
    who = LaunchIdentity(launch or uuid.uuid4().hex, describe_owner(), secrets_dir)
    return plan_sandbox(resolved, image, who)


def image_fix(reference: str) -> str:
    """What to run when an image is missing."""
    if reference.startswith("sandboxed-mcp/"):
        name = reference.removeprefix("sandboxed-mcp/").partition(":")[0]
        return f"run 'sandboxed-mcp build {name}' once"
    return f"run 'docker pull {reference}' or build it, then start again"


@asynccontextmanager
async def open_sandbox(
    server: ServerConfig | ResolvedServer, *, engine: Engine | None = None
) -> AsyncGenerator[Sandbox]:
    """Starts a server in its sandbox; stops and removes it at the end.

    Args:
        server: The server's settings.
        engine: The engine to use; None finds it as Docker's own command line does.

    Raises:
        ConfigError: A setting cannot be used or cannot be enforced.
        EngineError: No engine answers, the image is missing, or the engine refuses.
        LaunchError: The sandbox did not come up as planned, or not in time.
    """
    resolved = (
        server if isinstance(server, ResolvedServer) else resolve_server(server, environ=os.environ)
    )
    timeout = resolved.policy.limits.start_timeout
    async with AsyncExitStack() as undo:
        try:
            with anyio.fail_after(timeout):
                engine = engine or await find_engine(os.environ)
                sandbox = await _launch(resolved, engine, undo)
        except TimeoutError as error:
            raise StartTimeoutError(
                f"server '{resolved.name}' did not start within limits.start_timeout = "
                f"{timeout:g} s; raise the limit or see 'sandboxed-mcp doctor'"
            ) from error
        yield sandbox


async def _launch(resolved: ResolvedServer, engine: Engine, undo: AsyncExitStack) -> Sandbox:
    launch = uuid.uuid4().hex
    secrets_dir = _write_secrets(resolved, engine, launch, undo)
    plan = await plan_launch(resolved, engine, launch=launch, secrets_dir=secrets_dir)
    container = await _create(plan, engine)
    stream = await engine.attach(container)
    undo.push_async_callback(_shielded, stream.aclose)
    exits = await undo.enter_async_context(engine.open_events(container, ("oom", "die")))
    sandbox = Sandbox(engine, plan, container, stream, exits)
    undo.callback(sandbox.recorder.events.close)
    undo.push_async_callback(_shielded, sandbox.stop)
    await engine.start(container)
    sandbox.recorder.record(Started, container=container, image=plan.image.id, network=plan.network)
    return sandbox


def _write_secrets(
    resolved: ResolvedServer, engine: Engine, launch: str, undo: AsyncExitStack
) -> str | None:
    """Starts the watch over the launch, and writes its secret files if it has any."""
    secrets = tuple(s for s in resolved.secrets if s.delivery == "file")
    if secrets and not engine.endpoint.is_local:
        raise ConfigError(
            f"servers.{resolved.name}.secrets",
            f"'{secrets[0].name}' cannot be a file on the remote engine {engine.endpoint}",
            'deliver it as a variable (as = "env") or use an engine on this machine',
            file=resolved.origin,
        )
    folder = make_secret_folder(os.environ) if secrets else None
    watchdog_of_this_process().watch(launch, engine, str(folder) if folder else None)
    undo.push_async_callback(_shielded, _finish_watch, engine, launch)
    return undo.enter_context(open_secret_files(folder, secrets)) if folder else None


async def _finish_watch(engine: Engine, launch: str) -> None:
    """Removes what is left of the launch; the watchdog forgets it only when nothing is."""
    with suppress(EngineError), anyio.move_on_after(REMOVE_SECONDS):
        while found := await engine.list_containers(launch):
            for container in found:
                await engine.remove(container.id)
            await anyio.sleep(REMOVE_POLL_SECONDS)
        watchdog_of_this_process().done(launch)
    await sweep_orphans(engine)


async def _create(plan: SandboxPlan, engine: Engine) -> str:
    # Cancelled half-way, a create would leave a container whose id nobody knows.
    container, warnings = await _shielded(engine.create, render_create(plan))
    found = await engine.inspect(container)
    if found is None:
        raise PlanMismatchError(plan.server, ("the container vanished before it was started",))
    differences = (*warnings, *compare_plan(plan, found))
    if differences:
        raise PlanMismatchError(plan.server, differences)
    return container


async def _shielded(step: Callable[..., Awaitable[_T]], *args: object) -> _T:
    with anyio.CancelScope(shield=True):
        return await step(*args)
    raise AssertionError("a scope that nobody cancels lets its result out")
