"""The laboratory as the egress suite furnishes it: every place that an attacker could want.

198.51.100.53   the resolver that policies name
198.51.100.10   DB        echo, named by rules
198.51.100.20   API       TLS under several names at one address
198.51.100.30   WEB       HTTPS
198.51.100.40   LITERAL   echo, named by address
198.51.100.66   STRANGER  echo on every port of interest, and HTTPS; no rule names it
198.18.0.7, 10.2.0.7      private networks
169.254.169.254 and kin   metadata services
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.hostile.egress.pods import RESOLVER, begun_at, left_for
from tests.hostile.egress.site import Site, open_site
from tests.lab.dns import Zone, open_dns
from tests.lab.servers import EchoServer, open_echo
from tests.lab.tls import TlsServer, open_tls_server

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.hostile.egress.pods import Exposed, Pod
    from tests.lab.bridge import Bridge
    from tests.lab.internet import Internet
    from tests.lab.tls import Authority

__all__ = ["API", "DB", "LITERAL", "PRIVATE", "STRANGER", "WEB", "World", "open_world"]

DB, API, WEB, LITERAL = "198.51.100.10", "198.51.100.20", "198.51.100.30", "198.51.100.40"
STRANGER = "198.51.100.66"
PRIVATE = ("198.18.0.7", "10.2.0.7")
METADATA = ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16")
DB_PORTS = (22, 443, 853, 5432, 8443)
STRANGER_PORTS = (22, 80, 53, 123, 853, 5353, 5432, 8443)
RANGE = range(7000, 7005)

CERTIFIED = ("api.example.com", "other.example.com", "*.wild.example.com", "web.example.com")

RULES = (
    "db.example.com:5432/tcp",
    "db.example.com:5432/udp",
    "api.example.com",
    "web.example.com",
    "*.wild.example.com",
    "*.plain.example.com:5432/tcp",
    "198.51.100.40/31:7000-7003/tcp",
    "long.example.com:5432/tcp",
)
OPEN = (
    (RESOLVER, 53),
    (DB, 5432),
    (API, 443),
    (WEB, 443),
    *((LITERAL, port) for port in range(7000, 7004)),
)


@dataclass
class World:
    """The furnished laboratory.

    Attributes:
        internet: Its namespace.
        bridge: The engine's bridge, attached to it.
        zone: What the resolver knows and was asked.
        echo: Every plain place.
        tls: The TLS servers at `API`.
        site: The web server at `WEB`.
        stranger: The web server at `STRANGER`.
    """

    internet: Internet
    bridge: Bridge
    zone: Zone
    echo: EchoServer
    tls: TlsServer
    site: Site
    stranger: Site

    def settle(self, pod: Pod | Exposed) -> None:
        """Have the pod send something that is allowed, and see it: what came before is there."""
        seen = len(pod.wire.packets(DB, "tcp", 5432))
        address = pod.do("names.lookup", name="db.example.com").value
        assert address == [DB], address
        assert pod.exchange("tcp", DB, 5432).text == "echo hello"
        pod.wire.wait(DB, "tcp", 5432, count=seen + 1)

    @contextlib.contextmanager
    def nothing_leaves(self, pod: Pod, *also: tuple[str, int]) -> Generator[None, None, None]:
        """What is done meanwhile sends nothing but to places that the rules open.

        Counted twice: every packet at the pod's own link, and what began anew at the far end of
        the bridge, where others end what they began before. The pod's network works before and
        after.
        """
        self.settle(pod)
        pod.wire.clear()
        self.bridge.wire.clear()
        yield
        self.settle(pod)
        assert left_for(pod.wire, *OPEN, *also) == []
        assert begun_at(self.bridge.wire, *OPEN, *also) == []

    @contextlib.contextmanager
    def nothing_leaves_unasked(self, pod: Pod) -> Generator[None, None, None]:
        """Like `nothing_leaves`, where the resolver is not as it should be meanwhile."""
        pod.wire.clear()
        answer = self.zone.answer
        yield
        self.zone.answer = None
        self.settle(pod)
        self.zone.answer = answer
        assert left_for(pod.wire, *OPEN) == []


@contextlib.contextmanager
def open_world(
    internet: Internet, bridge: Bridge, authority: Authority
) -> Generator[World, None, None]:
    """Furnish the laboratory until the end."""
    zone = Zone()
    zone.add("db.example.com", DB)
    zone.add("api.example.com", API)
    zone.add("other.example.com", API)
    zone.add("web.example.com", WEB)
    zone.add("evil.example.net", STRANGER)
    zone.add("wild.example.com", STRANGER)
    zone.add("a.wild.example.com", API)
    zone.add("a.b.wild.example.com", API)
    zone.add("a.plain.example.com", DB)
    zone.add("plain.example.com", STRANGER)
    places = [
        *((kind, DB, port) for kind in ("tcp", "udp") for port in DB_PORTS),
        *((kind, STRANGER, port) for kind in ("tcp", "udp") for port in STRANGER_PORTS),
        *(("tcp", LITERAL, port) for port in RANGE),
        *(("tcp", address, port) for address in PRIVATE for port in (443, 5432)),
        *(("tcp", address, 80) for address in METADATA),
        ("udp", STRANGER, 443),
        ("udp", API, 443),
        ("tcp", API, 5432),
    ]
    with contextlib.ExitStack() as stack:
        stack.enter_context(open_dns(internet.namespace, RESOLVER, zone))
        echo = stack.enter_context(open_echo(internet.namespace, *places))
        tls = stack.enter_context(open_tls_server(internet.namespace, authority, API))
        site, stranger = (
            stack.enter_context(open_site(internet.namespace, authority, address))
            for address in (WEB, STRANGER)
        )
        yield World(internet, bridge, zone, echo, tls, site, stranger)
