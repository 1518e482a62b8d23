"""The ways to reach one server: as a plain child process, and sandboxed in each way there is.

A test body takes an initialised client and cannot tell which way it was opened.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Unpack

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from sandboxed_mcp import Mount, ServerConfig, connect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from sandboxed_mcp.bridge.transport import ClientOptions

__all__ = ["COMMAND", "WAYS", "Server", "Way", "open_client_file", "open_direct", "open_run"]

COMMAND: Final = str(Path(sys.executable).with_name("sandboxed-mcp"))


@dataclass(frozen=True)
class Server:
    """A server, and how it is started with and without a sandbox.

    Attributes:
        name: Its name.
        image: The image that holds it.
        command: Program and arguments in the image.
        direct: Program and arguments on this machine, or of another sandbox-free way.
        env: Variables, the same for both.
        mounts: Folders that the sandbox holds, `SOURCE:TARGET[:rw]`.
    """

    name: str
    image: str
    command: tuple[str, ...]
    direct: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    mounts: tuple[str, ...] = ()


class Way(Protocol):
    """Opens a client of a server; the options are those of the SDK's `Client`."""

    def __call__(
        self, server: Server, **options: Unpack[ClientOptions]
    ) -> AbstractAsyncContextManager[Client]: ...


def open_direct(
    server: Server, **options: Unpack[ClientOptions]
) -> AbstractAsyncContextManager[Client]:
    """The SDK's own stdio transport to a plain child process."""
    return _open_command(server.direct, dict(server.env), options)


def open_sandbox(
    server: Server, **options: Unpack[ClientOptions]
) -> AbstractAsyncContextManager[Client]:
    """The library."""
    program, *arguments = server.command
    parts = [mount.split(":") for mount in server.mounts]
    config = ServerConfig(
        name=server.name,
        image=server.image,
        command=program,
        args=tuple(arguments),
        env=dict(server.env),
        mounts=tuple(
            Mount(source=source, target=target, mode="rw" if mode else "ro")
            for source, target, *mode in parts
        ),
    )
    return connect(config, **options)


def open_run(
    server: Server, **options: Unpack[ClientOptions]
) -> AbstractAsyncContextManager[Client]:
    """The SDK's own stdio transport to `sandboxed-mcp run --image`."""
    words = ["run", "--image", server.image]
    for mount in server.mounts:
        words += ["--mount", mount]
    for name, value in server.env.items():
        words += ["--env", f"{name}={value}"]
    return _open_command((COMMAND, *words, "--", *server.command), {}, options)


@asynccontextmanager
async def open_client_file(
    server: Server, **options: Unpack[ClientOptions]
) -> AsyncGenerator[Client]:
    """The SDK's own stdio transport to `sandboxed-mcp run NAME` with a client's file."""
    program, *arguments = server.command
    entry: dict[str, object] = {
        "type": "stdio",
        "command": program,
        "args": arguments,
        "env": dict(server.env),
        "sandbox": {"image": server.image, "mounts": list(server.mounts)},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump({"mcpServers": {server.name: entry}}, file)
        file.flush()
        words = (COMMAND, "run", server.name, "--config", file.name)
        async with _open_command(words, {}, options) as client:
            yield client


def _open_command(
    words: tuple[str, ...], env: dict[str, str], options: ClientOptions
) -> AbstractAsyncContextManager[Client]:
    program, *arguments = words
    options.setdefault("mode", "legacy")
    parameters = StdioServerParameters(command=program, args=arguments, env=env)
    return Client(stdio_client(parameters), **options)


WAYS: Final[Mapping[str, Way]] = {
    "library": open_sandbox,
    "run": open_run,
    "client_file": open_client_file,
}
"""The sandboxed ways."""
