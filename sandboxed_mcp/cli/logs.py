"""`sandboxed-mcp logs`: what a running server writes to stderr, from now on.

The server never waits for whoever reads here: what cannot be printed fast enough is dropped,
and its size told. Nothing is stored, here or on the engine.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

from sandboxed_mcp.bridge.stderr import StderrWriter
from sandboxed_mcp.cli.sandboxes import SERVER, RunningSandbox, find_sandboxes, list_sandboxes
from sandboxed_mcp.engine.connection import find_engine
from sandboxed_mcp.engine.frames import FrameDecoder, Stream
from sandboxed_mcp.errors import ConfigError
from sandboxed_mcp.plan import LABEL_SECRETS, SECRETS_TARGET
from sandboxed_mcp.text import Redactor, sanitize

if TYPE_CHECKING:
    from sandboxed_mcp.engine.api import HijackedStream

__all__ = ["logs", "read_secrets"]

FLUSH_SECONDS: Final = 2.0
READER_SECONDS: Final = 0.2
SECRET_BYTES: Final = 1024 * 1024


class _ShownRedactor(Redactor):
    """Redacts, and makes what is left safe for a terminal."""

    def redact_bytes(self, data: bytes, start: int = 0) -> bytes:
        clean = super().redact_bytes(data, start)
        return sanitize(clean, 10 * len(clean) + 1, multiline=True).encode()


@click.command()
@click.argument("word", metavar="NAME | LAUNCH")
def logs(word: str) -> None:
    """Show what a running server writes to stderr, until it ends or Ctrl-C.

    It shows what is written from now on. Earlier output is not kept: nothing that a server
    writes is stored on disk. The values of its secrets are replaced by their names.
    """
    anyio.run(_follow, word)


async def _follow(word: str) -> None:
    engine = await find_engine(os.environ)
    one = _choose(word, await list_sandboxes(engine))
    secrets, unread = read_secrets(one.found, local=engine.endpoint.is_local)
    if unread:
        click.echo(f"sandboxed-mcp: not redacted, as they cannot be read: {unread}", err=True)
    stream = await engine.attach(one.container, stdin=False, stdout=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_watch_reader, tasks.cancel_scope)
        await _copy(stream, _ShownRedactor(secrets))
        tasks.cancel_scope.cancel()


def _choose(word: str, running: list[RunningSandbox]) -> RunningSandbox:
    found = find_sandboxes(word, [one for one in running if one.role == SERVER])
    if len(found) > 1:
        listed = ", ".join(one.launch[:12] for one in found)
        raise ConfigError(
            repr(word), f"{len(found)} sandboxes run under it: {listed}", "name one launch id"
        )
    return found[0]


async def _watch_reader(scope: anyio.CancelScope) -> None:
    """Ends the command when nobody reads its output any more, as in `logs NAME | head`."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    while not poll.poll(0):  # noqa: ASYNC110 - no event tells of it
        await anyio.sleep(READER_SECONDS)
    scope.cancel()


async def _copy(stream: HijackedStream, redactor: Redactor) -> None:
    decoder = FrameDecoder()
    writer = StderrWriter(sys.stdout.fileno(), redactor)
    writer.start()
    try:
        while True:
            for kind, piece in decoder.receive(await stream.receive()):
                if kind is Stream.STDERR:
                    writer.write(piece)
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return
    finally:
        writer.close(FLUSH_SECONDS)
        with anyio.CancelScope(shield=True):
            await stream.aclose()


def read_secrets(found: dict[str, Any], *, local: bool) -> tuple[dict[str, str], str]:
    """The values of a running server's secrets, so that they can be kept out of the output.

    Args:
        found: Everything the engine knows of the container.
        local: Whether the engine shares this machine's files.

    Returns:
        The values by name, and the names of the files that could not be read.
    """
    labels: dict[str, str] = found["Config"].get("Labels") or {}
    entries: list[str] = found["Config"].get("Env") or []
    names = labels.get(LABEL_SECRETS, "").split(",")
    pairs = [entry.partition("=") for entry in entries]
    values = {name: value for name, _, value in pairs if name in names}
    unread: list[str] = []
    for folder in _secret_folders(found):
        values |= _read_folder(folder, unread) if local else {}
        unread += [] if local else [SECRETS_TARGET]
    return values, ", ".join(unread)


def _secret_folders(found: dict[str, Any]) -> list[Path]:
    mounts: list[dict[str, Any]] = found.get("Mounts") or []
    return [Path(one["Source"]) for one in mounts if one.get("Destination") == SECRETS_TARGET]


def _read_folder(folder: Path, unread: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    try:
        for path in sorted(folder.iterdir()):
            with path.open("rb") as file:
                values[path.name] = file.read(SECRET_BYTES).decode(errors="surrogateescape")
    except OSError:
        unread.append(SECRETS_TARGET)
    return values
