"""Where control sockets are: in a private folder, found by launch, never in a mount."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.config.mounts import Mount
from sandboxed_mcp.config.places import control_folders
from sandboxed_mcp.config.problems import RefusedError
from sandboxed_mcp.config.sources import read_host, resolve_mount
from sandboxed_mcp.engine import control_sockets
from sandboxed_mcp.engine.control_sockets import (
    find_control_socket,
    list_stale_sockets,
    place_control_socket,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

LAUNCH = "0123456789abcdef" * 2


@pytest.fixture
def runtime() -> Generator[Path]:
    """A folder with a short name: a socket's path holds 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="smcp") as folder:
        yield Path(folder)


def environ(runtime: Path | str) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(runtime)}


def test_the_folder_is_made_private_and_the_socket_found(runtime: Path) -> None:
    before = os.umask(0)
    try:
        path = place_control_socket(environ(runtime), LAUNCH)
    finally:
        os.umask(before)
    assert path == runtime / "sandboxed-mcp" / f"{LAUNCH}.sock"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert find_control_socket(environ(runtime), LAUNCH) is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert find_control_socket(environ(runtime), LAUNCH) == path
        assert find_control_socket(environ(runtime), "f" * 32) is None


def test_the_user_s_own_folders_come_after_the_runtime_folder() -> None:
    assert control_folders(None, 1000) == (
        "/run/user/1000/sandboxed-mcp",
        "/tmp/sandboxed-mcp-1000",
    )
    assert control_folders("relative", 1000) == control_folders("", 1000)
    assert control_folders("/run/user/1000/", 1000)[0] == "/run/user/1000/sandboxed-mcp"
    assert len(control_folders("/run/user/1000", 1000)) == 2


def plant_link(folder: Path) -> None:
    target = folder.with_name("target")
    target.mkdir(mode=0o700)
    folder.symlink_to(target)


def plant_open(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)


def plant_foreign(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 65532, 65532)


def plant_file(folder: Path) -> None:
    folder.touch(mode=0o600)


@pytest.mark.parametrize("plant", [plant_link, plant_open, plant_foreign, plant_file])
def test_a_folder_that_somebody_planted_is_not_used(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path], None]
) -> None:
    folder = runtime / "sandboxed-mcp"
    plant(folder)

    def only(runtime: str | None, uid: int) -> tuple[str, ...]:
        assert (runtime, uid) == (None, os.getuid())
        return (str(folder),)

    monkeypatch.setattr(control_sockets, "control_folders", only)
    with pytest.raises(OSError, match="not private"):
        place_control_socket({}, LAUNCH)
    assert find_control_socket({}, LAUNCH) is None
    assert list_stale_sockets({}) == []


def test_a_path_too_long_for_a_socket_is_passed_over(runtime: Path) -> None:
    deep = runtime / ("x" * 90)
    deep.mkdir()
    path = place_control_socket(environ(deep), LAUNCH)
    assert deep not in path.parents


def test_only_an_old_socket_without_listener_is_stale(runtime: Path) -> None:
    path = place_control_socket(environ(runtime), LAUNCH)
    stray = path.with_name("notes.txt")
    stray.touch()
    os.utime(stray, (1, 1))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert path not in list_stale_sockets(environ(runtime)), "it may be about to listen"
        os.utime(path, (1, 1))
        assert path in list_stale_sockets(environ(runtime))
        listener.listen()
        assert path not in list_stale_sockets(environ(runtime))
    found = [one for one in list_stale_sockets(environ(runtime)) if runtime in one.parents]
    assert found == [path]


@pytest.mark.parametrize("below", ["", "sandboxed-mcp"])
def test_no_mount_ever_holds_the_folder_even_before_it_is_there(runtime: Path, below: str) -> None:
    source = runtime / below
    source.mkdir(exist_ok=True)
    source.chmod(0o755)
    host = read_host({**environ(runtime), "HOME": "/nonexistent"})
    mount = Mount(source=str(source), target="/data")
    with pytest.raises(RefusedError, match="through which a server leaves its sandbox"):
        resolve_mount(mount, runtime, host, "0:0")
