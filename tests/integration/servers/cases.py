"""What is asked of each reference server: every tool that needs no network.

A case prepares the same start for every run, talks to the server through whatever client it is
given, and gives all answers back as one value. Only what must differ between two runs is
replaced: the time of day, and random ids.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from mcp.client import Client  # noqa: TC002 - signatures stay readable at run time
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    Root,
    TextContent,
)
from pydantic import BaseModel, FileUrl

from tests.integration.servers.direct import NODE
from tests.integration.servers.images import NODE_SERVERS
from tests.integration.servers.ways import Server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from mcp.client.session import ClientRequestContext

    from sandboxed_mcp.bridge.transport import ClientOptions

__all__ = ["CASES", "Case", "Installed", "answer_roots", "answer_sampling", "steady"]

VARYING: Final = re.compile(
    r"\d{1,2}:\d\d:\d\d [AP]M"  # a time of day
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?"  # ISO 8601
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d GMT[+-]\d{4} \([^)]*\)"  # JavaScript
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # UUID
)
GIT_ENV: Final = {
    **{f"GIT_{who}_NAME": "Zoë Tester" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "zoe@example.com" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_DATE": "1767323045 +0000" for who in ("AUTHOR", "COMMITTER")},
    # The files belong to another user than the one who runs git.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


@dataclass(frozen=True)
class Installed:
    """Where the servers are.

    Attributes:
        node_image: Image with the servers for Node.js.
        node_folder: The same files on this machine.
        python_image: Image with the servers for Python.
        python_folder: Their programs on this machine.
        folder: Folder that the servers may use; inside it has the same path.
    """

    node_image: str
    node_folder: Path
    python_image: str
    python_folder: Path
    folder: Path

    def node(self, name: str, *arguments: str, **settings: Any) -> Server:
        """A server for Node.js."""
        program = f"node_modules/@modelcontextprotocol/server-{name}/dist/index.js"
        inside, here = f"{NODE_SERVERS}/{program}", f"{self.node_folder}/{program}"
        return Server(
            name,
            self.node_image,
            ("node", inside, *arguments),
            (NODE, here, *arguments),
            **settings,
        )

    def python(self, name: str, *arguments: str, **settings: Any) -> Server:
        """A server for Python."""
        program = f"mcp-server-{name}"
        here = str(self.python_folder / program)
        words = ((program, *arguments), (here, *arguments))
        return Server(name, self.python_image, *words, **settings)


def _no_options() -> ClientOptions:
    return {}


@dataclass(frozen=True)
class Case:
    """One server and what is asked of it.

    Attributes:
        server: The server, given where it is installed.
        prepare: Puts the folder into its first state.
        talk: Asks everything; gives each answer by its question.
        left: What the folder holds afterwards.
        unasked: Tools that are not called, and why.
        options: Options of the client.
    """

    server: Callable[[Installed], Server]
    talk: Callable[[Client, Path], Awaitable[dict[str, Any]]]
    prepare: Callable[[Path], None] = lambda _: None
    left: Callable[[Path], object] = lambda _: None
    unasked: tuple[str, ...] = ()
    options: Callable[[], ClientOptions] = _no_options


class Talk:
    """Asks tools and remembers the answers."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.answers: dict[str, Any] = {}
        self.asked: set[str] = set()

    async def ask(self, tool: str, **arguments: object) -> None:
        """Calls a tool."""
        self.asked.add(tool)
        self.note(f"{tool} {arguments}", await self._client.call_tool(tool, arguments))

    def note(self, question: str, answer: BaseModel) -> None:
        """Remembers an answer of any kind."""
        self.answers[f"{len(self.answers)} {question}"] = steady(
            answer.model_dump(mode="json", exclude_none=True)
        )

    async def finish(self, unasked: tuple[str, ...]) -> dict[str, Any]:
        """All answers; the tool list is one of them."""
        tools = await self._client.list_tools()
        assert {tool.name for tool in tools.tools} == {*self.asked, *unasked}
        self.note("tools/list", tools)
        return self.answers


def steady(value: object) -> Any:
    """A JSON value with the same text in place of each time and random id."""
    if isinstance(value, str):
        return VARYING.sub("<varies>", value)
    if isinstance(value, list):
        return [steady(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        return {key: steady(_readable(key, item)) for key, item in table.items()}
    return value


def _readable(key: str, value: object) -> object:
    """The text of a blob that is text."""
    if key != "blob" or not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value).decode("ascii")
    except UnicodeDecodeError:
        return value


async def answer_sampling(
    context: ClientRequestContext, params: CreateMessageRequestParams
) -> CreateMessageResult:
    del context, params
    return CreateMessageResult(role="assistant", content=TextContent(text="ok ✓"), model="m")


async def _accept(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    del context, params
    return ElicitResult(action="accept", content={"name": "Zoë", "integer": 7})


async def answer_roots(context: ClientRequestContext) -> ListRootsResult:
    del context
    return ListRootsResult(roots=[Root(uri=FileUrl("file:///work"), name="work")])


async def _talk_to_everything(client: Client, _: Path) -> dict[str, Any]:
    talk = Talk(client)
    steps: list[tuple[float, float | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        del message
        steps.append((progress, total))

    await talk.ask("echo", message="naïve 日本 \u2028 🏳️‍🌈")
    for kind in ("error", "success", "debug"):
        await talk.ask("get-annotated-message", messageType=kind, includeImage=True)
    await talk.ask("get-resource-links", count=10)
    for kind in ("Text", "Blob"):
        await talk.ask("get-resource-reference", resourceType=kind, resourceId=3)
    await talk.ask("get-structured-content", location="Chicago")
    await talk.ask("get-sum", a=2, b=-0.5)
    await talk.ask("get-tiny-image")
    for output in ("resource", "resourceLink"):
        data = "data:text/plain;base64,aGVsbG8="
        await talk.ask("gzip-file-as-resource", name="a.gz", data=data, outputType=output)
    for tool in ("toggle-simulated-logging", "toggle-subscriber-updates"):
        await talk.ask(tool)
        await talk.ask(tool)
    await talk.ask("get-roots-list")
    await talk.ask("trigger-elicitation-request")
    await talk.ask("trigger-url-elicitation", url="https://example.com/consent")
    await talk.ask("trigger-sampling-request", prompt="hello", maxTokens=5)
    await talk.ask("simulate-research-query", topic="sandboxes")
    talk.asked.add("trigger-long-running-operation")
    done = await client.call_tool(
        "trigger-long-running-operation", {"duration": 0.1, "steps": 4}, progress_callback=note
    )
    talk.note("trigger-long-running-operation", done)
    talk.answers["progress"] = steps
    await _look_at_resources(client, talk)
    await _look_at_prompts(client, talk)
    return await talk.finish(("get-env",))


async def _look_at_resources(client: Client, talk: Talk) -> None:
    resources = await client.list_resources()
    talk.note("resources/list", resources)
    talk.note("resources/templates/list", await client.list_resource_templates())
    for uri in (*(r.uri for r in resources.resources), "demo://resource/dynamic/text/5"):
        talk.note(f"read {uri}", await client.read_resource(uri))


async def _look_at_prompts(client: Client, talk: Talk) -> None:
    talk.note("prompts/list", await client.list_prompts())
    talk.note("simple", await client.get_prompt("simple-prompt"))
    talk.note("args", await client.get_prompt("args-prompt", {"city": "Bern", "state": "BE"}))
    reference = PromptReference(name="completable-prompt")
    found = await client.complete(reference, {"name": "department", "value": "E"})
    talk.note("complete", found)


async def _talk_to_memory(client: Client, _: Path) -> dict[str, Any]:
    talk = Talk(client)
    people: list[dict[str, object]] = [
        {"name": "Zoë", "entityType": "person", "observations": ["likes ☕", "lives in Bern"]},
        {"name": "Ada", "entityType": "person", "observations": []},
        {"name": "Notes", "entityType": "project", "observations": ["small"]},
    ]
    works = {"from": "Zoë", "to": "Notes", "relationType": "works on"}
    knows = {"from": "Zoë", "to": "Ada", "relationType": "knows"}
    more = [{"entityName": "Ada", "contents": ["wrote the first program"]}]
    less = [{"entityName": "Zoë", "observations": ["lives in Bern"]}]
    await talk.ask("create_entities", entities=people)
    await talk.ask("create_relations", relations=[works, knows])
    await talk.ask("add_observations", observations=more)
    await talk.ask("search_nodes", query="bern")
    await talk.ask("open_nodes", names=["Ada", "Nobody"])
    await talk.ask("delete_observations", deletions=less)
    await talk.ask("delete_relations", relations=[knows])
    await talk.ask("delete_entities", entityNames=["Ada"])
    await talk.ask("read_graph")
    return await talk.finish(())


async def _talk_to_filesystem(client: Client, folder: Path) -> dict[str, Any]:
    talk = Talk(client)
    first, second = f"{folder}/first.txt", f"{folder}/sub/second ü.txt"
    edits = [{"oldText": "line 2", "newText": "line two"}]
    await talk.ask("list_allowed_directories")
    await talk.ask("list_directory", path=str(folder))
    await talk.ask("list_directory_with_sizes", path=str(folder), sortBy="size")
    await talk.ask("directory_tree", path=str(folder), excludePatterns=["*.png"])
    await talk.ask("read_file", path=first)
    await talk.ask("read_text_file", path=first, head=2)
    await talk.ask("read_text_file", path=first, tail=1)
    await talk.ask("read_media_file", path=f"{folder}/pixel.png")
    await talk.ask("read_multiple_files", paths=[first, f"{folder}/missing.txt"])
    await talk.ask("create_directory", path=f"{folder}/sub/deeper")
    await talk.ask("write_file", path=second, content="grüße\u2028🏳️‍🌈\n")
    await talk.ask("edit_file", path=first, edits=edits, dryRun=True)
    await talk.ask("edit_file", path=first, edits=edits)
    await talk.ask("move_file", source=second, destination=f"{folder}/moved.txt")
    await talk.ask("search_files", path=str(folder), pattern="**/*.txt")
    await talk.ask("get_file_info", path=first)
    await talk.ask("read_text_file", path="/etc/passwd")
    await talk.ask("write_file", path=f"{folder}/../outside.txt", content="no")
    return await talk.finish(())


def _prepare_files(folder: Path) -> None:
    _empty(folder)
    (folder / "sub").mkdir()
    (folder / "first.txt").write_text("".join(f"line {n}\n" for n in range(1, 6)), encoding="utf-8")
    (folder / "pixel.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    _open_to_all(folder)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    folder.chmod(0o777)


def _open_to_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


async def _talk_to_git(client: Client, folder: Path) -> dict[str, Any]:
    talk = Talk(client)
    where = {"repo_path": str(folder)}
    await talk.ask("git_status", **where)
    await talk.ask("git_diff_unstaged", **where, context_lines=1)
    await talk.ask("git_add", **where, files=["notes.txt"])
    await talk.ask("git_diff_staged", **where)
    await talk.ask("git_reset", **where)
    await talk.ask("git_add", **where, files=["notes.txt"])
    await talk.ask("git_commit", **where, message="Add the grüße")
    await talk.ask("git_log", **where, max_count=5)
    await talk.ask("git_show", **where, revision="HEAD")
    await talk.ask("git_create_branch", **where, branch_name="side")
    await talk.ask("git_checkout", **where, branch_name="side")
    await talk.ask("git_branch", **where, branch_type="local")
    await talk.ask("git_diff", **where, target="HEAD~1")
    return await talk.finish(())


def _prepare_repository(folder: Path) -> None:
    _empty(folder)
    (folder / "notes.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "First")):
        _git(folder, *words)
    (folder / "notes.txt").write_text("one\nzwei grüße\nthree\n", encoding="utf-8")
    _open_to_all(folder)


def _git(folder: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), **GIT_ENV}
    return subprocess.run(
        ["git", *words], cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=30
    ).stdout


async def _talk_to_time(client: Client, _: Path) -> dict[str, Any]:
    talk = Talk(client)
    await talk.ask("get_current_time", timezone="Asia/Kathmandu")
    await talk.ask("get_current_time", timezone="Nowhere/Land")
    zones = {"source_timezone": "Etc/UTC", "target_timezone": "Asia/Kathmandu"}
    await talk.ask("convert_time", **zones, time="16:30")
    await talk.ask("convert_time", **zones, time="25:00")
    return await talk.finish(())


async def _talk_to_fetch(client: Client, _: Path) -> dict[str, Any]:
    talk = Talk(client)
    talk.note("prompts/list", await client.list_prompts())
    return await talk.finish(("fetch",))


def _mounted(installed: Installed) -> tuple[str, ...]:
    return (f"{installed.folder}:{installed.folder}:rw",)


CASES: Final = {
    "everything": Case(
        lambda at: at.node("everything"),
        _talk_to_everything,
        options=lambda: {
            "sampling_callback": answer_sampling,
            "elicitation_callback": _accept,
            "list_roots_callback": answer_roots,
        },
    ),
    "memory": Case(
        lambda at: at.node(
            "memory",
            env={"MEMORY_FILE_PATH": f"{at.folder}/graph.jsonl"},
            mounts=_mounted(at),
        ),
        _talk_to_memory,
        prepare=_empty,
        left=_files,
    ),
    "filesystem": Case(
        lambda at: at.node("filesystem", str(at.folder), mounts=_mounted(at)),
        _talk_to_filesystem,
        prepare=_prepare_files,
        left=_files,
    ),
    "time": Case(lambda at: at.python("time", "--local-timezone", "Europe/Zurich"), _talk_to_time),
    "git": Case(
        lambda at: at.python(
            "git", "--repository", str(at.folder), env=GIT_ENV, mounts=_mounted(at)
        ),
        _talk_to_git,
        prepare=_prepare_repository,
        left=lambda folder: _git(folder, "log", "--all", "--format=%H %an %s"),
    ),
    "fetch": Case(lambda at: at.python("fetch"), _talk_to_fetch),
}
