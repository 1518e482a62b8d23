"""Reference servers of the field: the same conversation, direct and sandboxed, is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp_types import TextContent

from tests.integration.servers.cases import CASES, Case, Installed
from tests.integration.servers.direct import (
    copy_node_servers,
    install_python_servers,
    temporary_folder,
)
from tests.integration.servers.ways import WAYS, Server, Way, open_direct

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]


@pytest.fixture(scope="module")
def installed(node_image: str, python_image: str) -> Generator[Installed]:
    node, python = copy_node_servers(node_image), install_python_servers(python_image)
    with temporary_folder() as folder:
        yield Installed(node_image, node, python_image, python, Path(folder))


@pytest.fixture(scope="module")
def remembered() -> dict[str, Any]:
    """What each server said without a sandbox, asked once."""
    return {}


async def converse(way: Way, case: Case, installed: Installed) -> dict[str, Any]:
    """Everything that a server says over one way, and what it leaves behind."""
    case.prepare(installed.folder)
    async with way(case.server(installed), **case.options()) as client:
        assert client.server_info is not None
        said = await case.talk(client, installed.folder)
        said["who"] = (client.server_info.model_dump(), client.protocol_version)
        said["able"] = client.server_capabilities.model_dump()
    return {**said, "left": case.left(installed.folder)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
async def test_a_sandboxed_server_answers_as_it_does_without_a_sandbox(
    installed: Installed, remembered: dict[str, Any], name: str, way: str
) -> None:
    if name not in remembered:
        remembered[name] = await converse(open_direct, CASES[name], installed)

    sandboxed = await converse(WAYS[way], CASES[name], installed)

    assert sandboxed == remembered[name]


async def test_the_answers_hold_what_they_should(
    installed: Installed, remembered: dict[str, Any]
) -> None:
    """Two equal answers could both be errors: a sample of each conversation."""
    for name, case in CASES.items():
        if name not in remembered:
            remembered[name] = await converse(open_direct, case, installed)
    said = {name: json.dumps(answers, default=repr) for name, answers in remembered.items()}

    assert remembered["everything"]["progress"] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert r"ok \u2713" in said["everything"]
    assert "works on" in said["memory"]
    assert sorted(remembered["filesystem"]["left"]) == [
        "first.txt",
        "moved.txt",
        "pixel.png",
        "sub",
        "sub/deeper",
    ]
    assert b"line two" in remembered["filesystem"]["left"]["first.txt"]
    assert "+5.75h" in said["time"]
    assert remembered["git"]["left"].count("Zo\xeb Tester") == 2


async def test_the_environment_is_the_only_thing_that_differs(installed: Installed) -> None:
    server: Server = CASES["everything"].server(installed)

    async with WAYS["library"](server) as client:
        result = await client.call_tool("get-env", {})

    (block,) = result.content
    assert isinstance(block, TextContent)
    variables = json.loads(block.text)
    assert sorted(variables) == ["HOME", "HOSTNAME", "PATH"]
    assert (variables["HOME"], variables["HOSTNAME"]) == ("/tmp", "sandbox")


async def test_what_needs_a_network_fails_at_once_and_the_session_lives(
    installed: Installed,
) -> None:
    server = CASES["everything"].server(installed)

    async with WAYS["library"](server) as client:
        failed = await client.call_tool(
            "gzip-file-as-resource", {"name": "x.gz", "data": "https://example.com/"}
        )
        alive = await client.call_tool("echo", {"message": "alive"})

    assert failed.is_error
    assert alive.content == [TextContent(text="Echo: alive")]
