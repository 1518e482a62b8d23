"""The launcher's control socket: how another process of the same user reaches a running sandbox.

One request a connection, a line of JSON, answered by `{"ok": true, ...}` or
`{"ok": false, "error": TEXT}`:

    {"op": "apply", "egress": [...], "dns": [...]}   other rules; answers rules, ended
    {"op": "events"}                                 then the events as lines: the last 1024,
                                                     and each new one, until the sandbox ends

It is a socket with a name in a private folder of the host, mode 0600, and asks the kernel who
is calling (SO_PEERCRED, unix(7)): this user, or root. No sandbox can reach it. A request that
is refused changes nothing, and nothing that a caller sends ends the sandbox.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream

from sandboxed_mcp.config.policy import Policy
from sandboxed_mcp.config.problems import Section, parse_table
from sandboxed_mcp.engine.control_sockets import place_control_socket
from sandboxed_mcp.errors import SandboxError
from sandboxed_mcp.events import ControlUnavailable, Event, render_event
from sandboxed_mcp.recorder import QUEUED_EVENTS, EventQueue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from anyio.abc import SocketListener, SocketStream, TaskGroup

    from sandboxed_mcp.recorder import Recorder
    from sandboxed_mcp.sandbox.running import Sandbox

__all__ = ["MAX_REQUEST_BYTES", "ControlServer"]

MAX_REQUEST_BYTES: Final = 1 << 20
REQUEST_SECONDS: Final = 10.0
FLUSH_SECONDS: Final = 0.5
MAX_CONNECTIONS: Final = 16

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_GONE: Final = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.IncompleteRead,
    OSError,
)


class RequestError(Exception):
    """A request that is refused; the text says why."""


class ControlServer:
    """The control socket of one launch; `open` it when the sandbox runs, `close` it after."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recent: deque[Event] = deque(maxlen=QUEUED_EVENTS)
        self._watchers: dict[EventQueue, anyio.Event] = {}
        self._connections = 0
        self._path: Path | None = None
        self._listener: SocketListener | None = None
        recorder.sinks.append(self._take)

    async def open(
        self, tasks: TaskGroup, sandbox: Sandbox, environ: Mapping[str, str], launch: str
    ) -> None:
        """Listens from now on. That it cannot is an event, not an error: the server is as safe.

        Args:
            tasks: Where to serve.
            sandbox: The sandbox that requests are about.
            environ: `XDG_RUNTIME_DIR` is read.
            launch: The launch id.
        """
        self._sandbox = sandbox
        try:
            path = place_control_socket(environ, launch)
            listener = await anyio.create_unix_listener(path, mode=0o600)
        except OSError as error:
            reason = f"the control socket cannot be made: {error.strerror or error}"
            self._recorder.record(ControlUnavailable, reason=reason)
            return
        self._path, self._listener = path, listener
        tasks.start_soon(self._listen, listener, tasks)

    async def _listen(self, listener: SocketListener, tasks: TaskGroup) -> None:
        try:
            await listener.serve(self._serve, tasks)
        except anyio.ClosedResourceError:
            return
        except OSError as error:
            self._recorder.record(ControlUnavailable, reason=f"it ended: {error.strerror}")

    async def close(self) -> None:
        """Ends every stream of events, after what was recorded is sent, and removes the socket."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._listener is not None:
            await self._listener.aclose()
        watchers = list(self._watchers.items())
        for queue, _ in watchers:
            queue.close()
        with anyio.move_on_after(FLUSH_SECONDS):
            for _, done in watchers:
                await done.wait()

    def _take(self, event: Event) -> None:
        self._recent.append(event)
        for queue in self._watchers:
            queue.put(event)

    async def _serve(self, stream: SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                await self._answer(stream)
        except _GONE:
            return
        finally:
            self._connections -= 1

    async def _answer(self, stream: SocketStream) -> None:
        try:
            with anyio.fail_after(REQUEST_SECONDS):
                request = await self._receive(stream)
            if request.get("op") == "events":
                _check_keys(request, "op")
                await self._send_events(stream)
                return
            answer = {"ok": True, **await self._perform(request)}
        except TimeoutError:
            answer = _refusal(f"no request came within {REQUEST_SECONDS:.0f} s")
        except (RequestError, SandboxError) as error:
            answer = _refusal(str(error))
        await _send(stream, answer)

    async def _receive(self, stream: SocketStream) -> dict[str, Any]:
        try:
            line = await BufferedByteReceiveStream(stream).receive_until(b"\n", MAX_REQUEST_BYTES)
        except anyio.DelimiterNotFound as error:
            raise RequestError(f"the request is longer than {MAX_REQUEST_BYTES} bytes") from error
        # Only now: an answer is lost where the request was not taken (unix(7), ECONNRESET).
        if not _is_trusted(stream):
            raise RequestError("the sandbox belongs to another user")
        if self._connections > MAX_CONNECTIONS:
            raise RequestError(f"{MAX_CONNECTIONS} others are connected; end one of them")
        return _parse_request(line)

    async def _perform(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("op") != "apply":
            raise RequestError("op: write apply or events")
        _check_keys(request, "op", "egress", "dns")
        if "egress" not in request:
            raise RequestError("egress: it is missing; [] is no network")
        table = {key: request[key] for key in ("egress", "dns") if key in request}
        policy = parse_table(Policy, table, Section())
        applied = await self._sandbox.apply_policy(policy)
        return {"rules": applied.rules, "ended": applied.ended}

    async def _send_events(self, stream: SocketStream) -> None:
        queue, done = EventQueue(), anyio.Event()
        for event in self._recent:
            queue.put(event)
        self._watchers[queue] = done
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_when_gone, stream, tasks)
                await _send(stream, {"ok": True})
                async for event in queue:
                    await stream.send(render_event(event).encode("ascii") + b"\n")
                tasks.cancel_scope.cancel()
        except* _GONE:
            pass
        finally:
            del self._watchers[queue]
            done.set()


def _parse_request(line: bytes) -> dict[str, Any]:
    try:
        loaded: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError("the request is not JSON") from error
    if not isinstance(loaded, dict):
        raise RequestError("the request is not an object")
    return cast("dict[str, Any]", loaded)


def _check_keys(request: dict[str, Any], *known: str) -> None:
    for key in request:
        if key not in known:
            raise RequestError(f"{key[:40]!r} is not a key of this request")


def _is_trusted(stream: SocketStream) -> bool:
    """Whether this user or root is calling; where the kernel cannot tell, the folder decides."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    raw = stream.extra(SocketAttribute.raw_socket)
    found = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(found)
    return uid in {0, os.geteuid()}


def _refusal(error: str) -> dict[str, Any]:
    return {"ok": False, "error": error}


async def _send(stream: SocketStream, answer: dict[str, Any]) -> None:
    await stream.send(json.dumps(answer).encode("ascii") + b"\n")


async def _cancel_when_gone(stream: SocketStream, tasks: TaskGroup) -> None:
    with suppress(*_GONE):
        while True:
            await stream.receive()
    tasks.cancel_scope.cancel()
