"""Promise *closed*: what cannot be used or enforced stops the launch, and is named."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from sandboxed_mcp import ServerConfig, open_sandbox
from sandboxed_mcp.config.resolve import resolve_server
from sandboxed_mcp.errors import ConfigError, SandboxError
from tests.hostile.arena import RUN, containers_named

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.hostile.arena import Arena, Hostile

UNKNOWN = f"{RUN}-nothing-may-start"

SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "an_unknown_key": ({"netowrk": "none"}, "netowrk"),
    "an_unknown_policy_key": ({"policy": {"egres": []}}, "egres"),
    "an_unknown_limit": ({"policy": {"limits": {"memroy": "1GiB"}}}, "memroy"),
    "a_limit_without_unit": ({"policy": {"limits": {"memory": "512M"}}}, "memory"),
    "a_limit_of_nothing": ({"policy": {"limits": {"pids": 0}}}, "pids"),
    "endless_cpus": ({"policy": {"limits": {"cpus": "unlimited"}}}, "cpus"),
    "a_negative_timeout": ({"policy": {"limits": {"start_timeout": -1}}}, "start_timeout"),
    "scratch_beyond_memory": (
        {"policy": {"limits": {"memory": "16MiB", "scratch": "32MiB"}}},
        "scratch",
    ),
    "a_rule_for_everything": ({"policy": {"egress": ["*"]}}, "egress"),
    "a_rule_for_a_top_level_domain": ({"policy": {"egress": ["*.com"]}}, "egress"),
    "a_rule_for_every_address": ({"policy": {"egress": ["0.0.0.0/0:443/tcp"]}}, "egress"),
    "a_rule_with_a_newline": ({"policy": {"egress": ["a.example.com\nb.test"]}}, "egress"),
    "root_without_saying_so": ({"policy": {"user": "0"}}, "user"),
    "a_user_by_name": ({"policy": {"user": "root"}}, "user"),
    "a_policy_that_is_not_there": ({"policy": "no-such-policy"}, "policy"),
    "a_target_with_dots": (
        {"mounts": [{"source": "/usr/share/doc", "target": "/data/../etc"}]},
        "target",
    ),
    "a_relative_target": ({"mounts": [{"source": "/usr/share/doc", "target": "data"}]}, "target"),
    "the_root_as_target": ({"mounts": [{"source": "/usr/share/doc", "target": "/"}]}, "target"),
    "proc_as_target": ({"mounts": [{"source": "/usr/share/doc", "target": "/proc/1"}]}, "target"),
    "etc_as_target": ({"mounts": [{"source": "/usr/share/doc", "target": "/etc"}]}, "target"),
    "the_secrets_as_target": (
        {"mounts": [{"source": "/usr/share/doc", "target": "/run/secrets"}]},
        "target",
    ),
    "an_unknown_mount_mode": (
        {"mounts": [{"source": "/usr/share/doc", "target": "/d", "mode": "rwx"}]},
        "mode",
    ),
    "a_working_directory_in_proc": ({"cwd": "/proc/self/fd/8"}, "cwd"),
    "a_working_directory_with_dots": ({"cwd": "/tmp/../proc"}, "cwd"),
    "a_missing_secret": ({"secrets": ["NO_SUCH_SECRET_HERE"]}, "secrets"),
    "a_variable_with_a_newline": ({"env": {"A\nB": "x"}}, "env"),
    "a_placeholder": ({"env": {"A": "${HOME}"}}, "env"),
}  # fmt: skip

ENGINE_LACKS: dict[str, tuple[dict[str, Any], str]] = {
    "a_runtime": ({"policy": {"runtime": "no-such-runtime"}}, "policy.runtime"),
    "so_many_processors": ({"policy": {"limits": {"cpus": 1000}}}, "policy.limits.cpus"),
}

SOURCES: dict[str, str] = {
    "the_root": "/",
    "proc": "/proc",
    "sys": "/sys",
    "dev": "/dev",
    "a_device": "/dev/null",
    "etc": "/etc",
    "the_password_file": "/etc/passwd",
    "run": "/run",
    "var_run": "/var/run",
    "the_engines_socket": "/var/run/docker.sock",
    "the_engines_data": "/var/lib/docker",
    "home": "~",
    "tmp_as_a_whole": "/tmp",
    "what_is_not_there": "/no/such/folder",
    "a_file_of_another_process": "/proc/self/environ",
}


def refusal(make: Callable[[], ServerConfig]) -> SandboxError:
    """The error that stops a launch."""

    async def launch() -> None:
        async with open_sandbox(make()):
            pytest.fail("it was started")

    with pytest.raises(SandboxError) as caught:
        anyio.run(launch)
    return caught.value


def check_refused(hostile: Hostile, named: str) -> SandboxError:
    error = refusal(lambda: hostile.config)
    assert named in str(error)
    assert hostile.containers() == []
    return error


@pytest.mark.claim("closed")
@pytest.mark.parametrize("case", SETTINGS.values(), ids=SETTINGS)
def test_bad_setting_stops_the_launch_by_name(
    arena: Arena, case: tuple[dict[str, Any], str]
) -> None:
    settings, named = case
    error = check_refused(arena.hostile(**settings), named)
    assert isinstance(error, ConfigError)
    assert error.fix


@pytest.mark.claim("closed")
@pytest.mark.parametrize("case", ENGINE_LACKS.values(), ids=ENGINE_LACKS)
def test_setting_that_this_engine_cannot_enforce_is_named(
    arena: Arena, case: tuple[dict[str, Any], str]
) -> None:
    check_refused(arena.hostile(**case[0]), case[1])


@pytest.mark.claim("closed")
@pytest.mark.parametrize("case", ENGINE_LACKS.values(), ids=ENGINE_LACKS)
def test_setting_that_this_engine_cannot_enforce_stops_the_launch(
    arena: Arena, case: tuple[dict[str, Any], str]
) -> None:
    check_refused(arena.hostile(**case[0]), "the engine refused")


@pytest.mark.claim("closed")
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_source_that_opens_the_host_stops_the_launch(arena: Arena, source: str, mode: str) -> None:
    mounts = [{"source": source, "target": "/data", "mode": mode}]
    check_refused(arena.hostile(mounts=mounts), "mounts[1].source")


@pytest.mark.claim("closed")
@pytest.mark.parametrize("target", ["/etc", "/", "/var/run/docker.sock", "/proc/1/root"])
@pytest.mark.parametrize("relative", [False, True])
def test_link_to_a_refused_place_is_refused(
    arena: Arena, tmp_path: Path, target: str, *, relative: bool
) -> None:
    link = tmp_path / "innocent"
    link.symlink_to(os.path.relpath(target, tmp_path) if relative else target)
    check_refused(arena.hostile(mounts=[{"source": str(link), "target": "/data"}]), str(link))


@pytest.mark.claim("closed")
def test_path_through_a_linked_folder_is_refused(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to("/etc")
    source = str(tmp_path / "folder" / "ssl")
    check_refused(arena.hostile(mounts=[{"source": source, "target": "/data"}]), source)


@pytest.mark.claim("closed")
def test_pipe_is_refused(arena: Arena, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    source = str(tmp_path / "pipe")
    check_refused(arena.hostile(mounts=[{"source": source, "target": "/data"}]), "a pipe")


@pytest.mark.claim("closed")
@pytest.mark.parametrize("depth", [1, 3])
def test_folder_that_holds_a_socket_is_refused(arena: Arena, tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*"abc"[: depth - 1])
    folder.mkdir(parents=True, exist_ok=True)
    tmp_path.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as server:
        # The path of a socket is short: bind from within.
        here = os.open(folder, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/s")
        os.close(here)
        server.listen()
        mounts = [{"source": str(tmp_path), "target": "/data"}]
        check_refused(arena.hostile(mounts=mounts), "socket")


@pytest.mark.claim("closed")
def test_source_swapped_for_a_link_after_the_check_is_not_followed(
    arena: Arena, tmp_path: Path
) -> None:
    source = tmp_path / "data"
    source.mkdir()
    hostile = arena.hostile(tag="swap", mounts=[{"source": str(source), "target": "/data"}])
    resolved = resolve_server(hostile.config, environ=os.environ)
    source.rmdir()
    source.symlink_to("/etc")
    seen: list[str] = []

    async def launch() -> None:
        async with open_sandbox(resolved) as sandbox:
            seen.append(sandbox.container)

    with pytest.raises(SandboxError):
        anyio.run(launch)
    assert seen == []


@pytest.mark.claim("closed")
@pytest.mark.parametrize("what", ["settings", "policy"])
def test_writable_mount_may_not_hold_the_configuration(arena: Arena, what: str) -> None:
    folder = arena.folder / f"own-{what}"
    folder.mkdir()
    folder.chmod(0o777)
    policy = folder / "policy.toml"
    policy.write_text("egress = []\n", encoding="utf-8")
    mounts = [{"source": str(folder), "target": "/data", "mode": "rw"}]
    hostile = arena.hostile(mounts=mounts)
    if what == "policy":
        hostile.table["policy"] = str(policy)
        check_refused(hostile, "policy.toml")
        return
    moved = type(hostile)(hostile.name, hostile.table, folder)
    done = subprocess.run(moved.argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert str(moved.file) in done.stderr
    assert hostile.containers() == []


@pytest.mark.claim("closed")
def test_command_line_refuses_as_the_library_does(arena: Arena) -> None:
    hostile = arena.hostile(policy={"egres": ["api.example.com"]})
    done = subprocess.run(
        hostile.argv, capture_output=True, text=True, check=False, timeout=60, input=""
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "egres" in done.stderr
    assert str(hostile.file) in done.stderr
    assert "Traceback" not in done.stderr
    assert containers_named(hostile.name) == []


@pytest.mark.claim("closed")
def test_image_that_is_not_there_stops_the_launch_and_is_not_pulled(arena: Arena) -> None:
    image = f"{RUN}-no-such-image:latest"
    error = check_refused(arena.hostile(image=image), image)
    assert "docker pull" in str(error)


@pytest.mark.claim("closed", twin=True)
def test_same_server_with_good_settings_starts(arena: Arena, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path)
    mounts = [{"source": str(tmp_path / "link"), "target": "/data"}]
    with arena.hostile(mounts=mounts, env={"A": "x"}, cwd="/data").open() as wire:
        assert wire.probe("insight.identity")["cwd"] == "/data"


@pytest.mark.claim("closed")
@pytest.mark.parametrize(
    ("mount", "named"),
    [
        (["-t", "proc", "none"], "a file system of the kernel (proc)"),
        (["--bind", "/etc"], "/etc of the system at another path"),
    ],
    ids=["proc", "etc"],
)
def test_place_of_the_system_at_another_path_is_refused(
    arena: Arena, tmp_path: Path, mount: list[str], named: str
) -> None:
    point = tmp_path / "innocent"
    point.mkdir()
    subprocess.run(["mount", *mount, str(point)], check=True)
    try:
        mounts = [{"source": str(point), "target": "/data"}]
        check_refused(arena.hostile(mounts=mounts), named)
    finally:
        subprocess.run(["umount", str(point)], check=True)
