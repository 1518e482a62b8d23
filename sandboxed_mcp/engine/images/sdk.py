"""The part of the `docker` SDK that builds need, typed, with its errors translated."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import docker
import docker.errors
import requests.exceptions

from sandboxed_mcp.errors import EngineError, EngineRefusedError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import BinaryIO

__all__ = ["BuildApi", "build_api", "find_image", "translated"]


class BuildApi(Protocol):
    """What this package calls on `docker.APIClient`."""

    def build(  # noqa: PLR0913  # the SDK's own signature
        self,
        *,
        fileobj: BinaryIO,
        custom_context: bool,
        tag: str,
        buildargs: dict[str, str],
        labels: dict[str, str],
        nocache: bool,
        rm: bool,
        forcerm: bool,
        timeout: int,
        decode: bool,
    ) -> Iterable[dict[str, Any]]:
        """Build an image (`POST /build`)."""
        ...

    def inspect_image(self, image: str) -> dict[str, Any]:
        """Inspect an image (`GET /images/{name}/json`)."""
        ...

    def tag(self, image: str, repository: str, tag: str) -> bool:
        """Tag an image (`POST /images/{name}/tag`)."""
        ...

    def pull(
        self, repository: str, tag: str, *, stream: bool, decode: bool
    ) -> Iterable[dict[str, Any]]:
        """Pull an image (`POST /images/create`)."""
        ...

    def import_image_from_file(
        self, filename: str, *, repository: str, tag: str, changes: list[str]
    ) -> str:
        """Import a root file system (`POST /images/create?fromSrc=-`)."""
        ...


def build_api(client: docker.DockerClient) -> BuildApi:
    """Take the low-level API out of an SDK client."""
    return cast("BuildApi", client.api)  # pyright: ignore[reportUnknownMemberType]


@contextmanager
def translated(action: str) -> Generator[None]:
    """Turn the SDK's errors into this package's.

    Raises:
        EngineRefusedError: The engine answered with an error.
        EngineError: The engine went away or stayed silent.
    """
    try:
        yield
    except docker.errors.APIError as error:
        status = error.status_code or 0
        raise EngineRefusedError(action, status, str(error.explanation or error)) from error
    except (requests.exceptions.RequestException, docker.errors.DockerException) as error:
        raise EngineError(f"the engine did not {action}: {error}") from error


def find_image(api: BuildApi, reference: str) -> dict[str, Any] | None:
    """Inspect an image of the engine; None when the engine does not have it."""
    with translated(f"inspect image '{reference}'"):
        try:
            return api.inspect_image(reference)
        except docker.errors.ImageNotFound:
            return None
