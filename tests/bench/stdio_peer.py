"""A raw MCP client over a child's pipes: no SDK, so that only the child's path is measured."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

PROTOCOL = "2025-06-18"
READ_BYTES = 1024 * 1024


class StdioPeer:
    """A started command that speaks MCP on its pipes.

    Attributes:
        started: Seconds from starting the command to its reply to `initialize`.
    """

    def __init__(self, command: list[str]) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._next = 0
        client = {"name": "bench", "version": "1"}
        self.request(
            "initialize",
            {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client},
        )
        self.started = time.perf_counter() - began
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(timeout=60)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def request(self, method: str, params: dict[str, Any]) -> bytes:
        """Sends a request; gives the next line, unparsed."""
        self._next += 1
        self._send({"jsonrpc": "2.0", "id": self._next, "method": method, "params": params})
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the server went away"
        return line

    def call(self, tool: str, **arguments: str | int) -> tuple[float, int]:
        """Calls a tool; gives the seconds it took and the size of the reply in bytes."""
        began = time.perf_counter()
        line = self.request("tools/call", {"name": tool, "arguments": arguments})
        return time.perf_counter() - began, len(line)

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
