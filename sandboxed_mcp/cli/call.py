"""`sandboxed-mcp tools` and `call`: a server's tools, listed and called from a shell.

Each starts the server in its sandbox, asks, and stops it. What the server answers is printed
sanitized, or with --json as ASCII JSON.
"""

from __future__ import annotations

import difflib
import math
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import anyio
import click

from sandboxed_mcp.cli.arguments import parse_arguments
from sandboxed_mcp.cli.launch import (
    ServerCommand,
    server_options,
    show_plan,
    split_name,
    take_server,
)
from sandboxed_mcp.cli.main import EXIT_FOUND
from sandboxed_mcp.cli.tables import open_console, print_json, working
from sandboxed_mcp.sandbox import open_sandbox
from sandboxed_mcp.text import Redactor, sanitize

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from mcp import Client, MCPError
    from mcp_types import CallToolResult, Tool

    from sandboxed_mcp.config.resolved import ResolvedServer
    from sandboxed_mcp.sandbox import Sandbox

__all__ = ["call", "tools"]

PAGES: Final = 100
LIST_SECONDS: Final = 60.0
ERROR_CHARS: Final = 20_000
ARGUMENT_BYTES: Final = 64 * 1024 * 1024
FROM_STDIN: Final = "-"
CONNECTION_CLOSED: Final = -32000  # the SDK's own codes, which a server may use as well
REQUEST_TIMEOUT: Final = -32001

_Answer = TypeVar("_Answer")


@click.command(cls=ServerCommand)
@click.argument("words", nargs=-1, metavar="NAME | --image IMG [-- CMD ARGS...]")
@click.option("--json", "as_json", is_flag=True, help="Print what the server says, as JSON.")
@server_options
def tools(
    words: tuple[str, ...],
    config: Path | None,
    *,
    as_json: bool,
    dry_run: bool,
    **settings: Any,  # noqa: ANN401
) -> None:
    """List the tools of a server.

    NAME is a server of the configuration file. With --image the server is given here; the
    words after -- replace the image's command.
    """
    name, rest = split_name(list(words), settings)
    if rest:
        raise click.UsageError(f"'{rest[0]}' is one word too many; a program stands after --")
    server = take_server(name, config, settings)
    if dry_run:
        show_plan(server)
        return
    with working(f"starting {server.name}"):
        found = _ask(server, _list_tools, LIST_SECONDS)
    _show_tools(server, found, as_json=as_json)


@click.command(cls=ServerCommand)
@click.argument(
    "words", nargs=-1, metavar="NAME TOOL [JSON] | --image IMG TOOL [JSON] [-- CMD ARGS...]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Give up when the answer takes longer; without it, wait.",
)
@server_options
def call(
    words: tuple[str, ...],
    config: Path | None,
    *,
    as_json: bool,
    timeout: float | None,
    dry_run: bool,
    **settings: Any,  # noqa: ANN401
) -> None:
    """Call one tool of a server.

    JSON is an object with the tool's arguments; - reads it from stdin, without it there are
    none. Exits with 1 when the tool reports an error.

    NAME is a server of the configuration file. With --image the server is given here; the
    words after -- replace the image's command.
    """
    name, rest = split_name(list(words), settings)
    if not 1 <= len(rest) <= 2:  # noqa: PLR2004 - TOOL [JSON]
        raise click.UsageError("name one tool, and give its arguments as one JSON object, quoted")
    arguments = _read_arguments(rest[1:])
    if timeout is not None and not math.isfinite(timeout):
        raise click.UsageError(f"--timeout {timeout} is no number of seconds; leave it out to wait")
    tool, server = rest[0], take_server(name, config, settings)
    if dry_run:
        show_plan(server)
        return
    with working(f"calling {tool} of {server.name}"):
        result = _ask(server, lambda client: _call_tool(client, tool, arguments), timeout)
    _show_result(result, tool, as_json=as_json)


def _read_arguments(words: list[str]) -> dict[str, object]:
    if words == [FROM_STDIN]:
        read = sys.stdin.buffer.read(ARGUMENT_BYTES + 1)
        if len(read) > ARGUMENT_BYTES:
            raise click.UsageError(f"stdin holds more than {ARGUMENT_BYTES} bytes")
        return parse_arguments(read)
    return parse_arguments(words[0]) if words else {}


def _ask(
    server: ResolvedServer,
    question: Callable[[Client], Awaitable[_Answer]],
    seconds: float | None,
) -> _Answer:
    """Starts the server, asks it, and stops it; its error answers become one sentence."""
    from mcp import MCPError  # noqa: PLC0415 - half a second that wrong arguments need not cost
    from pydantic import ValidationError  # noqa: PLC0415

    async def session() -> _Answer:
        async with open_sandbox(server) as sandbox:
            try:
                return await _converse(sandbox, question, seconds)
            except MCPError as error:
                if error.error.code == CONNECTION_CLOSED:
                    raise await sandbox.exited_error() from error
                raise

    try:
        return anyio.run(session)
    except MCPError as error:
        said = _describe(error, _redactor_of(server))
        raise click.ClickException(f"server '{server.name}' {said}") from error
    except ValidationError as error:
        raise click.ClickException(
            f"server '{server.name}' gave an answer that MCP does not allow: "
            f"{sanitize(_redactor_of(server).redact(str(error)), ERROR_CHARS, multiline=True)}"
        ) from error


def _redactor_of(server: ResolvedServer) -> Redactor:
    return Redactor({secret.name: secret.value for secret in server.secrets})


async def _converse(
    sandbox: Sandbox, question: Callable[[Client], Awaitable[_Answer]], seconds: float | None
) -> _Answer:
    from mcp import Client  # noqa: PLC0415

    from sandboxed_mcp.bridge.transport import open_streams  # noqa: PLC0415

    streams = open_streams(sandbox)
    try:
        async with Client(streams, mode="legacy", read_timeout_seconds=seconds) as client:
            return await question(client)
    except ExceptionGroup as group:  # the SDK wraps what ends its session
        raise _first_of(group) from group


def _describe(error: MCPError, redactor: Redactor) -> str:
    """What an error answer says; one code of our own side tells of no answer at all."""
    message = redactor.redact(error.error.message)
    said = sanitize(message, ERROR_CHARS, multiline=True).strip()
    if error.error.code == REQUEST_TIMEOUT:
        return f"did not answer: {said}"
    return f"answered with error {error.error.code}: {said}"


def _first_of(group: ExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    while isinstance(first, ExceptionGroup):
        first = cast("ExceptionGroup[Exception]", first).exceptions[0]
    return first


async def _list_tools(client: Client) -> list[Tool]:
    found: list[Tool] = []
    cursor: str | None = None
    for _ in range(PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise click.ClickException(
        f"the list of tools does not end: there is more after {PAGES} pages; the server is at fault"
    )


async def _call_tool(client: Client, tool: str, arguments: dict[str, object]) -> CallToolResult:
    try:
        result = await client.call_tool(tool, arguments)
    except RuntimeError as error:  # how the SDK says that a result breaks its output schema
        said = sanitize(str(error), ERROR_CHARS, multiline=True)
        raise click.ClickException(f"the result of '{tool}' was refused: {said}") from error
    if result.is_error:
        await _suggest_tool(client, tool)
    return result


async def _suggest_tool(client: Client, tool: str) -> None:
    """Says on stderr that a tool is not listed, and which one may be meant."""
    names = [found.name for found in await _list_tools(client)]
    if tool in names:
        return
    near = difflib.get_close_matches(tool, names, n=1)
    meant = f"did you mean '{sanitize(near[0], 128)}'?" if near else "see 'sandboxed-mcp tools'"
    click.echo(
        f"sandboxed-mcp: the server lists no tool '{sanitize(tool, 128)}'; {meant}", err=True
    )


def _show_tools(server: ResolvedServer, found: list[Tool], *, as_json: bool) -> None:
    from sandboxed_mcp.cli.results import print_tools  # noqa: PLC0415 - imports the SDK

    if as_json:
        print_json([one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in found])
        return
    if not found:
        click.echo(f"sandboxed-mcp: server '{server.name}' lists no tools", err=True)
    print_tools(open_console(), found)


def _show_result(result: CallToolResult, tool: str, *, as_json: bool) -> None:
    from sandboxed_mcp.cli.results import print_result  # noqa: PLC0415 - imports the SDK

    if as_json:
        print_json(result.model_dump(mode="json", by_alias=True, exclude_none=True))
    else:
        if result.is_error:
            click.echo(f"sandboxed-mcp: tool '{sanitize(tool, 128)}' reports an error:", err=True)
        print_result(open_console(), result)
    if result.is_error:
        sys.exit(EXIT_FOUND)
