"""HTTP/1.1 (RFC 9112) to the engine: one request a connection, parsed by h11.

Over any stream of `dial`. The Docker SDK is not used on the launch path: its attach loses bytes
that follow the upgrade header, and importing it costs a tenth of a second of every start. This
module knows no request of the engine's; every failure becomes an `EngineError`.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import h11

from sandboxed_mcp.engine.dial import RECEIVE_BYTES, dial
from sandboxed_mcp.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping

    from sandboxed_mcp.engine.dial import Endpoint, EngineStream

__all__ = ["REQUEST_TIMEOUT_SECONDS", "Answer", "ask", "open_lines", "upgrade"]

REQUEST_TIMEOUT_SECONDS: Final = 30.0
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
SWITCHING: Final = 101

_HEADERS: Final = (("Host", "docker"), ("User-Agent", "sandboxed-mcp"))


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    Attributes:
        status: HTTP status code.
        headers: By lower-case name.
        body: As it came.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


async def ask(
    endpoint: Endpoint, method: str, target: str, body: Mapping[str, Any] | None = None
) -> Answer:
    """Sends a request and reads its whole answer.

    Raises:
        EngineError: Nobody answers, not in time, or not in HTTP.
    """
    data = b"" if body is None else json.dumps(body).encode()
    headers = [("Content-Length", str(len(data)))]
    if body is not None:
        headers.append(("Content-Type", "application/json"))
    async with _open_exchange(endpoint) as exchange:
        with _bounded(endpoint, method, target):
            await exchange.send(method, target, headers, data)
            return await exchange.read_answer()


async def upgrade(endpoint: Endpoint, target: str) -> tuple[EngineStream, bytes] | Answer:
    """Asks for a raw stream.

    Returns:
        The stream, and the bytes that followed the header; or the engine's refusal.

    Raises:
        EngineError: Nobody answers, not in time, or not in HTTP.
    """
    stream = await _dial(endpoint)
    try:
        exchange = _Exchange(stream)
        with _bounded(endpoint, "POST", target):
            headers = [("Connection", "Upgrade"), ("Upgrade", "tcp")]
            await exchange.send("POST", target, headers, b"")
            switched = await exchange.read_switch()
    except BaseException:
        await _close(stream)
        raise
    if isinstance(switched, Answer):
        await _close(stream)
        return switched
    return stream, switched


@asynccontextmanager
async def open_lines(endpoint: Endpoint, target: str) -> AsyncGenerator[_Lines]:
    """A request whose answer is an endless stream of JSON lines."""
    async with _open_exchange(endpoint) as exchange:
        await exchange.send("GET", target, [], b"")
        yield _Lines(exchange)


class _Lines:
    """The lines of an answer, parsed; ends when the engine goes away."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange
        self._whole: list[bytes] = []
        self._rest = b""

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> dict[str, Any]:
        while not self._whole:
            try:
                event = await self._exchange.next_event()
            except EngineError:
                raise StopAsyncIteration from None
            if isinstance(event, h11.Data):
                *self._whole, self._rest = (self._rest + bytes(event.data)).split(b"\n")
            elif not isinstance(event, h11.Response):
                raise StopAsyncIteration
        return json.loads(self._whole.pop(0))


class _Exchange:
    """One request and its answer on one connection."""

    def __init__(self, stream: EngineStream) -> None:
        self._stream = stream
        self._parser = h11.Connection(h11.CLIENT)

    async def send(
        self, method: str, target: str, headers: list[tuple[str, str]], body: bytes
    ) -> None:
        request = h11.Request(method=method, target=target, headers=[*_HEADERS, *headers])
        parts = [self._parser.send(request)]
        if body:
            parts.append(self._parser.send(h11.Data(data=body)))
        parts.append(self._parser.send(h11.EndOfMessage()))
        try:
            await self._stream.send(b"".join(part or b"" for part in parts))
        except (anyio.BrokenResourceError, OSError) as error:
            raise EngineError(f"the engine closed the connection: {error}") from error

    async def next_event(self) -> object:
        while True:
            try:
                event = self._parser.next_event()
                if event is not h11.NEED_DATA:
                    return event
                self._parser.receive_data(await self._stream.receive(RECEIVE_BYTES))
            except anyio.EndOfStream:
                self._parser.receive_data(b"")
            except (anyio.BrokenResourceError, OSError) as error:
                raise EngineError(f"the engine closed the connection: {error}") from error
            except h11.RemoteProtocolError as error:
                raise EngineError(f"the engine's answer is no HTTP: {error}") from error

    async def read_answer(self) -> Answer:
        return await self._finish(await self.next_event())

    async def read_switch(self) -> bytes | Answer:
        event = await self.next_event()
        if isinstance(event, h11.InformationalResponse) and event.status_code == SWITCHING:
            return bytes(self._parser.trailing_data[0])
        if isinstance(event, h11.Response) and event.status_code < 400:  # noqa: PLR2004
            raise EngineError("the engine did not hand over the container's stream (no HTTP 101)")
        return await self._finish(event)

    async def _finish(self, event: object) -> Answer:
        if not isinstance(event, h11.Response):
            raise EngineError("the engine closed the connection before it answered")
        headers = {name.decode().lower(): value.decode() for name, value in event.headers}
        return Answer(event.status_code, headers, await self._read_body())

    async def _read_body(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            event = await self.next_event()
            if not isinstance(event, h11.Data):
                return b"".join(parts)
            size += len(event.data)
            if size > MAX_ANSWER_BYTES:
                raise EngineError(f"the engine's answer is larger than {MAX_ANSWER_BYTES} bytes")
            parts.append(bytes(event.data))


@asynccontextmanager
async def _open_exchange(endpoint: Endpoint) -> AsyncGenerator[_Exchange]:
    stream = await _dial(endpoint)
    try:
        yield _Exchange(stream)
    finally:
        await _close(stream)


async def _dial(endpoint: Endpoint) -> EngineStream:
    try:
        with anyio.fail_after(REQUEST_TIMEOUT_SECONDS):
            return await dial(endpoint)
    except (OSError, TimeoutError) as error:
        raise EngineError(f"the engine at {endpoint} went away: {error}") from error


@contextmanager
def _bounded(endpoint: Endpoint, method: str, target: str) -> Generator[None]:
    try:
        with anyio.fail_after(REQUEST_TIMEOUT_SECONDS):
            yield
    except TimeoutError as error:
        raise EngineError(
            f"the engine at {endpoint} did not answer {method} {target.partition('?')[0]} within "
            f"{REQUEST_TIMEOUT_SECONDS:.0f} s"
        ) from error


async def _close(stream: EngineStream) -> None:
    with anyio.CancelScope(shield=True), anyio.move_on_after(1):
        try:
            await stream.aclose()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return
