"""Promise *limits*: memory, CPU, processes, scratch space and start-up time are bounded."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, cast

import anyio
import psutil
import pytest

from sandboxed_mcp import ServerExitedError, StartTimeoutError, connect, open_sandbox
from tests.hostile.wire import CallFailedError

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.hostile.arena import Arena, Hostile
    from tests.hostile.wire import Wire

MIB = 1 << 20
SMALL = {"memory": "64MiB", "scratch": "4MiB", "pids": 24, "cpus": 0.5}
GRAVE = 137  # 128 + SIGKILL


@pytest.fixture(scope="module")
def small(arena: Arena) -> Generator[Wire]:
    """A sandbox with little of everything."""
    with arena.hostile(tag="small", policy={"limits": SMALL}).open() as wire:
        yield wire


@pytest.fixture(scope="module")
def unbounded(arena: Arena) -> Generator[Wire]:
    """A plain container without any limit."""
    with arena.open_exposed("--user=0", "--ulimit=core=-1", "--ulimit=nofile=20000:20000") as wire:
        yield wire


@pytest.mark.claim("limits")
def test_fork_bomb_stops_at_the_limit_and_hurts_nobody_else(
    small: Wire, inside: Wire, unbounded: Wire
) -> None:
    latencies: list[float] = []
    bombing = threading.Event()

    def watch_neighbour() -> None:
        while not bombing.is_set():
            started = time.monotonic()
            inside.probe("insight.identity")
            latencies.append(time.monotonic() - started)

    watcher = threading.Thread(target=watch_neighbour)
    watcher.start()
    try:
        outcome = small.probe("appetite.fork_bomb", 100_000, seconds=90)
    finally:
        bombing.set()
        watcher.join()
    assert outcome["refused"] == "EAGAIN"
    assert outcome["started"] <= SMALL["pids"]
    assert latencies
    assert max(latencies) < 15
    assert small.probe("insight.identity")["uids"] == [65532] * 3
    assert unbounded.probe("appetite.fork_bomb", 200)["refused"] == ""


@pytest.mark.claim("limits")
def test_memory_bomb_in_a_child_is_ended_and_the_session_lives(small: Wire) -> None:
    report = small.call("probe", module="appetite", name="take_memory", args=[512 * MIB])
    assert report == {"died": -9}
    assert small.probe("appetite.take_memory", 16 * MIB) == 16 * MIB


@pytest.mark.claim("limits", twin=True)
def test_memory_bomb_goes_off_without_a_limit(unbounded: Wire) -> None:
    assert unbounded.probe("appetite.take_memory", 512 * MIB) == 512 * MIB


@pytest.mark.claim("limits")
def test_memory_bomb_of_the_server_is_told_on_the_command_line(arena: Arena) -> None:
    hostile = arena.hostile(tag="bomb", policy={"limits": SMALL})
    with hostile.open() as wire:
        wire.start_call("eat")
        assert wire.wait(60) == GRAVE
        assert "limits.memory" in wire.stderr
    hostile.wait_gone()


@pytest.mark.claim("limits")
def test_memory_bomb_of_the_server_fails_the_call_with_the_reason(arena: Arena) -> None:
    hostile = arena.hostile(tag="bomb", policy={"limits": SMALL})

    async def use() -> str:
        async with connect(hostile.config) as client:
            with anyio.fail_after(60):
                try:
                    await client.call_tool("eat", {})
                except Exception as error:  # noqa: BLE001 - the SDK's own, whatever it is
                    return str(error)
            return "it was answered"

    assert "limits.memory" in anyio.run(use)
    hostile.wait_gone()


@pytest.mark.claim("limits")
def test_swap_adds_nothing(small: Wire) -> None:
    assert small.probe("appetite.swap_limits") == {"memory": 64 * MIB, "swap": 0}


@pytest.mark.claim("limits")
def test_scratch_space_is_bounded(small: Wire, unbounded: Wire) -> None:
    outcome = small.probe("appetite.fill", "/tmp", 1 << 30)
    assert outcome["refused"] == "ENOSPC"
    assert outcome["written"] <= 4 * MIB
    assert unbounded.probe("appetite.fill", "/tmp", 8 * MIB)["refused"] == ""


@pytest.mark.claim("limits", twin=True)
def test_scratch_space_takes_what_is_promised(small: Wire) -> None:
    assert small.probe("appetite.fill", "/tmp", 3 * MIB) == {"written": 3 * MIB, "refused": ""}


@pytest.mark.claim("limits")
def test_shared_memory_is_bounded(small: Wire, inside: Wire, unbounded: Wire) -> None:
    outcome = small.probe("appetite.fill", "/dev/shm", 1 << 30)
    assert outcome["refused"] == "ENOSPC"
    assert outcome["written"] <= 4 * MIB
    assert inside.probe("appetite.fill", "/dev/shm", 1 << 30)["written"] <= 16 * MIB
    assert unbounded.probe("appetite.fill", "/dev/shm", 24 * MIB)["refused"] == ""


@pytest.mark.claim("limits")
def test_number_of_files_in_scratch_is_bounded(inside: Wire) -> None:
    outcome = inside.probe("appetite.fill_inodes", "/tmp", 1_000_000, seconds=90)
    assert outcome["refused"] == "ENOSPC"
    assert 1000 < outcome["made"] <= 65_536


@pytest.mark.claim("limits")
def test_open_files_are_bounded(small: Wire, unbounded: Wire) -> None:
    outcome = small.probe("appetite.open_files", 1_000_000)
    assert outcome["refused"] == "EMFILE"
    assert outcome["opened"] <= 8192
    assert small.probe("kernel.raise_files") == "EPERM"
    assert unbounded.probe("appetite.open_files", 10_000)["refused"] == ""


@pytest.mark.claim("limits")
def test_processor_time_is_bounded(small: Wire, unbounded: Wire) -> None:
    assert small.probe("appetite.spin", 4, 3.0) <= 0.5 * 1.3
    assert small.probe("appetite.throttling")["nr_throttled"] > 0
    unbounded.probe("appetite.spin", 2, 1.0)
    assert unbounded.probe("appetite.throttling")["nr_throttled"] == 0


@pytest.mark.claim("limits")
def test_crash_leaves_no_core_dump(small: Wire, unbounded: Wire) -> None:
    assert small.probe("appetite.crash") is False
    assert small.probe("kernel.raise_core") == "EPERM"
    assert unbounded.probe("kernel.raise_core") == "ok"


@pytest.mark.claim("limits")
def test_locked_memory_is_bounded(small: Wire, outside: Wire) -> None:
    assert small.probe("appetite.lock_memory", 32 * MIB) in {"ENOMEM", "EPERM", "EAGAIN"}
    assert outside.probe("appetite.lock_memory", 4096) == "ok"


def quick(seconds: float = 2.0, **more: Any) -> dict[str, Any]:
    return {"limits": {"start_timeout": seconds, **more}}


@pytest.mark.claim("limits")
@pytest.mark.parametrize("option", ["--mute", "--deaf"])
def test_server_that_never_answers_is_ended_in_time_by_the_command_line(
    arena: Arena, option: str
) -> None:
    hostile = arena.hostile(option, "--say", "busy", "--stubborn", tag="mute", policy=quick())
    started = time.monotonic()
    with hostile.open(start=False) as wire:
        wire.send_message("initialize", {}, 1)
        code = wire.wait(40)
        assert time.monotonic() - started < 25
        assert code != 0
        assert "limits.start_timeout = 2 s" in wire.stderr
        assert "busy" in wire.stderr
    hostile.wait_gone()


def connect_error(hostile: Hostile) -> Exception:
    """What `connect` raises for a server that never comes up."""

    async def use() -> None:
        async with connect(hostile.config):
            pytest.fail("it answered")

    with pytest.raises(Exception) as caught:  # noqa: PT011 - its kind and text are tested
        anyio.run(use)
    hostile.wait_gone()
    return caught.value


def words_of(error: BaseException) -> str:
    """The text of an error, and of those inside when it is a group."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return "\n".join(map(words_of, group.exceptions))
    return str(error)


@pytest.mark.claim("limits")
@pytest.mark.parametrize("option", ["--mute", "--deaf"])
def test_server_that_never_answers_is_ended_in_time_by_the_library(
    arena: Arena, option: str
) -> None:
    started = time.monotonic()
    error = connect_error(
        arena.hostile(option, "--say", "busy", "--stubborn", tag="mute", policy=quick())
    )
    assert time.monotonic() - started < 25
    assert "start_timeout = 2 s" in words_of(error)
    assert "busy" in words_of(error)


@pytest.mark.claim("limits")
def test_server_that_never_answers_raises_the_documented_error(arena: Arena) -> None:
    error = connect_error(arena.hostile("--mute", tag="mute", policy=quick()))
    assert isinstance(error, StartTimeoutError)


@pytest.mark.claim("limits", twin=True)
def test_server_that_answers_in_time_outlives_the_start_limit(arena: Arena) -> None:
    with arena.hostile(tag="quick", policy=quick(4)).open() as wire:
        assert wire.probe("appetite.spin", 1, 5.0) > 0
        assert wire.call("say", text="still here") == "said"


ENDINGS: dict[str, tuple[list[str], int, str]] = {
    "with_0": (["--exit", "0"], 0, "exit code 0"),
    "with_3": (["--exit", "3"], 3, "exit code 3"),
    "by_segmentation_fault": (["--signal", "11"], 139, "signal 11"),
    "by_kill": (["--signal", "9"], 137, "signal 9"),
    "out_of_memory": (["--eat"], 137, "limits.memory"),
}
endings = pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)


@pytest.mark.claim("limits")
@endings
def test_server_that_ends_at_once_is_told_by_the_command_line(
    arena: Arena, ending: tuple[list[str], int, str]
) -> None:
    options, code, words = ending
    hostile = arena.hostile("--say", "my last words", *options, tag="end", policy={"limits": SMALL})
    started = time.monotonic()
    with hostile.open(start=False) as wire:
        assert wire.wait(40) == code
        assert time.monotonic() - started < 20
        assert words in wire.stderr
        assert "my last words" in wire.stderr
        assert wire.read_line() == b""
    hostile.wait_gone()


@pytest.mark.claim("limits")
@endings
def test_server_that_ends_at_once_is_told_by_the_library(
    arena: Arena, ending: tuple[list[str], int, str]
) -> None:
    options, _, words = ending
    started = time.monotonic()
    error = connect_error(
        arena.hostile("--say", "my last words", *options, tag="end", policy={"limits": SMALL})
    )
    assert time.monotonic() - started < 20
    assert words in words_of(error)
    assert "my last words" in words_of(error)


@pytest.mark.claim("limits")
@endings
def test_server_that_ends_at_once_raises_the_documented_error(
    arena: Arena, ending: tuple[list[str], int, str]
) -> None:
    options, code, _ = ending
    error = connect_error(arena.hostile(*options, tag="end", policy={"limits": SMALL}))
    assert isinstance(error, ServerExitedError)
    assert error.status.code == code


@pytest.mark.claim("limits")
def test_server_that_ends_under_a_call_fails_it_at_once(arena: Arena) -> None:
    hostile = arena.hostile("--say", "my last words", tag="dies")

    async def use() -> str:
        async with open_sandbox(hostile.config) as sandbox, connect_over(sandbox) as client:
            started = time.monotonic()
            with anyio.fail_after(30):
                try:
                    await client.call_tool("die", {"code": 9})
                except Exception as error:  # noqa: BLE001 - the SDK's own
                    assert time.monotonic() - started < 10
                    return str(error)
        return "it was answered"

    said = anyio.run(use)
    assert "exit code 9" in said
    assert "my last words" in said
    hostile.wait_gone()


def connect_over(sandbox: Any) -> Any:
    from mcp import Client

    from sandboxed_mcp import open_streams

    return Client(open_streams(sandbox), mode="legacy")


@pytest.mark.claim("limits")
def test_message_beyond_the_limit_fails_its_call_and_the_launcher_stays_small(
    arena: Arena,
) -> None:
    with arena.hostile(tag="long").open() as wire:
        launcher = psutil.Process(wire.pid)
        with pytest.raises(CallFailedError, match=r"limits\.message_size"):
            wire.call("big_line", size=200 * MIB, seconds=90)
        assert wire.call("say", text="next") == "said"
        assert peak_memory(launcher.pid) < 250 * MIB


@pytest.mark.claim("limits", twin=True)
def test_message_just_below_the_limit_passes(arena: Arena) -> None:
    with arena.hostile(tag="long").open() as wire:
        call_id = wire.start_call("big_line", size=64 * MIB)
        line = wire.read_line(90)
        assert len(line) == 64 * MIB + 1
        assert line.startswith(b'{"jsonrpc":"2.0","id":%d,' % call_id)
        assert wire.call("say", text="next") == "said"


@pytest.mark.claim("limits")
def test_endless_message_fails_its_call_and_the_launcher_stays_small(arena: Arena) -> None:
    hostile = arena.hostile(tag="endless", policy={"limits": {"message_size": "8MiB"}})
    with hostile.open() as wire:
        with pytest.raises(CallFailedError, match=r"limits\.message_size"):
            wire.call("endless", seconds=60)
        assert peak_memory(wire.pid) < 150 * MIB
        wire.close_stdin()
        wire.wait(30)
    hostile.wait_gone()


def peak_memory(pid: int) -> int:
    """The most that a process ever held, in bytes."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:  # noqa: PTH123
        (peak,) = (int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    return peak
