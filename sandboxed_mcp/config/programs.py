"""Which program runs, in which image: what `image`, `command` and `args` mean together.

Pure. A `command` without an image runs in the base image for its interpreter; a launcher that
would install something first is refused, because a sandbox has no registry at run time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sandboxed_mcp.config.problems import RefusedError, shown

__all__ = ["NODE_IMAGE", "PYTHON_IMAGE", "Program", "plan_program"]

PYTHON_IMAGE: Final = "sandboxed-mcp/python:latest"
NODE_IMAGE: Final = "sandboxed-mcp/node:latest"

_PYTHON: Final = re.compile(r"python(?:3(?:\.[0-9]{1,2})?)?\Z")
_NODE: Final = frozenset({"node", "nodejs"})
_INSTALLERS: Final = frozenset(
    {"npx", "npm", "pnpm", "pnpx", "yarn", "bunx", "uvx", "uv", "pipx", "pip", "pip3"}
)
_ENGINES: Final = frozenset({"docker", "podman", "nerdctl", "sandboxed-mcp"})


@dataclass(frozen=True, slots=True)
class Program:
    """What the container runs.

    Attributes:
        image: The image's reference.
        entrypoint: Replaces the image's; None keeps it.
        args: Replaces the image's CMD; None keeps it.
    """

    image: str
    entrypoint: tuple[str, ...] | None
    args: tuple[str, ...] | None


def plan_program(image: str | None, command: str | None, args: tuple[str, ...] | None) -> Program:
    """Decide what runs, as Docker would: a command replaces entrypoint and CMD, args the CMD.

    Raises:
        RefusedError: Neither image nor command is set, or the command needs an image.
    """
    if command is None:
        if image is None:
            raise RefusedError(
                "neither image nor command is set",
                'add image = "NAME:TAG", or a command such as "python3" or "node"',
                ".image",
            )
        return Program(image, None, args)
    if image is not None:
        return Program(image, (command,), args or ())
    name = command.rpartition("/")[2]
    return Program(_choose_image(name, command), (name,), args or ())


def _choose_image(name: str, command: str) -> str:
    if _PYTHON.match(name):
        return PYTHON_IMAGE
    if name in _NODE:
        return NODE_IMAGE
    raise RefusedError(*_explain(name, command), ".command")


def _explain(name: str, command: str) -> tuple[str, str]:
    if name in _INSTALLERS:
        return (
            f"{shown(command)} installs packages when it starts, and an offline sandbox cannot",
            "build an image that holds the package and set image, with the program as command",
        )
    if name in _ENGINES:
        return (
            f"{shown(command)} starts a container of its own, and a sandbox has no engine",
            "set image (and args) to what it would run",
        )
    return (
        f"{shown(command)} is not in an image that comes with this package",
        "set image to one that holds it; only python, python3 and node are there without",
    )
