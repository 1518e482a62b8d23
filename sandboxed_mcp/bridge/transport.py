"""The bridge to the MCP SDK: a sandbox's bytes as the message streams its `Client` takes.

`stdio_transport` is to a sandbox what the SDK's `stdio_client` is to a child process (MCP
revision 2025-11-25, "stdio"), and `connect` is a client on top of it. A line that is no message
never ends the session: it is recorded, and the call it was meant to answer gets an error.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypedDict, Unpack, cast

import anyio
from mcp import Client, Implementation, MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from sandboxed_mcp.bridge import repair
from sandboxed_mcp.bridge.framing import Line, LineAssembler, Overlong
from sandboxed_mcp.errors import ServerExitedError, StartTimeoutError
from sandboxed_mcp.events import BadLine
from sandboxed_mcp.sandbox import Sandbox, open_sandbox
from sandboxed_mcp.tasks import open_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp.client.session import (
        ElicitationFnT,
        ListRootsFnT,
        LoggingFnT,
        MessageHandlerFnT,
        SamplingFnT,
    )

    from sandboxed_mcp.config.resolved import ResolvedServer
    from sandboxed_mcp.config.servers import ServerConfig
    from sandboxed_mcp.engine.api import Engine

__all__ = ["ClientOptions", "connect", "open_streams", "stdio_transport"]

FLUSH_SECONDS: Final = 0.5

_REFUSED: Final = "the MCP SDK does not accept it"


class ClientOptions(TypedDict, total=False):
    """Options of the SDK's `Client` that `connect` passes on; see there for each."""

    mode: str
    read_timeout_seconds: float | None
    sampling_callback: SamplingFnT | None
    elicitation_callback: ElicitationFnT | None
    list_roots_callback: ListRootsFnT | None
    logging_callback: LoggingFnT | None
    message_handler: MessageHandlerFnT | None
    client_info: Implementation | None


@asynccontextmanager
async def stdio_transport(
    server: ServerConfig | ResolvedServer,
    *,
    engine: Engine | None = None,
    audit: Path | None = None,
) -> AsyncGenerator[TransportStreams]:
    """A sandboxed server as a transport of the SDK: `Client(stdio_transport(config))`.

    Args:
        server: The server's settings.
        engine: The engine to use; None finds it as Docker's own command line does.
        audit: As for `open_sandbox`.

    Yields:
        The read and the write stream.

    Raises:
        SandboxError: As `open_sandbox`.
    """
    async with (
        open_sandbox(server, engine=engine, audit=audit) as sandbox,
        open_streams(sandbox) as streams,
    ):
        yield streams


@asynccontextmanager
async def connect(
    server: ServerConfig | ResolvedServer,
    *,
    engine: Engine | None = None,
    audit: Path | None = None,
    **options: Unpack[ClientOptions],
) -> AsyncGenerator[Client]:
    """An initialised client of a sandboxed server.

    Args:
        server: The server's settings.
        engine: The engine to use; None finds it as Docker's own command line does.
        audit: As for `open_sandbox`.
        **options: Passed to the SDK's `Client`. The protocol mode defaults to `legacy`, the
            `initialize` handshake: `auto` waits 10 s for servers that ignore its probe.

    Raises:
        ServerExitedError: The server ended before it answered `initialize`.
        StartTimeoutError: It did not answer within `limits.start_timeout`.
        SandboxError: As `open_sandbox`.
        MCPError: It answered `initialize` with an error.
    """
    failure: BaseException | None = None
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(open_sandbox(server, engine=engine, audit=audit))
        client = await _enter_client(stack, sandbox, options)
        try:
            yield client
        except (GeneratorExit, anyio.get_cancelled_exc_class()):
            raise
        except BaseException as error:  # noqa: BLE001 - raised again below, outside the task groups
            failure = error
    if failure is not None:
        raise failure


async def _enter_client(stack: AsyncExitStack, sandbox: Sandbox, options: ClientOptions) -> Client:
    pump = _Pump(sandbox)
    options.setdefault("mode", "legacy")
    client = Client(_open_pump(pump), **options)
    try:
        return await stack.enter_async_context(client)
    except Exception as error:  # noqa: BLE001 - raised again below, without the group around it
        found = _unwrap(error)
        if pump.start_timeout is not None:
            raise pump.start_timeout from found
        if isinstance(found, MCPError) and found.error.code == CONNECTION_CLOSED:
            raise await sandbox.exited_error() from found
        raise found from None


def _unwrap(error: Exception) -> Exception:
    """The one error in a group of one, as the task groups of the SDK's `Client` raise it."""
    while isinstance(error, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", error)
        if len(group.exceptions) != 1:
            return group
        error = group.exceptions[0]
    return error


@asynccontextmanager
async def open_streams(sandbox: Sandbox) -> AsyncGenerator[TransportStreams]:
    """The message streams of an open sandbox.

    The first answer must come within `limits.start_timeout` of the first request; otherwise
    the requests fail with error -32001 and the streams end. At the end the messages already
    accepted are written, within half a second; ending the server is the sandbox's part.
    """
    async with _open_pump(_Pump(sandbox)) as streams:
        yield streams


@asynccontextmanager
async def _open_pump(pump: _Pump) -> AsyncGenerator[TransportStreams]:
    async with open_tasks() as tasks:
        for run in (pump.read, pump.write, pump.watch_start):
            tasks.start_soon(run)
        try:
            yield pump.from_server, pump.to_server
        finally:
            with anyio.CancelScope(shield=True):
                await pump.close()


class _Pump:
    """Messages both ways, and which calls still wait for an answer."""

    from_server: MemoryObjectReceiveStream[SessionMessage | Exception]
    to_server: MemoryObjectSendStream[SessionMessage]

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._lines = LineAssembler(sandbox.plan.limits.message_size)
        self._deliver, self.from_server = anyio.create_memory_object_stream[
            SessionMessage | Exception
        ](0)
        self.to_server, self._accepted = anyio.create_memory_object_stream[SessionMessage](0)
        self.start_timeout: StartTimeoutError | None = None
        self._written = anyio.Event()
        self._asked = anyio.Event()
        self._answered = anyio.Event()
        self._pending: dict[str | int, None] = {}

    async def read(self) -> None:
        """Lines from the server become messages to the client, until the server ends."""
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async with self._deliver:
                with suppress(anyio.EndOfStream):
                    while True:
                        for line in self._lines.receive(await self._sandbox.receive()):
                            await self._take(line)
                            self._answered.set()
                rest = self._lines.finish()
                if rest is not None:
                    await self._take(rest)
                if self._pending:
                    reason = await self._sandbox.exited_error()
                    await self._fail_pending(CONNECTION_CLOSED, f"Connection closed: {reason}")

    async def _take(self, line: Line | Overlong) -> None:
        if isinstance(line, Overlong):
            await self._report(repair.inspect_overlong(line))
            return
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError as error:
            await self._deliver.send(error)
            await self._report(repair.reject_line(line, _REFUSED))
            return
        await self._deliver_message(message)

    async def _report(self, bad: repair.Rejection) -> None:
        """Records a line that is no message, and answers the calls it should have answered."""
        head = self._sandbox.redactor.show_head(bad.line, repair.HEAD_CHARS)
        answered = bool(bad.replies)
        self._sandbox.recorder.record(BadLine, head=head, reason=bad.reason, answered=answered)
        for reply in bad.replies:
            message = jsonrpc_message_adapter.validate_json(reply, by_name=False)
            if isinstance(message, JSONRPCError) and message.id in self._pending:
                await self._deliver_message(message)

    async def _deliver_message(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self._pending.pop(message.id, None)
        await self._deliver.send(SessionMessage(message))

    async def watch_start(self) -> None:
        """Ends the session when the first request gets no answer in time."""
        await self._asked.wait()
        limit = self._sandbox.plan.limits.start_timeout
        with anyio.move_on_after(limit):
            await self._answered.wait()
            return
        tail = self._sandbox.stderr_tail
        self.start_timeout = StartTimeoutError(
            f"server '{self._sandbox.plan.server}' did not answer its first request within "
            f"limits.start_timeout = {limit:g} s; "
            + (f"its last words on stderr:\n{tail}" if tail else "stderr is empty")
        )
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            await self._fail_pending(REQUEST_TIMEOUT, str(self.start_timeout))
            self._deliver.close()

    async def _fail_pending(self, code: int, text: str) -> None:
        """Every call in flight gets an error with the reason."""
        while self._pending:
            request, _ = self._pending.popitem()
            error = ErrorData(code=code, message=text)
            reply = JSONRPCError(jsonrpc="2.0", id=request, error=error)
            await self._deliver.send(SessionMessage(reply))

    async def write(self) -> None:
        """Messages from the client become lines to the server."""
        try:
            async for item in self._accepted:
                message = item.message
                if isinstance(message, JSONRPCRequest):
                    self._pending[message.id] = None
                    self._asked.set()
                line = message.model_dump_json(by_alias=True, exclude_unset=True)
                await self._sandbox.send(line.encode() + b"\n")
        except (anyio.ClosedResourceError, ServerExitedError):
            return  # the reader sees the end too, and says why
        finally:
            self._written.set()

    async def close(self) -> None:
        """Stops both directions, after what was accepted is written."""
        self.from_server.close()
        self.to_server.close()
        with anyio.move_on_after(FLUSH_SECONDS):
            await self._written.wait()
        self._deliver.close()
        self._accepted.close()
