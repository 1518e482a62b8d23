from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.engine.images.context import Build, pack_context, read_folder
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

DOCKERFILE = {"Dockerfile": b"ARG BASE\nFROM ${BASE}\n"}
names = st.text("abcXYZ0189._-", min_size=1, max_size=8).map(lambda name: f"f{name}")
trees = st.dictionaries(names, st.binary(max_size=20), max_size=4)


def build(files: dict[str, bytes] | None = None, base: str = "base:1", name: str = "x") -> Build:
    return Build(name=name, files={**DOCKERFILE, **(files or {})}, bases={"BASE": base})


def test_the_key_is_twelve_hex_digits_and_part_of_the_reference() -> None:
    key = build().key

    assert len(key) == 12
    assert set(key) <= set("0123456789abcdef")
    assert build().reference == f"sandboxed-mcp/x:{key}"


@given(trees, trees)
def test_the_key_differs_exactly_when_the_files_differ(
    one: dict[str, bytes], two: dict[str, bytes]
) -> None:
    assert (build(one).key == build(two).key) == (one == two)


@given(trees)
def test_the_order_of_the_files_does_not_matter(files: dict[str, bytes]) -> None:
    turned = dict(reversed(files.items()))

    assert build(files).key == build(turned).key
    assert pack_context(files) == pack_context(turned)


def test_what_the_image_stands_on_changes_the_key() -> None:
    assert build(base="base:1").key != build(base="base:2").key
    assert build().key != Build("x", DOCKERFILE, {"PYTHON": "base:1"}).key
    assert build().key != Build("x", DOCKERFILE, {}).key


def test_bytes_that_move_from_a_name_to_a_content_change_the_key() -> None:
    assert build({"ab": b"c"}).key != build({"a": b"bc"}).key
    assert build({"a": b"", "b": b""}).key != build({"a": b"b"}).key


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", ""])
def test_a_path_that_leaves_the_context_or_is_spelled_oddly_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="image x"):
        build({path: b""})


def test_the_folder_for_build_material_is_reserved() -> None:
    with pytest.raises(ConfigError, match=r"'\.build/pip\.conf' is reserved"):
        build({".build/pip.conf": b""})


def test_a_context_without_a_dockerfile_is_refused() -> None:
    with pytest.raises(ConfigError, match="no Dockerfile"):
        Build("x", {"server.py": b""}, {})


def test_the_packed_context_holds_the_files_and_nothing_of_this_host() -> None:
    packed = pack_context({"run.sh": b"#!/bin/sh\n", "lib/a.py": b"a = 1\n"})

    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        entries = {entry.name: entry for entry in archive.getmembers()}
        assert {name: entry.mode for name, entry in entries.items()} == {
            "run.sh": 0o755,
            "lib/a.py": 0o644,
        }
        assert {(entry.uid, entry.uname, entry.mtime) for entry in entries.values()} == {(0, "", 0)}
        content = archive.extractfile("lib/a.py")
        assert content is not None
        assert content.read() == b"a = 1\n"


def test_a_folder_is_read_without_its_bytecode(tmp_path: Path) -> None:
    (tmp_path / "lib" / "__pycache__").mkdir(parents=True)
    (tmp_path / "lib" / "a.py").write_bytes(b"a = 1\n")
    (tmp_path / "lib" / "__pycache__" / "a.pyc").write_bytes(b"x")

    assert read_folder(tmp_path) == {"lib/a.py": b"a = 1\n"}


def test_a_link_in_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secrets").symlink_to("/etc/passwd")

    with pytest.raises(ConfigError, match="secrets is a link"):
        read_folder(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it is not a folder"):
        read_folder(tmp_path / "nothing")
