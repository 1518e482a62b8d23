"""A raw JSON-RPC client over the pipes of a child process: bytes in, bytes out, bounded waits.

It drives `sandboxed-mcp run` and `docker run -i` alike, so that a probe and its twin differ in
nothing but the sandbox.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

__all__ = ["CallFailedError", "Wire", "open_wire", "wait_until"]

CALL_SECONDS = 40.0
POLL_SECONDS = 0.1


class CallFailedError(Exception):
    """A call got an error reply.

    Attributes:
        code: JSON-RPC error code.
        reply: The whole reply.
    """

    def __init__(self, reply: dict[str, Any]) -> None:
        self.reply = reply
        self.code: int = reply["error"]["code"]
        super().__init__(reply["error"]["message"])


class Wire:
    """One child process that speaks MCP on its pipes."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
        self.process = process
        self._stderr = stderr
        self._lines: queue.Queue[bytes] = queue.Queue(maxsize=100_000)
        self._ids = itertools.count(1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, b""):
            self._lines.put(line)
        self._lines.put(b"")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        """Everything that the child wrote to stderr so far."""
        return self.stderr_bytes.decode(errors="replace")

    @property
    def stderr_bytes(self) -> bytes:
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), size, 0)

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send_message(self, method: str, params: object, call_id: object = None) -> None:
        message: dict[str, object] = {"jsonrpc": "2.0", "method": method, "params": params}
        if call_id is not None:
            message["id"] = call_id
        self.send(json.dumps(message).encode() + b"\n")

    def read_line(self, seconds: float = CALL_SECONDS) -> bytes:
        """The next line with its newline; empty at the end of the output."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"no line within {seconds} s; stderr: {self.stderr}") from None

    def read_reply(self, call_id: object, seconds: float = CALL_SECONDS) -> dict[str, Any]:
        """The reply to a call; other messages before it are passed over."""
        end = time.monotonic() + seconds
        while True:
            line = self.read_line(max(0.0, end - time.monotonic()))
            if not line:
                raise EOFError(f"the output ended before the reply; stderr: {self.stderr}")
            message = json.loads(line)
            if message.get("id") == call_id and "method" not in message:
                return message

    def request(self, method: str, params: object, seconds: float = CALL_SECONDS) -> Any:
        call_id = next(self._ids)
        self.send_message(method, params, call_id)
        reply = self.read_reply(call_id, seconds)
        if "error" in reply:
            raise CallFailedError(reply)
        return reply["result"]

    def initialize(self, seconds: float = CALL_SECONDS) -> None:
        self.request(
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
            seconds,
        )
        self.send_message("notifications/initialized", {})

    def call(self, tool: str, seconds: float = CALL_SECONDS, **arguments: object) -> Any:
        """Calls a tool of the hostile server; gives its answer."""
        result = self.request("tools/call", {"name": tool, "arguments": arguments}, seconds)
        return json.loads(result["content"][0]["text"])

    def start_call(self, tool: str, **arguments: object) -> int:
        """Calls a tool without waiting; gives the call's id."""
        call_id = next(self._ids)
        self.send_message("tools/call", {"name": tool, "arguments": arguments}, call_id)
        return call_id

    def probe(self, path: str, *args: object, seconds: float = CALL_SECONDS) -> Any:
        """Runs the attack `module.name` inside; gives its outcome."""
        module, _, name = path.partition(".")
        report = self.call("probe", seconds, module=module, name=name, args=list(args))
        assert "value" in report, f"{path}{args}: {report}"
        return report["value"]

    def raw(self, template: bytes, seconds: float = CALL_SECONDS) -> dict[str, Any]:
        """Has the server answer with `template`, `@ID@` being the call's id; gives the reply."""
        call_id = self.start_call("raw", template=base64.b64encode(template).decode())
        return self.read_reply(call_id, seconds)

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def wait(self, seconds: float) -> int:
        return self.process.wait(seconds)


@contextmanager
def open_wire(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> Generator[Wire]:
    """Starts a child process; ends it at the end, politely if it listens."""
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=None if env is None else dict(env),
            cwd=cwd,
        ) as process,
    ):
        wire = Wire(process, stderr)
        try:
            yield wire
        finally:
            wire.close_stdin()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until(
    condition: Callable[[], object], seconds: float, what: str | Callable[[], str]
) -> float:
    """Waits for a condition; gives how long it took, in seconds.

    Raises:
        AssertionError: It does not hold in time; `what` says what was awaited.
    """
    started = time.monotonic()
    pause = threading.Event()
    while not condition():
        if time.monotonic() - started > seconds:
            raise AssertionError(
                f"not within {seconds} s: {what if isinstance(what, str) else what()}"
            )
        pause.wait(POLL_SECONDS)
    return time.monotonic() - started
