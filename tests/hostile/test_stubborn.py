"""A server that floods, with a client that does not read: the launcher ends all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hostile.wire import wait_until

CLI = str(Path(sys.executable).with_name("sandboxed-mcp"))
VALID = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True: sys.stdout.write('{"jsonrpc":"2.0","method":"x"}\\n' * 1000)
"""
GARBAGE = """
import sys
while True: sys.stdout.write("x\\n" * 10000)
"""
SECONDS = 30  # several times what is promised; without the promise it never ends


@pytest.mark.claim("orphans")
@pytest.mark.parametrize("source", [VALID, GARBAGE], ids=["messages", "garbage"])
@pytest.mark.parametrize("way", ["the_end_of_stdin", "sigterm"])
def test_launcher_whose_client_does_not_read_ends(source: str, way: str, tmp_path: Path) -> None:
    command = [CLI, "run", "--image", "sandboxed-mcp/python", "--", "python3", "-uc", source]
    with (
        (tmp_path / "stderr").open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as launcher,
    ):
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        if source is VALID:
            assert launcher.stdout.readline()  # it runs, and floods
        else:
            wait_for_bytes(tmp_path / "stderr")
        if way == "sigterm":
            launcher.send_signal(signal.SIGTERM)
        else:
            launcher.stdin.close()
        try:
            launcher.wait(SECONDS)
        finally:
            launcher.kill()


@pytest.mark.claim("limits")
def test_flood_of_bad_lines_is_told_of_at_a_bounded_rate(tmp_path: Path) -> None:
    command = [CLI, "run", "--image", "sandboxed-mcp/python", "--", "python3", "-uc", GARBAGE]
    began = time.monotonic()
    with (
        (tmp_path / "stderr").open("wb") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors) as launcher,
    ):
        wait_for_bytes(tmp_path / "stderr")
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(SECONDS)
    lines = (tmp_path / "stderr").read_text().splitlines()
    seconds = time.monotonic() - began
    assert 100 <= len(lines) <= 110 * (seconds + 2)
    assert any("more stdout lines were not passed on" in line for line in lines)


def wait_for_bytes(path: Path) -> None:
    wait_until(lambda: path.stat().st_size >= 500, SECONDS, "nothing on stderr")
