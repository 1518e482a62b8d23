"""Fuzz one target with coverage guidance; run by hand, with atheris installed:

PYTHONPATH=. python tests/fuzz/atheris_run.py hello -atheris_runs=1000000 -max_len=4096
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

_INSTRUMENTED = (
    "dns",
    "sandboxed_mcp.gateway.tls",
    "sandboxed_mcp.gateway.question",
    "sandboxed_mcp.gateway.answer",
    "sandboxed_mcp.gateway.control",
    "sandboxed_mcp.egress.names",
    "sandboxed_mcp.egress.parsing",
)


def main() -> None:
    """Run the target that the first argument names; the rest goes to libFuzzer."""
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=list(_INSTRUMENTED)):
        targets: Any = import_module("tests.fuzz.targets")
        seeds: Any = import_module("tests.fuzz.seeds")
    name = sys.argv.pop(1)
    corpus = Path(mkdtemp(prefix=f"fuzz-{name}-"))
    for number, seed in enumerate(seeds.SEEDS[name]):
        corpus.joinpath(str(number)).write_bytes(seed)
    atheris.Setup([*sys.argv, str(corpus)], targets.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
