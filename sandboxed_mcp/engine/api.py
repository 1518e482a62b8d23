"""The engine's API for the launch path: create, attach, start, signal, remove.

Docker Engine API 1.41 and later. This module never decides anything: it asks, and translates
refusals to `EngineError`.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import anyio

from sandboxed_mcp.engine.attach import HijackedStream
from sandboxed_mcp.engine.http import Answer, ask, open_lines, upgrade
from sandboxed_mcp.engine.podman import LIBPOD, find_seccomp, read_container, render_spec
from sandboxed_mcp.errors import EngineError, EngineRefusedError, ImageNotFoundError
from sandboxed_mcp.plan import LABEL_LAUNCH, LABEL_ROLE, ImageFacts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from sandboxed_mcp.engine.dial import Endpoint

__all__ = ["ContainerSummary", "Engine", "HijackedStream"]

OK: Final = 200
NO_CONTENT: Final = 204
NOT_MODIFIED: Final = 304
BAD_REQUEST: Final = 400
GONE: Final = 404
CONFLICT: Final = 409
INTERNAL_ERROR: Final = 500

LIST_RETRIES: Final = 20
LIST_PAUSE_SECONDS: Final = 0.05


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


@dataclass(frozen=True, slots=True)
class Engine:
    """A live engine.

    Attributes:
        endpoint: Where it answers.
        version: API version to speak, such as `1.41`.
        is_podman: Whether it is Podman behind its Docker-compatible socket.
    """

    endpoint: Endpoint
    version: str
    is_podman: bool = False

    async def inspect_image(self, reference: str, fix: str) -> ImageFacts:
        """What the engine knows of an image.

        Raises:
            ImageNotFoundError: It is not there; `fix` says what to run.
        """
        answer = await self._ask("GET", f"/images/{quote(reference, safe='/:@')}/json")
        if answer.status == GONE:
            raise ImageNotFoundError(reference, fix)
        found = _expect(answer, f"inspect image '{reference}'")
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
        made = await (
            self._create_libpod(body)
            if self.is_podman
            else self._ask("POST", "/containers/create", body)
        )
        answer = _expect(made, "create it")
        return answer["Id"], tuple(answer.get("Warnings") or ())

    async def inspect_created(
        self, container: str, body: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """What the engine made of a create request, in Docker's terms; None when it is gone."""
        found = await self.inspect(container)
        if found is None or not self.is_podman:
            return found
        details = await self._inspect_libpod(container)
        return None if details is None else read_container(found, details, body)

    async def find_runtime(self, container: str) -> str:
        """The name of the runtime that a container is run by; `unknown` when it is gone."""
        if self.is_podman:
            details = await self._inspect_libpod(container)
            return str((details or {}).get("OCIRuntime") or "unknown")
        found = await self.inspect(container)
        return str((found or {"HostConfig": {}})["HostConfig"].get("Runtime") or "unknown")

    async def _create_libpod(self, body: Mapping[str, Any]) -> Answer:
        from tempfile import NamedTemporaryFile  # noqa: PLC0415 - for Podman only

        path = f"{LIBPOD}/containers/create"
        profile = find_seccomp(body)
        if profile is None:
            return await ask(self.endpoint, "POST", path, render_spec(body, None))
        if not self.endpoint.is_local:
            raise EngineError(
                f"Podman at {self.endpoint} reads seccomp profiles from its own machine only; use "
                "Podman on this machine, or Docker"
            )
        with NamedTemporaryFile("w", prefix="sandboxed-mcp-", suffix=".json") as file:
            file.write(profile)
            file.flush()
            await anyio.Path(file.name).chmod(0o644)  # Podman may be another user's; no secret
            return await ask(self.endpoint, "POST", path, render_spec(body, file.name))

    async def _inspect_libpod(self, container: str) -> dict[str, Any] | None:
        answer = await ask(self.endpoint, "GET", f"{LIBPOD}/containers/{container}/json")
        return None if _is_gone(answer) else _expect(answer, "inspect the container")

    async def inspect(self, container: str) -> dict[str, Any] | None:
        """Everything the engine knows of a container; None when it is gone."""
        answer = await self._ask("GET", f"/containers/{container}/json")
        return None if _is_gone(answer) else _expect(answer, "inspect the container")

    async def start(self, container: str) -> None:
        """Starts a created container."""
        _expect(await self._ask("POST", f"/containers/{container}/start"), "start the container")

    async def kill(self, container: str, signal: str) -> None:
        """Signals the container's first process; a container that has ended is no error."""
        answer = await self._ask("POST", f"/containers/{container}/kill?signal={signal}")
        if answer.status != CONFLICT and not _is_gone(answer):
            _expect(answer, f"send {signal} to the container")

    async def remove(self, container: str) -> None:
        """Removes a container and its anonymous volumes, running or not; gone is no error."""
        answer = await self._ask("DELETE", f"/containers/{container}?force=1&v=1")
        if answer.status != CONFLICT and not _is_gone(answer):
            _expect(answer, "remove the container")

    async def list_containers(self, launch: str | None = None) -> list[ContainerSummary]:
        """The containers that carry our labels, ended ones included; gateways come last."""
        label = LABEL_LAUNCH if launch is None else f"{LABEL_LAUNCH}={launch}"
        query = urlencode({"all": "1", "filters": json.dumps({"label": [label]})})
        answer = await self._ask("GET", f"/containers/json?{query}")
        for _ in range(LIST_RETRIES):
            if not _is_half_removed(answer):
                break
            # Podman lists nothing while any container is just being removed.
            await anyio.sleep(LIST_PAUSE_SECONDS)
            answer = await self._ask("GET", f"/containers/json?{query}")
        found = [
            ContainerSummary(
                id=row["Id"],
                labels=row.get("Labels") or {},
                state=row["State"],
                created=row["Created"],
                image=row["Image"],
            )
            for row in _expect(answer, "list containers")
        ]
        # One that others share the network of cannot always be removed before them.
        return sorted(found, key=lambda one: one.labels.get(LABEL_ROLE) == "gateway")

    async def info(self) -> dict[str, Any]:
        """The engine's own description of itself and its machine."""
        return _expect(await self._ask("GET", "/info"), "describe itself")

    async def server_version(self) -> dict[str, Any]:
        """The engine's version and that of its parts."""
        return _expect(await self._ask("GET", "/version"), "tell its version")

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
        path = f"/v{self.version}/containers/{container}/attach?{urlencode(wanted)}"
        switched = await upgrade(self.endpoint, path)
        if isinstance(switched, Answer):
            raise _refusal(switched, "attach to the container")
        return HijackedStream(*switched)

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
        # Podman's filter knows the end of a container as `died`; it reports it as `die`.
        names = [*kinds, "died"] if "die" in kinds else [*kinds]
        filters = json.dumps({"container": [container], "event": names})
        query = urlencode({"filters": filters, "since": "1"})
        async with open_lines(self.endpoint, f"/v{self.version}/events?{query}") as lines:
            yield lines

    async def ping(self) -> Mapping[str, str]:
        """The engine's greeting: its headers, such as `api-version` and `server`."""
        answer = await ask(self.endpoint, "GET", "/_ping")
        if answer.status != OK:
            raise _refusal(answer, "answer a ping")
        return answer.headers

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        return await ask(self.endpoint, method, f"/v{self.version}{path}", body)


def _is_half_removed(answer: Answer) -> bool:
    return answer.status == INTERNAL_ERROR and b"container not known" in answer.body


def _is_gone(answer: Answer) -> bool:
    return answer.status == GONE or _is_half_removed(answer)


def _expect(answer: Answer, action: str) -> Any:  # noqa: ANN401 - JSON
    if answer.status >= BAD_REQUEST:
        raise _refusal(answer, action)
    if answer.status in {NO_CONTENT, NOT_MODIFIED} or not answer.body:
        return {}
    return json.loads(answer.body)


def _refusal(answer: Answer, action: str) -> EngineRefusedError:
    try:
        reason = str(json.loads(answer.body)["message"])
    except (ValueError, KeyError, TypeError):
        reason = answer.body[:500].decode("utf-8", "replace").strip() or "no reason given"
    return EngineRefusedError(action, answer.status, reason)


def _words(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())
