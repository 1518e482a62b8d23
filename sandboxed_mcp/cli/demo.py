"""`python -m sandboxed_mcp.cli.demo`: a sandboxed server at work, and what it cannot do.

First the library from a user's view: the notes server is started, asked and stopped. Then a
program in the same kind of sandbox tries to get out, and the outcome of each attempt is shown.
Exits with 1 when one was possible.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import time
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
from rich.text import Text

from sandboxed_mcp import Limits, SandboxError, ServerConfig, connect, find_engine
from sandboxed_mcp.cli import inside
from sandboxed_mcp.cli.probe import Attempt, probe
from sandboxed_mcp.cli.tables import open_console, working
from sandboxed_mcp.engine.owner import describe_owner
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from mcp import Client

    from sandboxed_mcp import Engine

__all__ = ["main"]

VARIABLE: Final = "SANDBOXED_MCP_DEMO_TOKEN"
QUERY: Final = "bread"
TITLE_WIDTH: Final = 32
GROUP_WIDTH: Final = 12
WIDTH: Final = 80
NOTES: Final = ServerConfig(name="notes", image="sandboxed-mcp/notes")


def main() -> int:
    """Shows both parts.

    Returns:
        0 when every attempt was blocked, 1 when one was possible, 125 without an engine or
        images.
    """
    demo = _Demo()
    try:
        return anyio.run(demo.run)
    except SandboxError as error:
        demo.errors.print(Text(f"demo: {error}", "red"), soft_wrap=True)
        return 125
    except KeyboardInterrupt:
        return 130


class _Demo:
    """Prints each step with the time it took."""

    def __init__(self) -> None:
        self.console = open_console()
        self.errors = open_console(stderr=True)

    async def run(self) -> int:
        """The whole; gives the exit status."""
        started = time.monotonic()
        engine = await self._find_engine()
        await self._use_notes(engine)
        attempts = await self._attack(engine)
        self._show_attempts(attempts)
        possible = [one for one in attempts if not one.blocked]
        self._show_verdict(len(attempts), len(possible))
        self._line("total", time.monotonic() - started)
        return 1 if possible else 0

    async def _find_engine(self) -> Engine:
        with self._step("engine") as said:
            engine = await find_engine(os.environ)
            version: dict[str, Any] = await engine.server_version()
            said(f"{sanitize(str(version['Version']), 30)} at {engine.endpoint.url}")
        return engine

    async def _use_notes(self, engine: Engine) -> None:
        async with AsyncExitStack() as stack:
            with self._step("start") as said:
                client = await stack.enter_async_context(connect(NOTES, engine=engine))
                said("images/notes in a sandbox, initialize answered")
            await self._ask(client)
            with self._step("stop") as said:
                await stack.aclose()
                said("the container is gone")

    async def _ask(self, client: Client) -> None:
        with self._step("list tools") as said:
            listed = await client.list_tools()
            said(", ".join(sanitize(tool.name, 30) for tool in listed.tools))
        with self._step("call") as said:
            stats: dict[str, object] | None = (
                await client.call_tool("note_stats", {})
            ).structured_content
            said("note_stats: " + sanitize(_render_stats(stats or {}), 60))
        with self._step("call") as said:
            found = await client.call_tool("search_notes", {"query": QUERY})
            lines = [text for block in found.content for text in _lines(block)]
            said(f"search_notes {QUERY!r}: {len(lines)} notes")
        for line in lines:
            self._note(line)

    async def _attack(self, engine: Engine) -> list[Attempt]:
        os.environ[VARIABLE] = secrets.token_hex(16)
        with _open_file() as file, self._step("attack") as said:
            attempts = await probe(engine, inside.ATTEMPTS, _facts(file))
            said(f"{len(attempts)} attempts from inside another such sandbox")
        return attempts

    def _show_attempts(self, attempts: list[Attempt]) -> None:
        self.console.print()
        group = ""
        for one in attempts:
            head, group = ("" if one.group == group else one.group), one.group
            mark = ("blocked", "green") if one.blocked else ("POSSIBLE", "bold red")
            line = Text.assemble(
                (head.ljust(GROUP_WIDTH), "bold"), one.title.ljust(TITLE_WIDTH), mark, "  "
            )
            line.append(_fit(one.outcome, WIDTH - len(line)), "" if one.blocked else "red")
            self.console.print(line, soft_wrap=True)
        self.console.print()

    def _show_verdict(self, tried: int, possible: int) -> None:
        if possible:
            text = Text(f"{possible} of {tried} attempts were possible", "bold red")
        else:
            text = Text(f"all {tried} attempts were blocked", "green")
        self.console.print(text, soft_wrap=True)

    @contextmanager
    def _step(self, name: str) -> Generator[Callable[[str], None]]:
        """Times a step; yields what takes the text to show beside the time."""
        said: list[str] = []
        started = time.monotonic()
        with working(name):
            yield said.append
        self._line(name, time.monotonic() - started, *said)

    def _line(self, name: str, seconds: float, said: str = "") -> None:
        text = f"{name:<12} {seconds:7.2f} s  {said}".rstrip()
        self.console.print(Text(text[:WIDTH]), soft_wrap=True)

    def _note(self, line: str) -> None:
        indent = " " * 24
        self.console.print(Text(indent + sanitize(line, WIDTH - len(indent) - 3)), soft_wrap=True)


@contextmanager
def _open_file() -> Generator[Path]:
    """A file of the host that every user of the host may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "open-to-all.txt")
        file.write_text("read\n", encoding="ascii")
        yield file


def _facts(file: Path) -> Mapping[str, object]:
    limits = Limits()
    return {
        "variable": VARIABLE,
        "home": str(Path.home()),
        "file": str(file),
        "pid": os.getpid(),
        "start": describe_owner().split("/")[-1],
        "pids": limits.pids,
        "scratch": limits.scratch,
        "memory": limits.memory,
    }


def _fit(outcome: str, room: int) -> str:
    """The outcome, or its first part where it is too long: the error's name."""
    return outcome if len(outcome) <= room else outcome.partition(",")[0][:room]


def _render_stats(stats: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in stats.items())


def _lines(block: object) -> list[str]:
    text = getattr(block, "text", None)
    return text.splitlines() if isinstance(text, str) else []


if __name__ == "__main__":
    sys.exit(main())
