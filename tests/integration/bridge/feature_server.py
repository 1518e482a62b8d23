"""A server with a tool for each thing that the protocol lets a server do.

It runs in the sandbox as `python3 -m feature_server`, on the SDK's low-level server. What one
call waits for is always another message, never time.
"""

from __future__ import annotations

import base64
import os
import sys
import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    ContentBlock,
    EmbeddedResource,
    EmptyResult,
    GetPromptRequestParams,
    GetPromptResult,
    ImageContent,
    ListPromptsResult,
    ListResourcesResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    Prompt,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceLink,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    Tool,
    UnsubscribeRequestParams,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.server.context import ServerRequestContext

    Answer = str | list[ContentBlock] | CallToolResult
    Handler = Callable[[ServerRequestContext, dict[str, Any]], Awaitable[Answer]]

PAGE: Final = 10
RESOURCES: Final = 25
CITIES: Final = ("Berlin", "Bergen", "Bern", "Oslo")
LEVELS: Final = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
PIXEL: Final = base64.b64encode(bytes(range(256)) * 4).decode()

_tools: dict[str, Handler] = {}
_events: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
_cancelled: list[str] = []
_meeting: list[str] = []
_subscribed: set[str] = set()
_added: defaultdict[str, list[str]] = defaultdict(list)
_level: list[str] = ["debug"]


def _tool(handler: Handler) -> Handler:
    _tools[handler.__name__] = handler
    return handler


@_tool
async def echo(_: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    return arguments["text"]


@_tool
async def structured(_: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    return CallToolResult(
        content=[TextContent(text="see the structure")], structured_content=arguments
    )


@_tool
async def fail(_: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    return CallToolResult(content=[TextContent(text=arguments["text"])], is_error=True)


@_tool
async def big(_: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    return arguments["unit"] * arguments["times"]


@_tool
async def media(_: ServerRequestContext, __: dict[str, Any]) -> Answer:
    blob = BlobResourceContents(uri="memo://blob", mime_type="application/x-bits", blob=PIXEL)
    return [
        TextContent(text="all kinds"),
        ImageContent(data=PIXEL, mime_type="image/png"),
        AudioContent(data=PIXEL, mime_type="audio/wav"),
        EmbeddedResource(resource=blob),
        ResourceLink(uri="memo://0", name="memo 0"),
    ]


@_tool
async def count(context: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    for step in range(1, arguments["to"] + 1):
        await context.session.report_progress(step, arguments["to"], f"step {step}")
    return f"counted to {arguments['to']}"


@_tool
async def hold(context: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    """Answers after `release` with the same key; notes when it is cancelled."""
    await context.session.report_progress(0, None, "holding")
    try:
        await _events[arguments["key"]].wait()
    except anyio.get_cancelled_exc_class():
        _cancelled.append(arguments["key"])
        _events["cancelled"].set()
        raise
    return f"held {arguments['key']}"


@_tool
async def release(_: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    _events[arguments["key"]].set()
    return f"released {arguments['key']}"


@_tool
async def cancelled(_: ServerRequestContext, __: dict[str, Any]) -> Answer:
    """Answers as soon as a call was cancelled."""
    await _events["cancelled"].wait()
    return ",".join(_cancelled)


@_tool
async def meet(_: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    """Answers when as many calls as `guests` are here at once."""
    _meeting.append(arguments["name"])
    if len(_meeting) == arguments["guests"]:
        _events["meeting"].set()
    await _events["meeting"].wait()
    return arguments["name"]


@_tool
async def log(context: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    """Logs one message at each level that the client wants to hear."""
    for level in LEVELS[LEVELS.index(_level[0]) :]:
        await context.session.send_log_message(level, arguments["text"], "feature")  # pyright: ignore[reportDeprecated]
    return _level[0]


@_tool
async def sample(context: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    question = SamplingMessage(role="user", content=TextContent(text=arguments["prompt"]))
    result = await context.session.create_message([question], max_tokens=10)  # pyright: ignore[reportDeprecated]
    return f"{result.model}: {getattr(result.content, 'text', '')}"


@_tool
async def ask(context: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    result = await context.session.elicit_form(arguments["message"], schema)
    return f"{result.action}: {result.content}"


@_tool
async def roots(context: ServerRequestContext, _: dict[str, Any]) -> Answer:
    result = await context.session.list_roots()  # pyright: ignore[reportDeprecated]
    return ",".join(str(root.uri) for root in result.roots)


@_tool
async def ping_client(context: ServerRequestContext, _: dict[str, Any]) -> Answer:
    await context.session.send_ping()
    return "the client answered"


@_tool
async def add(context: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    """Adds a tool, a resource or a prompt, and says so."""
    kind = arguments["kind"]
    _added[kind].append(arguments["name"])
    session = context.session
    tell = {
        "tool": session.send_tool_list_changed,
        "resource": session.send_resource_list_changed,
        "prompt": session.send_prompt_list_changed,
    }
    await tell[kind]()
    return kind


@_tool
async def touch(context: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    """Tells of a change of a resource if the client subscribed to it."""
    if arguments["uri"] not in _subscribed:
        return "nobody cares"
    await context.session.send_resource_updated(arguments["uri"])
    return "told"


@_tool
async def die(_: ServerRequestContext, arguments: dict[str, Any]) -> Answer:
    """Ends the process at once, in the middle of everything."""
    sys.stderr.write(arguments["words"] + "\n")
    sys.stderr.flush()
    os._exit(arguments["code"])


async def _list_tools(_: ServerRequestContext, params: PaginatedRequestParams | None) -> Any:
    names = [*_tools, *_added["tool"]]
    start, after = _page(params, len(names))
    schema: dict[str, Any] = {"type": "object"}
    tools = [Tool(name=name, input_schema=schema) for name in names[start : start + PAGE]]
    return ListToolsResult(tools=tools, next_cursor=after)


async def _call_tool(context: ServerRequestContext, params: CallToolRequestParams) -> Any:
    answer = await _tools[params.name](context, params.arguments or {})
    if isinstance(answer, CallToolResult):
        return answer
    content: list[ContentBlock] = [TextContent(text=answer)] if isinstance(answer, str) else answer
    return CallToolResult(content=content)


async def _list_resources(_: ServerRequestContext, params: PaginatedRequestParams | None) -> Any:
    uris = [*(f"memo://{number}" for number in range(RESOURCES)), *_added["resource"]]
    start, after = _page(params, len(uris))
    found = [Resource(uri=uri, name=uri) for uri in uris[start : start + PAGE]]
    return ListResourcesResult(resources=found, next_cursor=after)


def _page(params: PaginatedRequestParams | None, total: int) -> tuple[int, str | None]:
    start = int(params.cursor) if params is not None and params.cursor else 0
    after = start + PAGE
    return start, str(after) if after < total else None


async def _read_resource(_: ServerRequestContext, params: ReadResourceRequestParams) -> Any:
    if params.uri == "memo://blob":
        blob = BlobResourceContents(uri=params.uri, mime_type="application/x-bits", blob=PIXEL)
        return ReadResourceResult(contents=[blob])
    text = TextResourceContents(uri=params.uri, text=f"the text of {params.uri}")
    return ReadResourceResult(contents=[text])


async def _subscribe(_: ServerRequestContext, params: SubscribeRequestParams) -> EmptyResult:
    _subscribed.add(params.uri)
    return EmptyResult()


async def _unsubscribe(_: ServerRequestContext, params: UnsubscribeRequestParams) -> EmptyResult:
    _subscribed.discard(params.uri)
    return EmptyResult()


async def _list_prompts(_: ServerRequestContext, __: PaginatedRequestParams | None) -> Any:
    return ListPromptsResult(prompts=[Prompt(name=name) for name in ("greet", *_added["prompt"])])


async def _get_prompt(_: ServerRequestContext, params: GetPromptRequestParams) -> Any:
    name = (params.arguments or {}).get("name", "you")
    message = PromptMessage(role="user", content=TextContent(text=f"Greet {name}"))
    return GetPromptResult(messages=[message])


async def _complete(_: ServerRequestContext, params: CompleteRequestParams) -> CompleteResult:
    values = [city for city in CITIES if city.startswith(params.argument.value)]
    return CompleteResult(completion=Completion(values=values, total=len(values), has_more=False))


async def _set_level(_: ServerRequestContext, params: SetLevelRequestParams) -> EmptyResult:
    _level[0] = params.level
    return EmptyResult()


async def _roots_changed(context: ServerRequestContext, _: NotificationParams | None) -> None:
    result = await context.session.list_roots()  # pyright: ignore[reportDeprecated]
    text = f"roots now: {len(result.roots)}"
    await context.session.send_log_message("info", text, "feature")  # pyright: ignore[reportDeprecated]


async def main() -> None:
    """Serves on stdin and stdout until the input ends."""
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    server = Server(  # pyright: ignore[reportDeprecated]
        "feature",
        version="1",
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        on_list_resources=_list_resources,
        on_read_resource=_read_resource,
        on_subscribe_resource=_subscribe,
        on_unsubscribe_resource=_unsubscribe,
        on_list_prompts=_list_prompts,
        on_get_prompt=_get_prompt,
        on_completion=_complete,
        on_set_logging_level=_set_level,
        on_roots_list_changed=_roots_changed,
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
