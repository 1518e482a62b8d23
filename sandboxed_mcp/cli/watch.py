"""`sandboxed-mcp watch`: what a running server does on the network, as it happens.

A table on a terminal, JSON lines anywhere else. It only reads what the launcher records.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import anyio
import click
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sandboxed_mcp.audit.activity import LOOKUP, Activity
from sandboxed_mcp.cli.control import choose_running, open_events
from sandboxed_mcp.cli.tables import open_console
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import Console

    from sandboxed_mcp.audit.activity import Place, Traffic

__all__ = ["build_table", "watch"]

REFRESHES_A_SECOND: Final = 4
HEAD_LINES: Final = 4
HOST_CHARS: Final = 253
REASON_CHARS: Final = 100
MIN_ROWS: Final = 3
_UNITS: Final = ("B", "KiB", "MiB", "GiB")
_STEP: Final = 1024
_COLUMNS: Final = ("DESTINATION", "PORT", "ALLOWED", "OPEN", "SENT", "RECEIVED", "DENIED", "LAST")


@click.command()
@click.argument("name", metavar="NAME|LAUNCH")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines on a terminal too.")
def watch(name: str, *, as_json: bool) -> None:
    """Show what a running server looks up, reaches and is denied, until it ends.

    NAME is a running server, or the beginning of a launch id. Without a terminal each event is
    a line of JSON, as in an audit log.
    """
    console = open_console()
    if console.is_terminal and not as_json:
        anyio.run(_show_live, name, console)
    else:
        with suppress(BrokenPipeError):
            anyio.run(_print_lines, name)


async def _print_lines(name: str) -> None:
    async with open_events(await choose_running(name)) as events:
        async for event in events:
            click.echo(json.dumps(event))


async def _show_live(name: str, console: Console) -> None:
    sandbox = await choose_running(name)
    activity, ended = Activity(), anyio.Event()
    title = f"{sanitize(sandbox.server, HOST_CHARS)} {sandbox.launch[:12]}"
    async with open_events(sandbox) as events, anyio.create_task_group() as tasks:
        tasks.start_soon(_collect, events, activity, ended)
        with Live(console=console, auto_refresh=False) as live:
            while not ended.is_set():
                rows = max(MIN_ROWS, console.height - HEAD_LINES)
                live.update(build_table(title, activity, rows), refresh=True)
                with anyio.move_on_after(1 / REFRESHES_A_SECOND):
                    await ended.wait()
            live.update(build_table(title, activity, len(activity.places)), refresh=True)
    click.echo("the sandbox has ended", err=True)


async def _collect(
    events: AsyncIterator[dict[str, object]], activity: Activity, ended: anyio.Event
) -> None:
    async for event in events:
        activity.take(event)
    ended.set()


def build_table(title: str, activity: Activity, rows: int) -> Table:
    """The busiest part of an activity.

    Args:
        title: What it is about, sanitized.
        activity: Everything so far.
        rows: How many destinations to show: those that something happened with last.
    """
    table = Table(title=Text(title), box=None, pad_edge=False, title_justify="left")
    for column in _COLUMNS:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    latest = sorted(activity.places.items(), key=lambda item: -item[1].last)
    for place, traffic in latest[:rows]:
        table.add_row(*_row(place, traffic))
    hidden = len(latest) - rows
    notes = [f"{hidden} more"] if hidden > 0 else []
    notes += [f"{activity.suppressed} only counted"] if activity.suppressed else []
    if notes:
        table.caption = Text(", ".join(notes))
    return table


def _row(place: Place, traffic: Traffic) -> list[Text]:
    lookup = place.protocol == LOOKUP
    what = "lookup" if lookup else f"{place.port}/{sanitize(place.protocol, 20)}"
    denied = Text(str(traffic.denied), "red" if traffic.denied else "")
    if traffic.denied:
        denied.append(f" {sanitize(traffic.reason, REASON_CHARS)}", "dim")
    return [
        Text(sanitize(place.host, HOST_CHARS) or "(unknown)"),
        Text(what),
        Text(str(traffic.allowed)),
        Text("" if lookup else str(traffic.open)),
        Text("" if lookup else _size(traffic.sent)),
        Text("" if lookup else _size(traffic.received)),
        denied,
        Text(datetime.fromtimestamp(max(0.0, traffic.last), UTC).astimezone().strftime("%H:%M:%S")),
    ]


def _size(count: int) -> str:
    power = min(len(_UNITS) - 1, max(0, count.bit_length() - 1) // 10)
    value = count / _STEP**power
    return f"{value:.1f} {_UNITS[power]}" if power else f"{count} B"
