"""What an image is made of, as values: files, bases, content key and the tar for the engine.

Pure but for `read_folder`, which reads the named folder and never follows a link out of it.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["BUILD_FOLDER", "REPOSITORY", "Build", "pack_context", "read_folder"]

REPOSITORY = "sandboxed-mcp"
"""The first part of the name of every image that this package builds."""

BUILD_FOLDER = ".build"
"""Folder of every build context that holds the index settings and certificates of this host.

A Dockerfile copies it into a build stage (`COPY .build /build`), never into the last one.
It does not count towards the content key.
"""

_KEY_FORMAT = b"sandboxed-mcp image 1\n"
_KEY_DIGITS = 12


@dataclass(frozen=True)
class Build:
    """One image to build.

    Attributes:
        name: Last part of the repository's name, such as `python`.
        files: Build context, path to content; `Dockerfile` is one of them.
        bases: Build argument to the content of the image behind it (`python:1f0c...`, or an
            image id where the image was not built by this package).
    """

    name: str
    files: Mapping[str, bytes]
    bases: Mapping[str, str]

    def __post_init__(self) -> None:
        """Refuse a context without a Dockerfile or with a path that leaves it."""
        if "Dockerfile" not in self.files:
            raise ConfigError(f"image {self.name}", "there is no Dockerfile", "add one")
        for path in self.files:
            _check_path(self.name, path)

    @property
    def key(self) -> str:
        """The first 12 hex digits of SHA-256 over everything that decides the content."""
        digest = hashlib.sha256(_KEY_FORMAT)
        for argument, base in sorted(self.bases.items()):
            digest.update(_framed(b"base", argument.encode(), base.encode()))
        for path, content in sorted(self.files.items()):
            digest.update(_framed(b"file", path.encode(), content))
        return digest.hexdigest()[:_KEY_DIGITS]

    @property
    def content(self) -> str:
        """Name and content key, the value of the label `sandboxed-mcp.content`."""
        return f"{self.name}:{self.key}"

    @property
    def reference(self) -> str:
        """The image reference with the content key as its tag."""
        return f"{REPOSITORY}/{self.content}"


def pack_context(files: Mapping[str, bytes]) -> bytes:
    """Pack a build context: the same bytes for the same files, whoever packs them and when.

    A file that starts with `#!` is executable; nothing else is.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o755 if content.startswith(b"#!") else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def read_folder(folder: Path) -> dict[str, bytes]:
    """Read a folder as a build context; bytecode caches are left out.

    Raises:
        ConfigError: The folder is not there or holds a symbolic link.
    """
    if not folder.is_dir():
        raise ConfigError(f"image folder {folder}", "it is not a folder", "name one that is")
    files: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise ConfigError(f"image folder {folder}", f"{path} is a link", "copy the file there")
        if path.is_file() and "__pycache__" not in path.parts:
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def _check_path(name: str, path: str) -> None:
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or parts.as_posix() != path:
        raise ConfigError(f"image {name}", f"bad path {path!r}", "use a plain relative path")
    if parts.parts[0] == BUILD_FOLDER:
        raise ConfigError(f"image {name}", f"{path!r} is reserved", "use another folder")


def _framed(*parts: bytes) -> bytes:
    """Join parts so that no two different lists of parts give the same bytes."""
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)
