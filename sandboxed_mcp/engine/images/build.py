"""Build one image on the engine, once for each content.

The image gets the tags `sandboxed-mcp/NAME:<content key>` and `:latest` and the labels
`sandboxed-mcp.image` and `sandboxed-mcp.content`. Never pulls: what an image stands on is on
the engine already.
"""

from __future__ import annotations

import io
import re
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sandboxed_mcp.engine.images.context import REPOSITORY, Build, pack_context
from sandboxed_mcp.engine.images.lock import hold_lock
from sandboxed_mcp.engine.images.material import read_build_material, read_proxy_arguments
from sandboxed_mcp.engine.images.sdk import BuildApi, build_api, find_image, translated
from sandboxed_mcp.errors import EngineError, ImageNotFoundError
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import docker

    Progress = Callable[[str], None]

__all__ = ["CONTENT_LABEL", "IMAGE_LABEL", "BuiltImage", "build_image", "ensure_built", "ignore"]

IMAGE_LABEL = "sandboxed-mcp.image"
CONTENT_LABEL = "sandboxed-mcp.content"

_SILENCE_SECONDS = 900
_TAIL_LINES = 30
_LINE_CHARACTERS = 500
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"---> |Removing intermediate container ")


@dataclass(frozen=True)
class BuiltImage:
    """An image on the engine.

    Attributes:
        name: Its name without the common prefix, such as `python`.
        reference: `sandboxed-mcp/NAME:<content key>`.
        image_id: The engine's id.
        cached: Whether it was there already.
        seconds: How long this call took.
    """

    name: str
    reference: str
    image_id: str
    cached: bool
    seconds: float


def ignore(_line: str) -> None:
    """Take a line of progress and do nothing with it."""


def build_image(
    client: docker.DockerClient,
    name: str,
    files: Mapping[str, str | bytes],
    *,
    bases: Mapping[str, str] | None = None,
    progress: Progress = ignore,
) -> BuiltImage:
    """Build an image from files unless the engine has one of the same content.

    The build context also holds `.build/` with `pip.conf`, `npmrc` and, where this host names
    one, `ca.pem`: a build stage does `COPY .build /build` and sets `PIP_CONFIG_FILE` or
    `NPM_CONFIG_USERCONFIG` for its commands; the last stage copies only the result.

    Args:
        client: The SDK client of the engine.
        name: Name of the image; the reference becomes `sandboxed-mcp/NAME`.
        files: Build context, path to content, `Dockerfile` included.
        bases: Build argument to image reference, such as `{"BASE": "sandboxed-mcp/python"}`.
        progress: Called with one line at a time.

    Raises:
        ImageNotFoundError: A base is not on the engine.
        ConfigError: The files are not a build context.
        EngineError: The build failed; the message ends with its last lines.
    """
    api = build_api(client)
    found = {argument: _find_base(api, image) for argument, image in (bases or {}).items()}
    build = Build(
        name=name,
        files={path: _encoded(content) for path, content in files.items()},
        bases={argument: _content_of(image) for argument, image in found.items()},
    )
    ids = {argument: str(image["Id"]) for argument, image in found.items()}
    return ensure_built(api, build, lambda: ids, progress=progress)


def ensure_built(
    api: BuildApi,
    build: Build,
    find_bases: Callable[[], Mapping[str, str]],
    *,
    progress: Progress,
    refresh: bool = False,
) -> BuiltImage:
    """Build unless the engine has the content already; `find_bases` runs only for a build.

    Args:
        api: The engine.
        build: What to build.
        find_bases: Gives the image id for each base of the build.
        progress: Called with one line at a time.
        refresh: Build anew, without any cache, even when the content is there.
    """
    started = time.monotonic()
    found = None if refresh else find_image(api, build.reference)
    cached = found is not None
    if found is None:
        with hold_lock(build.name, progress):
            found = None if refresh else find_image(api, build.reference)
            if found is None:
                _perform(api, build, find_bases(), progress, refresh=refresh)
                found = find_image(api, build.reference)
    if found is None:
        raise EngineError(f"image '{build.reference}' is not on the engine right after its build")
    image_id = str(found["Id"])
    _tag_latest(api, build, found)
    return BuiltImage(build.name, build.reference, image_id, cached, time.monotonic() - started)


def _perform(
    api: BuildApi, build: Build, bases: Mapping[str, str], progress: Progress, *, refresh: bool
) -> None:
    context = pack_context({**build.files, **read_build_material()})
    with translated(f"build image '{build.name}'"):
        messages = api.build(
            fileobj=io.BytesIO(context),
            custom_context=True,
            tag=build.reference,
            buildargs={**read_proxy_arguments(), **bases},
            labels={IMAGE_LABEL: build.name, CONTENT_LABEL: build.content},
            nocache=refresh,
            rm=True,
            forcerm=True,
            timeout=_SILENCE_SECONDS,
            decode=True,
        )
        _follow(build.name, messages, progress)


def _follow(name: str, messages: Iterable[dict[str, Any]], progress: Progress) -> None:
    """Pass a build's output on, line by line, and raise when it says that it failed.

    It reads to the end in any case: that gives the connection back.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    reason: str | None = None
    for message in messages:
        if "error" in message:
            reason = sanitize(str(message["error"]).strip(), _LINE_CHARACTERS)
        for line in _readable(str(message.get("stream", ""))):
            tail.append(line)
            progress(f"{name}: {line}")
    if reason is not None:
        said = "\n".join(tail)
        raise EngineError(
            f"image '{name}' did not build: {reason}; the last lines of the build:\n{said}"
        )


def _readable(output: str) -> list[str]:
    """The lines of a build's output that say something, safe for a terminal.

    Package installers write them, so they may hold anything. The engine colours what a
    command writes to stderr.
    """
    lines = (line.strip() for line in _COLOUR.sub("", output).splitlines())
    return [sanitize(line, _LINE_CHARACTERS) for line in lines if line and not _NOISE.match(line)]


def _tag_latest(api: BuildApi, build: Build, found: Mapping[str, Any]) -> None:
    latest = f"{REPOSITORY}/{build.name}"
    if f"{latest}:latest" not in (found.get("RepoTags") or ()):
        with translated(f"tag image '{latest}'"):
            api.tag(str(found["Id"]), latest, "latest")


def _find_base(api: BuildApi, reference: str) -> dict[str, Any]:
    found = find_image(api, reference)
    if found is None:
        raise ImageNotFoundError(reference, "build it first (`make images`)")
    return found


def _content_of(image: Mapping[str, Any]) -> str:
    config = cast("dict[str, Any]", image.get("Config") or {})
    labels = cast("dict[str, str]", config.get("Labels") or {})
    return labels.get(CONTENT_LABEL) or str(image["Id"])


def _encoded(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
