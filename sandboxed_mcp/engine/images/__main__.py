"""`python -m sandboxed_mcp.engine.images [NAME...]`: build the images, or ask for the engine."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
from rich.console import Console
from rich.text import Text

from sandboxed_mcp.engine.connection import find_engine, sdk_client
from sandboxed_mcp.engine.images import IMAGE_NAMES, build_images
from sandboxed_mcp.errors import EngineNotFoundError, SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import docker

_QUIET_SECONDS = 5.0
_NO_ENGINE = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Build images.

    Returns:
        The exit status: 0 when all are on the engine, 3 when no engine answers, else 1.
    """
    options = _parse(arguments)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        client = _open_client()
        if options.ping:
            return 0
        with _progress(console) as progress:
            built = build_images(client, options.names, progress=progress, refresh=options.refresh)
    except SandboxError as error:
        console.print(f"error: {error}", style="red", markup=False)
        return _NO_ENGINE if isinstance(error, EngineNotFoundError) else 1
    for image in built:
        if not image.cached:
            console.print(f"{image.reference} built in {image.seconds:.1f} s", markup=False)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sandboxed_mcp.engine.images",
        description="Build the images that servers run in; what is there already stays.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(IMAGE_NAMES))
    parser.add_argument("--refresh", action="store_true", help="build anew from today's packages")
    parser.add_argument("--ping", action="store_true", help="only ask whether an engine answers")
    options = parser.parse_args(arguments)
    options.names = options.names or list(IMAGE_NAMES)
    return options


def _open_client() -> docker.DockerClient:
    return sdk_client(anyio.run(find_engine, os.environ))


@contextmanager
def _progress(console: Console) -> Generator[Callable[[str], None]]:
    """Show the newest line on a terminal; elsewhere print one now and then."""
    if not console.is_terminal:
        yield _sparse_lines(sys.stderr.write)
        return
    with console.status("images") as status:
        width = max(20, console.width - 4)
        yield lambda line: status.update(Text(line[:width]))


def _sparse_lines(write: Callable[[str], object]) -> Callable[[str], None]:
    """Print a line of progress only when the last one is some seconds old."""
    last = time.monotonic()

    def progress(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _QUIET_SECONDS:
            last = time.monotonic()
            write(f"{line}\n")

    return progress


if __name__ == "__main__":
    sys.exit(main())
