"""`sandboxed-mcp run`: a drop-in for the command line of a stdio MCP server.

It never builds or pulls, prints nothing but MCP on stdout, and never imports the MCP SDK.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import anyio
import click

from sandboxed_mcp.bridge.relay import relay_stdio
from sandboxed_mcp.cli.launch import (
    ServerCommand,
    configured_server,
    described_server,
    program_words,
    refuse_description,
    server_options,
    show_plan,
    with_audit,
)
from sandboxed_mcp.cli.main import EXIT_ENGINE
from sandboxed_mcp.sandbox import open_sandbox

if TYPE_CHECKING:
    from pathlib import Path

    from sandboxed_mcp.config.resolved import ResolvedServer

__all__ = ["run"]


@click.command(cls=ServerCommand)
@click.argument("words", nargs=-1, metavar="NAME | --image IMG [-- CMD ARGS...]")
@click.option(
    "--observe", is_flag=True, help="Let nothing out; say at the end what the server wanted."
)
@server_options
def run(
    words: tuple[str, ...],
    config: Path | None,
    *,
    dry_run: bool,
    observe: bool,
    **settings: Any,  # noqa: ANN401
) -> None:
    """Run a server: MCP on stdin and stdout, everything else on stderr.

    NAME is a server of the configuration file. With --image the server is given here; the
    words after -- replace the image's command.

    Ends when stdin ends, on SIGTERM, SIGINT and SIGHUP; exits with the server's exit code.
    """
    server = _given(list(words), config, settings)
    if dry_run:
        show_plan(server, observe=observe)
        return
    sys.exit(anyio.run(_observe if observe else _relay, server))


async def _relay(server: ResolvedServer) -> int:
    async with open_sandbox(server) as sandbox:
        status = await relay_stdio(sandbox)
    return EXIT_ENGINE if status.code is None else status.code


async def _observe(server: ResolvedServer) -> int:
    from sandboxed_mcp.cli.observed import Observer  # noqa: PLC0415 - rarely needed

    observer = Observer(server.name)
    async with open_sandbox(server, observe=True) as sandbox:
        for event in sandbox.events.take_queued():
            observer.take(event)
        sandbox.recorder.sinks.append(observer.take)
        status = await relay_stdio(sandbox)
    click.echo(observer.summarize(), err=True)
    return EXIT_ENGINE if status.code is None else status.code


def _given(words: list[str], config: Path | None, settings: dict[str, Any]) -> ResolvedServer:
    """The server that the arguments name or describe; `run` has no arguments of its own."""
    if settings["image"] is not None:
        program = [*words, *(program_words() or [])]
        return with_audit(described_server(program, config, settings), settings)
    refuse_description(settings)
    if len(words) != 1:
        raise click.UsageError("name one server of the configuration file, or give --image IMG")
    return with_audit(configured_server(words[0], config), settings)
