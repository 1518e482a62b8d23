"""The SDK's own client stories: each client runs against its server in a sandbox.

A story is a small program whose client checks what its server does, over each protocol era and
with each variant of the server. All of these runs succeed over a sandbox, and one of each story
over the SDK's own stdio transport: that shows that a story can be run so at all.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types.version import LATEST_MODERN_VERSION

from sandboxed_mcp import ServerConfig, stdio_transport
from tests.integration.sdk.source import fetch_source

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractAsyncContextManager

    from mcp.client._transport import TransportStreams

    Target = Callable[[], AbstractAsyncContextManager[TransportStreams]]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

STORIES: Final = (
    "apps",
    "custom_methods",
    "dual_era",
    "error_handling",
    "extensions",
    "legacy_elicitation",
    "lifespan",
    "middleware",
    "mrtr",
    "pagination",
    "prompts",
    "reconnect",
    "refund_desk",
    "resources",
    "roots",
    "sampling",
    "schema_validators",
    "standalone_get",
    "stickynotes",
    "streaming",
    "subscriptions",
    "tools",
)
NEEDS_ONE_PROCESS: Final = {
    "parallel_calls": "its two clients meet in one server object",
    "serve_one": "its client drives the server object in its own process",
}
MODES: Final = {"modern": LATEST_MODERN_VERSION, "legacy": "legacy", "dual-in-body": "auto"}
LEG_SECONDS: Final = 90
LEGS: Final = 60
AT_ONCE: Final = 3


@dataclass(frozen=True)
class Leg:
    """One run of a story.

    Attributes:
        story: Its name.
        variant: Module of the server.
        mode: Protocol mode of the client.
        many: Whether the client opens more than one connection.
    """

    story: str
    variant: str
    mode: str
    many: bool


@pytest.fixture(scope="module")
def manifest() -> Generator[dict[str, dict[str, Any]]]:
    """The SDK's table of its stories; their modules can be imported meanwhile."""
    examples = fetch_source() / "examples"
    table = tomllib.loads((examples / "stories/manifest.toml").read_text(encoding="utf-8"))
    sys.path.append(str(examples))
    yield {name: table["defaults"] | story for name, story in table["story"].items()}
    sys.path.remove(str(examples))


def legs_of(name: str, story: dict[str, Any]) -> list[Leg]:
    eras = ("modern", "legacy") if story["era"] == "dual" else (story["era"],)
    variants = ("server", "server_lowlevel") if story["lowlevel"] else ("server",)
    many = bool(story["multi_connection"])
    return [Leg(name, variant, MODES[era], many) for variant in variants for era in eras]


def over_child(leg: Leg) -> AbstractAsyncContextManager[TransportStreams]:
    arguments = ["-m", f"stories.{leg.story}.{leg.variant}"]
    env = {"PYTHONPATH": str(fetch_source() / "examples")}
    return stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=env))


def test_every_story_that_has_a_stdio_server_runs_here(
    manifest: dict[str, dict[str, Any]],
) -> None:
    """Those that remain serve HTTP, or share a server object with their client."""
    serving = {
        name
        for name, story in manifest.items()
        if story["server_export"] == "factory" and not story["needs_http"]
    }

    assert serving == {*STORIES, *NEEDS_ONE_PROCESS}
    assert sum(len(legs_of(name, manifest[name])) for name in STORIES) == LEGS


@pytest.mark.parametrize("transport", ["child", "sandbox"])
@pytest.mark.parametrize("story", STORIES)
async def test_a_story_succeeds(
    manifest: dict[str, dict[str, Any]], sdk_image: str, story: str, transport: str
) -> None:
    main = importlib.import_module(f"stories.{story}.client").main
    limiter = anyio.CapacityLimiter(AT_ONCE)

    def over_sandbox(leg: Leg) -> AbstractAsyncContextManager[TransportStreams]:
        arguments = ("-m", f"stories.{leg.story}.{leg.variant}")
        return stdio_transport(
            ServerConfig(name="story", image=sdk_image, command="python3", args=arguments)
        )

    opened = over_child if transport == "child" else over_sandbox
    legs = legs_of(story, manifest[story])

    async def run(leg: Leg) -> None:
        async with limiter:
            with anyio.fail_after(LEG_SECONDS):
                target: Any = (lambda: opened(leg)) if leg.many else opened(leg)
                await main(target, mode=leg.mode)

    async with anyio.create_task_group() as tasks:
        for leg in legs if transport == "sandbox" else legs[:1]:
            tasks.start_soon(run, leg)
