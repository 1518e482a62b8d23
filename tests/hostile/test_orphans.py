"""Promise *orphans*: no container outlives its launcher, whatever either of them does."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio
import psutil
import pytest

from sandboxed_mcp import connect, open_sandbox
from tests.hostile.arena import GONE_SECONDS, RUN, docker, left_in, watchdogs_of
from tests.hostile.wire import Wire, open_wire, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.hostile.arena import Arena, Hostile

LAUNCHER = Path(__file__).with_name("launcher.py")
WATCHDOG_SECONDS = 45.0
"""A watchdog looks for late containers for some seconds after the last one is gone."""

SEED = 20_240_229
MOMENTS = 20
LONGEST_START = 1.6
AT_ONCE = 4


def send(number: int) -> Callable[[Wire], None]:
    return lambda wire: os.kill(wire.pid, number)


def close_stdin(wire: Wire) -> None:
    wire.close_stdin()


ENDS: dict[str, Callable[[Wire], None]] = {
    "sigkill": send(signal.SIGKILL),
    "sigterm": send(signal.SIGTERM),
    "sighup": send(signal.SIGHUP),
    "sigint": send(signal.SIGINT),
}
CLI_ENDS = {**ENDS, "the_end_of_stdin": close_stdin}


def stubborn(arena: Arena, tmp_path: Path, tag: str) -> tuple[Hostile, dict[str, str]]:
    """A server that ignores end of input and signals, with a secret file; its environment."""
    runtime = tmp_path / f"runtime-{tag}"
    runtime.mkdir(mode=0o700)
    secret = {"name": "KEY", "as": "file"}
    env = {**os.environ, "KEY": "not for long", "XDG_RUNTIME_DIR": str(runtime)}
    return arena.hostile("--stubborn", tag=tag, secrets=[secret]), env


def check_nothing_left(hostile: Hostile, launcher: int, env: dict[str, str]) -> None:
    hostile.wait_gone()
    wait_until(lambda: not watchdogs_of(launcher), WATCHDOG_SECONDS, "the watchdog's end")
    assert not list(Path(env["XDG_RUNTIME_DIR"]).glob("sandboxed-mcp-*")), "a secret folder"
    assert hostile.containers() == []


def script_argv(hostile: Hostile, *options: str) -> list[str]:
    return [sys.executable, str(LAUNCHER), str(hostile.file), hostile.name, *options]


@contextmanager
def open_script(
    hostile: Hostile, env: dict[str, str], *options: str
) -> Generator[tuple[Wire, list[str]]]:
    """A launcher on the library, with its sandbox open; what it said."""
    with open_wire(script_argv(hostile, *options), env=env) as wire:
        yield wire, wire.read_line().decode().split()


def end_command_line(arena: Arena, folder: Path, end: str) -> None:
    hostile, env = stubborn(arena, folder, f"cli-{end}")
    with hostile.open(env=env) as wire:
        assert hostile.containers()
        assert watchdogs_of(wire.pid)
        CLI_ENDS[end](wire)
        hostile.wait_gone()
        wire.wait(GONE_SECONDS)
        check_nothing_left(hostile, wire.pid, env)


def end_library(arena: Arena, folder: Path, end: str) -> None:
    hostile, env = stubborn(arena, folder, f"library-{end}")
    with open_script(hostile, env) as (wire, (container,)):
        assert hostile.containers() == [container]
        ENDS[end](wire)
        hostile.wait_gone()
        wire.wait(GONE_SECONDS)
        check_nothing_left(hostile, wire.pid, env)


Outcomes: TypeAlias = "dict[tuple[str, str], Future[None]]"


@pytest.fixture(scope="module")
def outcomes(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Every end of every kind of launcher, tried a few at a time: each takes seconds of waiting."""
    folder = tmp_path_factory.mktemp("ends")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = {
            ("cli", end): pool.submit(end_command_line, arena, folder, end) for end in CLI_ENDS
        }
        tried |= {("library", end): pool.submit(end_library, arena, folder, end) for end in ENDS}
    return tried


@pytest.mark.claim("orphans")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("end", CLI_ENDS)
def test_stubborn_server_is_gone_after_the_command_line_ended_by(
    outcomes: Outcomes, end: str
) -> None:
    outcomes["cli", end].result(0)


@pytest.mark.claim("orphans")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("end", ENDS)
def test_stubborn_server_is_gone_after_a_program_of_the_library_ended_by(
    outcomes: Outcomes, end: str
) -> None:
    outcomes["library", end].result(0)


@pytest.mark.claim("orphans", twin=True)
def test_plain_container_outlives_its_command_line(arena: Arena) -> None:
    name = f"{RUN}-orphan"
    words = ["docker", "run", "-i", "--rm", "--name", name, "--init", "--network=none"]
    words += ["-v", f"{arena.attack}:/attack:ro", "sandboxed-mcp/python:latest"]
    try:
        with open_wire([*words, "python3", "-u", "/attack/server.py", "--stubborn"]) as wire:
            wire.initialize()
            wire.process.kill()
            wire.wait(10)
        with pytest.raises(AssertionError, match="not within"):
            wait_until(lambda: not docker("ps", "-q", "--filter", f"name={name}"), 4, "its end")
    finally:
        docker("rm", "-fv", name)


@pytest.mark.claim("orphans", twin=True)
def test_container_lives_as_long_as_its_launcher(arena: Arena) -> None:
    hostile = arena.hostile(tag="lives")
    with hostile.open() as wire:
        container = hostile.container()
        with pytest.raises(AssertionError, match="not within"):
            wait_until(lambda: not hostile.containers(), 3, "its end")
        assert wire.call("say", text="here") == "said"
        assert hostile.containers() == [container]


@pytest.mark.claim("orphans")
def test_forked_child_that_holds_the_pipes_keeps_nothing_alive(
    arena: Arena, tmp_path: Path
) -> None:
    hostile, env = stubborn(arena, tmp_path, "fork")
    child = 0
    try:
        with open_script(hostile, env, "--fork") as (wire, words):
            child = int(words[1])
            wire.process.kill()
            wire.wait(10)
            assert psutil.pid_exists(child)
            hostile.wait_gone()
            assert psutil.pid_exists(child)
            check_nothing_left(hostile, wire.pid, env)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def kill_at(hostile: Hostile, delay: float) -> int:
    """Starts the command line and kills it after `delay` seconds; gives its process id."""
    with subprocess.Popen(
        hostile.argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        with suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        process.kill()
        process.wait(10)
        return process.pid


@pytest.mark.claim("orphans")
@pytest.mark.timeout(180)
def test_launcher_killed_at_random_moments_of_its_start_leaves_nothing(arena: Arena) -> None:
    moments = random.Random(SEED)  # noqa: S311 - to be repeated, not to be secret
    delays = [moments.uniform(0.05, LONGEST_START) for _ in range(MOMENTS)]
    servers = [arena.hostile("--stubborn", tag="moment") for _ in delays]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        launchers = list(pool.map(kill_at, servers, delays))
    for launcher in launchers:
        wait_until(lambda pid=launcher: not watchdogs_of(pid), WATCHDOG_SECONDS, "a watchdog's end")
    assert [server.containers() for server in servers] == [[]] * MOMENTS


@pytest.mark.claim("orphans", twin=True)
def test_a_start_takes_less_time_than_the_latest_of_those_moments(arena: Arena) -> None:
    # Were it never started, killing it would prove nothing.
    hostile = arena.hostile(tag="start")
    with hostile.open(start=False) as wire:
        assert wait_until(hostile.containers, 30, "a container") < 15
        wire.initialize()


@pytest.mark.claim("orphans")
def test_gc_leaves_the_sandboxes_of_live_launchers_alone(arena: Arena) -> None:
    hostile = arena.hostile(tag="kept")
    with hostile.open() as wire:
        gc = [sys.executable, "-m", "sandboxed_mcp", "gc"]
        done = subprocess.run(gc, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert wire.call("say", text="here") == "said"


@pytest.mark.claim("orphans")
@pytest.mark.timeout(180)
def test_twenty_at_once_all_answer_and_leave_nothing(arena: Arena) -> None:
    servers = [arena.hostile(tag="twenty") for _ in range(20)]
    started = threading.Barrier(10, timeout=90)

    def run_command_line(hostile: Hostile) -> str:
        with hostile.open() as wire:
            started.wait()
            return wire.call("say", text="here")

    async def run_library(hostile: Hostile, said: list[str]) -> None:
        async with connect(hostile.config) as client:
            result = await client.call_tool("say", {"text": "here"})
            said.append(str(result.content[0]))

    async def run_libraries(servers: list[Hostile]) -> list[str]:
        said: list[str] = []
        async with anyio.create_task_group() as tasks:
            for hostile in servers:
                tasks.start_soon(run_library, hostile, said)
        return said

    with ThreadPoolExecutor(11) as pool:
        library = pool.submit(anyio.run, run_libraries, servers[10:])
        assert list(pool.map(run_command_line, servers[:10])) == ["said"] * 10
        said = library.result(90)
    assert len(said) == 10
    assert all("said" in one for one in said)
    for hostile in servers:
        hostile.wait_gone()


@pytest.mark.claim("orphans")
@pytest.mark.timeout(180)
def test_opening_cancelled_at_random_moments_leaves_nothing(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "not for long")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    moments = random.Random(SEED)  # noqa: S311
    secret = {"name": "KEY", "as": "file"}
    servers = [arena.hostile(tag="cancel", secrets=[secret]) for _ in range(30)]
    opened: list[str] = []

    async def open_for(hostile: Hostile, delay: float) -> None:
        with anyio.move_on_after(delay):
            async with open_sandbox(hostile.config) as sandbox:
                opened.append(sandbox.container)
                await anyio.sleep_forever()

    async def use() -> None:
        for start in range(0, len(servers), 10):
            async with anyio.create_task_group() as tasks:
                for hostile in servers[start : start + 10]:
                    tasks.start_soon(open_for, hostile, moments.uniform(0.0, 2.0))

    anyio.run(use)
    assert opened, "all were cancelled before they were open"
    assert len(opened) < 30, "none was cancelled while it opened"
    assert [hostile.containers() for hostile in servers] == [[]] * 30
    assert left_in(tmp_path) == []
