"""What an observed server wanted, as a few lines for a person."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.audit.activity import LOOKUP, Activity, Place
from sandboxed_mcp.events import render_event
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from sandboxed_mcp.audit.activity import Traffic
    from sandboxed_mcp.events import Event

__all__ = ["Observer"]

MAX_LINES: Final = 40
HOST_CHARS: Final = 253


class Observer:
    """A sink for events that remembers what was wanted."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._activity = Activity()

    def take(self, event: Event) -> None:
        """Takes an event."""
        self._activity.take(json.loads(render_event(event)))

    def summarize(self) -> str:
        """What was wanted: connections, and names that nothing followed."""
        places = self._activity.places
        connected = {place.host for place in places if place.protocol != LOOKUP}
        shown = [
            (place, traffic)
            for place, traffic in places.items()
            if place.protocol != LOOKUP or place.host not in connected
        ]
        head = f"sandboxed-mcp: observed, nothing left the sandbox; server '{self._server}' wanted"
        if not shown:
            return f"{head} nothing"
        lines = [f"  {_describe(place, traffic)}" for place, traffic in shown[:MAX_LINES]]
        more = len(shown) - MAX_LINES + self._activity.left_out
        if more > 0:
            lines.append(f"  and {more} more; see an audit log (--audit FILE)")
        hint = "  'sandboxed-mcp policy suggest FILE' makes a policy of an audit log (--audit FILE)"
        return "\n".join([f"{head}:", *lines, hint])


def _describe(place: Place, traffic: Traffic) -> str:
    host = sanitize(place.host, HOST_CHARS) or "(unknown)"
    times = traffic.allowed + traffic.denied
    often = "once" if times == 1 else f"{times} times"
    if place.protocol == LOOKUP:
        return f"{host} (looked up only, {often})"
    tls = ", TLS" if traffic.named else ""
    return f"{host} on {place.port}/{sanitize(place.protocol, 20)} ({often}{tls})"
