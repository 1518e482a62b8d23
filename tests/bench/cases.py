"""The measurements behind the table: each gives its figure and the medians it came from."""

from __future__ import annotations

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psutil
from mcp import Client, StdioServerParameters, stdio_client
from mcp_types import TextContent
from stdio_peer import StdioPeer

from sandboxed_mcp import Policy, ServerConfig, connect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

HERE = Path(__file__).parent
IMAGE = "sandboxed-mcp/notes:latest"
INSIDE = ["python3", "/bench/server.py"]
BULK_BYTES = 50 * 1024 * 1024
MIB = 1024 * 1024
CLI = [str(Path(sys.executable).with_name("sandboxed-mcp")), "run"]
GRANTED = ["--mount", f"{HERE}:/bench", "--policy", str(HERE / "policy.toml")]
SANDBOXED = [*CLI, "--image", IMAGE, *GRANTED, "--", *INSIDE]
PLAIN = ["docker", "run", "-i", "--rm", "--network", "none", "-v", f"{HERE}:/bench:ro"]
DOCKER = [*PLAIN, IMAGE, *INSIDE]


def config(number: int = 0) -> ServerConfig:
    """The server in its sandbox, with memory enough for a result of 50 MiB."""
    return ServerConfig(
        name=f"bench{number}",
        image=IMAGE,
        args=INSIDE,
        mounts=[f"{HERE}:/bench"],
        policy=Policy(limits={"memory": "1GiB", "cpus": 2}),
    )


def compare(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int, unit: str = "ms"
) -> tuple[float, str]:
    """Alternates both, after one unmeasured run of each; the ratio of the medians."""
    ours()
    theirs()
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    left = statistics.median(pair[0] for pair in pairs)
    right = statistics.median(pair[1] for pair in pairs)
    scale = {"ms": 1000, "s": 1}[unit]
    return left / right, f"{left * scale:.2f} / {right * scale:.2f} {unit}"


def start_library() -> tuple[float, str]:
    """Start of one sandbox through the library."""
    return compare(lambda: anyio.run(_start_one, 0), _start_docker, 11)


async def _start_one(number: int) -> float:
    began = time.perf_counter()
    async with connect(config(number)):
        return time.perf_counter() - began


def _start_docker() -> float:
    with StdioPeer(DOCKER) as peer:
        return peer.started


def start_cli() -> tuple[float, str]:
    """Start of one sandbox through the command line."""

    def ours() -> float:
        with StdioPeer(SANDBOXED) as peer:
            return peer.started

    return compare(ours, _start_docker, 11)


def start_parallel() -> tuple[float, str]:
    """Twenty at once, until all have answered."""

    async def ours() -> float:
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(_start_one, number)
        return time.perf_counter() - began

    def theirs() -> float:
        began = time.perf_counter()
        with ThreadPoolExecutor(20) as pool:
            for start in [pool.submit(_start_docker) for _ in range(20)]:
                start.result()
        return time.perf_counter() - began

    return compare(lambda: anyio.run(ours), theirs, 3, "s")


@asynccontextmanager
async def _direct() -> AsyncGenerator[Client]:
    command = StdioServerParameters(command=sys.executable, args=[str(HERE / "server.py")])
    async with Client(stdio_client(command), mode="legacy") as client:
        yield client


def call_sdk() -> tuple[float, str]:
    """One small call through the SDK's client."""

    async def measure() -> tuple[float, str]:
        async with connect(config()) as ours, _direct() as theirs:
            samples = [(await _calls(ours), await _calls(theirs)) for _ in range(11)]
        return _ratio(samples[1:])

    return anyio.run(measure)


async def _calls(client: Client, count: int = 100) -> float:
    times: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        await client.call_tool("echo", {"text": "hello"})
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _ratio(samples: list[tuple[float, float]]) -> tuple[float, str]:
    left = statistics.median(sample[0] for sample in samples)
    right = statistics.median(sample[1] for sample in samples)
    return left / right, f"{left * 1000:.3f} / {right * 1000:.3f} ms"


def call_cli() -> tuple[float, str]:
    """One small raw call through the command line."""
    with StdioPeer(SANDBOXED) as ours, StdioPeer(DOCKER) as theirs:
        samples = [(_raw_calls(ours), _raw_calls(theirs)) for _ in range(11)]
    return _ratio(samples[1:])


def _raw_calls(peer: StdioPeer, count: int = 200) -> float:
    return statistics.median(peer.call("echo", text="hello")[0] for _ in range(count))


def bulk_sdk() -> tuple[float, str]:
    """A result of 50 MiB through the SDK's client."""

    async def measure() -> tuple[float, str]:
        async with connect(config()) as ours, _direct() as theirs:
            samples = [(await _bulk(ours), await _bulk(theirs)) for _ in range(3)]
        return _ratio(samples)

    return anyio.run(measure)


async def _bulk(client: Client) -> float:
    began = time.perf_counter()
    result = await client.call_tool("bulk", {"size": BULK_BYTES})
    seconds = time.perf_counter() - began
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert len(block.text) == BULK_BYTES
    return seconds


def bulk_cli() -> tuple[float, str]:
    """A result of 50 MiB through the command line."""

    def bulk(peer: StdioPeer) -> float:
        seconds, size = peer.call("bulk", size=BULK_BYTES)
        assert size > BULK_BYTES
        return seconds

    with StdioPeer(SANDBOXED) as ours, StdioPeer(DOCKER) as theirs:
        samples = [(bulk(ours), bulk(theirs)) for _ in range(8)]
    return _ratio(samples[1:])


def rss_cli() -> tuple[float, str]:
    """Resident memory of an idle `run` process, after a call."""
    with StdioPeer(SANDBOXED) as ours, StdioPeer(DOCKER) as theirs:
        ours.call("echo", text="hello")
        left = psutil.Process(ours.process.pid).memory_info().rss / MIB
        right = psutil.Process(theirs.process.pid).memory_info().rss / MIB
    return left, f"{left:.1f} MiB (docker run -i: {right:.1f})"


def rss_watchdog() -> tuple[float, str]:
    """Resident memory of the watchdog of a `run` process."""
    with StdioPeer(SANDBOXED) as ours:
        children = psutil.Process(ours.process.pid).children()
        (watchdog,) = [c for c in children if "watchdog" in " ".join(c.cmdline())]
        figure = watchdog.memory_info().rss / MIB
    return figure, f"{figure:.1f} MiB"
