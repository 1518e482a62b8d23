"""What the packet filter lets out and what not, counted at the far side of the link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.lab.fixtures import internet, pod, server
from tests.lab.gate import open_gate
from tests.lab.servers import open_echo

if TYPE_CHECKING:
    from tests.lab.internet import Internet, Pod
    from tests.lab.prober import Prober

__all__ = ["internet", "pod", "server"]

ALLOWED, OTHER = "198.51.100.10", "198.51.100.20"
ALLOWED_V6, OTHER_V6 = "2001:db8:51::10", "2001:db8:51::20"
REFUSED_V4, REFUSED_V6 = "EHOSTUNREACH", "EACCES"


def test_a_learned_address_is_reached_and_no_other(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    with (
        open_echo(
            internet.namespace,
            ("tcp", ALLOWED, 5432),
            ("tcp", OTHER, 5432),
            ("tcp", ALLOWED_V6, 5432),
            ("tcp", OTHER_V6, 5432),
        ),
        open_gate(pod, ["db.example.com:5432/tcp"]) as gate,
    ):
        assert server.exchange("tcp", ALLOWED, 5432).error == REFUSED_V4
        gate.learn(ALLOWED, ALLOWED_V6)
        assert server.exchange("tcp", OTHER, 5432).error == REFUSED_V4
        assert server.exchange("tcp", OTHER_V6, 5432).error == REFUSED_V6
        assert server.exchange("tcp", ALLOWED, 5432).text == "echo hello"
        assert server.exchange("tcp", ALLOWED_V6, 5432).text == "echo hello"
        pod.wire.wait(ALLOWED_V6, "tcp", 5432)
        assert pod.wire.packets(OTHER) == []
        assert pod.wire.packets(OTHER_V6) == []
        denied = gate.wait_denied("default", OTHER)
        assert (denied.protocol, denied.port, denied.rule) == ("tcp", 5432, None)
