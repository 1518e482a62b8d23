"""The SDK's own everything server: each tool, prompt and resource, in both protocol eras."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
from mcp import Client, MCPError
from mcp.client import InputRequiredRoundsExceededError
from mcp_types import ElicitRequestParams, ElicitResult, LoggingMessageNotificationParams
from mcp_types.version import LATEST_MODERN_VERSION

from tests.integration.sdk.source import fetch_source
from tests.integration.servers.cases import answer_roots, answer_sampling, steady
from tests.integration.servers.ways import WAYS, Server, Way, open_direct

if TYPE_CHECKING:
    from mcp.client.session import ClientRequestContext

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

SERVE: Final = "from mcp_everything_server.server import mcp; mcp.run('stdio')"
FORM: Final = {"name": "Zoë", "response": "fine", "ok": True, "confirmed": True, "color": "blau"}
TOOLS: Final = 28
FAILED: Final = (MCPError, InputRequiredRoundsExceededError)


@pytest.fixture
def server(sdk_image: str) -> Server:
    source = fetch_source() / "examples/servers/everything-server"
    here = (sys.executable, "-c", f"import sys; sys.path.append({str(source)!r}); {SERVE}")
    return Server("sdk-everything", sdk_image, ("python3", "-c", SERVE), here)


async def answer_form(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    del context, params
    return ElicitResult(action="accept", content=dict(FORM))


async def converse(way: Way, server: Server, mode: str) -> dict[str, Any]:
    """Every answer of the server by its question, log messages and progress among them."""
    said: dict[str, Any] = {}
    heard: list[Any] = []

    async def hear(params: LoggingMessageNotificationParams) -> None:
        heard.append(params.model_dump(mode="json"))

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with way(
        server,
        mode=mode,
        sampling_callback=answer_sampling,
        elicitation_callback=answer_form,
        list_roots_callback=answer_roots,
        logging_callback=hear,
    ) as client:
        tools = await client.list_tools()
        for tool in tools.tools:
            arguments: dict[str, Any] = dict.fromkeys(tool.input_schema.get("required", ()), "x")
            try:
                result = await client.call_tool(tool.name, arguments, progress_callback=note)
                said[tool.name] = result.model_dump(mode="json")
            except FAILED as error:
                said[tool.name] = repr(error)
        said["tools"] = tools.model_dump(mode="json")
        said |= await look_around(client)
        said["version"] = client.protocol_version
    return steady({**said, "heard": heard})


async def look_around(client: Client) -> dict[str, Any]:
    resources = await client.list_resources()
    prompts = await client.list_prompts()
    arguments = {"arg1": "a", "arg2": "b"}
    found = [
        resources,
        prompts,
        await client.list_resource_templates(),
        *[await client.read_resource(resource.uri) for resource in resources.resources],
        await client.read_resource("test://template/ü/data"),
        await client.get_prompt("test_prompt_with_arguments", arguments),
        await client.get_prompt("test_prompt_with_image"),
    ]
    return {"around": [result.model_dump(mode="json") for result in found]}


@pytest.mark.parametrize("mode", ["legacy", LATEST_MODERN_VERSION])
async def test_the_sdks_everything_server_answers_as_it_does_without_a_sandbox(
    server: Server, mode: str
) -> None:
    direct = await converse(open_direct, server, mode)

    for name in ("library", "run"):
        assert await converse(WAYS[name], server, mode) == direct
    assert len(direct["tools"]["tools"]) == TOOLS
    assert [step for step in direct["heard"] if "Completed step 50 of 100" in step]
    assert "ok ✓" in str(direct)
