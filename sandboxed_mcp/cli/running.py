"""`sandboxed-mcp ps`, `stop`, `gc`: what runs, and how to end it.

Only containers with our labels are ever listed or touched. `stop` leaves alone what another
user or another machine launched, unless told otherwise.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

from sandboxed_mcp.cli.main import EXIT_FOUND
from sandboxed_mcp.cli.sandboxes import (
    SERVER,
    RunningSandbox,
    belongs_to_caller,
    find_sandboxes,
    list_sandboxes,
    list_servers,
    render_network,
    render_uptime,
    uptime_seconds,
)
from sandboxed_mcp.cli.tables import Cell, open_console, print_json, print_table
from sandboxed_mcp.engine.connection import find_engine
from sandboxed_mcp.engine.orphans import Orphan, find_orphans, remove_orphans
from sandboxed_mcp.plan import LABEL_SERVER
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from sandboxed_mcp.engine.api import Engine

__all__ = ["gc", "ps", "stop"]

SHORT_LAUNCH: Final = 8
SHORT_ID: Final = 12
NAME_CHARS: Final = 63
STOP_SECONDS: Final = 3.0
OWNER_STYLES: Final = {"alive": "green", "gone": "red", "elsewhere": ""}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with full ids.")
def ps(*, as_json: bool) -> None:
    """List the running sandboxes.

    OWNER tells of the process that launched a sandbox: alive, gone (then gc removes the
    sandbox), or elsewhere: on another machine or in another container, not to be judged from
    here.
    """
    found, images = anyio.run(_list)
    now = datetime.now(UTC)
    if as_json:
        print_json([_describe(one, images, now) for one in found])
    elif not found:
        click.echo("no sandbox is running", err=True)
    else:
        head = ("SERVER", "LAUNCH", "CONTAINER", "IMAGE", "STATE", "UPTIME", "OWNER", "NETWORK")
        print_table(open_console(), head, [_row(one, images, now) for one in found])


async def _list() -> tuple[list[RunningSandbox], dict[str, str]]:
    engine = await find_engine(os.environ)
    found = list_servers(await list_sandboxes(engine))
    images = sorted({one.image for one in found})
    names = await anyio.to_thread.run_sync(_name_images, engine, images) if images else {}
    return found, names


def _name_images(engine: Engine, ids: list[str]) -> dict[str, str]:
    """The tag of each image; an image without one keeps its short id."""
    from sandboxed_mcp.engine.connection import sdk_client  # noqa: PLC0415 - imports the SDK
    from sandboxed_mcp.engine.images.sdk import build_api, find_image  # noqa: PLC0415

    api = build_api(sdk_client(engine))
    names: dict[str, str] = {}
    for image in ids:
        tags: list[str] = (find_image(api, image) or {}).get("RepoTags") or []
        short = image.removeprefix("sha256:")[:SHORT_ID]
        # `latest` says no more than the name; prefer it to the content tag.
        names[image] = min(tags, key=lambda tag: not tag.endswith(":latest"), default=short)
    return names


def _row(one: RunningSandbox, images: dict[str, str], now: datetime) -> list[Cell]:
    return [
        (sanitize(one.server, NAME_CHARS), "bold"),
        one.launch[:SHORT_LAUNCH],
        one.container[:SHORT_ID],
        images[one.image].removesuffix(":latest"),
        one.state,
        render_uptime(uptime_seconds(one, now)),
        (one.owner_state, OWNER_STYLES[one.owner_state]),
        render_network(one),
    ]


def _describe(one: RunningSandbox, images: dict[str, str], now: datetime) -> dict[str, Any]:
    return {
        "server": one.server,
        "launch": one.launch,
        "container": one.container,
        "image": images[one.image],
        "image_id": one.image,
        "state": one.state,
        "uptime_seconds": uptime_seconds(one, now),
        "owner": one.owner,
        "owner_state": one.owner_state,
        "network": render_network(one),
    }


@click.command()
@click.argument("word", required=False, metavar="NAME | LAUNCH")
@click.option("--all", "everything", is_flag=True, help="Stop all of them.")
@click.option("--foreign", is_flag=True, help="Also what another user or another machine launched.")
def stop(word: str | None, *, everything: bool, foreign: bool) -> None:
    """Stop running sandboxes.

    NAME stops every sandbox of that server; LAUNCH is the beginning of one launch id, at
    least 4 digits. Each gets SIGTERM, and is removed at the latest 3 seconds later.

    Only sandboxes launched on this machine by this user are stopped, unless --foreign is given.
    """
    if (word is None) != everything:
        raise click.UsageError("name a server or the beginning of a launch id, or write --all")
    anyio.run(_stop, word, foreign)


async def _stop(word: str | None, foreign: bool) -> None:
    engine = await find_engine(os.environ)
    running = await list_sandboxes(engine)
    chosen = running if word is None else find_sandboxes(word, running)
    ours = [one for one in chosen if foreign or belongs_to_caller(one, os.getuid())]
    others = len({one.launch for one in chosen} - {one.launch for one in ours})
    if not ours:
        click.echo(_nothing_to_stop(others), err=True)
        raise SystemExit(EXIT_FOUND if others else 0)
    await _stop_launches(engine, ours)
    if others:
        click.echo(f"left alone: {_nothing_to_stop(others)}", err=True)


async def _stop_launches(engine: Engine, chosen: list[RunningSandbox]) -> None:
    launches: dict[str, list[RunningSandbox]] = {}
    for one in sorted(chosen, key=lambda one: one.role != SERVER):
        launches.setdefault(one.launch, []).append(one)
    try:
        async with anyio.create_task_group() as tasks:
            for containers in launches.values():
                tasks.start_soon(_stop_launch, engine, containers)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def _nothing_to_stop(foreign: int) -> str:
    if not foreign:
        return "no sandbox is running"
    return f"{foreign} launched by another user or machine; --foreign stops them too"


async def _stop_launch(engine: Engine, containers: list[RunningSandbox]) -> None:
    """Ends the server, then its gateway: the server never runs without one."""
    for one in containers:
        async with engine.open_events(one.container, ("die",)) as deaths:
            await engine.kill(one.container, "SIGTERM")
            if one.state == "running":
                with anyio.move_on_after(STOP_SECONDS):
                    await anext(deaths, None)
        await engine.remove(one.container)
    first = containers[0]
    click.echo(f"stopped {sanitize(first.server, NAME_CHARS)} {first.launch}")


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def gc(*, dry_run: bool, as_json: bool) -> None:
    """Remove what launchers left behind that are gone: containers, secret files, sockets.

    Whatever cannot be judged from here, as it belongs to another machine or another pid
    namespace, stays. Every launch does the same when it ends.
    """
    found = anyio.run(_collect, dry_run)
    if as_json:
        print_json([{"kind": one.kind, "place": one.place, "owner": one.owner} for one in found])
        return
    for one in found:
        click.echo(f"{'would remove' if dry_run else 'removed'} {_name_orphan(one)}")
    if not found:
        click.echo("nothing is left behind", err=True)


async def _collect(dry_run: bool) -> list[Orphan]:
    engine = await find_engine(os.environ)
    return await (find_orphans if dry_run else remove_orphans)(engine)


def _name_orphan(orphan: Orphan) -> str:
    if orphan.container is None:
        kind = "secret files" if orphan.kind == "secrets" else "control socket"
        return f"{kind} {orphan.place}"
    server = sanitize(orphan.container.labels.get(LABEL_SERVER, ""), NAME_CHARS)
    return f"container {orphan.place[:SHORT_ID]} of {server}"
