"""The command line as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

__all__ = ["RAW_SERVER", "Done", "new_name", "open_run", "raw_server", "sandboxed", "write_config"]

SECONDS = 60.0
COMMAND = (sys.executable, "-m", "sandboxed_mcp")
Done = subprocess.CompletedProcess[str]

RAW_SERVER = textwrap.dedent("""
    import json, sys
    answers = json.loads(sys.argv[1])
    first = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
             "serverInfo": {"name": "raw", "version": "1"}}
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method = message["method"]
        if method == "initialize":
            answer = {"result": first}
        else:
            answer = answers.get(method, {"error": {"code": -32601, "message": "unknown"}})
        if answer == "exit":
            print("last words", file=sys.stderr)
            sys.exit(7)
        if answer != "silence":
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
""")
"""A server that answers each method as its argument says, however wrong that is."""


def sandboxed(
    *arguments: str | bytes,
    stdin: str = "",
    cwd: Path | str = "/",
    env: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> Done:
    """Runs one command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )


def raw_server(**answers: object) -> list[str]:
    """Arguments that describe a server with these answers, `_` standing for `/`."""
    table = {method.replace("_", "/"): answer for method, answer in answers.items()}
    image = ["--image", "sandboxed-mcp/python"]
    return [*image, "--", "python3", "-c", RAW_SERVER, json.dumps(table)]


def new_name() -> str:
    """A server's name that no other test uses."""
    return f"cli-{secrets.token_hex(4)}"


def write_config(folder: Path, name: str, **settings: Any) -> Path:
    """A configuration file with one server."""
    path = folder / "sandboxed-mcp.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    path.write_text("\n".join([f"[servers.{name}]", *lines]) + "\n")
    return path


@contextmanager
def open_run(
    config: Path, name: str, *, env: Mapping[str, str] | None = None
) -> Generator[subprocess.Popen[str]]:
    """A server that runs until the end; its stdin stays open."""
    with subprocess.Popen(
        [*COMMAND, "run", name, "--config", str(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate(timeout=SECONDS)
