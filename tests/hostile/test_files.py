"""Promise *files*: the image read-only, bounded scratch space, the declared mounts, no more."""

from __future__ import annotations

import os
import secrets
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.hostile.test_closed import check_refused

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from tests.hostile.arena import Arena
    from tests.hostile.wire import Wire

SCRATCH = {"/tmp", "/dev/shm", "/dev/mqueue"}
OPEN_TO_ALL = "/proc/pressure/"
"""Linux opens these for writing to everyone (6.4): a trigger lives as long as its descriptor, and
changes nothing."""

UNPRIVILEGED = 65532
USERS = {"unprivileged": "65532:65532", "root": "0:0"}


def make_data(folder: Path, owner: int) -> Path:
    """A folder of the host with a file in it, both owned by the server's user."""
    folder.mkdir()
    file = folder / "file"
    file.write_text("of the host", encoding="utf-8")
    file.chmod(0o666)
    for path in (folder, file):
        os.chown(path, owner, owner)
    return folder


@pytest.fixture(scope="module", params=USERS.values(), ids=list(USERS))
def mounted(
    arena: Arena, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Wire]:
    """A fresh sandbox with a read-only and a writable mount, as either user."""
    user: str = request.param
    uid = int(user.partition(":")[0])
    base = tmp_path_factory.mktemp("mounted")
    mounts = [
        {"source": str(make_data(base / "ro", uid)), "target": "/ro"},
        {"source": str(make_data(base / "rw", uid)), "target": "/rw", "mode": "rw"},
    ]
    with arena.hostile(tag="files", mounts=mounts, policy={"user": user}).open() as wire:
        yield wire


def below(paths: list[str], places: set[str]) -> set[str]:
    """The places that hold the paths; a path that none of them holds stands for itself."""
    longest = sorted(places, key=len, reverse=True)
    holds = {path: [p for p in longest if path == p or path.startswith(p + "/")] for path in paths}
    return {next(iter(held), path) for path, held in holds.items()}


@pytest.mark.claim("files")
def test_nothing_is_writable_but_scratch_and_the_writable_mount(
    mounted: Wire, request: pytest.FixtureRequest
) -> None:
    expected = SCRATCH | {"/rw"}
    if "root" in request.node.callspec.id:
        expected |= {"/dev"}  # a tmpfs of the engine's own, charged to the memory limit
    found = mounted.probe("insight.writable_places", seconds=90)
    assert below(found["created"], expected) == expected
    assert found["opened"] == ["/rw/file"]


@pytest.mark.claim("files", twin=True)
def test_plain_container_is_writable(outside: Wire) -> None:
    found = outside.probe("insight.writable_places", "/etc")
    assert "/etc" in found["created"]
    assert "/etc/passwd" in found["opened"]


@pytest.mark.claim("files")
@pytest.mark.parametrize("root", ["/proc", "/sys"])
def test_no_file_of_the_kernel_opens_for_writing(mounted: Wire, outside: Wire, root: str) -> None:
    found = mounted.probe("insight.writable_kernel_files", root, seconds=90)
    assert [path for path in found if not path.startswith(OPEN_TO_ALL)] == []
    assert outside.probe("insight.writable_kernel_files", root, seconds=90) != []


@pytest.mark.claim("files")
def test_read_only_mount_resists_every_change(mounted: Wire) -> None:
    outcome = mounted.probe("insight.modify", "/ro/file")
    assert set(outcome.values()) <= {"Read-only file system", "Operation not permitted"}
    assert mounted.probe("insight.read", "/ro/file") == "of the host"


@pytest.mark.claim("files", twin=True)
def test_writable_mount_takes_changes(mounted: Wire) -> None:
    assert mounted.probe("insight.write_text", "/rw/new", "from inside") == "ok"
    outcome = mounted.probe("insight.modify", "/rw/new")
    assert {name for name, said in outcome.items() if said == "ok"} >= {"write", "rename", "chmod"}


@pytest.mark.claim("files")
def test_mounts_are_the_declared_ones_with_safe_options(mounted: Wire) -> None:
    mounts = mounted.probe("insight.mounts")
    ours = {m for m in mounts if not m.startswith(("/proc", "/sys", "/dev"))}
    engines = {"/etc/resolv.conf", "/etc/hostname", "/etc/hosts"}
    engines |= {"/sbin/docker-init", "/usr/sbin/docker-init"}
    assert ours - engines == {"/", "/tmp", "/attack", "/ro", "/rw"}
    assert "ro" in mounts["/"]
    assert "ro" in mounts["/ro"]
    assert "ro" in mounts["/attack"]
    assert {"rw", "nosuid", "nodev"} <= set(mounts["/tmp"])


@pytest.mark.claim("files")
@pytest.mark.parametrize("file", ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"])
def test_file_that_the_engine_mounts_resists_every_change(mounted: Wire, file: str) -> None:
    assert "ok" not in mounted.probe("insight.modify", file).values()


@pytest.mark.claim("files")
def test_file_of_the_host_is_nowhere_to_be_found(inside: Wire, arena: Arena) -> None:
    name = f"canary-{secrets.token_hex(8)}"
    path = arena.folder / name
    path.write_text("secret", encoding="utf-8")
    assert inside.probe("insight.find_name", name, seconds=90) == []
    for route in ("/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../.."):
        assert inside.probe("insight.read", f"{route}{path}").startswith("!")
    with arena.open_exposed("-v", f"{arena.folder}:/host:ro", "--user=0") as exposed:
        assert exposed.probe("insight.find_name", name) == [f"/host/{name}"]


@pytest.mark.claim("files")
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_link_inside_a_mount_does_not_lead_out(
    arena: Arena, tmp_path: Path, mode: str, *, relative: bool
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host", encoding="utf-8")
    data = make_data(tmp_path / "data", UNPRIVILEGED)
    link = data / "link"
    link.symlink_to("../secret" if relative else secret)
    assert link.read_text(encoding="utf-8") == "of the host"
    mounts = [{"source": str(data), "target": "/data", "mode": mode}]
    with arena.hostile(tag="link", mounts=mounts).open() as wire:
        assert wire.probe("insight.read", "/data/link").startswith("!")
        assert wire.probe("insight.read", "/data/../data/../../../secret").startswith("!")
        assert wire.probe("insight.read", "/data/file") == "of the host"


@pytest.mark.claim("files")
def test_link_that_a_server_planted_is_refused_at_the_next_launch(
    arena: Arena, tmp_path: Path
) -> None:
    data = make_data(tmp_path / "data", UNPRIVILEGED)
    mounts = [{"source": str(data), "target": "/data", "mode": "rw"}]
    with arena.hostile(tag="plant", mounts=mounts).open() as wire:
        assert wire.probe("insight.make_link", "/data/sub", "/etc") == "ok"
    assert (data / "sub").is_symlink()
    next_one = arena.hostile(mounts=[{"source": str(data / "sub"), "target": "/data"}])
    assert "/etc" in str(check_refused(next_one, "mounts[1].source"))


@pytest.mark.claim("files")
def test_source_inside_a_writable_mount_is_refused(arena: Arena, tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", UNPRIVILEGED)
    sub = make_data(data / "sub", UNPRIVILEGED)
    mounts = [
        {"source": str(data), "target": "/data", "mode": "rw"},
        {"source": str(sub), "target": "/sub"},
    ]
    check_refused(arena.hostile(mounts=mounts), "].source")


@pytest.fixture
def nested_mount(tmp_path: Path) -> Iterator[Path]:
    """A folder of the host with another file system mounted in it."""
    data = make_data(tmp_path / "data", UNPRIVILEGED)
    inner = data / "inner"
    inner.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(inner)], check=True)
    yield data
    subprocess.run(["umount", str(inner)], check=True)


@pytest.mark.claim("files")
def test_folder_that_holds_another_file_system_is_refused(arena: Arena, nested_mount: Path) -> None:
    mounts = [{"source": str(nested_mount), "target": "/data"}]
    check_refused(arena.hostile(mounts=mounts), "another file system")


@pytest.mark.claim("files")
def test_no_descriptor_of_the_host_leaked_in(inside: Wire, arena: Arena) -> None:
    held = inside.probe("insight.open_descriptors")
    harmless = ("pipe:", "anon_inode:", "socket:", "/dev/null", "/proc", "/attack")
    assert [one for one in held if not one.startswith(harmless)] == []
    with arena.open_exposed("--workdir=/etc") as exposed:
        assert exposed.probe("insight.identity")["cwd"] == "/etc"


@pytest.mark.claim("files")
def test_what_one_sandbox_writes_the_next_does_not_see(arena: Arena) -> None:
    hostile = arena.hostile(tag="again")
    for place in ("/tmp/left", "/dev/shm/left"):
        with hostile.open() as first:
            assert first.probe("insight.write_text", place, "x") == "ok"
            assert first.probe("insight.read", place) == "x"
        hostile.wait_gone()
        with hostile.open() as second:
            assert second.probe("insight.read", place).startswith("!")
        hostile.wait_gone()
