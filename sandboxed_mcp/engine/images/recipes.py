"""The images of this package: what each is built on and where its files are.

Never talks to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxed_mcp.engine.images.context import read_folder
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["IMAGE_NAMES", "RECIPES", "Recipe", "build_order", "find_images_folder", "read_recipe"]

_PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Recipe:
    """How one image of this package is built.

    Attributes:
        bases: Build argument to the name of the image behind it; empty for the image that
            stands on Debian itself.
        package_parts: Modules of this package that go into the image.
    """

    bases: Mapping[str, str] = field(default_factory=dict[str, str])
    package_parts: tuple[str, ...] = ()


RECIPES: Mapping[str, Recipe] = {
    "base": Recipe(),
    "python": Recipe({"BASE": "base"}),
    "node": Recipe({"BASE": "base", "PYTHON": "python"}),
    "notes": Recipe({"BASE": "python"}),
    "gateway": Recipe(
        {"BASE": "base", "PYTHON": "python"},
        ("__init__.py", "errors.py", "events.py", "egress", "gateway"),
    ),
}
IMAGE_NAMES = tuple(RECIPES)


def build_order(names: Iterable[str]) -> tuple[str, ...]:
    """List the named images and all that they stand on, each after what it needs.

    Raises:
        ConfigError: A name is not one of `IMAGE_NAMES`.
    """
    ordered: dict[str, None] = {}
    for name in names:
        if name not in RECIPES:
            raise ConfigError(
                "image", f"there is no image {name!r}", f"choose from {', '.join(IMAGE_NAMES)}"
            )
        ordered.update(dict.fromkeys(build_order(RECIPES[name].bases.values())))
        ordered[name] = None
    return tuple(ordered)


def find_images_folder(package: Path = _PACKAGE) -> Path:
    """Find the Dockerfiles: `_images` in an installed package, `images` beside it in a checkout.

    Raises:
        ConfigError: Neither is there.
    """
    for folder in (package / "_images", package.parent / "images"):
        if (folder / "base" / "Dockerfile").is_file():
            return folder
    raise ConfigError(
        "images",
        f"no Dockerfiles in {package / '_images'} or {package.parent / 'images'}",
        "install the package again",
    )


def read_recipe(name: str, package: Path = _PACKAGE) -> dict[str, bytes]:
    """Read the build context of one image of this package."""
    files = read_folder(find_images_folder(package) / name)
    for part in RECIPES[name].package_parts:
        files.update(_read_part(package, part))
    return files


def _read_part(package: Path, part: str) -> dict[str, bytes]:
    path = package / part
    if path.is_dir():
        found = read_folder(path)
        return {f"{package.name}/{part}/{name}": content for name, content in found.items()}
    return {f"{package.name}/{part}": path.read_bytes()} if path.is_file() else {}
