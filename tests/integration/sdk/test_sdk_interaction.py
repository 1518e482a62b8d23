"""The SDK's own interaction tests, with every byte through a sandbox.

Those tests connect a client to a server object over a transport of their choice; here the
choice is another process whose only work is to pass bytes (see `over_pipe`). They run over a
plain child of the SDK's `stdio_client` and over `stdio_transport`, with the same outcome.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.integration.sdk.source import fetch_packages, fetch_source

pytestmark = pytest.mark.timeout(900)

HERE: Final = Path(__file__).parent
PACKAGES: Final = ("inline-snapshot==0.36.1", "trio==0.35.0")
START: Final = "import sys, pytest; sys.path.append({!r}); sys.exit(pytest.main(sys.argv[1:]))"
OPTIONS: Final = (
    *("-q", "-p", "over_pipe", "-p", "no:cacheprovider", "--tb=short", "--timeout=60"),
    *("-o", "addopts=", "-o", "log_cli=false", "--confcutdir=tests/interaction"),
)
FOLDERS: Final = ("tests/interaction/lowlevel", "tests/interaction/mcpserver")
SHARDS: Final = {"direct": 1, "sandboxed": 3}
ASYNCIO_TESTS: Final = 228
TRIO_TESTS: Final = 47
RUN_SECONDS: Final = 800

Outcomes = dict[str, str]


@pytest.fixture(scope="module")
def outcomes(
    engine_client: object, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcomes]:
    """The outcome of each test of the SDK, for each transport."""
    assert engine_client is not None
    source, packages = fetch_source(), fetch_packages(*PACKAGES)
    folder = tmp_path_factory.mktemp("outcomes")

    def run(transport: str, shard: int) -> Outcomes:
        written = folder / f"{transport}-{shard}.json"
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(HERE), str(source))),
            "OVER_PIPE": transport,
            "OVER_PIPE_SHARD": f"{shard}/{SHARDS[transport]}",
            "OVER_PIPE_OUTCOMES": str(written),
        }
        done = subprocess.run(
            [sys.executable, "-c", START.format(str(packages)), *OPTIONS, *FOLDERS],
            cwd=source,
            env=environ,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        print(done.stdout)  # noqa: T201 - pytest shows it when a test fails
        return json.loads(written.read_text(encoding="utf-8"))

    jobs = [(transport, shard) for transport, count in SHARDS.items() for shard in range(count)]
    with ThreadPoolExecutor(len(jobs)) as pool:
        found = list(pool.map(run, *zip(*jobs, strict=True)))
    merged: dict[str, Outcomes] = {transport: {} for transport in SHARDS}
    for (transport, _), part in zip(jobs, found, strict=True):
        merged[transport] |= part
    return merged


@pytest.mark.parametrize(("backend", "least"), [("asyncio", ASYNCIO_TESTS), ("trio", TRIO_TESTS)])
def test_the_sdks_interaction_tests_pass_over_a_sandbox(
    outcomes: dict[str, Outcomes], backend: str, least: int
) -> None:
    ran = {test: end for test, end in outcomes["sandboxed"].items() if f"[{backend}-" in test}

    assert {test: end for test, end in ran.items() if end != "passed"} == {}
    assert len(ran) >= least


def test_the_sdks_interaction_tests_have_the_same_outcome_over_a_child_process(
    outcomes: dict[str, Outcomes],
) -> None:
    assert outcomes["sandboxed"] == outcomes["direct"]
