"""A pytest plugin for the SDK's own tests: its in-process servers are reached over stdio.

A test of the SDK that connects a client to a server object gets, in place of the in-memory
transport, one that passes every byte through the pipes of another process (`pipe.py`): a plain
child of the SDK's `stdio_client`, or a sandbox. The server object itself stays where it is.

Read from the environment:
    OVER_PIPE: `direct` or `sandboxed`.
    OVER_PIPE_SHARD: Which part of the tests to run, such as `0/3`.
    OVER_PIPE_OUTCOMES: File for the outcome of each test, as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp import StdioServerParameters
from mcp.client import _memory, client
from mcp.client.stdio import stdio_client
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server

from sandboxed_mcp import ServerConfig, stdio_transport
from sandboxed_mcp.config.resolve import resolve_server
from sandboxed_mcp.config.resolved import ResolvedMount

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from types import TracebackType

    import pytest
    from mcp.client._transport import TransportStreams
    from mcp.server import Server

PIPE: Final = Path(__file__).with_name("pipe.py")
PLACE: Final = "/pipe"
ARM: Final = "in-memory"
FOLDERS: Final = "/var/tmp"
END_SECONDS: Final = 5.0
ON_TRIO: Final = ("test_cancellation", "test_elicitation", "test_progress", "test_sampling")
"""Modules that also run on trio; all run on asyncio."""
_outcomes: dict[str, str] = {}


def _open_direct(folder: Path) -> AbstractAsyncContextManager[TransportStreams]:
    arguments = ["-S", "-E", str(PIPE), str(folder / "socket")]
    return stdio_client(StdioServerParameters(command=sys.executable, args=arguments))


def _open_sandboxed(folder: Path) -> AbstractAsyncContextManager[TransportStreams]:
    arguments = ("-S", "-E", f"{PLACE}/pipe.py", f"{PLACE}/socket")
    config = ServerConfig(name="pipe", command="python3", args=arguments)
    # A configuration may not mount a socket, so the mount is added to what was resolved.
    mount = ResolvedMount(str(folder), PLACE, read_only=True, relabel=None, written=str(folder))
    return stdio_transport(replace(resolve_server(config, environ=os.environ), mounts=(mount,)))


_OPEN: Final = {"direct": _open_direct, "sandboxed": _open_sandboxed}[os.environ["OVER_PIPE"]]


class OverPipe:
    """Takes the place of the SDK's `InMemoryTransport`."""

    def __init__(self, server: Server[Any] | MCPServer, *, raise_exceptions: bool = False) -> None:
        if isinstance(server, MCPServer):
            server = server._lowlevel_server  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
        self._server = server
        self._raise_exceptions = raise_exceptions
        self._opened: AbstractAsyncContextManager[TransportStreams] | None = None

    async def __aenter__(self) -> TransportStreams:
        """Starts the server, the process between, and gives the client's streams."""
        self._opened = self._open()
        return await self._opened.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Ends them."""
        assert self._opened is not None
        return await self._opened.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[TransportStreams]:
        with _listening() as (folder, listener):
            ended = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._serve, listener, ended)
                async with _OPEN(folder) as streams:
                    yield streams
                with anyio.move_on_after(END_SECONDS):
                    await ended.wait()
                tasks.cancel_scope.cancel()

    async def _serve(self, listener: socket.socket, ended: anyio.Event) -> None:
        try:
            await anyio.wait_readable(listener)
            connection, _ = listener.accept()
            connection.setblocking(True)
            with (
                connection,
                connection.makefile("r", encoding="utf-8") as reads,
                connection.makefile("w", encoding="utf-8") as writes,
            ):
                wrapped = (anyio.wrap_file(reads), anyio.wrap_file(writes))
                async with stdio_server(*wrapped) as (read, write):
                    options = self._server.create_initialization_options()
                    raising = self._raise_exceptions
                    await self._server.run(read, write, options, raise_exceptions=raising)
        finally:
            ended.set()


@contextmanager
def _listening() -> Generator[tuple[Path, socket.socket]]:
    """A folder with the pipe's program and a socket that anybody may connect to."""
    with (
        tempfile.TemporaryDirectory(dir=FOLDERS) as name,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(PIPE, folder)
        listener.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o666)
        listener.listen(1)
        listener.setblocking(False)
        yield folder, listener


def pytest_configure() -> None:
    """Puts the transport in place before any test module is imported."""
    _memory.InMemoryTransport = OverPipe  # type: ignore[misc, assignment]
    client.InMemoryTransport = OverPipe  # type: ignore[misc, assignment]
    client._connect_inproc = lambda server: client._connect_transport(OverPipe(server))  # type: ignore[assignment] # noqa: SLF001


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps this shard of the tests that connect to a server object."""
    index, count = map(int, os.environ["OVER_PIPE_SHARD"].split("/"))
    kept = [item for item in items if _connects(item)][index::count]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _connects(item: pytest.Item) -> bool:
    """Whether the test is written for any transport, on a backend that is wanted."""
    call = getattr(item, "callspec", None)
    if call is None or call.params.get("connect", ("",))[0] != ARM:
        return False
    return call.params["anyio_backend"] == "asyncio" or item.path.stem in ON_TRIO


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes the outcome of each test: of its call, or of the step that failed instead."""
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Writes the outcomes."""
    Path(os.environ["OVER_PIPE_OUTCOMES"]).write_text(json.dumps(_outcomes), encoding="utf-8")
