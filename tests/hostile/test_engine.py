"""An engine that goes away, and orphans that only a later launch can remove."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from sandboxed_mcp import open_sandbox
from tests.hostile.arena import watchdogs_of
from tests.hostile.own_engine import OwnEngine, open_engine
from tests.hostile.test_limits import connect_over, words_of
from tests.hostile.wire import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.hostile.arena import Arena, Hostile

AT_ONCE = 20.0
DELIVERED = "held"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def own_engine() -> Generator[OwnEngine]:
    with open_engine() as engine:
        yield engine


@pytest.fixture
def elsewhere(arena: Arena, own_engine: OwnEngine) -> Iterator[Arena]:
    """The arena on an engine of its own, which runs again afterwards."""
    yield replace(arena, env=own_engine.env)
    if not own_engine.answers():
        own_engine.start()


ends = pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["crash", "stop"])


@pytest.mark.claim("orphans")
@ends
def test_command_line_ends_with_a_reason_when_its_engine_goes_away(
    elsewhere: Arena, own_engine: OwnEngine, number: int
) -> None:
    hostile = elsewhere.hostile(tag="engine")
    with hostile.open() as wire:
        wire.start_call("hold")
        wait_until(lambda: DELIVERED in wire.stderr, 20, "the call in flight")
        own_engine.end(number)
        started = time.monotonic()
        assert wire.wait(AT_ONCE) != 0
        assert time.monotonic() - started < AT_ONCE
        assert f"server '{hostile.name}' ended" in wire.stderr
        assert "Traceback" not in wire.stderr, wire.stderr
        own_engine.start()
        hostile.wait_gone()
        with elsewhere.hostile(tag="again").open() as again:
            assert again.call("say", text="up again") == "said"


@pytest.mark.claim("orphans")
@ends
def test_call_in_flight_fails_with_a_reason_when_the_engine_goes_away(
    elsewhere: Arena, own_engine: OwnEngine, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("DOCKER_HOST", own_engine.env["DOCKER_HOST"])
    hostile = elsewhere.hostile(tag="engine")

    async def use() -> str:
        async with open_sandbox(hostile.config) as sandbox, connect_over(sandbox) as client:
            heard = anyio.Event()
            # The container's stderr passes here piece by piece.
            sandbox.on_stderr = lambda _: heard.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(crash_after, heard)
                with anyio.fail_after(20 + AT_ONCE):
                    try:
                        await client.call_tool("hold", {})
                    except Exception as error:  # noqa: BLE001 - the SDK's own
                        return words_of(error)
        return "it was answered"

    async def crash_after(heard: anyio.Event) -> None:
        with anyio.fail_after(20):
            await heard.wait()
        await anyio.to_thread.run_sync(own_engine.end, number)

    said = anyio.run(use)
    assert f"server '{hostile.name}' ended" in said
    own_engine.start()
    hostile.wait_gone()


def kill_both(hostile: Hostile, env: dict[str, str]) -> None:
    """Leaves an orphan: the launcher and its watchdog are killed."""
    with hostile.open(env=env) as wire:
        for pid in watchdogs_of(wire.pid):
            os.kill(pid, signal.SIGKILL)
        wire.process.kill()
        wire.wait(10)
    with pytest.raises(AssertionError, match="not within"):
        wait_until(lambda: not hostile.containers(), 3, "its end")


@pytest.fixture
def orphan(elsewhere: Arena, tmp_path: object) -> Hostile:
    """A container, and a secret file, whose launcher and watchdog are dead."""
    secret = {"name": "KEY", "as": "file"}
    hostile = elsewhere.hostile("--stubborn", tag="orphan", secrets=[secret])
    env = {**(hostile.env or {}), "KEY": "left behind", "XDG_RUNTIME_DIR": str(tmp_path)}
    kill_both(hostile, env)
    return replace(hostile, env=env)


def check_removed(orphan: Hostile) -> None:
    assert orphan.env is not None
    orphan.wait_gone()
    assert not list(Path(orphan.env["XDG_RUNTIME_DIR"]).glob("sandboxed-mcp-*")), "a secret folder"


@pytest.mark.claim("orphans")
def test_gc_removes_what_launcher_and_watchdog_could_not(orphan: Hostile) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandboxed_mcp", "gc"],
        env=dict(orphan.env or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check_removed(orphan)


@pytest.mark.claim("orphans")
def test_next_launch_removes_what_launcher_and_watchdog_could_not(
    elsewhere: Arena, orphan: Hostile
) -> None:
    with elsewhere.hostile(tag="after").open(env=orphan.env) as wire:
        assert wire.call("say", text="up") == "said"
    check_removed(orphan)
