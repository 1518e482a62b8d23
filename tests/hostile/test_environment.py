"""Promise *env*: the server's environment is what is declared, and a documented minimum."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hostile.arena import IMAGE, docker

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.hostile.arena import Arena
    from tests.hostile.wire import Wire

MINIMUM = {"HOME", "HOSTNAME"}
CANARY = f"canary-{secrets.token_hex(8)}"
SENSITIVE = (
    "SSH_AUTH_SOCK",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "HTTPS_PROXY",
    "http_proxy",
    "NO_PROXY",
    "DOCKER_CERT_PATH",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "LANG",
    "LD_LIBRARY_PATH",
    "TERM",
)


@pytest.fixture(scope="module")
def image_environment() -> dict[str, str]:
    """What the image itself declares."""
    entries: list[str] | None = json.loads(
        docker("image", "inspect", "-f", "{{json .Config.Env}}", IMAGE)
    )
    return dict(entry.split("=", 1) for entry in entries or [])


@pytest.fixture(scope="module")
def laden(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Generator[Wire]:
    """A sandbox whose launcher's environment is full of what must not get in."""
    home = tmp_path_factory.mktemp("home")
    write_docker_settings(home)
    canaries = dict.fromkeys((*SENSITIVE, "CANARY"), CANARY)
    env = {**os.environ, **canaries, "DOCKER_CONFIG": str(home)}
    with arena.hostile(tag="env", env={"DECLARED": "yes", "EMPTY": ""}).open(env=env) as wire:
        yield wire


def write_docker_settings(folder: Path) -> None:
    """Docker's own command line would put these proxies into every container."""
    proxies = {"default": {"httpProxy": f"http://{CANARY}@198.51.100.1:3128"}}
    (folder / "config.json").write_text(json.dumps({"proxies": proxies}), encoding="utf-8")


@pytest.mark.claim("env")
def test_environment_is_exactly_what_is_declared(
    laden: Wire, image_environment: dict[str, str]
) -> None:
    routes = laden.probe("insight.environment_by_every_route")
    found = dict(entry.split("=", 1) for entry in routes["/proc/1/environ"])
    declared = {"DECLARED": "yes", "EMPTY": ""}
    assert set(found) - set(image_environment) == MINIMUM | set(declared)
    assert {name: found[name] for name in declared} == declared
    assert found["HOME"] == "/tmp"
    assert found["HOSTNAME"] == "sandbox"
    assert {name: found[name] for name in image_environment} == image_environment


@pytest.mark.claim("env")
def test_environment_is_the_same_by_every_route(laden: Wire) -> None:
    routes = laden.probe("insight.environment_by_every_route")
    assert {"os.environ", "/proc/1/environ", "/proc/self/environ"} <= set(routes)
    expected = set(routes["/proc/1/environ"])
    for route, entries in routes.items():
        # Python itself sets LC_CTYPE where there is no locale (PEP 538).
        assert {one for one in entries if not one.startswith("LC_CTYPE=")} == expected, route


@pytest.mark.claim("env")
def test_nothing_of_the_launchers_environment_is_found_anywhere(laden: Wire) -> None:
    routes = laden.probe("insight.environment_by_every_route")
    everything = json.dumps([routes, laden.probe("insight.command_lines")])
    assert CANARY not in everything
    assert not [name for name in (*SENSITIVE, "CANARY") if f'"{name}=' in everything]


@pytest.mark.claim("env", twin=True)
def test_plain_container_shows_what_is_passed_on(arena: Arena) -> None:
    with arena.open_exposed("-e", f"GITHUB_TOKEN={CANARY}") as exposed:
        routes = exposed.probe("insight.environment_by_every_route")
    assert f"GITHUB_TOKEN={CANARY}" in routes["/proc/1/environ"]


@pytest.mark.claim("env")
def test_command_line_of_the_first_process_holds_no_value_of_a_variable(arena: Arena) -> None:
    with arena.hostile(tag="argv", env={"DECLARED": CANARY}).open() as wire:
        lines = wire.probe("insight.command_lines")
        assert (
            f"DECLARED={CANARY}" in wire.probe("insight.environment_by_every_route")["os.environ"]
        )
    assert CANARY not in json.dumps(lines)
    assert any("/attack/server.py" in line for line in lines.values())


@pytest.mark.claim("env")
def test_variable_of_a_hostile_image_does_not_override_a_declared_one(arena: Arena) -> None:
    change = "ENV LD_PRELOAD=/nowhere.so HOME=/root DECLARED=image HOSTNAME=host"
    with arena.open_image(change) as image:
        settings = {"image": image, "env": {"DECLARED": "mine"}}
        with arena.hostile(tag="imageenv", **settings).open() as wire:
            entries = wire.probe("insight.environment_by_every_route")["os.environ"]
    assert {"DECLARED=mine", "HOME=/tmp", "HOSTNAME=sandbox"} <= set(entries)
    # What the image says of itself is part of the image, and stays inside.
    assert "LD_PRELOAD=/nowhere.so" in entries


@pytest.mark.claim("env")
@pytest.mark.parametrize("name", ["LD_PRELOAD", "DOCKER_HOST", "HTTPS_PROXY"])
def test_image_variable_never_reaches_the_launcher(arena: Arena, name: str) -> None:
    with (
        arena.open_image(f"ENV {name}={CANARY}") as image,
        arena.hostile(tag="preload", image=image).open() as wire,
    ):
        routes = wire.probe("insight.environment_by_every_route")
        assert f"{name}={CANARY}" in routes["os.environ"]
        assert CANARY.encode() not in Path(f"/proc/{wire.pid}/environ").read_bytes()
