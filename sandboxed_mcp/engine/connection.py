"""Finds the engine as Docker's own command line finds it, and makes sure that it lives.

Order: `DOCKER_HOST`; `DOCKER_CONTEXT` or the current context of Docker's configuration; the
default sockets. An address that the user named is the only one tried; among the default
sockets a dead one never wins over a live one. `sdk_client` gives the Docker SDK on the same
engine, for images and builds.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from sandboxed_mcp.engine.api import Engine
from sandboxed_mcp.engine.dial import Endpoint, parse_endpoint
from sandboxed_mcp.errors import ConfigError, EngineError, EngineNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import docker

__all__ = ["MAX_API", "MIN_API", "PROBE_TIMEOUT_SECONDS", "find_engine", "sdk_client"]

MIN_API = (1, 41)
MAX_API = (1, 47)
PROBE_TIMEOUT_SECONDS = 5.0


async def find_engine(environ: Mapping[str, str], sockets: Sequence[Path] | None = None) -> Engine:
    """The engine to use, after it has answered a ping.

    Args:
        environ: The launcher's environment; `DOCKER_HOST`, `DOCKER_CONTEXT`, `DOCKER_CONFIG`,
            `DOCKER_TLS_VERIFY`, `DOCKER_CERT_PATH`, `XDG_RUNTIME_DIR` and `HOME` are read.
        sockets: What to try when the environment names none; by default where Docker (rootful,
            rootless, Desktop), Colima, OrbStack, Rancher Desktop and Podman listen.

    Raises:
        EngineNotFoundError: None answers; its text lists every address and the reason.
        ConfigError: `DOCKER_HOST` or the context is malformed.
    """
    tried: list[str] = []
    for endpoint in _candidates(environ, sockets or _default_sockets(environ)):
        found = await _probe(endpoint)
        if isinstance(found, Engine):
            return found
        tried.append(f"{endpoint}: {found}")
    raise EngineNotFoundError(tuple(tried))


def sdk_client(engine: Engine) -> docker.DockerClient:
    """The Docker SDK on the same engine, for images and builds."""
    import docker  # noqa: PLC0415 - importing the SDK costs a tenth of a second
    from docker.tls import TLSConfig  # noqa: PLC0415

    endpoint = engine.endpoint
    tls: bool | TLSConfig = False
    if endpoint.tls_dir is not None:
        folder = Path(endpoint.tls_dir)
        tls = TLSConfig(
            client_cert=(str(folder / "cert.pem"), str(folder / "key.pem")),
            ca_cert=str(folder / "ca.pem"),
            verify=endpoint.tls_verify,
        )
    return docker.DockerClient(
        base_url=endpoint.url,
        version=engine.version,
        timeout=600,
        tls=tls,
        use_ssh_client=True,
    )


def _candidates(environ: Mapping[str, str], sockets: Sequence[Path]) -> list[Endpoint]:
    named = environ.get("DOCKER_HOST")
    if named:
        return [_with_tls(parse_endpoint(named, "DOCKER_HOST"), environ)]
    context = environ.get("DOCKER_CONTEXT") or _current_context(environ)
    if context and context != "default":
        return [_context_endpoint(context, environ)]
    return [Endpoint(f"unix://{path}", "default socket") for path in sockets]


def _with_tls(endpoint: Endpoint, environ: Mapping[str, str]) -> Endpoint:
    verify = bool(environ.get("DOCKER_TLS_VERIFY"))
    if not endpoint.url.startswith("tcp://") or not (verify or environ.get("DOCKER_TLS")):
        return endpoint
    folder = environ.get("DOCKER_CERT_PATH") or str(_docker_config(environ))
    return Endpoint(endpoint.url, endpoint.origin, tls_dir=folder, tls_verify=verify)


def _docker_config(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("DOCKER_CONFIG") or _home(environ) / ".docker")


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _current_context(environ: Mapping[str, str]) -> str | None:
    path = _docker_config(environ) / "config.json"
    try:
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return settings.get("currentContext")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            "currentContext",
            f"Docker's configuration cannot be read: {error}",
            "repair the file",
            file=str(path),
        ) from error


def _context_endpoint(name: str, environ: Mapping[str, str]) -> Endpoint:
    # Docker's store: one folder a context, named by the SHA-256 of the context's name.
    store = _docker_config(environ) / "contexts"
    key = hashlib.sha256(name.encode()).hexdigest()
    origin = f"context '{name}'"
    try:
        text = (store / "meta" / key / "meta.json").read_text(encoding="utf-8")
        found = json.loads(text)["Endpoints"]["docker"]
        endpoint = parse_endpoint(found["Host"], origin)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineNotFoundError(
            (f"{origin}: not readable in {store} ({error}); run 'docker context ls'",)
        ) from error
    tls_dir = store / "tls" / key / "docker"
    if not tls_dir.is_dir():
        return endpoint
    verify = not found.get("SkipTLSVerify", False)
    return Endpoint(endpoint.url, origin, tls_dir=str(tls_dir), tls_verify=verify)


def _default_sockets(environ: Mapping[str, str]) -> list[Path]:
    home = _home(environ)
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return [
        Path("/var/run/docker.sock"),
        Path(runtime) / "docker.sock",
        home / ".docker/run/docker.sock",
        home / ".docker/desktop/docker.sock",
        home / ".colima/default/docker.sock",
        home / ".orbstack/run/docker.sock",
        home / ".rd/docker.sock",
        Path(runtime) / "podman/podman.sock",
        Path("/run/podman/podman.sock"),
    ]


async def _probe(endpoint: Endpoint) -> Engine | str:
    missing = _no_socket(endpoint)
    if missing is not None:
        return missing
    probe = Engine(endpoint, "1.41")
    try:
        with anyio.fail_after(PROBE_TIMEOUT_SECONDS):
            greeting = await probe.ping()
    except TimeoutError:
        return f"no answer within {PROBE_TIMEOUT_SECONDS:.0f} s"
    except EngineError as error:
        return str(error.__cause__ or error)
    return _negotiate(endpoint, greeting)


def _no_socket(endpoint: Endpoint) -> str | None:
    if not endpoint.is_local:
        return None
    try:
        mode = Path(endpoint.url.removeprefix("unix://")).stat().st_mode
    except OSError as error:
        return error.strerror or str(error)
    return None if stat.S_ISSOCK(mode) else "not a socket"


def _negotiate(endpoint: Endpoint, greeting: Mapping[str, str]) -> Engine | str:
    offered = greeting.get("api-version", "1.41")
    try:
        major, minor = (int(part) for part in offered.split("."))
    except ValueError:
        return f"speaks an unknown API version '{offered}'"
    if (major, minor) < MIN_API:
        return f"speaks API {offered}, older than {MIN_API[0]}.{MIN_API[1]} (Docker 20.10)"
    version = min((major, minor), MAX_API)
    is_podman = "libpod-api-version" in greeting
    return Engine(endpoint, f"{version[0]}.{version[1]}", is_podman)
