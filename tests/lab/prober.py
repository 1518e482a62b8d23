"""Drives `agent` in a sandbox and gives its outcomes as values."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from tests.lab.netns import Namespace

__all__ = ["AGENT", "Outcome", "Prober", "open_prober"]

AGENT = Path(__file__).with_name("agent.py")
SERVER_UID = 65532


@dataclass(frozen=True)
class Outcome:
    """What came of a try: a value, or the name of an error such as `EHOSTUNREACH`."""

    value: object = None
    error: str | None = None

    @property
    def text(self) -> str:
        """The value of a try that must have succeeded with text."""
        assert self.error is None, self.error
        assert isinstance(self.value, str), self.value
        return self.value

    @property
    def number(self) -> int:
        """The value of a try that must have succeeded with a number."""
        assert self.error is None, self.error
        assert isinstance(self.value, int), self.value
        return self.value

    @property
    def table(self) -> dict[str, object]:
        """The value of a try that must have succeeded with a table."""
        assert self.error is None, self.error
        table: Any = self.value
        assert isinstance(table, dict), f"{table} is no table"
        return cast("dict[str, object]", table)


class Prober:
    """A running agent; give it the pipes of any process that runs `AGENT`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Drive a process with text pipes."""
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def do(self, deed: str, /, *, within: float = 20.0, **arguments: object) -> Outcome:
        """Try something and wait for the outcome."""
        self.start(deed, **arguments)
        return self.finish(within=within)

    def start(self, deed: str, /, **arguments: object) -> None:
        """Try something; `finish` has the outcome."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": deed, **arguments}) + "\n")
        self._process.stdin.flush()

    def finish(self, *, within: float = 20.0) -> Outcome:
        """Wait for the outcome of what was started."""
        pipe = self._process.stdout
        assert pipe is not None
        assert select.select([pipe], [], [], within)[0], "the agent is silent"
        line = pipe.readline()
        assert line, f"the agent ended with {self._process.wait(5)}"
        return Outcome(**json.loads(line))

    def exchange(self, protocol: str, address: str, port: int, **more: object) -> Outcome:
        """Connect, send `hello` and return the answer."""
        self.start("exchange", protocol=protocol, address=address, port=port, **more)
        return self.finish()

    def dial(self, protocol: str, address: str, port: int) -> int:
        """Connect, which must succeed, and keep the connection."""
        return self.do("dial", protocol=protocol, address=address, port=port).number


@contextlib.contextmanager
def open_prober(
    namespace: Namespace, *, uid: int = SERVER_UID, capabilities: Sequence[str] = ()
) -> Generator[Prober, None, None]:
    """Run the agent in a namespace as a server's process would run.

    Without privilege: another user, no new privileges, and no capability but those named,
    such as `net_raw`.
    """
    kept = ["-all", *(f"+{name}" for name in capabilities)]
    command = [
        "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs",
        f"--bounding-set={','.join(kept)}", f"--inh-caps={','.join(kept)}",
        *([f"--ambient-caps={','.join(kept)}"] if capabilities else []),
        sys.executable, "-I", str(AGENT),
    ]  # fmt: skip
    process = namespace.inside(
        lambda: subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
    )
    with process:
        try:
            yield Prober(process)
        finally:
            process.kill()
