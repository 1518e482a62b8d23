from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.engine.images.recipes import (
    IMAGE_NAMES,
    RECIPES,
    build_order,
    find_images_folder,
    read_recipe,
)
from sandboxed_mcp.engine.images.root import parse_index_targets
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def add_dockerfile(folder: Path) -> Path:
    (folder / "base").mkdir(parents=True)
    (folder / "base" / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\n")
    return folder


def test_every_image_comes_after_what_it_stands_on() -> None:
    order = build_order(IMAGE_NAMES)

    assert sorted(order) == sorted(IMAGE_NAMES)
    for name in order:
        for base in RECIPES[name].bases.values():
            assert order.index(base) < order.index(name)


def test_asking_for_one_image_takes_only_what_it_stands_on() -> None:
    assert build_order(["notes"]) == ("base", "python", "notes")
    assert build_order(["base"]) == ("base",)


def test_an_unknown_image_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no image 'pyhton'; choose from base, python, node"):
        build_order(["pyhton"])


def test_the_folder_of_a_checkout_is_beside_the_package(tmp_path: Path) -> None:
    images = add_dockerfile(tmp_path / "images")

    assert find_images_folder(tmp_path / "sandboxed_mcp") == images


def test_the_folder_of_an_installed_package_is_inside_and_wins(tmp_path: Path) -> None:
    add_dockerfile(tmp_path / "images")
    inside = add_dockerfile(tmp_path / "sandboxed_mcp" / "_images")

    assert find_images_folder(tmp_path / "sandboxed_mcp") == inside


def test_missing_dockerfiles_are_an_error_that_names_both_places(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"_images or .*images; install the package again"):
        find_images_folder(tmp_path / "sandboxed_mcp")


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_every_recipe_declares_each_base_as_an_argument(name: str) -> None:
    dockerfile = read_recipe(name)["Dockerfile"].decode()

    for argument in RECIPES[name].bases or {"BASE": ""}:
        assert f"ARG {argument}\n" in dockerfile
        assert f"FROM ${{{argument}}}" in dockerfile


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_the_last_stage_never_copies_build_material(name: str) -> None:
    dockerfile = read_recipe(name)["Dockerfile"].decode()

    last_stage = dockerfile.rpartition("\nFROM ")[2]
    assert ".build" not in last_stage


def test_the_gateway_gets_the_shared_modules_and_no_host_code() -> None:
    files = read_recipe("gateway")

    assert "sandboxed_mcp/errors.py" in files
    assert "sandboxed_mcp/events.py" in files
    parts = {path.split("/")[1] for path in files if path.startswith("sandboxed_mcp/")}
    assert parts <= {"__init__.py", "errors.py", "events.py", "egress", "gateway"}


def test_mirrors_are_taken_for_this_release_only() -> None:
    listing = (
        "http://mirror.example/debian/ bookworm main\n"
        "http://mirror.example/debian/ bookworm contrib\n"
        "https://mirror.example/security/ bookworm-security main\n"
        "http://mirror.example/debian/ trixie main\n"
        "https://vendor.example/apt/ vendor-bookworm main\n"
        "file:/srv/debian/ bookworm main\n"
        "nonsense\n"
    )

    assert parse_index_targets(listing) == [
        "deb http://mirror.example/debian/ bookworm main",
        "deb https://mirror.example/security/ bookworm-security main",
    ]
