"""What every launching command shares: which server, and the plan when it is a dry run.

A server is named in a configuration file or described by options. The words after `--` are its
program; `ServerCommand` keeps them apart from the command's own arguments.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

from sandboxed_mcp.config.loading import find_config, load_server
from sandboxed_mcp.config.problems import Section
from sandboxed_mcp.config.resolve import resolve_server
from sandboxed_mcp.config.resolved import ResolvedAudit
from sandboxed_mcp.config.servers import parse_server
from sandboxed_mcp.engine.connection import find_engine
from sandboxed_mcp.plan import render_plan
from sandboxed_mcp.sandbox import plan_launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandboxed_mcp.config.resolved import ResolvedServer

__all__ = [
    "ServerCommand",
    "configured_server",
    "described_server",
    "program_words",
    "refuse_description",
    "server_options",
    "show_plan",
    "split_name",
    "take_server",
    "with_audit",
]

UNNAMED: Final = "command-line"
_PROGRAM: Final = "sandboxed_mcp.program"
_SEPARATOR: Final = "--"
_DESCRIPTION: Final = {
    "mounts": "--mount",
    "variables": "--env",
    "secrets": "--secret",
    "policy": "--policy",
}


class ServerCommand(click.Command):
    """A command whose words after `--` are the server's program, not its own arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Takes the program out of the arguments, then parses the rest."""
        own, program = args, None
        if _SEPARATOR in args:
            position = args.index(_SEPARATOR)
            own, program = args[:position], args[position + 1 :]
        ctx.meta[_PROGRAM] = program
        return super().parse_args(ctx, own)


def program_words() -> list[str] | None:
    """The words after `--` of the current command; None when there was no `--`."""
    return click.get_current_context().meta[_PROGRAM]


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that starts a server."""
    options = (
        click.option("--image", metavar="IMG", help="Run this image, not a configured server."),
        click.option("--mount", "mounts", multiple=True, metavar="S:T[:rw]", help="Mount a path."),
        click.option("--env", "variables", multiple=True, metavar="K=V", help="Set a variable."),
        click.option("--secret", "secrets", multiple=True, metavar="K", help="Pass a secret."),
        click.option("--policy", metavar="P", help="A policy: its name or its file."),
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            help="Configuration file (TOML, or a client's mcpServers JSON).",
        ),
        click.option(
            "--audit",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Record every event in FILE, as JSON lines.",
        ),
        click.option("--dry-run", is_flag=True, help="Print the plan; start nothing."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def split_name(words: list[str], settings: dict[str, Any]) -> tuple[str | None, list[str]]:
    """The server's name, None when `--image` describes it, and the words that are left.

    Raises:
        click.UsageError: No server, or options that do not go together.
    """
    if settings["image"] is not None:
        return None, words
    refuse_description(settings)
    if not words:
        raise click.UsageError("name a server of the configuration file, or give --image IMG")
    return words[0], words[1:]


def take_server(name: str | None, config: Path | None, settings: dict[str, Any]) -> ResolvedServer:
    """The server that `split_name` found, or the one that the options describe.

    Args:
        name: A server of the configuration file; None for the described one.
        config: The value of `--config`.
        settings: The values of the other options of `server_options`.

    Raises:
        click.UsageError: Options that do not go together.
        ConfigError: A setting cannot be used.
    """
    if name is None:
        return with_audit(described_server(program_words(), config, settings), settings)
    return with_audit(configured_server(name, config), settings)


def with_audit(server: ResolvedServer, settings: dict[str, Any]) -> ResolvedServer:
    """The server with the audit log of `--audit`, or with its own when there is none."""
    path: Path | None = settings["audit"]
    if path is None:
        return server
    return replace(server, audit=ResolvedAudit(str(path.absolute()), "--audit"))


def refuse_description(settings: dict[str, Any]) -> None:
    """Refuses what only a server given by `--image` can have.

    Raises:
        click.UsageError: Such an option, or a program, is given.
    """
    unused = [option for key, option in _DESCRIPTION.items() if settings[key]]
    if unused:
        raise click.UsageError(f"{unused[0]} goes with --image; a named server has its own")
    if program_words() is not None:
        raise click.UsageError(
            "a program after -- goes with --image; a named server has its own (args)"
        )


def configured_server(name: str, config: Path | None) -> ResolvedServer:
    """The server of that name in the file, or in the file that is found when none is named.

    Raises:
        ConfigError: There is no such file or server, or a setting cannot be used.
    """
    path = config if config is not None else find_config(Path.cwd(), os.environ)
    return resolve_server(load_server(path, name), environ=os.environ)


def described_server(
    program: list[str] | None, config: Path | None, settings: dict[str, Any]
) -> ResolvedServer:
    """The server that `--image` and its fellow options describe.

    Args:
        program: Replaces the image's command; None or nothing keeps it.
        config: The value of `--config`, which does not go with `--image`.
        settings: The values of the options.

    Raises:
        click.UsageError: `--config` is given, or a `--env` has no value.
        ConfigError: A setting cannot be used.
    """
    if config is not None:
        raise click.UsageError("--config names a file of servers; it does not go with --image")
    table: dict[str, object] = {
        "image": settings["image"],
        "env": _read_variables(settings["variables"]),
        "mounts": list(settings["mounts"]),
        "secrets": list(settings["secrets"]),
    }
    if program:
        table["args"] = list(program)
    if settings["policy"] is not None:
        table["policy"] = settings["policy"]
    server = parse_server(UNNAMED, table, Section(), Path.cwd())
    return resolve_server(server, environ=os.environ)


def _read_variables(texts: tuple[str, ...]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            # The text is not shown: it may be a value that was meant for --secret.
            raise click.UsageError(
                "a --env has no value; write --env NAME=VALUE, or --secret NAME to pass "
                "the launcher's own"
            )
        if name in variables:
            raise click.UsageError(f"--env {name} is given twice; keep one")
        variables[name] = value
    return variables


def show_plan(server: ResolvedServer, *, observe: bool = False) -> None:
    """Prints the plan of a launch as JSON; secrets are named, not shown."""

    async def plan() -> dict[str, Any]:
        engine = await find_engine(os.environ)
        return render_plan(await plan_launch(server, engine, observe=observe))

    click.echo(json.dumps(anyio.run(plan), indent=2))
