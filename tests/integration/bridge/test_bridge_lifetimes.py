"""How a connection begins, ends and fails, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import psutil
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, JSONRPCNotification, JSONRPCRequest, TextContent

from sandboxed_mcp import (
    Engine,
    ServerConfig,
    ServerExitedError,
    connect,
    find_engine,
    open_sandbox,
    open_streams,
    stdio_transport,
)
from tests.integration.sdk.source import fetch_packages
from tests.integration.servers.ways import COMMAND

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("engine_client"),
]

SOURCE: Final = Path(__file__).with_name("raw_server.py").read_text(encoding="utf-8")
ARGUMENTS: Final = ("-S", "-E", "-c", SOURCE)
RAW: Final = ServerConfig(name="raw", command="python3", args=ARGUMENTS)
WAIT_SECONDS: Final = 60


async def echo(client: Client, text: str) -> str:
    result = await client.call_tool("echo", {"text": text})
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def containers_left() -> list[str]:
    """Our containers: those that this process launched."""
    mark = f"/{os.getpid()}/"
    engine = await find_engine(os.environ)
    found = await engine.list_containers()
    return [c.id for c in found if mark in c.labels.get("sandboxed-mcp.owner", "")]


@pytest.fixture
async def client() -> AsyncGenerator[Client]:
    """A client that lives in a fixture."""
    async with connect(RAW) as opened:
        yield opened


async def test_a_client_from_a_fixture_serves_the_test_and_its_tasks(client: Client) -> None:
    said: list[str] = []

    async def ask(text: str) -> None:
        said.append(await echo(client, text))

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(ask, str(number))

    assert sorted(said) == ["0", "1", "2"]


async def test_a_client_of_an_exit_stack_serves_other_tasks_until_its_owner_closes_it() -> None:
    opened, used = anyio.Event(), anyio.Event()
    clients: list[Client] = []

    async def own() -> None:
        async with AsyncExitStack() as stack:
            clients.append(await stack.enter_async_context(connect(RAW)))
            clients.append(await stack.enter_async_context(connect(RAW)))
            opened.set()
            await used.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(own)
        await opened.wait()
        assert [await echo(client, "elsewhere") for client in clients] == ["elsewhere"] * 2
        used.set()

    assert await containers_left() == []


class StopHere(BaseException):
    """Not an `Exception`, as the outcomes of pytest are not."""


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("mine"), ExceptionGroup("mine", [ValueError("one")]), StopHere("mine")],
    ids=["error", "group", "base"],
)
async def test_an_error_of_the_body_arrives_as_it_was_raised(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        async with connect(RAW):
            raise error

    assert caught.value is error
    assert await containers_left() == []


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), StopHere("mine")])
async def test_an_error_of_the_body_leaves_the_streams_as_it_was_raised(
    error: BaseException,
) -> None:
    with pytest.raises(type(error)) as caught:
        async with open_sandbox(RAW) as sandbox, open_streams(sandbox):
            raise error

    assert caught.value is error


async def test_an_error_of_the_protocol_arrives_unwrapped() -> None:
    with pytest.raises(MCPError, match="last words: unwrapped"):
        async with connect(RAW) as client:
            await client.call_tool("die", {"text": "unwrapped"})


@pytest.mark.parametrize("pending", [False, True], ids=["idle", "calling"])
async def test_cancelling_the_body_ends_the_sandbox(*, pending: bool) -> None:
    with anyio.fail_after(WAIT_SECONDS), anyio.CancelScope() as scope:
        async with connect(RAW) as client, anyio.create_task_group() as tasks:
            if pending:
                tasks.start_soon(client.call_tool, "hold")
            assert await echo(client, "running") == "running"
            scope.cancel()
            await anyio.sleep_forever()

    assert scope.cancelled_caught
    assert await containers_left() == []


async def test_closing_the_client_ends_a_call_that_waits_as_the_sdks_own_transport_does() -> None:
    async def close_while_waiting(transport: Any) -> tuple[type[BaseException], object]:
        seen: list[BaseException] = []
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(transport, mode="legacy"))

            async def hold() -> None:
                try:
                    await client.call_tool("hold")
                except BaseException as error:
                    seen.append(error)
                    if not isinstance(error, Exception):
                        raise

            tasks.start_soon(hold)
            assert await echo(client, "running") == "running"
        (error,) = seen
        return type(error), getattr(error, "error", None)

    child = StdioServerParameters(command=sys.executable, args=list(ARGUMENTS))
    with anyio.fail_after(WAIT_SECONDS):
        direct = await close_while_waiting(stdio_client(child))
        sandboxed = await close_while_waiting(stdio_transport(RAW))

    assert sandboxed == direct


async def test_the_death_of_the_server_fails_every_call_at_once_and_says_why() -> None:
    errors: list[MCPError] = []

    async def call(client: Client, tool: str) -> None:
        with pytest.raises(MCPError) as caught:
            await client.call_tool(tool, {"text": "the disk is on fire"})
        errors.append(caught.value)

    async with connect(RAW) as client:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(call, client, "hold")
                assert await echo(client, "all sent") == "all sent"
                tasks.start_soon(call, client, "die")
        with anyio.fail_after(10), pytest.raises(MCPError):
            await echo(client, "too late")

    assert len(errors) == 21
    for error in errors:
        assert error.error.code == CONNECTION_CLOSED
        assert "server 'raw' ended (exit code 7)" in error.error.message
        assert "last words: the disk is on fire" in error.error.message
    async with connect(RAW) as client:
        assert await echo(client, "a new one") == "a new one"


async def test_a_server_that_ends_before_it_answers_is_an_error_with_its_last_words() -> None:
    script = "import sys; sys.exit('no configuration')"
    config = ServerConfig(name="early", command="python3", args=("-c", script))

    with anyio.fail_after(WAIT_SECONDS), pytest.raises(ServerExitedError) as caught:
        async with connect(config):
            pytest.fail("it cannot have answered")

    assert caught.value.status.code == 1
    assert caught.value.stderr_tail.strip() == "no configuration"
    assert await containers_left() == []


def test_run_ends_with_the_exit_code_and_the_last_words_of_a_server_that_dies() -> None:
    call = {"name": "die", "arguments": {"text": "out of paper"}}
    request = JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params=call)
    words = (COMMAND, "run", "--image", "sandboxed-mcp/python", "--", "python3", *ARGUMENTS)
    line = request.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdin.write(line)
        run.stdin.flush()
        assert run.stdout.read() == ""
        assert "last words: out of paper" in run.stderr.read()
        assert run.wait(WAIT_SECONDS) == 7


async def test_what_no_protocol_knows_disturbs_neither_side() -> None:
    heard: list[str] = []

    async def hear(message: object) -> None:
        heard.append(repr(message))

    async with connect(RAW, message_handler=hear) as client:
        result = await client.call_tool("odd")
        assert await echo(client, "and on") == "and on"

    assert result.content == [TextContent(text="-32601")]
    assert not [text for text in heard if "Error" in text]


async def test_a_notification_that_nobody_knows_reaches_the_server_as_it_is() -> None:
    script = "import sys; print(sys.stdin.readline().strip(), flush=True); sys.stdin.read()"
    config = ServerConfig(name="mirror", command="python3", args=("-c", script))
    strange = JSONRPCNotification(
        jsonrpc="2.0", method="notifications/strange", params={"ü": ["\u2028", 2**60, None, {}]}
    )

    with anyio.fail_after(WAIT_SECONDS):
        async with stdio_transport(config) as (read, write):
            await write.send(SessionMessage(strange))
            back = await read.receive()

    assert isinstance(back, SessionMessage)
    assert back.message == strange


def census() -> dict[str, object]:
    """What this process holds: descriptors, threads, tasks, children.

    The worker threads that anyio keeps for the next use are told apart by their number only
    when it is more than two: they come and go with the load of the machine.
    """
    gc.collect()
    process = psutil.Process()
    names = [thread.name for thread in threading.enumerate()]
    own = sorted(name for name in names if name != "AnyIO worker thread")
    return {
        "descriptors": process.num_fds(),
        "threads": own,
        "workers": max(2, len(names) - len(own)),
        "tasks": len(asyncio.all_tasks()),
        "children": len(process.children()),
    }


async def test_thirty_connections_leave_nothing_behind(engine: Engine) -> None:
    async def once() -> None:
        async with connect(RAW, engine=engine) as client:
            assert await echo(client, "hello") == "hello"

    await once()
    before = census()

    for _ in range(30):
        await once()

    assert census() == before
    assert await containers_left() == []


async def test_failed_and_cancelled_connections_leave_nothing_behind(engine: Engine) -> None:
    broken = ServerConfig(name="broken", command="python3", args=("-c", "raise SystemExit(3)"))

    async def fail() -> None:
        with pytest.raises(ServerExitedError):
            async with connect(broken, engine=engine):
                pytest.fail("it cannot have answered")

    async def cancel(seconds: float) -> None:
        with anyio.move_on_after(seconds):
            async with connect(RAW, engine=engine) as client:
                await client.call_tool("hold")

    await fail()
    await cancel(1)
    before = census()

    for number in range(10):
        await fail()
        await cancel(number / 20)

    assert census() == before
    assert await containers_left() == []


ON_TRIO: Final = """
import json, sys
sys.path.append(sys.argv[1])
import anyio
from mcp import MCPError
from sandboxed_mcp import ServerConfig, connect

raw = ServerConfig(name="raw", command="python3", args=("-S", "-E", "-c", sys.argv[2]))

async def main():
    seen = {}
    async with connect(raw) as client:
        seen["echo"] = (await client.call_tool("echo", {"text": "trio"})).content[0].text
    with anyio.CancelScope() as scope:
        async with connect(raw) as client:
            scope.cancel()
            await anyio.sleep_forever()
    seen["cancelled"] = scope.cancelled_caught
    try:
        async with connect(raw) as client:
            await client.call_tool("die", {"text": "on trio"})
    except MCPError as error:
        seen["died"] = error.error.message
    try:
        async with connect(raw):
            raise KeyError("body")
    except KeyError as error:
        seen["body"] = repr(error)
    print(json.dumps(seen))

anyio.run(main, backend="trio")
"""


def test_everything_works_on_trio_too() -> None:
    packages = str(fetch_packages("inline-snapshot==0.36.1", "trio==0.35.0"))

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ON_TRIO, packages, SOURCE],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert "exit code 7" in seen.pop("died")
    assert seen == {"echo": "trio", "cancelled": True, "body": "KeyError('body')"}
