"""Build the images that servers run in, on any engine, with or without a registry.

    files and bases -> content key -> on the engine already? -> build -> tag

Each image is built once for each content: `sandboxed-mcp/NAME:<key>` where the key covers its
Dockerfile, its files and what it stands on. Launching never comes here:
it never pulls and never builds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxed_mcp.engine.images.build import BuiltImage, build_image, ensure_built, ignore
from sandboxed_mcp.engine.images.context import Build, read_folder
from sandboxed_mcp.engine.images.recipes import (
    IMAGE_NAMES,
    RECIPES,
    build_order,
    find_images_folder,
    read_recipe,
)
from sandboxed_mcp.engine.images.root import SUITE, ensure_debian
from sandboxed_mcp.engine.images.sdk import build_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import docker

__all__ = [
    "IMAGE_NAMES",
    "BuiltImage",
    "build_image",
    "build_images",
    "find_images_folder",
    "read_folder",
]


def build_images(
    client: docker.DockerClient,
    names: Iterable[str] = IMAGE_NAMES,
    *,
    progress: Callable[[str], None] = ignore,
    refresh: bool = False,
) -> list[BuiltImage]:
    """Build the named images of this package and all that they stand on.

    Args:
        client: The SDK client of the engine.
        names: Some of `IMAGE_NAMES`.
        progress: Called with one line at a time.
        refresh: Build anew from today's packages, even what is there.

    Raises:
        ConfigError: A name is unknown, or the Dockerfiles are not there.
        EngineError: A build failed; the message ends with its last lines.
    """
    api = build_api(client)
    done: dict[str, BuiltImage] = {}
    contents: dict[str, str] = {}
    for name in build_order(names):
        bases = RECIPES[name].bases
        build = Build(
            name=name,
            files=read_recipe(name),
            bases={argument: contents[base] for argument, base in bases.items()}
            or {"BASE": f"debian {SUITE}"},
        )
        ids = {argument: done[base].image_id for argument, base in bases.items()}
        done[name] = ensure_built(
            api,
            build,
            lambda ids=ids: ids or {"BASE": ensure_debian(api, progress, refresh=refresh)},
            progress=progress,
            refresh=refresh,
        )
        contents[name] = build.content
    return list(done.values())
