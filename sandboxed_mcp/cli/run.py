"""`sandboxed-mcp run`: a drop-in for the command line of a stdio MCP server.

It never builds or pulls, prints nothing but MCP on stdout, and never imports the MCP SDK.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

from sandboxed_mcp.bridge.relay import relay_stdio
from sandboxed_mcp.cli.launch import configured_server, launch_options, show_plan
from sandboxed_mcp.cli.main import EXIT_ENGINE
from sandboxed_mcp.config.problems import Section
from sandboxed_mcp.config.resolve import resolve_server
from sandboxed_mcp.config.servers import parse_server
from sandboxed_mcp.sandbox import open_sandbox

if TYPE_CHECKING:
    from sandboxed_mcp.config.resolved import ResolvedServer

__all__ = ["run"]

UNNAMED: Final = "command-line"


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("words", nargs=-1, metavar="NAME | --image IMG [-- CMD ARGS...]")
@click.option("--image", metavar="IMG", help="Run this image instead of a configured server.")
@click.option("--mount", "mounts", multiple=True, metavar="S:T[:rw]", help="Mount a host path.")
@click.option("--env", "variables", multiple=True, metavar="K=V", help="Set a variable.")
@click.option("--secret", "secrets", multiple=True, metavar="K", help="Pass a secret by name.")
@click.option("--policy", metavar="P", help="A policy: its name or its file.")
@launch_options
def run(
    words: tuple[str, ...],
    config: Path | None,
    *,
    dry_run: bool,
    **settings: Any,  # noqa: ANN401
) -> None:
    """Run a server: MCP on stdin and stdout, everything else on stderr.

    NAME is a server of the configuration file. With --image the server is given here; the
    words after -- replace the image's command.

    Ends when stdin ends, on SIGTERM, SIGINT and SIGHUP; exits with the server's exit code.
    """
    server = _given(words, config, settings)
    if dry_run:
        show_plan(server)
        return
    sys.exit(anyio.run(_relay, server))


async def _relay(server: ResolvedServer) -> int:
    async with open_sandbox(server) as sandbox:
        status = await relay_stdio(sandbox)
    return EXIT_ENGINE if status.code is None else status.code


def _given(words: tuple[str, ...], config: Path | None, settings: dict[str, Any]) -> ResolvedServer:
    """The server that the arguments name or describe."""
    if settings["image"] is not None:
        if config is not None:
            raise click.UsageError("--config names a file of servers; it does not go with --image")
        return _described(words, settings)
    unused = [f"--{key.rstrip('s')}" for key in ("mounts", "secrets", "policy") if settings[key]]
    unused += ["--env"] if settings["variables"] else []
    if unused:
        raise click.UsageError(f"{unused[0]} goes with --image; a named server has its own")
    if len(words) != 1:
        raise click.UsageError("name one server of the configuration file, or give --image IMG")
    return configured_server(words[0], config)


def _described(words: tuple[str, ...], settings: dict[str, Any]) -> ResolvedServer:
    table: dict[str, object] = {
        "image": settings["image"],
        "env": dict(_split_variable(text) for text in settings["variables"]),
        "mounts": list(settings["mounts"]),
        "secrets": list(settings["secrets"]),
    }
    if words:
        table["args"] = list(words)
    if settings["policy"] is not None:
        table["policy"] = settings["policy"]
    server = parse_server(UNNAMED, table, Section(), Path.cwd())
    return resolve_server(server, environ=os.environ)


def _split_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(
            f"--env {text} has no value; write --env {name}=VALUE, or --secret {name} to pass "
            "the launcher's own"
        )
    return name, value
