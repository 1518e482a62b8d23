"""The gateway's own process in a sandbox's namespace, driven by control lines as a launcher does.

It runs as in its container: user 0 with the capability NET_ADMIN and no other.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from sandboxed_mcp.egress.event_lines import parse_egress_event
from sandboxed_mcp.egress.events import EgressEvent, GatewayArmed, GatewayReady

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.lab.internet import Pod

__all__ = ["UPSTREAM", "GatewayProcess", "open_gateway_process", "start_gateway"]

UPSTREAM = "198.51.100.53"
_COMMAND = [
    "setpriv", "--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs",
    sys.executable, "-m", "sandboxed_mcp.gateway",
]  # fmt: skip

_Event = TypeVar("_Event", bound=EgressEvent)


class GatewayProcess:
    """A running gateway and everything it has said."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Read what it says on a thread."""
        self.process = process
        self.events: list[EgressEvent] = []
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, **values: object) -> None:
        """Write a control line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(values).encode() + b"\n")
        self.process.stdin.flush()

    def wait(
        self,
        kind: type[_Event],
        matches: Callable[[_Event], bool] = lambda _event: True,
        within: float = 10.0,
    ) -> _Event:
        """Wait for an event that was not there before, or find it among those that were."""
        deadline = time.monotonic() + within
        seen = 0
        while True:
            for event in self.events[seen:]:
                if isinstance(event, kind) and matches(event):
                    return event
            seen = len(self.events)
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind.kind} event; seen: {self.events}") from None
            if line:
                self.events.append(parse_egress_event(line))
            elif time.monotonic() > deadline:
                raise AssertionError(f"it ended without {kind.kind}; seen: {self.events}")

    def finish(self, within: float = 10.0) -> int:
        """Wait for its end and read what is left; returns the exit code."""
        code = self.process.wait(within)
        while line := self._lines.get(timeout=5):
            self.events.append(parse_egress_event(line))
        self._lines.put(b"")
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self.process.stdout:
                self._lines.put(line)
        self._lines.put(b"")


@contextlib.contextmanager
def start_gateway(pod: Pod) -> Generator[GatewayProcess, None, None]:
    """Start a gateway; it is armed and has no policy."""
    process = pod.namespace.inside(
        lambda: subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    )
    with process:
        try:
            gateway = GatewayProcess(process)
            gateway.wait(GatewayArmed)
            yield gateway
        finally:
            process.kill()


@contextlib.contextmanager
def open_gateway_process(
    pod: Pod, egress: object, **policy: object
) -> Generator[GatewayProcess, None, None]:
    """Start a gateway and give it a policy, generation 1; it is ready."""
    with start_gateway(pod) as gateway:
        values: dict[str, object] = {"generation": 1, "egress": egress, "dns": [UPSTREAM]}
        gateway.send(control="policy", **{**values, **policy})
        gateway.wait(GatewayReady)
        yield gateway
