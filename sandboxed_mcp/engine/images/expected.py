"""What this version of the package would build: the content of each image, without an engine."""

from __future__ import annotations

from sandboxed_mcp.engine.images.context import Build
from sandboxed_mcp.engine.images.recipes import IMAGE_NAMES, RECIPES, build_order, read_recipe
from sandboxed_mcp.engine.images.root import SUITE

__all__ = ["expected_contents"]


def expected_contents() -> dict[str, str]:
    """The content label (`NAME:KEY`) that each image of this version has, by name.

    Raises:
        ConfigError: The Dockerfiles are not there.
    """
    contents: dict[str, str] = {}
    for name in build_order(IMAGE_NAMES):
        bases = {argument: contents[base] for argument, base in RECIPES[name].bases.items()}
        build = Build(name, read_recipe(name), bases or {"BASE": f"debian {SUITE}"})
        contents[name] = build.content
    return contents
