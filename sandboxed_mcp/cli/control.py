"""The commands' end of a launcher's control socket: one request, and its answer or its events."""

from __future__ import annotations

import json
import os
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from sandboxed_mcp.audit.lines import parse_event_line
from sandboxed_mcp.cli.sandboxes import SERVER, RunningSandbox, find_sandboxes, list_sandboxes
from sandboxed_mcp.engine.connection import find_engine
from sandboxed_mcp.engine.control_sockets import find_control_socket
from sandboxed_mcp.errors import ConfigError, LaunchError
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

__all__ = ["ask_launcher", "choose_running", "open_events", "read_recent"]

ANSWER_SECONDS: Final = 30.0
QUIET_SECONDS: Final = 0.3
MAX_LINE: Final = 4 << 20
ERROR_CHARS: Final = 2000

_LOST: Final = (
    anyio.EndOfStream,
    anyio.IncompleteRead,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.DelimiterNotFound,
    OSError,
)


async def choose_running(word: str) -> RunningSandbox:
    """The one running sandbox that a server's name or the beginning of a launch id stands for.

    Raises:
        ConfigError: There is none, or more than one.
        EngineError: The engine cannot list its containers.
    """
    running = await list_sandboxes(await find_engine(os.environ))
    found = find_sandboxes(word, [one for one in running if one.role == SERVER])
    if len(found) > 1:
        listed = ", ".join(one.launch[:12] for one in found)
        problem = f"{len(found)} sandboxes run under it: {listed}"
        raise ConfigError(repr(word), problem, "name one launch id")
    return found[0]


async def ask_launcher(sandbox: RunningSandbox, request: Mapping[str, object]) -> dict[str, Any]:
    """Sends a request to the launcher of a sandbox; gives its answer.

    Raises:
        LaunchError: The launcher cannot be reached, or refuses; its own words.
    """
    async with _open_request(sandbox, request) as (answer, _):
        return answer


@asynccontextmanager
async def open_events(
    sandbox: RunningSandbox,
) -> AsyncGenerator[AsyncIterator[dict[str, object]]]:
    """The events of a running sandbox, those just past first, until it ends.

    Raises:
        LaunchError: The launcher cannot be reached, or refuses.
    """
    async with (
        _open_request(sandbox, {"op": "events"}) as (_, lines),
        aclosing(_read_events(lines)) as events,
    ):
        yield events


async def read_recent(sandbox: RunningSandbox) -> list[dict[str, object]]:
    """The events just past of a running sandbox.

    Raises:
        LaunchError: The launcher cannot be reached, or refuses.
    """
    found: list[dict[str, object]] = []
    async with open_events(sandbox) as events:
        with anyio.move_on_after(QUIET_SECONDS) as waiting:
            async for event in events:
                found.append(event)
                waiting.deadline = anyio.current_time() + QUIET_SECONDS
    return found


@asynccontextmanager
async def _open_request(
    sandbox: RunningSandbox, request: Mapping[str, object]
) -> AsyncGenerator[tuple[dict[str, Any], BufferedByteReceiveStream]]:
    name = sanitize(sandbox.server, ERROR_CHARS)
    path = find_control_socket(os.environ, sandbox.launch)
    if path is None:
        raise LaunchError(
            f"the launcher of server '{name}' has no control socket here; run this as the user "
            "and on the machine that launched it, with the same XDG_RUNTIME_DIR"
        )
    try:
        async with await anyio.connect_unix(path) as stream:
            lines = BufferedByteReceiveStream(stream)
            with anyio.fail_after(ANSWER_SECONDS):
                await stream.send(json.dumps(request).encode("ascii") + b"\n")
                answer = json.loads(await lines.receive_until(b"\n", MAX_LINE))
            _check(answer, name)
            yield answer, lines
    except TimeoutError as error:
        raise LaunchError(
            f"the launcher of server '{name}' did not answer within {ANSWER_SECONDS:.0f} s; it is "
            "stopped, or busy: try again"
        ) from error
    except (*_LOST, ValueError) as error:
        raise LaunchError(f"the launcher of server '{name}' went away; see 'ps'") from error


def _check(answer: dict[str, Any], name: str) -> None:
    if answer.get("ok") is not True:
        said = sanitize(str(answer.get("error")), ERROR_CHARS, multiline=True)
        raise LaunchError(f"the launcher of server '{name}' refuses: {said}")


async def _read_events(
    lines: BufferedByteReceiveStream,
) -> AsyncGenerator[dict[str, object]]:
    while True:
        try:
            event = parse_event_line(await lines.receive_until(b"\n", MAX_LINE))
        except _LOST:
            return
        if event is not None:
            yield event
