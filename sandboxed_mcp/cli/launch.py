"""What every launching command shares: which server, and the plan when it is a dry run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from sandboxed_mcp.config.loading import find_config, load_server
from sandboxed_mcp.config.resolve import resolve_server
from sandboxed_mcp.engine.connection import find_engine
from sandboxed_mcp.plan import render_plan
from sandboxed_mcp.sandbox import plan_launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandboxed_mcp.config.resolved import ResolvedServer

__all__ = ["configured_server", "launch_options", "show_plan"]


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that starts a server: `--config` and `--dry-run`."""
    config = click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="Configuration file (TOML, or a client's mcpServers JSON).",
    )
    dry_run = click.option("--dry-run", is_flag=True, help="Print the plan; start nothing.")
    return config(dry_run(command))


def configured_server(name: str, config: Path | None) -> ResolvedServer:
    """The server of that name in the file, or in the file that is found when none is named.

    Raises:
        ConfigError: There is no such file or server, or a setting cannot be used.
    """
    path = config if config is not None else find_config(Path.cwd(), os.environ)
    return resolve_server(load_server(path, name), environ=os.environ)


def show_plan(server: ResolvedServer) -> None:
    """Prints the plan of a launch as JSON; secrets are named, not shown."""

    async def plan() -> dict[str, Any]:
        return render_plan(await plan_launch(server, await find_engine(os.environ)))

    click.echo(json.dumps(anyio.run(plan), indent=2))
