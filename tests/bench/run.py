"""`make bench`: two things compared in one run, ratios of medians, written to build/bench.json.

Every pair alternates, so that noise on the machine falls on both sides alike. A name as an
argument runs only the benchmarks whose names contain it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from typing import TYPE_CHECKING

import cases
import egress
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

RESULT = Path(__file__).parents[2] / "build" / "bench.json"


@dataclass(frozen=True)
class Benchmark:
    """One line of the table.

    Attributes:
        name: Key in bench.json.
        what: What is compared with what.
        reach: The figure to reach.
        measure: Gives the figure and, for a ratio, both medians as text.
        higher: Whether higher is better.
    """

    name: str
    what: str
    reach: float
    measure: Callable[[], tuple[float, str]]
    higher: bool = False

    def is_missed(self, figure: float) -> bool:
        """Whether a figure does not reach what it should."""
        return figure < self.reach if self.higher else figure > self.reach


BENCHMARKS = (
    Benchmark(
        "start_library_offline",
        "open_sandbox to initialize reply / docker run -i --network none",
        1.0,
        cases.start_library,
    ),
    Benchmark(
        "start_cli_offline",
        "sandboxed-mcp run to initialize reply / docker run -i",
        1.75,
        cases.start_cli,
    ),
    Benchmark(
        "start_parallel_20",
        "20 sandboxes at once / 20 docker run -i at once",
        1.1,
        cases.start_parallel,
    ),
    Benchmark("call_sdk", "small call, SDK over sandbox / SDK stdio, direct", 1.25, cases.call_sdk),
    Benchmark("call_cli", "raw call, sandboxed-mcp run / docker run -i", 1.0, cases.call_cli),
    Benchmark(
        "bulk_sdk_50m",
        "50 MiB result, SDK over sandbox / SDK stdio, direct",
        0.10,
        cases.bulk_sdk,
    ),
    Benchmark(
        "bulk_cli_50m", "50 MiB result, sandboxed-mcp run / docker run -i", 1.1, cases.bulk_cli
    ),
    Benchmark("rss_cli_mib", "memory of the run process, idle, MiB", 40, cases.rss_cli),
    Benchmark("rss_watchdog_mib", "memory of the watchdog, MiB", 12, cases.rss_watchdog),
    Benchmark(
        "start_library_egress",
        "open_sandbox with rules to initialize reply / docker run -i on the bridge",
        1.8,
        egress.start_library,
    ),
    Benchmark(
        "egress_kernel",
        "throughput by a plain rule / plain container",
        0.90,
        egress.download_kernel,
        higher=True,
    ),
    Benchmark(
        "egress_tls",
        "throughput by a verified rule / plain container",
        0.50,
        egress.download_tls,
        higher=True,
    ),
    Benchmark(
        "connect_kernel",
        "TCP connect by a plain rule / plain container",
        1.15,
        egress.connect_kernel,
    ),
    Benchmark(
        "connect_tls",
        "TLS handshake by a verified rule / plain container",
        1.5,
        egress.connect_tls,
    ),
    Benchmark(
        "dns_lookup",
        "lookup of an allowed name, warm / plain container asking the same resolver",
        1.5,
        egress.lookup,
    ),
    Benchmark("rss_gateway_mib", "memory of a gateway, idle, MiB", 35, egress.rss_gateway),
    Benchmark("sandboxes_30", "30 at once: gateways and launcher, MiB", 1500, egress.crowd),
)


def main(wanted: list[str]) -> int:
    """Runs the benchmarks and prints the table; 1 when a figure is not reached."""
    console = Console()
    table = Table("name", "what over what", "figure", "reach", "medians")
    figures: dict[str, float] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    missed = 0
    for bench in BENCHMARKS:
        if wanted and not any(word in bench.name for word in wanted):
            continue
        with console.status(bench.name):
            figure, medians = bench.measure()
        figures[bench.name] = round(figure, 3)
        missed += bench.is_missed(figure)
        style = "red" if bench.is_missed(figure) else "green"
        reach = f"{'>=' if bench.higher else '<='} {bench.reach}"
        cells = (bench.name, bench.what, f"[{style}]{figure:.2f}[/]", reach, medians)
        table.add_row(*cells)
    console.print(table)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
