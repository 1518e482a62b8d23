"""A mount whose source was swapped is told from what the kernel says it mounted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.config.mountinfo import parse_mountinfo
from sandboxed_mcp.config.resolved import ResolvedMount
from sandboxed_mcp.sandbox.mounted import compare_mounts, find_moved

if TYPE_CHECKING:
    from pathlib import Path

OURS = parse_mountinfo(
    "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
    "23 22 0:21 / /proc rw - proc proc rw\n"
    "40 22 254:1 /volumes/a /srv/with\\040space rw shared:1 - ext4 /dev/vdb rw\n"
)


def mount(source: str, target: str = "/data") -> ResolvedMount:
    return ResolvedMount(source, target, read_only=True, relabel=None, written=source)


def compare(source: str, device: str, root: str, point: str = "/data") -> list[str]:
    theirs = parse_mountinfo(f"90 80 {device} {root} {point} ro - ext4 /dev/vda rw\n")
    return list(compare_mounts([mount(source)], OURS, theirs))


@pytest.mark.parametrize(
    ("source", "device", "root"),
    [
        ("/home/me/notes", "254:0", "/home/me/notes"),
        ("/srv/with space/x", "254:1", "/volumes/a/x"),
        ("/srv/with space", "254:1", "/volumes/a"),
    ],
)
def test_mount_of_what_was_checked_has_no_difference(source: str, device: str, root: str) -> None:
    assert compare(source, device, root) == []


@pytest.mark.parametrize(
    ("source", "device", "root"),
    [
        ("/home/me/notes", "254:0", "/etc"),
        ("/home/me/notes", "254:1", "/home/me/notes"),
        ("/srv/with space/x", "254:0", "/srv/with\\040space/x"),
        ("/home/me/notes", "254:0", "/home/me/notes//deleted"),
    ],
)
def test_mount_of_something_else_is_named(source: str, device: str, root: str) -> None:
    (difference,) = compare(source, device, root)
    assert difference.startswith("the mount at /data shows '")
    assert difference.endswith(f"not '{source}'")


def test_mount_that_is_not_there_is_named() -> None:
    (difference,) = compare("/home/me", "254:0", "/home/me", point="/elsewhere")
    assert difference == "the mount at /data cannot be found again"


def test_source_that_became_a_link_is_named(tmp_path: Path) -> None:
    real = tmp_path.resolve() / "data"
    real.mkdir()
    assert list(find_moved([mount(str(real))])) == []
    real.rmdir()
    real.symlink_to("/etc")
    (difference,) = find_moved([mount(str(real))])
    assert difference == f"mount source '{real}' has become a link to '/etc' since it was checked"
