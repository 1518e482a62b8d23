"""Which sandbox a word stands for, whose it is, and what is left of a dead launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.cli.logs import read_secrets
from sandboxed_mcp.cli.sandboxes import (
    RunningSandbox,
    belongs_to_caller,
    find_sandboxes,
    list_servers,
    render_network,
    render_uptime,
    uptime_seconds,
)
from sandboxed_mcp.engine.api import Engine
from sandboxed_mcp.engine.dial import Endpoint
from sandboxed_mcp.engine.orphans import find_secret_orphans, judge_owner
from sandboxed_mcp.engine.owner import describe_owner
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from sandboxed_mcp.engine.orphans import OwnerState

LOCAL = Engine(Endpoint("unix:///run/docker.sock", "default socket"), "1.41")
REMOTE = Engine(Endpoint("ssh://host", "DOCKER_HOST"), "1.41")
OWN = describe_owner()
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def sandbox(
    server: str, launch: str, *, owner: str = OWN, state: OwnerState = "alive"
) -> RunningSandbox:
    return RunningSandbox(
        server=server,
        launch=launch.ljust(32, "0"),
        role="server",
        container="c" + launch,
        owner=owner,
        owner_state=state,
        state="running",
        image="sha256:1",
        network="none",
        started=NOW - timedelta(seconds=61),
        found={},
    )


RUNNING = [
    sandbox("notes", "aaaa1"),
    sandbox("notes", "aaaa2"),
    sandbox("time", "bbbb1"),
    sandbox("aaaa", "cccc1"),
]


@pytest.mark.parametrize(
    ("word", "launches"),
    [("notes", ["aaaa1", "aaaa2"]), ("aaaa1", ["aaaa1"]), ("bbbb", ["bbbb1"]), ("time", ["bbbb1"])],
)
def test_a_name_or_a_beginning_finds_its_sandboxes(word: str, launches: list[str]) -> None:
    found = find_sandboxes(word, RUNNING)
    assert [one.launch.rstrip("0") for one in found] == launches


@pytest.mark.parametrize(
    "word", ["", "a", "bbb", "BBBB", "dddd", "bbbb%", "*", "note", "-", "0" * 33]
)
def test_a_word_that_stands_for_nothing_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="no sandbox"):
        find_sandboxes(word, RUNNING)


def test_an_ambiguous_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than one launch"):
        find_sandboxes("aaaa", RUNNING)
    with pytest.raises(ConfigError, match="more than one launch"):
        find_sandboxes("aaaa", RUNNING[:2])


def test_a_pod_is_one_sandbox() -> None:
    server = replace(RUNNING[0], network="container:123")
    gateway = replace(server, role="gateway", container="g", network="bridge")
    starting = replace(gateway, launch="d" * 32)
    assert list_servers([gateway, server, starting]) == [server, starting]
    shown = [render_network(one) for one in (RUNNING[0], server, starting)]
    assert shown == ["none", "rules", "gateway only"]
    assert find_sandboxes("notes", [gateway, server]) == [gateway, server]


def test_what_cannot_be_judged_is_not_the_callers() -> None:
    assert belongs_to_caller(RUNNING[0], os.getuid())
    assert not belongs_to_caller(RUNNING[0], os.getuid() + 1)
    assert not belongs_to_caller(sandbox("n", "1", state="elsewhere"), os.getuid())
    assert belongs_to_caller(sandbox("n", "1", state="gone"), os.getuid() + 1)


def test_an_owner_is_judged_only_from_its_own_machine() -> None:
    machine, boot, namespace, pid, start = OWN.split("/")
    assert judge_owner(OWN, LOCAL) == "alive"
    assert judge_owner(f"{machine}/{boot}/{namespace}/{pid}/1", LOCAL) == "gone"
    assert judge_owner(f"{machine}/x/{namespace}/{pid}/{start}", LOCAL) == "gone"
    for elsewhere in (
        f"other/{boot}/{namespace}/{pid}/1",
        f"{machine}/{boot}/1/{pid}/1",
        "",
        "////",
        "a/b",
        OWN + "/x",
    ):
        assert judge_owner(elsewhere, LOCAL) == "elsewhere"


def test_another_boot_is_not_judged_on_a_remote_engine() -> None:
    machine, _, namespace, pid, start = OWN.split("/")
    copy = f"{machine}/another-boot/{namespace}/{pid}/{start}"
    assert judge_owner(copy, REMOTE) == "elsewhere"


def test_uptime_is_never_negative_and_reads_well() -> None:
    assert uptime_seconds(RUNNING[0], NOW) == 61
    assert uptime_seconds(RUNNING[0], NOW - timedelta(days=1)) == 0
    shown = [render_uptime(s) for s in (None, 0, 59, 61, 3661, 90061)]
    assert shown == ["-", "0s", "59s", "1m 01s", "1h 01m", "1d 01h"]


def dead_owner() -> str:
    program = "from sandboxed_mcp.engine.owner import describe_owner; print(describe_owner())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def make_folder(place: Path, name: str, owner: str | None, mode: int = 0o700) -> Path:
    folder = place / name
    folder.mkdir(mode=0o700)
    if owner is not None:
        (folder / "owner").write_text(owner)
    folder.chmod(mode)
    return folder


def test_only_a_private_folder_of_a_dead_launcher_is_an_orphan(tmp_path: Path) -> None:
    dead = dead_owner()
    orphan = make_folder(tmp_path, "sandboxed-mcp-dead", dead)
    make_folder(tmp_path, "sandboxed-mcp-alive", OWN)
    make_folder(tmp_path, "sandboxed-mcp-new", None)
    make_folder(tmp_path, "sandboxed-mcp-open", dead, 0o755)
    make_folder(tmp_path, "other-dead", dead)
    (tmp_path / "sandboxed-mcp-link").symlink_to(orphan)
    linked = make_folder(tmp_path, "sandboxed-mcp-inner", None)
    (linked / "owner").symlink_to(orphan / "owner")
    os.mkfifo(make_folder(tmp_path, "sandboxed-mcp-pipe", None) / "owner")
    found = [one.place for one in find_secret_orphans([tmp_path, tmp_path / "missing"])]
    assert found == [str(orphan)]


def test_secrets_of_a_running_server_are_read_for_redaction(tmp_path: Path) -> None:
    (tmp_path / "FILE").write_bytes(b"in a file\xff")
    found = {
        "Config": {"Labels": {"sandboxed-mcp.secrets": "A,B"}, "Env": ["A=one=1", "HOME=/tmp"]},
        "Mounts": [{"Destination": "/run/secrets", "Source": str(tmp_path)}],
    }
    assert read_secrets(found, local=True) == ({"A": "one=1", "FILE": "in a file\udcff"}, "")
    assert read_secrets(found, local=False) == ({"A": "one=1"}, "/run/secrets")


def test_secret_files_that_cannot_be_read_are_told() -> None:
    mount = {"Destination": "/run/secrets", "Source": "/nonexistent/folder"}
    found = {"Config": {"Labels": None, "Env": None}, "Mounts": [mount]}
    assert read_secrets(found, local=True) == ({}, "/run/secrets")
