"""Every feature of the protocol, both ways, through the library and through `run`."""

# ruff: noqa: ARG001 - the SDK gives the parameters of its callbacks their names

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Self

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    EmbeddedResource,
    ErrorData,
    ImageContent,
    ListRootsResult,
    LoggingMessageNotificationParams,
    PromptReference,
    ResourceLink,
    Root,
    TextContent,
    TextResourceContents,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import FileUrl

from tests.integration.servers.images import NODE_SERVERS
from tests.integration.servers.ways import WAYS, Server, Way

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.client.session import ClientRequestContext, IncomingMessage
    from mcp.shared.dispatcher import ProgressFnT

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

PIXEL = base64.b64encode(bytes(range(256)) * 4).decode()
TRICKY = "naïve Ω 日本 🏳️‍🌈\u00a0\u200d\u2028\u2029\x85\x7f\ufeff مرحبا \\u2028 \t\r\n\"'"
MIB = 1024 * 1024
WAIT_SECONDS = 60
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


@pytest.fixture(params=["library", "run"])
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


@pytest.fixture
def feature(sdk_image: str) -> Server:
    return Server("feature", sdk_image, ("python3", "-m", "feature_server"))


class Inbox:
    """Takes notifications; `get` waits for the next one."""

    def __init__(self) -> None:
        self._put, self._take = anyio.create_memory_object_stream[Any](1000)

    async def take_log(self, params: LoggingMessageNotificationParams) -> None:
        self._put.send_nowait(params)

    async def take_message(self, message: IncomingMessage) -> None:
        self._put.send_nowait(message)

    async def get(self) -> Any:
        with anyio.fail_after(WAIT_SECONDS):
            return await self._take.receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._put.close()
        self._take.close()


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert not result.is_error
    return block.text


def on_progress(act: Callable[[], object]) -> ProgressFnT:
    """A callback that acts at each report of progress, whatever it says."""

    async def note(progress: float, total: float | None, message: str | None) -> None:
        del progress, total, message
        act()

    return note


async def call(client: Client, tool: str, **arguments: object) -> str:
    return text_of(await client.call_tool(tool, arguments))


async def test_progress_arrives_in_order_and_before_the_result(way: Way, feature: Server) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with way(feature) as client:
        result = await client.call_tool("count", {"to": 200}, progress_callback=note)

    assert text_of(result) == "counted to 200"
    assert seen == [(step, 200, f"step {step}") for step in range(1, 201)]


async def test_a_cancelled_call_is_cancelled_in_the_server_and_later_calls_work(
    way: Way, feature: Server
) -> None:
    async with way(feature) as client:
        with anyio.fail_after(WAIT_SECONDS), anyio.CancelScope() as scope:
            started = on_progress(scope.cancel)
            await client.call_tool("hold", {"key": "one"}, progress_callback=started)

        assert scope.cancelled_caught
        with anyio.fail_after(WAIT_SECONDS):
            assert await call(client, "cancelled") == "one"
            assert await call(client, "echo", text="still here") == "still here"


async def test_log_messages_arrive_from_the_level_that_was_set(way: Way, feature: Server) -> None:
    heard: list[LoggingMessageNotificationParams] = []

    async def hear(params: LoggingMessageNotificationParams) -> None:
        heard.append(params)

    async with way(feature, logging_callback=hear) as client:
        assert await call(client, "log", text="all") == "debug"
        await client.set_logging_level("error")  # pyright: ignore[reportDeprecated]
        assert await call(client, "log", text="few") == "error"

    assert [(entry.level, entry.data) for entry in heard] == [
        *((level, "all") for level in LEVELS),
        *((level, "few") for level in LEVELS[4:]),
    ]
    assert {entry.logger for entry in heard} == {"feature"}


async def test_the_server_samples_from_the_clients_model(way: Way, feature: Server) -> None:
    async def answer(
        context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult:
        (message,) = params.messages
        assert isinstance(message.content, TextContent)
        text = message.content.text[::-1]
        return CreateMessageResult(role="assistant", content=TextContent(text=text), model="mirror")

    async with way(feature, sampling_callback=answer) as client:
        assert await call(client, "sample", prompt="abc 日本") == "mirror: 本日 cba"


async def test_a_refused_sampling_is_an_error_of_that_call_only(way: Way, feature: Server) -> None:
    async def refuse(
        context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> ErrorData:
        return ErrorData(code=-1, message="the user says no")

    async with way(feature, sampling_callback=refuse) as client:
        with pytest.raises(MCPError, match="the user says no"):
            await client.call_tool("sample", {"prompt": "x"})
        assert await call(client, "echo", text="alive") == "alive"


async def test_the_user_accepts_declines_and_cancels_what_the_server_asks(
    way: Way, feature: Server
) -> None:
    answers = {
        "1": ElicitResult(action="accept", content={"name": "Zoë"}),
        "2": ElicitResult(action="decline"),
        "3": ElicitResult(action="cancel"),
    }

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        assert params.requested_schema["required"] == ["name"]
        return answers[params.message]

    async with way(feature, elicitation_callback=answer) as client:
        said = [await call(client, "ask", message=message) for message in answers]

    assert said == ["accept: {'name': 'Zoë'}", "decline: None", "cancel: None"]


async def test_the_server_reads_the_roots_and_hears_of_their_change(
    way: Way, feature: Server
) -> None:
    known = [Root(uri=FileUrl("file:///one"))]

    async def tell(context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=known)

    with Inbox() as inbox:
        async with way(
            feature, list_roots_callback=tell, logging_callback=inbox.take_log
        ) as client:
            assert await call(client, "roots") == "file:///one"
            known.append(Root(uri=FileUrl("file:///two%20words")))
            await client.session.send_roots_list_changed()  # pyright: ignore[reportDeprecated]
            heard = await inbox.get()
            assert await call(client, "roots") == "file:///one,file:///two%20words"

    assert heard.data == "roots now: 2"


@pytest.mark.parametrize("kind", ["tool", "resource", "prompt"])
async def test_the_client_hears_that_a_list_changed(way: Way, feature: Server, kind: str) -> None:
    async def names(client: Client) -> list[str]:
        fetch = {
            "tool": client.list_tools,
            "resource": client.list_resources,
            "prompt": client.list_prompts,
        }
        return await all_pages(fetch[kind], f"{kind}s")

    with Inbox() as inbox:
        async with way(feature, message_handler=inbox.take_message) as client:
            before = await names(client)
            assert await call(client, "add", kind=kind, name="memo://new") == kind
            heard = await inbox.get()
            after = await names(client)

    assert heard.method == f"notifications/{kind}s/list_changed"
    assert after == [*before, "memo://new"]


async def all_pages(fetch: Callable[..., Awaitable[Any]], items: str) -> list[str]:
    names: list[str] = []
    cursor: str | None = None
    while True:
        page = await fetch(cursor=cursor)
        names += [item.name for item in getattr(page, items)]
        cursor = page.next_cursor
        if cursor is None:
            return names


async def test_lists_come_in_pages(way: Way, feature: Server) -> None:
    async with way(feature) as client:
        first = await client.list_resources()
        resources = await all_pages(client.list_resources, "resources")
        tools = await all_pages(client.list_tools, "tools")

    assert (len(first.resources), first.next_cursor) == (10, "10")
    assert resources == [f"memo://{number}" for number in range(25)]
    assert len(tools) == len(set(tools)) > 10


async def test_only_a_subscribed_resource_is_reported_as_changed(way: Way, feature: Server) -> None:
    with Inbox() as inbox:
        async with way(feature, message_handler=inbox.take_message) as client:
            said = [await call(client, "touch", uri="memo://1")]
            await client.subscribe_resource("memo://1")  # pyright: ignore[reportDeprecated]
            said.append(await call(client, "touch", uri="memo://1"))
            heard = await inbox.get()
            await client.unsubscribe_resource("memo://1")  # pyright: ignore[reportDeprecated]
            said.append(await call(client, "touch", uri="memo://1"))

    assert said == ["nobody cares", "told", "nobody cares"]
    assert heard.method == "notifications/resources/updated"
    assert heard.params.uri == "memo://1"


async def test_resources_prompts_and_completions_are_served(way: Way, feature: Server) -> None:
    async with way(feature) as client:
        text = await client.read_resource("memo://7")
        blob = await client.read_resource("memo://blob")
        prompt = await client.get_prompt("greet", {"name": "Zoë ☕"})
        completion = await client.complete(
            PromptReference(name="greet"), {"name": "city", "value": "Ber"}
        )

    assert text.contents == [TextResourceContents(uri="memo://7", text="the text of memo://7")]
    assert blob.contents == [
        BlobResourceContents(uri="memo://blob", mime_type="application/x-bits", blob=PIXEL)
    ]
    assert prompt.messages[0].content == TextContent(text="Greet Zoë ☕")
    assert completion.completion.values == ["Berlin", "Bergen", "Bern"]


async def test_structured_output_images_audio_and_blobs_arrive_whole(
    way: Way, feature: Server
) -> None:
    value: dict[str, Any] = {
        "n": 2**53 - 1,
        "f": 0.1,
        "list": [1, None, True, {"ü": "☃"}],
        "empty": {},
    }
    async with way(feature) as client:
        structured = await client.call_tool("structured", value)
        media = await client.call_tool("media", {})
        failed = await client.call_tool("fail", {"text": "no such thing"})

    assert structured.structured_content == value
    text, image, audio, embedded, link = media.content
    assert text == TextContent(text="all kinds")
    assert image == ImageContent(data=PIXEL, mime_type="image/png")
    assert audio == AudioContent(data=PIXEL, mime_type="audio/wav")
    assert isinstance(embedded, EmbeddedResource)
    assert isinstance(embedded.resource, BlobResourceContents)
    assert embedded.resource.blob == PIXEL
    assert isinstance(link, ResourceLink)
    assert failed.is_error
    assert failed.content == [TextContent(text="no such thing")]


async def test_large_and_tricky_text_passes_unchanged_both_ways(way: Way, feature: Server) -> None:
    large = (TRICKY * (5 * MIB // len(TRICKY.encode()) + 1))[: 5 * MIB]
    async with way(feature) as client:
        assert await call(client, "echo", text=TRICKY) == TRICKY
        assert await call(client, "echo", text=large) == large
        assert await call(client, "big", unit="0123456789abcdef", times=MIB // 2) == (
            "0123456789abcdef" * (MIB // 2)
        )


async def test_either_side_answers_a_ping(way: Way, feature: Server) -> None:
    async with way(feature) as client:
        await client.send_ping()  # pyright: ignore[reportDeprecated]
        assert await call(client, "ping_client") == "the client answered"


async def test_fifty_calls_run_at_once(way: Way, feature: Server) -> None:
    names = [f"guest {number}" for number in range(50)]
    said: dict[str, str] = {}

    async with way(feature) as client:

        async def meet(name: str) -> None:
            said[name] = await call(client, "meet", name=name, guests=50)

        with anyio.fail_after(WAIT_SECONDS):
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(meet, name)

    assert said == {name: name for name in names}


async def test_answers_may_come_in_another_order_than_the_calls(way: Way, feature: Server) -> None:
    order: list[str] = []
    keys = [str(number) for number in range(8)]

    async with way(feature) as client:
        held = {key: anyio.Event() for key in keys}
        done = {key: anyio.Event() for key in keys}

        async def hold(key: str) -> None:
            started = on_progress(held[key].set)
            result = await client.call_tool("hold", {"key": key}, progress_callback=started)
            order.append(text_of(result))
            done[key].set()

        with anyio.fail_after(WAIT_SECONDS):
            async with anyio.create_task_group() as tasks:
                for key in keys:
                    tasks.start_soon(hold, key)
                for event in held.values():
                    await event.wait()
                for key in reversed(keys):
                    await call(client, "release", key=key)
                    await done[key].wait()

    assert order == [f"held {key}" for key in reversed(keys)]


@pytest.mark.parametrize(
    ("mode", "version"),
    [
        ("legacy", LATEST_HANDSHAKE_VERSION),
        ("auto", LATEST_MODERN_VERSION),
        (LATEST_MODERN_VERSION, LATEST_MODERN_VERSION),
    ],
)
async def test_each_protocol_era_is_spoken(
    way: Way, feature: Server, mode: str, version: str
) -> None:
    async with way(feature, mode=mode) as client:
        assert client.protocol_version == version
        assert await call(client, "echo", text="any era") == "any era"


async def test_a_client_falls_back_to_the_handshake_with_an_older_server(
    way: Way, node_image: str
) -> None:
    program = f"{NODE_SERVERS}/node_modules/@modelcontextprotocol/server-memory/dist/index.js"
    memory = Server("memory", node_image, ("node", program), env={"MEMORY_FILE_PATH": "/tmp/graph"})

    async with way(memory, mode="auto") as client:
        assert client.protocol_version == LATEST_HANDSHAKE_VERSION
        assert (await client.call_tool("read_graph", {})).structured_content == {
            "entities": [],
            "relations": [],
        }
