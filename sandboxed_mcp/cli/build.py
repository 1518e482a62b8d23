"""`sandboxed-mcp build`: builds the images that servers run in, those that are missing."""

from __future__ import annotations

import os
from typing import Final

import anyio
import click

from sandboxed_mcp.cli.tables import working
from sandboxed_mcp.engine.connection import find_engine, sdk_client
from sandboxed_mcp.engine.images import IMAGE_NAMES, build_images
from sandboxed_mcp.engine.images.recipes import build_order
from sandboxed_mcp.text import sanitize

__all__ = ["build"]

LINE_CHARS: Final = 300


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--refresh", is_flag=True, help="Build anew from today's packages.")
def build(names: tuple[str, ...], *, refresh: bool) -> None:
    """Build the images that servers run in.

    NAME is base, python, node, notes or gateway; all of them without one. What an image stands
    on is built with it. An image whose content is on the engine already is left as it is.
    """
    chosen = names or IMAGE_NAMES
    build_order(chosen)  # refuses an unknown name before anything is asked or built
    client = sdk_client(anyio.run(find_engine, os.environ))
    with working("building images") as say:
        built = build_images(
            client,
            chosen,
            progress=lambda line: say(sanitize(line, LINE_CHARS)),
            refresh=refresh,
        )
    for image in built:
        took = "is up to date" if image.cached else f"built in {image.seconds:.1f} s"
        click.echo(f"{image.reference} {took}")
