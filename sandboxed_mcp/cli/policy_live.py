"""`policy apply` and `policy suggest`: other rules for a running server, and rules from use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import click

from sandboxed_mcp.audit.activity import Activity
from sandboxed_mcp.audit.lines import read_audit
from sandboxed_mcp.audit.suggest import make_suggestions, render_suggestions
from sandboxed_mcp.cli.control import ask_launcher, choose_running, read_recent
from sandboxed_mcp.cli.main import EXIT_FOUND
from sandboxed_mcp.config.policies import load_policy
from sandboxed_mcp.egress.rules import render_egress
from sandboxed_mcp.errors import ConfigError
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandboxed_mcp.config.policy import Policy

__all__ = ["apply", "suggest"]

NAME_CHARS: Final = 63


@click.command()
@click.argument("name", metavar="NAME|LAUNCH")
@click.argument("file", type=click.Path(path_type=Path))
def apply(name: str, file: Path) -> None:
    """Put the egress rules and resolvers of a policy FILE in force for a running server.

    NAME is a running server, or the beginning of a launch id. Connections that the new rules do
    not allow are ended. The limits, user and runtime of a server cannot change while it runs.
    """
    answer = anyio.run(_apply, name, load_policy(file))
    click.echo(f"in force: {answer['rules']} rules; connections ended: {answer['ended']}")


async def _apply(name: str, policy: Policy) -> dict[str, int]:
    sandbox = await choose_running(name)
    request = {"op": "apply", "egress": render_egress(policy.egress), "dns": list(policy.dns)}
    return await ask_launcher(sandbox, request)


@click.command()
@click.argument("source", metavar="NAME|LAUNCH|AUDITFILE")
@click.option("--server", metavar="NAME", help="Only this server, of an audit log that has more.")
def suggest(source: str, server: str | None) -> None:
    """Print the smallest policy that covers what a server used and wanted, for a person to edit.

    The evidence is the audit log AUDITFILE (a path has a / or is a file here), or what the
    launcher of a running server remembers: its last 1024 events. Start a server with
    --observe to see what it wants without letting anything out.
    """
    path = Path(source)
    if not path.name:
        raise click.UsageError(f"'{source}' is no audit log; name a file or a running server")
    if "/" in source or path.is_file():
        events, bad_lines = read_audit(path)
        if bad_lines:
            click.echo(f"sandboxed-mcp: {bad_lines} lines are no events; left out", err=True)
    else:
        events = anyio.run(_read_running, source)
    chosen = _choose_server(events, server, source)
    activity = Activity()
    for event in chosen:
        activity.take(event)
    suggestions, left_out = make_suggestions(activity)
    if not suggestions:
        click.echo(f"sandboxed-mcp: nothing was wanted in {len(chosen)} events", err=True)
        raise SystemExit(EXIT_FOUND)
    shown = f"{len(chosen)} events of server '{chosen[0].get('server')}'"
    click.echo(render_suggestions(suggestions, left_out, shown), nl=False)


async def _read_running(name: str) -> list[dict[str, object]]:
    return await read_recent(await choose_running(name))


def _choose_server(
    events: Iterable[dict[str, object]], server: str | None, source: str
) -> list[dict[str, object]]:
    by_server: dict[str, list[dict[str, object]]] = {}
    for event in events:
        by_server.setdefault(str(event.get("server")), []).append(event)
    known = ", ".join(sanitize(name, NAME_CHARS) for name in sorted(by_server)) or "none"
    if server is None and len(by_server) == 1:
        return next(iter(by_server.values()))
    if server not in by_server:
        problem = f"it holds events of these servers: {known}"
        raise ConfigError(repr(source), problem, "name one of them with --server")
    return by_server[server]
