"""What the kernel tells, as events: denied packets, and the flows of rules without TLS names.

Flows of verified rules are the relay's own connections; it reports them by itself. After an
update the flows that no rule opens any more are ended here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.events import (
    ConnectionClosed,
    ConnectionOpened,
    Denied,
    EgressEvent,
    EventsSuppressed,
)
from sandboxed_mcp.egress.names import matches_name
from sandboxed_mcp.egress.rules import Destination, NameRule, decide
from sandboxed_mcp.egress.ruleset_values import UPSTREAM_SLOT, list_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sandboxed_mcp.egress.addresses import IPAddress
    from sandboxed_mcp.egress.ruleset_values import Slot
    from sandboxed_mcp.egress.values import Egress
    from sandboxed_mcp.gateway.conntrack import Flow, FlowEvent, FlowListener
    from sandboxed_mcp.gateway.nflog import DeniedListener, DeniedPacket
    from sandboxed_mcp.gateway.sets import Count

__all__ = ["FlowReporter"]

GATHER_SECONDS: Final = 0.05
MAX_FLOWS: Final = 8192
"""Flows whose start is remembered, to tell how long they were open."""

_INBOUND: Final = ("inbound", "injection")


class FlowReporter:
    """Turns flows and denied packets into events."""

    def __init__(
        self,
        *,
        names: Callable[[IPAddress], tuple[str, ...]],
        report: Callable[[EgressEvent], None],
        clock: Callable[[], float],
        is_probe: Callable[[DeniedPacket], bool],
    ) -> None:
        """Prepare.

        Args:
            names: The names that an address is open for now.
            report: Takes the events.
            clock: Monotonic, seconds.
            is_probe: Whether a packet is one of the gateway's own probes.
        """
        self._names = names
        self._report = report
        self._clock = clock
        self._is_probe = is_probe
        self._slots: dict[tuple[int, int], Slot] = {}
        self._started: dict[int, float] = {}
        self._counted = self._told = 0  # denied packets

    def adopt(self, egress: Egress, generation: int) -> None:
        """Learn the slots of a generation; those of the one before are still needed.

        Its ruleset counts from 0.
        """
        self._counted = self._told = 0
        known = {key: slot for key, slot in self._slots.items() if key[0] >= generation - 1}
        known |= {(generation, slot.number): slot for slot in list_slots(egress)}
        self._slots = known

    def watch(self, flows: FlowListener, denied: DeniedListener) -> Callable[[], None]:
        """Report what the listeners hear; returns the function that stops it, after a last look.

        Flows are read a moment after they are heard of, many at once: each relayed connection
        makes one, which must not stand in that connection's way.
        """
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        def gather() -> None:
            loop.remove_reader(flows)
            timers[:] = [loop.call_later(GATHER_SECONDS, read)]

        def read() -> None:
            self.report_flows(flows.receive())
            loop.add_reader(flows, gather)

        def stop() -> None:
            for timer in timers:
                timer.cancel()
            loop.remove_reader(flows)
            loop.remove_reader(denied)
            self.report_flows(flows.receive())
            self._read_denied(denied)

        loop.add_reader(flows, gather)
        loop.add_reader(denied, self._read_denied, denied)
        return stop

    def report_flows(self, events: Iterable[FlowEvent]) -> None:
        """Report flows that began or ended under rules that do not verify TLS names."""
        for event in events:
            slot = self._slots.get((event.flow.generation, event.flow.slot))
            if slot is None or _is_relayed(slot):
                continue
            if event.kind == "opened":
                self._open(event.flow, slot)
            else:
                self._close(event.flow, slot)

    def report_unlogged(self, counts: Mapping[str, Count]) -> None:
        """Tell how many packets were denied beyond what the log's rate let through.

        Counts are told at the next call: until then their reports may still be on the way.

        Args:
            counts: The ruleset's counters now.
        """
        untold = self._counted - self._told
        if untold > 0:
            self._told += untold
            self._report(EventsSuppressed(of="deny", count=untold))
        self._counted = sum(
            count.packets for name, count in counts.items() if name.startswith("denied_")
        )

    def find_forbidden(self, flows: list[Flow], egress: Egress, generation: int) -> list[Flow]:
        """Select the flows of earlier generations that the policy does not open any more."""
        return [
            flow
            for flow in flows
            if flow.slot != UPSTREAM_SLOT
            and flow.generation != generation
            and not self._allowed(flow, egress)
        ]

    def _allowed(self, flow: Flow, egress: Egress) -> bool:
        hosts = (None, *self._names(flow.address))
        return any(
            decide(egress, Destination(host, flow.address, flow.port, flow.protocol, host)).allowed
            for host in hosts
        )

    def _open(self, flow: Flow, slot: Slot) -> None:
        if len(self._started) < MAX_FLOWS:
            self._started[flow.id] = self._clock()
        self._report(
            ConnectionOpened(
                rule=slot.id,
                name=self._name(flow.address, slot),
                address=str(flow.address),
                port=flow.port,
                protocol=flow.protocol,
            )
        )

    def _close(self, flow: Flow, slot: Slot) -> None:
        now = self._clock()
        self._report(
            ConnectionClosed(
                rule=slot.id,
                name=self._name(flow.address, slot),
                address=str(flow.address),
                port=flow.port,
                protocol=flow.protocol,
                sent=flow.sent,
                received=flow.received,
                seconds=round(now - self._started.pop(flow.id, now), 3),
            )
        )

    def _name(self, address: IPAddress, slot: Slot) -> str:
        """The name that opened the address under this rule; the first of several."""
        rule = slot.rule
        if not isinstance(rule, NameRule):
            return ""
        return next((name for name in self._names(address) if matches_name(rule, name)), "")

    def _read_denied(self, listener: DeniedListener) -> None:
        for packet, count in listener.receive().items():
            self._told += count
            if not self._is_probe(packet):
                self._report(self._describe(packet, count))

    def _describe(self, packet: DeniedPacket, count: int) -> Denied:
        """For a packet that came in, the address is where it came from."""
        inbound = packet.reason in _INBOUND
        address = packet.source if inbound else packet.address
        names = self._names(address)
        return Denied(
            layer="packet",
            reason=packet.reason,
            name=names[0] if names else "",
            address=str(address),
            port=packet.port,
            protocol=packet.protocol,
            rule=packet.rule or "",
            count=count,
        )


def _is_relayed(slot: Slot) -> bool:
    return isinstance(slot.rule, NameRule) and slot.rule.tls == "verify"
