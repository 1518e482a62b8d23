"""The `sandboxed-mcp` command: finds the module of a command, and shows errors as sentences.

Exit codes: a server's own for `run`; 0 for success; 1 for a command that did its work and
found something wrong; 2 for wrong settings or arguments; 125 when the engine or the launch
failed, as `docker run` has it; 130 after Ctrl-C.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NoReturn

import click

from sandboxed_mcp.errors import ConfigError, SandboxError

__all__ = ["EXIT_ENGINE", "EXIT_FOUND", "EXIT_INTERRUPTED", "EXIT_USAGE", "cli"]

EXIT_FOUND: Final = 1
EXIT_USAGE: Final = 2
EXIT_ENGINE: Final = 125
EXIT_INTERRUPTED: Final = 130

# Command -> module below sandboxed_mcp.cli; the command has the same name there.
_HOMES: Final = {
    "run": "run",
    "tools": "call",
    "call": "call",
    "ps": "running",
    "stop": "running",
    "gc": "running",
    "logs": "logs",
    "doctor": "doctor",
    "build": "build",
    "schema": "schema",
    "policy": "policy",
    "watch": "watch",
}
_SUMMARIES: Final = {
    "run": "Run a server: MCP on stdin and stdout, everything else on stderr.",
    "tools": "List the tools of a server.",
    "call": "Call one tool of a server.",
    "ps": "List the running sandboxes.",
    "stop": "Stop running sandboxes.",
    "gc": "Remove containers whose launcher is gone.",
    "logs": "Show what a running server writes to stderr.",
    "doctor": "Check the engine, and say what to do about each finding.",
    "build": "Build the images that servers run in.",
    "schema": "Print the JSON Schema of the configuration file.",
    "policy": "Check, explain, test, suggest and apply policies.",
    "watch": "Show what a running server does on the network.",
}


class _Commands(click.Group):
    """Imports a command's module when the command is used; errors become one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _HOMES:
            return None
        module = import_module(f"sandboxed_mcp.cli.{_HOMES[cmd_name]}")
        return getattr(module, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_SUMMARIES.items()))

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            _fail(error, EXIT_USAGE)
        except SandboxError as error:
            _fail(error, EXIT_ENGINE)
        except OSError as error:
            _fail(f"the system refused: {error}", EXIT_ENGINE)
        except KeyboardInterrupt:
            raise SystemExit(EXIT_INTERRUPTED) from None


def _fail(error: SandboxError | str, code: int) -> NoReturn:
    click.echo(f"sandboxed-mcp: {error}", err=True)
    raise SystemExit(code)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sandboxed-mcp")
def cli() -> None:
    """Run MCP servers that nobody trusts, each in a hardened container."""
