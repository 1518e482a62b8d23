"""Starts a throwaway sandbox whose program tries to break out, and collects what it found.

What is not reported back counts as possible: a proof that is missing proves nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from sandboxed_mcp.cli import inside
from sandboxed_mcp.config.servers import ServerConfig
from sandboxed_mcp.sandbox import open_sandbox
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sandboxed_mcp.engine.api import Engine
    from sandboxed_mcp.sandbox import Sandbox

__all__ = ["Attempt", "parse_report", "probe"]

PROGRAM: Final = Path(inside.__file__)
PROBE_SECONDS: Final = 60.0
REPORT_BYTES: Final = 64 * 1024
OUTCOME_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class Attempt:
    """One thing that was tried from inside.

    Attributes:
        id: Its key in `inside.ATTEMPTS`.
        group: What it is about, such as `network`.
        title: What was tried.
        blocked: Whether it was not possible.
        outcome: What came of it, one clause.
    """

    id: str
    group: str
    title: str
    blocked: bool
    outcome: str


async def probe(
    engine: Engine, attempts: Iterable[str], facts: Mapping[str, object]
) -> list[Attempt]:
    """Makes attempts in a sandbox of the default policy, in the python image.

    Args:
        engine: The engine to start it on.
        attempts: Keys of `inside.ATTEMPTS`.
        facts: What the attempts need to know of the host.

    Raises:
        SandboxError: The sandbox does not start.
    """
    names = list(attempts)
    source = PROGRAM.read_text(encoding="utf-8")
    task = json.dumps({"attempts": names, "facts": dict(facts)})
    server = ServerConfig(name="probe", command="python3", args=("-I", "-c", source, task))
    report = b""
    async with open_sandbox(server, engine=engine) as sandbox:
        with anyio.move_on_after(PROBE_SECONDS):
            report = await _read(sandbox)
        missing = _explain_missing(sandbox)
    return parse_report(report, names, missing)


async def _read(sandbox: Sandbox) -> bytes:
    report = bytearray()
    while len(report) < REPORT_BYTES:
        try:
            report += await sandbox.receive()
        except anyio.EndOfStream:
            await sandbox.wait()
            break
    return bytes(report)


def _explain_missing(sandbox: Sandbox) -> str:
    status = sandbox.exit_status
    ended = "did not end in time" if status is None else f"ended with {status}"
    return f"not reported: the probe {ended}"


def parse_report(report: bytes, names: Iterable[str], missing: str) -> list[Attempt]:
    """Reads the probe's lines.

    Args:
        report: What it printed.
        names: The attempts it was told to make; each is in the result.
        missing: The outcome of those that it did not report.
    """
    told: dict[str, dict[str, Any]] = {}
    for line in report.splitlines():
        try:
            found = json.loads(line)
            told[found["id"]] = found
        except (ValueError, KeyError, TypeError):
            continue
    return [_read_attempt(name, told.get(name), missing) for name in names]


def _read_attempt(name: str, told: dict[str, Any] | None, missing: str) -> Attempt:
    group, title, _ = inside.ATTEMPTS[name]
    if told is None:
        return Attempt(name, group, title, blocked=False, outcome=missing)
    outcome = sanitize(str(told.get("outcome")), OUTCOME_CHARS)
    return Attempt(name, group, title, blocked=told.get("blocked") is True, outcome=outcome)
