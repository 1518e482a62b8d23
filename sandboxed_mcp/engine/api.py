"""The engine's HTTP API for the launch path: create, attach, start, signal, remove.

A connection a request, HTTP/1.1 (RFC 9112) parsed by h11, over any stream of `dial`. The
Docker SDK is not used here: its attach loses bytes that follow the upgrade header, and
importing it costs a tenth of a second of every start. This module never decides anything: it
asks, and translates refusals to `EngineError`.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import anyio
import h11
from anyio.abc import SocketAttribute, UNIXSocketStream

from sandboxed_mcp.engine.dial import RECEIVE_BYTES, Endpoint, EngineStream, dial
from sandboxed_mcp.errors import EngineError, EngineRefusedError, ImageNotFoundError
from sandboxed_mcp.plan import LABEL_LAUNCH, ImageFacts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

__all__ = ["REQUEST_TIMEOUT_SECONDS", "ContainerSummary", "Engine", "HijackedStream"]

REQUEST_TIMEOUT_SECONDS = 30.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
SWITCHING = 101
OK = 200
NO_CONTENT = 204
BAD_REQUEST = 400
GONE = 404
CONFLICT = 409
NOT_MODIFIED = 304


@dataclass(frozen=True, slots=True)
class ContainerSummary:
    """One line of the engine's container list.

    Attributes:
        id: Container id.
        labels: All labels.
        state: `created`, `running`, `exited`, ...
        created: Seconds since the Unix epoch, by the engine's clock.
        image: Image reference or id.
    """

    id: str
    labels: Mapping[str, str]
    state: str
    created: int
    image: str


class HijackedStream:
    """A container's raw stream after the upgrade: frames in, input bytes out.

    Args:
        stream: The connection that was upgraded.
        early: Bytes that arrived together with the upgrade header.
    """

    def __init__(self, stream: EngineStream, early: bytes) -> None:
        self._stream = stream
        self._early = early

    async def receive(self) -> bytes:
        """The next bytes, at most 256 KiB; raises `anyio.EndOfStream` at the end."""
        if self._early:
            early, self._early = self._early, b""
            return early
        return await self._stream.receive(RECEIVE_BYTES)

    def detach(self) -> tuple[socket.socket, bytes] | None:
        """A copy of the raw socket, non-blocking, and what was read too early.

        None when the stream is not a plain local socket.
        """
        if not isinstance(self._stream, UNIXSocketStream):
            return None
        raw = self._stream.extra(SocketAttribute.raw_socket)
        early, self._early = self._early, b""
        return socket.socket(fileno=os.dup(raw.fileno())), early

    async def send(self, data: bytes) -> None:
        """Writes to the container's standard input."""
        await self._stream.send(data)

    async def send_eof(self) -> None:
        """Ends the container's standard input; its output stays open."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Closes both directions."""
        await self._stream.aclose()


@dataclass(frozen=True, slots=True)
class Engine:
    """A live engine.

    Attributes:
        endpoint: Where it answers.
        version: API version to speak, such as `1.41`.
    """

    endpoint: Endpoint
    version: str

    async def inspect_image(self, reference: str, fix: str) -> ImageFacts:
        """What the engine knows of an image.

        Raises:
            ImageNotFoundError: It is not there; `fix` says what to run.
        """
        status, body = await self._call("GET", f"/images/{quote(reference, safe='/:@')}/json")
        if status == GONE:
            raise ImageNotFoundError(reference, fix)
        found = _expect(status, body, f"inspect image '{reference}'")
        config: dict[str, Any] = found.get("Config") or {}
        return ImageFacts(
            reference=reference,
            id=found["Id"],
            env=tuple(config.get("Env") or ()),
            volumes=tuple(config.get("Volumes") or ()),
            workdir=config.get("WorkingDir") or "",
            entrypoint=_words(config.get("Entrypoint")),
            command=_words(config.get("Cmd")),
        )

    async def create(self, body: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Creates a container; gives its id and the engine's warnings."""
        answer = _expect(*await self._call("POST", "/containers/create", body), "create it")
        return answer["Id"], tuple(answer.get("Warnings") or ())

    async def inspect(self, container: str) -> dict[str, Any] | None:
        """Everything the engine knows of a container; None when it is gone."""
        status, body = await self._call("GET", f"/containers/{container}/json")
        return None if status == GONE else _expect(status, body, "inspect the container")

    async def start(self, container: str) -> None:
        """Starts a created container."""
        _expect(*await self._call("POST", f"/containers/{container}/start"), "start the container")

    async def kill(self, container: str, signal: str) -> None:
        """Signals the container's first process; a container that has ended is no error."""
        status, body = await self._call("POST", f"/containers/{container}/kill?signal={signal}")
        if status not in {GONE, CONFLICT}:
            _expect(status, body, f"send {signal} to the container")

    async def remove(self, container: str) -> None:
        """Removes a container and its anonymous volumes, running or not; gone is no error."""
        status, body = await self._call("DELETE", f"/containers/{container}?force=1&v=1")
        if status not in {GONE, CONFLICT}:
            _expect(status, body, "remove the container")

    async def list_containers(self, launch: str | None = None) -> list[ContainerSummary]:
        """The containers that carry our labels, ended ones included."""
        label = LABEL_LAUNCH if launch is None else f"{LABEL_LAUNCH}={launch}"
        query = urlencode({"all": "1", "filters": json.dumps({"label": [label]})})
        rows = _expect(*await self._call("GET", f"/containers/json?{query}"), "list containers")
        return [
            ContainerSummary(
                id=row["Id"],
                labels=row.get("Labels") or {},
                state=row["State"],
                created=row["Created"],
                image=row["Image"],
            )
            for row in rows
        ]

    async def info(self) -> dict[str, Any]:
        """The engine's own description of itself and its machine."""
        return _expect(*await self._call("GET", "/info"), "describe itself")

    async def server_version(self) -> dict[str, Any]:
        """The engine's version and that of its parts."""
        return _expect(*await self._call("GET", "/version"), "tell its version")

    async def attach(
        self, container: str, *, stdin: bool = True, stdout: bool = True
    ) -> HijackedStream:
        """Attaches to a container's streams; stderr is always included.

        Args:
            container: Container id.
            stdin: Whether to attach the standard input too.
            stdout: Whether to attach the standard output too.
        """
        wanted = {"stream": 1, "stderr": 1, "stdin": int(stdin), "stdout": int(stdout)}
        stream = await self._dial()
        try:
            with anyio.fail_after(REQUEST_TIMEOUT_SECONDS):
                early = await self._upgrade(
                    stream, f"/containers/{container}/attach?{urlencode(wanted)}"
                )
        except BaseException:
            await _close(stream)
            raise
        return HijackedStream(stream, early)

    async def _upgrade(self, stream: EngineStream, path: str) -> bytes:
        connection = h11.Connection(h11.CLIENT)
        headers = [*self._headers(), ("Connection", "Upgrade"), ("Upgrade", "tcp")]
        await _send_request(stream, connection, "POST", f"/v{self.version}{path}", headers, b"")
        event = await _next_event(stream, connection)
        if isinstance(event, h11.InformationalResponse) and event.status_code == SWITCHING:
            return bytes(connection.trailing_data[0])
        if isinstance(event, h11.Response):
            body = await _read_body(stream, connection) if event.status_code >= BAD_REQUEST else b""
            _expect(event.status_code, body, "attach to the container")
        raise EngineError("the engine did not hand over the container's stream (no HTTP 101)")

    @asynccontextmanager
    async def open_events(
        self, container: str, kinds: tuple[str, ...]
    ) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
        """The engine's events of one container, past ones first.

        Args:
            container: Container id.
            kinds: Docker's event names, such as `die`.

        Yields:
            An iterator that ends when the engine goes away.
        """
        filters = json.dumps({"container": [container], "event": list(kinds)})
        path = f"/v{self.version}/events?{urlencode({'filters': filters, 'since': '1'})}"
        stream = await self._dial()
        try:
            connection = h11.Connection(h11.CLIENT)
            await _send_request(stream, connection, "GET", path, self._headers(), b"")
            async with aclosing(_read_lines(stream, connection)) as lines:
                yield lines
        finally:
            await _close(stream)

    async def ping(self) -> Mapping[str, str]:
        """The engine's greeting: its headers, such as `api-version` and `server`."""
        headers, status, body = await self._exchange("GET", "/_ping", None)
        if status != OK:
            raise EngineRefusedError("answer a ping", status, _reason(body))
        return headers

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, bytes]:
        _, status, answer = await self._exchange(method, f"/v{self.version}{path}", body)
        return status, answer

    async def _exchange(
        self, method: str, target: str, body: Mapping[str, Any] | None
    ) -> tuple[Mapping[str, str], int, bytes]:
        data = b"" if body is None else json.dumps(body).encode()
        headers = [*self._headers(), ("Content-Length", str(len(data)))]
        if body is not None:
            headers.append(("Content-Type", "application/json"))
        stream = await self._dial()
        try:
            with anyio.fail_after(REQUEST_TIMEOUT_SECONDS):
                connection = h11.Connection(h11.CLIENT)
                await _send_request(stream, connection, method, target, headers, data)
                event = await _next_event(stream, connection)
                if not isinstance(event, h11.Response):
                    raise EngineError(f"the engine closed the connection during {method} {target}")
                answer = await _read_body(stream, connection)
        except TimeoutError as error:
            raise EngineError(
                f"the engine at {self.endpoint} did not answer {method} "
                f"{target.partition('?')[0]} within {REQUEST_TIMEOUT_SECONDS:.0f} s"
            ) from error
        finally:
            await _close(stream)
        found = {name.decode().lower(): value.decode() for name, value in event.headers}
        return found, event.status_code, answer

    def _headers(self) -> list[tuple[str, str]]:
        return [("Host", "docker"), ("User-Agent", "sandboxed-mcp")]

    async def _dial(self) -> EngineStream:
        try:
            with anyio.fail_after(REQUEST_TIMEOUT_SECONDS):
                return await dial(self.endpoint)
        except (OSError, TimeoutError) as error:
            raise EngineError(f"the engine at {self.endpoint} went away: {error}") from error


async def _send_request(  # noqa: PLR0913, PLR0917 - the parts of a request line
    stream: EngineStream,
    connection: h11.Connection,
    method: str,
    target: str,
    headers: list[tuple[str, str]],
    body: bytes,
) -> None:
    head = connection.send(h11.Request(method=method, target=target, headers=headers)) or b""
    data = connection.send(h11.Data(data=body)) if body else b""
    end = connection.send(h11.EndOfMessage()) or b""
    try:
        await stream.send(head + (data or b"") + end)
    except (anyio.BrokenResourceError, OSError) as error:
        raise EngineError(f"the engine closed the connection: {error}") from error


async def _next_event(stream: EngineStream, connection: h11.Connection) -> Any:  # noqa: ANN401
    while True:
        try:
            event = connection.next_event()
            if event is not h11.NEED_DATA:
                return event
            connection.receive_data(await stream.receive(RECEIVE_BYTES))
        except anyio.EndOfStream:
            connection.receive_data(b"")
        except (anyio.BrokenResourceError, OSError) as error:
            raise EngineError(f"the engine closed the connection: {error}") from error
        except h11.RemoteProtocolError as error:
            raise EngineError(f"the engine's answer is no HTTP: {error}") from error


async def _read_body(stream: EngineStream, connection: h11.Connection) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        event = await _next_event(stream, connection)
        if not isinstance(event, h11.Data):
            return b"".join(parts)
        size += len(event.data)
        if size > MAX_ANSWER_BYTES:
            raise EngineError(f"the engine's answer is larger than {MAX_ANSWER_BYTES} bytes")
        parts.append(bytes(event.data))


async def _read_lines(
    stream: EngineStream, connection: h11.Connection
) -> AsyncGenerator[dict[str, Any]]:
    rest = b""
    while True:
        try:
            event = await _next_event(stream, connection)
        except EngineError:
            return
        if isinstance(event, h11.Data):
            *lines, rest = (rest + bytes(event.data)).split(b"\n")
            for line in lines:
                yield json.loads(line)
        elif not isinstance(event, h11.Response):
            return


async def _close(stream: EngineStream) -> None:
    with anyio.CancelScope(shield=True), anyio.move_on_after(1):
        try:
            await stream.aclose()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return


def _expect(status: int, body: bytes, action: str) -> Any:  # noqa: ANN401 - JSON
    if status >= BAD_REQUEST:
        raise EngineRefusedError(action, status, _reason(body))
    if status in {NO_CONTENT, NOT_MODIFIED} or not body:
        return {}
    return json.loads(body)


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:500].decode("utf-8", "replace").strip() or "no reason given"


def _words(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())
