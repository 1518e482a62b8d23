"""The launcher's end of a gateway: control lines to it, its events back.

`GatewayLink.run` reads until the gateway ends; the server must not outlive that. The gateway
sits next to the server, so a line of it that does not parse counts as its end.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import anyio

from sandboxed_mcp.egress.event_lines import MAX_LINE, EventError, parse_egress_event
from sandboxed_mcp.egress.events import (
    EgressEvent,
    GatewayFailed,
    GatewayReady,
    PolicyApplied,
    PolicyRefused,
)
from sandboxed_mcp.engine.frames import FrameDecoder, ProtocolError, Stream
from sandboxed_mcp.errors import LaunchError
from sandboxed_mcp.events import NetworkEvent
from sandboxed_mcp.plan import control_line
from sandboxed_mcp.text import TailBuffer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxed_mcp.config.policy import Policy
    from sandboxed_mcp.engine.api import HijackedStream
    from sandboxed_mcp.plan import SandboxPlan
    from sandboxed_mcp.recorder import Recorder

__all__ = ["GatewayLink"]

APPLY_SECONDS: Final = 10.0
FINISH_SECONDS: Final = 2.0
TAIL_BYTES: Final = 4096


class GatewayLink:
    """One gateway, seen from the launcher.

    Attributes:
        ended: Set when the gateway can no longer be relied on.
        failure: Why it ended; empty while it runs.
    """

    def __init__(self, plan: SandboxPlan, stream: HijackedStream, recorder: Recorder) -> None:
        self.ended = anyio.Event()
        self.failure = ""
        self._server = plan.server
        self._host_addresses = plan.gateway.host_addresses if plan.gateway is not None else ()
        self._observe = plan.network == "observed"
        self._reading = False
        self._stream = stream
        self._recorder = recorder
        self._decoder = FrameDecoder()
        self._stderr = TailBuffer(TAIL_BYTES)
        self._rest = b""
        self._ready = anyio.Event()
        self._answered = anyio.Event()
        self._answer: PolicyApplied | PolicyRefused | None = None
        self._generation = 1
        self._applying = anyio.Lock()

    async def run(self) -> None:
        """Reads the gateway's events until it ends."""
        self._reading = True
        try:
            while True:
                self._receive(await self._stream.receive())
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self._end(self._stderr.show() or "its container ended")
        except (EventError, ProtocolError) as error:
            self._end(str(error))
        finally:
            self._reading = False

    async def finish(self) -> None:
        """Lets the gateway end, and takes what it still reports; call it when the server has ended.

        Whoever was reading before may have been cancelled: then this reads.
        """
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await self._stream.send_eof()
        with anyio.move_on_after(FINISH_SECONDS):
            await (self.ended.wait() if self._reading else self.run())

    async def send(self, control: Mapping[str, Any]) -> None:
        """Writes a control line; a gateway that is gone shows in `ended`."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await self._stream.send(json.dumps(control).encode() + b"\n")

    async def wait_ready(self) -> None:
        """Waits until the rules are in force and both probes agree.

        Raises:
            LaunchError: The gateway ended before.
        """
        await self._ready.wait()
        if self.failure:
            raise LaunchError(
                f"server '{self._server}' was not started: its gateway failed: {self.failure}"
            )

    async def apply(self, policy: Policy) -> PolicyApplied:
        """Puts a policy in force in place of the one before.

        Returns:
            What is in force now.

        Raises:
            LaunchError: It was refused, or the gateway is gone; the policy before stays.
        """
        async with self._applying:
            self._generation += 1
            self._answered = anyio.Event()
            await self.send(
                control_line(
                    policy,
                    self._generation,
                    observe=self._observe,
                    host_addresses=self._host_addresses,
                )
            )
            with anyio.move_on_after(APPLY_SECONDS):
                await self._answered.wait()
        answer = self._answer
        if self.failure or answer is None or answer.generation != self._generation:
            why = self.failure or f"no answer within {APPLY_SECONDS:.0f} s"
            raise LaunchError(f"the gateway of server '{self._server}' did not answer: {why}")
        if isinstance(answer, PolicyRefused):
            raise LaunchError(
                f"the gateway of server '{self._server}' refused the policy: {answer.reason}; "
                "the policy before stays in force"
            )
        return answer

    def _receive(self, data: bytes) -> None:
        for stream, piece in self._decoder.receive(data):
            if stream is Stream.STDERR:
                self._stderr.append(piece)
                continue
            *lines, self._rest = (self._rest + bytes(piece)).split(b"\n")
            for line in lines:
                self._take(parse_egress_event(line))
            if len(self._rest) > MAX_LINE:
                raise EventError("the gateway wrote an endless line")

    def _take(self, event: EgressEvent) -> None:
        self._recorder.record(NetworkEvent, kind=event.kind, details=asdict(event))
        match event:
            case GatewayReady():
                self._ready.set()
            case PolicyApplied() | PolicyRefused():
                self._answer = event
                self._answered.set()
            case GatewayFailed():
                self.failure = event.reason
            case _:
                return

    def _end(self, reason: str) -> None:
        self.failure = self.failure or reason
        self.ended.set()
        self._ready.set()
        self._answered.set()
