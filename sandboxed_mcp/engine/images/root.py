"""The Debian root file system under every image: pulled where a registry answers, else made.

Making it takes `mmdebstrap` and the Debian mirrors that this host's own apt uses.
"""

from __future__ import annotations

import queue
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxed_mcp.engine.images.context import REPOSITORY
from sandboxed_mcp.engine.images.sdk import find_image, translated
from sandboxed_mcp.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandboxed_mcp.engine.images.sdk import BuildApi

__all__ = ["SUITE", "ensure_debian", "parse_index_targets"]

SUITE = "bookworm"
"""The Debian release under every image; part of their content keys."""

_OFFICIAL = ("debian", f"{SUITE}-slim")
_MADE = (f"{REPOSITORY}/debian", SUITE)
_ANSWER_SECONDS = 20.0
_PULL_SILENCE_SECONDS = 60.0
_MAKE_SECONDS = 900.0
_ASK_SECONDS = 20
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHANGES = [f"ENV PATH={_PATH}", 'CMD ["bash"]']
_INDEX_FORMAT = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)


def ensure_debian(api: BuildApi, progress: Callable[[str], None], *, refresh: bool) -> str:
    """Return the id of a small Debian image on the engine, pulling or making it if need be.

    Raises:
        EngineError: No registry answers and the image cannot be made here.
    """
    if not refresh:
        for repository, tag in (_OFFICIAL, _MADE):
            found = find_image(api, f"{repository}:{tag}")
            if found is not None:
                return str(found["Id"])
    refusal = _pull(api, progress)
    if refusal is None:
        return _image_id(api, _OFFICIAL)
    progress(f"no registry gives {':'.join(_OFFICIAL)} ({refusal}); making it with mmdebstrap")
    _make(api, progress, refusal)
    return _image_id(api, _MADE)


def parse_index_targets(listing: str) -> list[str]:
    """Turn apt's list of package indexes into mirror lines for this release of Debian.

    Args:
        listing: One `URI RELEASE COMPONENT` a line, as `apt-get indextargets` prints it.

    Returns:
        One-line sources; empty when this host's apt has no mirror for the release that a
        container could reach.
    """
    wanted = {SUITE, f"{SUITE}-updates", f"{SUITE}-security"}
    lines: list[str] = []
    for target in listing.splitlines():
        uri, _, rest = target.partition(" ")
        release, _, component = rest.partition(" ")
        if uri.startswith(("http://", "https://")) and release in wanted and component == "main":
            lines.append(f"deb {uri} {release} {component}")
    return lines


def _image_id(api: BuildApi, image: tuple[str, str]) -> str:
    found = find_image(api, ":".join(image))
    if found is None:
        raise EngineError(f"image '{':'.join(image)}' is not on the engine right after it was made")
    return str(found["Id"])


def _pull(api: BuildApi, progress: Callable[[str], None]) -> str | None:
    """Pull the official image; returns why it could not be had, or None."""
    progress(f"pulling {':'.join(_OFFICIAL)}")
    messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_feed_pull, args=(api, messages), daemon=True).start()
    patience = _ANSWER_SECONDS
    while True:
        try:
            message = messages.get(timeout=patience)
        except queue.Empty:
            return f"no answer within {patience:g} s"
        if message is None:
            return None
        if "error" in message:
            return str(message["error"])
        patience = _PULL_SILENCE_SECONDS


def _feed_pull(api: BuildApi, messages: queue.Queue[dict[str, Any] | None]) -> None:
    try:
        with translated("pull"):
            for message in api.pull(*_OFFICIAL, stream=True, decode=True):
                messages.put(message)
        messages.put(None)
    except EngineError as error:
        messages.put({"error": str(error)})


def _make(api: BuildApi, progress: Callable[[str], None], refusal: str) -> None:
    program = shutil.which("mmdebstrap")
    if program is None:
        raise EngineError(
            f"no base image: no registry gives {':'.join(_OFFICIAL)} ({refusal}) and mmdebstrap "
            "is not installed here; install it (`apt-get install mmdebstrap`) and try again"
        )
    with tempfile.TemporaryDirectory(prefix="sandboxed-mcp-") as folder:
        archive = str(Path(folder) / "root.tar")
        _run_mmdebstrap([program, *_mmdebstrap_arguments(archive)], progress)
        progress("importing the Debian base")
        repository, tag = _MADE
        with translated("import the Debian base"):
            api.import_image_from_file(archive, repository=repository, tag=tag, changes=_CHANGES)


def _mmdebstrap_arguments(archive: str) -> list[str]:
    options = [f"--dpkgopt={option}" for option in _DPKG_OPTIONS]
    return ["--variant=minbase", *options, SUITE, archive, *_read_mirrors()]


def _read_mirrors() -> list[str]:
    """Read this host's Debian mirrors; without any, mmdebstrap takes its own default."""
    program = shutil.which("apt-get")
    if program is None:
        return []
    answer = subprocess.run(  # noqa: S603  # fixed arguments, no shell
        [program, "indextargets", "--format", _INDEX_FORMAT, "Created-By: Packages"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_ASK_SECONDS,
        check=False,
    )
    return parse_index_targets(answer.stdout)


def _run_mmdebstrap(command: list[str], progress: Callable[[str], None]) -> None:
    tail: list[str] = []
    with subprocess.Popen(  # noqa: S603  # fixed arguments, no shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        timer = threading.Timer(_MAKE_SECONDS, process.kill)
        timer.start()
        for line in process.stderr or ():
            tail = [*tail[-19:], line.rstrip()]
            progress(f"mmdebstrap: {line.strip()}")
        status = process.wait()
        timer.cancel()
    if status != 0:
        said = "\n".join(tail)
        raise EngineError(f"mmdebstrap ended with exit code {status}; its last lines:\n{said}")
