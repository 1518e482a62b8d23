"""`sandboxed-mcp doctor`: whether sandboxes work on this engine, and are what they should be.

Reads only, but for one throwaway sandbox that proves from inside what the others promise.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import anyio
import click
from rich.text import Text

from sandboxed_mcp.cli.checks import (
    Finding,
    check_engine,
    check_images,
    check_leftovers,
    check_limits,
    check_proof,
    check_runtimes,
    check_security,
)
from sandboxed_mcp.cli.main import EXIT_FOUND
from sandboxed_mcp.cli.probe import probe
from sandboxed_mcp.cli.tables import open_console, print_json, working
from sandboxed_mcp.engine.connection import find_engine
from sandboxed_mcp.engine.orphans import find_orphans
from sandboxed_mcp.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rich.console import Console

    from sandboxed_mcp.engine.api import Engine

__all__ = ["doctor"]

NAME_WIDTH: Final = 14
PROOF: Final = (
    "interfaces",
    "tcp4",
    "dns",
    "engine_socket",
    "write_root",
    "capability",
    "become_root",
    "unshare",
)
STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(*, as_json: bool) -> None:
    """Check the engine, and say what to do about each finding.

    Starts one throwaway sandbox that tries to get out. Exits with 1 when anything fails.
    """
    with working("asking the engine") as say:
        findings = anyio.run(_examine, say)
    if as_json:
        print_json([asdict(one) for one in findings])
    else:
        console = open_console()
        for one in findings:
            _print(console, one)
    if any(one.state == "fail" for one in findings):
        raise SystemExit(EXIT_FOUND)


async def _examine(say: Callable[[str], None]) -> list[Finding]:
    try:
        engine = await find_engine(os.environ)
        version, info = await engine.server_version(), await engine.info()
    except SandboxError as error:
        return [Finding("engine", "fail", str(error))]
    findings = [
        *check_engine(engine, version, info),
        *check_runtimes(version, info),
        *check_limits(info),
        *check_security(info),
    ]
    for name, text, look in (
        ("images", "looking at the images", _look_at_images),
        ("leftovers", "looking for leftovers", _look_for_leftovers),
        ("proof", "trying to get out of a sandbox", _prove),
    ):
        say(text)
        findings += await _guarded(name, look, engine)
    return findings


async def _guarded(
    name: str, look: Callable[[Engine], Awaitable[list[Finding]]], engine: Engine
) -> list[Finding]:
    """One part of the examination; that it cannot be made is a finding too."""
    try:
        return await look(engine)
    except SandboxError as error:
        return [Finding(name, "fail", str(error))]


async def _look_at_images(engine: Engine) -> list[Finding]:
    from sandboxed_mcp.engine.images.expected import expected_contents  # noqa: PLC0415

    expected = expected_contents()
    found = await anyio.to_thread.run_sync(_read_labels, engine, list(expected))
    return check_images(expected, found)


def _read_labels(engine: Engine, names: list[str]) -> dict[str, str | None]:
    from sandboxed_mcp.engine.connection import sdk_client  # noqa: PLC0415 - imports the SDK
    from sandboxed_mcp.engine.images.build import CONTENT_LABEL  # noqa: PLC0415
    from sandboxed_mcp.engine.images.sdk import build_api, find_image  # noqa: PLC0415

    api = build_api(sdk_client(engine))
    found: dict[str, str | None] = {}
    for name in names:
        image = find_image(api, f"sandboxed-mcp/{name}:latest")
        labels: dict[str, str] = (image or {}).get("Config", {}).get("Labels") or {}
        found[name] = None if image is None else labels.get(CONTENT_LABEL, "")
    return found


async def _look_for_leftovers(engine: Engine) -> list[Finding]:
    return [check_leftovers(await find_orphans(engine))]


async def _prove(engine: Engine) -> list[Finding]:
    started = time.monotonic()
    attempts = await probe(engine, PROOF, {})
    return check_proof(attempts, time.monotonic() - started)


def _print(console: Console, finding: Finding) -> None:
    head = Text.assemble((f"{finding.state:<5}", STYLES[finding.state]))
    head.append(f"{finding.name:<{NAME_WIDTH}}", "bold")
    indent = " " * len(head)
    text = finding.text + (f"\n-> {finding.fix}" if finding.fix else "")
    for number, line in enumerate(_wrap(console, text, console.width - len(indent))):
        console.print(Text.assemble(head if number == 0 else indent, line), soft_wrap=True)


def _wrap(console: Console, text: str, width: int) -> list[Text]:
    return list(Text(text).wrap(console, max(20, width)))
