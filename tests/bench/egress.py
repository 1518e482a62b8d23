"""The measurements of sandboxes with egress rules: each gives its figure and its medians."""

from __future__ import annotations

import statistics
import subprocess
import time
from contextlib import AsyncExitStack

import anyio
import psutil
from cases import compare
from egress_lab import AGENT, Lab, Sandboxed, open_lab
from egress_server import BLOB_PORT, CLOSE_PORT, DNS, HELLO_PORT, TLS_PORT
from stdio_peer import StdioPeer

from sandboxed_mcp import connect, open_sandbox

INSIDE = ["python3", "/bench/server.py"]
BLOB, WEB = "blob.example.com", "web.example.com"
MIB = 1024 * 1024
DOWNLOAD_BYTES = 256 * MIB
CROWD = 30


def start_library() -> tuple[float, str]:
    """Start of one sandbox with rules through the library."""
    with open_lab() as lab:

        async def ours() -> float:
            began = time.perf_counter()
            async with connect(lab.config(INSIDE)):
                return time.perf_counter() - began

        def theirs() -> float:
            with StdioPeer(lab.docker(INSIDE)) as peer:
                return peer.started

        return compare(lambda: anyio.run(ours), theirs, 11)


def download_kernel() -> tuple[float, str]:
    """Throughput by a rule without verification."""
    return _compare_rates("download", 25, name=BLOB, port=BLOB_PORT)


def download_tls() -> tuple[float, str]:
    """Throughput by a verified rule, both ends of TLS included; and the same unencrypted."""
    figure, medians = _compare_rates("download_tls", 11, name=WEB, port=TLS_PORT)
    raw, bare = _compare_rates("download_behind_hello", 11, name=WEB, port=HELLO_PORT)
    return figure, f"{medians} (not encrypted: {raw:.2f}, {bare})"


def connect_kernel() -> tuple[float, str]:
    """A TCP connect by a rule without verification."""
    return _compare_sides("connect", 80, name=BLOB, port=CLOSE_PORT, count=25)


def connect_tls() -> tuple[float, str]:
    """A connect and TLS handshake by a verified rule."""
    return _compare_sides("handshake", 60, name=WEB, port=TLS_PORT, count=8)


def lookup() -> tuple[float, str]:
    """A lookup that the gateway has answered before."""
    return _compare_sides("lookup", 80, name=BLOB, server=DNS, count=25)


def rss_gateway() -> tuple[float, str]:
    """Resident memory of an idle gateway, after it has relayed once."""
    with open_lab() as lab, lab.open_sandboxed() as ours:
        ours.ask("work", name=WEB, port=TLS_PORT)
        resident = find_gateway(ours).memory_info().rss / MIB
    return resident, f"{resident:.1f} MiB"


def crowd() -> tuple[float, str]:
    """Many at once: every one does everything once, all at the same time."""
    with open_lab() as lab:
        return lab.portal.call(_open_crowd, lab)


async def _open_crowd(lab: Lab) -> tuple[float, str]:
    began = time.perf_counter()
    async with AsyncExitStack() as undo:
        opened = await _start_crowd(lab, undo)
        started = time.perf_counter() - began
        took: list[float] = []

        async def work(each: Sandboxed) -> None:
            took.append(await each.ask_async({"do": "work", "name": WEB, "port": TLS_PORT}))

        async with anyio.create_task_group() as working:
            for each in opened:
                working.start_soon(work, each)
        gateways = sum(find_gateway(each).memory_info().rss for each in opened) / MIB
        launcher = psutil.Process().memory_info().rss / MIB
    words = (
        f"gateways {gateways:.0f} + launcher {launcher:.0f} MiB; started in {started:.1f} s; "
        f"each a lookup, handshake, download: {statistics.median(took) * 1000:.0f} ms, "
        f"slowest {max(took) * 1000:.0f}"
    )
    return gateways + launcher, words


async def _start_crowd(lab: Lab, undo: AsyncExitStack) -> list[Sandboxed]:
    """Starts all at once; they stay until `undo` ends them, all at once too."""
    opened: list[Sandboxed] = []
    all_open, done = anyio.Event(), anyio.Event()

    async def run(number: int) -> None:
        async with open_sandbox(lab.config(AGENT, number)) as sandbox:
            opened.append(Sandboxed(lab.portal, sandbox))
            if len(opened) == CROWD:
                all_open.set()
            await done.wait()

    running = await undo.enter_async_context(anyio.create_task_group())
    undo.callback(done.set)
    for number in range(CROWD):
        running.start_soon(run, number)
    await all_open.wait()
    return opened


def find_gateway(ours: Sandboxed) -> psutil.Process:
    """The gateway's own process; its container's first is the engine's init."""
    sandbox = ours.sandbox
    of = f"--filter=label=sandboxed-mcp.launch={sandbox.plan.launch}"
    found = _docker("ps", "-q", "--no-trunc", of).split()
    (gateway,) = set(found) - {sandbox.container}
    init = int(_docker("inspect", "-f", "{{.State.Pid}}", gateway))
    (process,) = psutil.Process(init).children()
    return process


def _docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout


def _compare_sides(deed: str, rounds: int, **arguments: object) -> tuple[float, str]:
    left, right = _measure_sides(deed, rounds, **arguments)
    return left / right, f"{left * 1e6:.0f} / {right * 1e6:.0f} us"


def _compare_rates(deed: str, rounds: int, **arguments: object) -> tuple[float, str]:
    left, right = _measure_sides(deed, rounds, size=DOWNLOAD_BYTES, **arguments)
    rates = [DOWNLOAD_BYTES * 8 / seconds / 1e9 for seconds in (left, right)]
    return right / left, f"{rates[0]:.2f} / {rates[1]:.2f} Gbit/s"


def _measure_sides(deed: str, rounds: int, **arguments: object) -> tuple[float, float]:
    """Medians of the seconds: a few tries by turns, so that noise falls on both sides alike."""
    with open_lab() as lab, lab.open_sandboxed() as ours, lab.open_contained() as theirs:
        sides = (ours, theirs)
        samples = [[side.ask(deed, **arguments) for side in sides] for _ in range(rounds + 1)]
    left, right = (statistics.median(each[side] for each in samples[1:]) for side in (0, 1))
    return left, right
