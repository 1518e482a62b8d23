"""Policies that change under open connections, and the bounds of single rules."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.egress.ruleset import render_ruleset
from sandboxed_mcp.gateway.nft import NftError, load_ruleset, read_fingerprint
from sandboxed_mcp.gateway.sockets import destroy_sockets
from tests.lab.fixtures import internet, pod, server
from tests.lab.gate import open_gate
from tests.lab.servers import open_echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.internet import Internet, Pod
    from tests.lab.prober import Prober

__all__ = ["internet", "pod", "server"]

KEPT, REVOKED = "198.51.100.10", "198.51.100.20"
REVOKED_V6 = "2001:db8:51::20"
DENIED = "ECONNREFUSED"


def rules(protocol: str, *addresses: str) -> list[str]:
    """One address rule each."""
    return [f"{address}:5432/{protocol}" for address in addresses]


def test_a_tightened_policy_resets_what_it_revokes_and_keeps_the_rest(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    places = [("tcp", KEPT, 5432), ("tcp", REVOKED, 5432)]
    with (
        open_echo(internet.namespace, *places) as echo,
        open_gate(pod, rules("tcp", KEPT, REVOKED)) as gate,
    ):
        kept, revoked = server.dial("tcp", KEPT, 5432), server.dial("tcp", REVOKED, 5432)
        for handle in (kept, revoked):
            assert server.do("say", handle=handle).text == "echo hello"
        before = echo.received
        gate.apply(rules("tcp", KEPT))
        pod.wire.clear()
        began = time.monotonic()
        assert server.do("say", handle=revoked).error in ("ECONNRESET", "EPIPE")
        assert time.monotonic() - began < 10
        assert server.do("say", handle=kept).text == "echo hello"
        assert echo.received == before + len("hello")
        assert pod.wire.packets(REVOKED) == []


def test_a_download_that_only_listens_is_cut_when_revoked_and_goes_on_when_kept(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    places = [("tcp", KEPT, 5432), ("tcp", REVOKED, 5432)]
    with (
        open_echo(internet.namespace, *places) as echo,
        open_gate(pod, rules("tcp", KEPT, REVOKED)) as gate,
    ):
        kept, revoked = server.dial("tcp", KEPT, 5432), server.dial("tcp", REVOKED, 5432)
        wait_until(lambda: len(echo.open) == 2)
        gate.apply(rules("tcp", KEPT))
        for stream in echo.open:
            stream.send(b"pushed")
        assert server.do("hear", handle=kept).text == "pushed"
        server.do("hear", handle=revoked)
        assert server.do("hear", handle=revoked).error == "ECONNRESET"


def test_a_program_that_only_listens_is_woken_when_its_connection_is_revoked(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    places = [("tcp", address, 5432) for address in (KEPT, REVOKED, REVOKED_V6)]
    with (
        open_echo(internet.namespace, *places),
        open_gate(pod, rules("tcp", KEPT, REVOKED, f"[{REVOKED_V6}]")) as gate,
    ):
        kept = server.dial("tcp", KEPT, 5432)
        revoked = [server.dial("tcp", REVOKED, 5432), server.dial("tcp", REVOKED_V6, 5432)]
        gate.apply(rules("tcp", KEPT))
        ended = [flow for flow in gate.list_flows() if str(flow.address) != KEPT]
        assert len(ended) == 2
        pod.wire.clear()
        assert pod.namespace.inside(lambda: destroy_sockets(ended)) == 2
        for handle in revoked:
            assert server.do("hear", handle=handle).error == "ECONNABORTED"
        assert server.do("say", handle=kept).text == "echo hello"
        assert pod.namespace.inside(lambda: destroy_sockets(ended)) == 0
        assert {str(p.address) for p in pod.wire.packets(protocol="tcp")} == {KEPT}


def test_a_udp_flow_ends_with_its_rule(internet: Internet, pod: Pod, server: Prober) -> None:
    places = [("udp", KEPT, 5432), ("udp", REVOKED, 5432)]
    with (
        open_echo(internet.namespace, *places),
        open_gate(pod, rules("udp", KEPT, REVOKED)) as gate,
    ):
        kept, revoked = server.dial("udp", KEPT, 5432), server.dial("udp", REVOKED, 5432)
        for handle in (kept, revoked):
            assert server.do("say", handle=handle).text == "echo hello"
        gate.apply(rules("udp", KEPT))
        pod.wire.clear()
        assert server.do("say", handle=revoked).error == "EPERM"
        assert server.do("say", handle=kept).text == "echo hello"
        assert pod.wire.packets(REVOKED) == []


def test_a_flow_that_is_ended_is_judged_anew(internet: Internet, pod: Pod, server: Prober) -> None:
    with (
        open_echo(internet.namespace, ("udp", KEPT, 5432)),
        open_gate(pod, rules("udp", KEPT)) as gate,
    ):
        handle = server.dial("udp", KEPT, 5432)
        assert server.do("say", handle=handle).text == "echo hello"
        flow = gate.list_flows()[0]
        assert (str(flow.address), flow.port, flow.slot, flow.generation) == (KEPT, 5432, 1, 1)
        assert gate.end_flow(flow)
        assert not gate.end_flow(flow)
        assert gate.list_flows() == []
        assert server.do("say", handle=handle).text == "echo hello"  # judged anew, still allowed


def test_addresses_given_with_an_update_are_open_at_once(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    names = ["db.example.com:5432/tcp"]
    with open_echo(internet.namespace, ("tcp", KEPT, 5432)), open_gate(pod, names) as gate:
        gate.learn(KEPT)
        handle = server.dial("tcp", KEPT, 5432)
        gate.apply(names)
        assert server.exchange("tcp", KEPT, 5432).error == DENIED
        gate.apply(names, learned=gate.learned(KEPT))
        assert server.exchange("tcp", KEPT, 5432).text == "echo hello"
        assert server.do("say", handle=handle).text == "echo hello"


def test_a_bad_update_changes_nothing(internet: Internet, pod: Pod, server: Prober) -> None:
    with (
        open_echo(internet.namespace, ("tcp", KEPT, 5432)),
        open_gate(pod, rules("tcp", KEPT)) as gate,
    ):
        before = pod.namespace.inside(lambda: read_fingerprint(link=True))
        text = render_ruleset(replace(gate.spec, generation=2, egress=()))
        for broken in (text.replace("goto refuse", "goto nowhere"), text[:-40], text + "\nx"):
            with pytest.raises(NftError):
                pod.namespace.inside(lambda broken=broken: load_ruleset(broken))
        first = render_ruleset(gate.spec, first=True)
        with pytest.raises(NftError, match="exists"):
            pod.namespace.inside(lambda: load_ruleset(first))
        assert server.exchange("tcp", KEPT, 5432).text == "echo hello"
        assert pod.namespace.inside(lambda: read_fingerprint(link=True)) == before


def test_the_fingerprint_shows_a_change_and_no_traffic(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    def fingerprint() -> str:
        return pod.namespace.inside(lambda: read_fingerprint(link=True))

    with (
        open_echo(internet.namespace, ("tcp", KEPT, 5432)),
        open_gate(pod, ["db.example.com:5432/tcp"]) as gate,
    ):
        before = fingerprint()
        gate.learn(KEPT)
        server.exchange("tcp", KEPT, 5432)
        assert fingerprint() == before
        pod.namespace.run("nft", "insert", "rule", "inet", "sandboxed_mcp", "output", "accept")
        assert fingerprint() != before
        pod.namespace.run("nft", "delete", "table", "inet", "sandboxed_mcp")
        with pytest.raises(NftError):
            fingerprint()


def test_a_rule_lets_out_no_more_bytes_than_its_bound_over_updates_too(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    rule = {"host": KEPT, "ports": 5432, "protocol": "tcp", "max_bytes": 20_000}
    with open_echo(internet.namespace, ("tcp", KEPT, 5432)) as echo, open_gate(pod, [rule]) as gate:
        handle = server.dial("tcp", KEPT, 5432)
        assert server.do("say", handle=handle, text="x" * 5000).error is None
        name = gate.spec.egress[0].id if isinstance(gate.spec.egress, tuple) else ""
        used = gate.counts()[f"{name}_bytes"].bytes
        assert 5000 < used < 20_000
        gate.apply([rule], used_bytes={name: used})
        assert server.do("say", handle=handle, text="x" * 4000).error is None
        outcome = server.do("say", handle=handle, text="x" * 9000, timeout=1.0)
        assert outcome.error in ("ECONNRESET", "EPIPE") or outcome.value
        assert server.do("say", handle=handle, text="x").error in ("ECONNRESET", "EPIPE")
        assert server.exchange("tcp", KEPT, 5432).error == DENIED
        assert gate.wait_denied("bytes", KEPT).rule == name
        assert echo.received < 20_000


def test_new_connections_beyond_a_rules_rate_are_refused(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    rule = {"host": KEPT, "ports": 5432, "protocol": "tcp", "max_connections_per_minute": 3}
    other = f"{REVOKED}:5432/tcp"
    places = [("tcp", KEPT, 5432), ("tcp", REVOKED, 5432)]
    with open_echo(internet.namespace, *places) as echo, open_gate(pod, [rule, other]) as gate:
        outcomes = server.do("dial_many", protocol="tcp", address=KEPT, port=5432, count=10).table
        assert outcomes == {"connected": 3, DENIED: 7}
        assert isinstance(gate.spec.egress, tuple)
        assert gate.wait_denied("rate", KEPT).rule == gate.spec.egress[0].id
        free = server.do("dial_many", protocol="tcp", address=REVOKED, port=5432, count=10).table
        assert free == {"connected": 10}
        wait_until(lambda: echo.connections == 13)


def test_open_connections_are_bounded_and_loopback_stays_apart(
    internet: Internet, pod: Pod, server: Prober
) -> None:
    with (
        open_echo(internet.namespace, ("tcp", KEPT, 5432)) as echo,
        open_echo(pod.namespace, ("tcp", "127.0.0.1", 5432)),
        open_gate(pod, rules("tcp", KEPT), max_connections=50) as gate,
    ):
        for address in ("127.0.0.1", KEPT):
            tried = server.do("dial_many", protocol="tcp", address=address, port=5432, count=80)
            assert tried.table == {"connected": 50, DENIED: 30}
        assert gate.wait_denied("connections", KEPT).port == 5432
        wait_until(lambda: echo.connections == 50)


def wait_until(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    """Wait for another thread to have done something."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)  # noqa: TID251 - bounded, for a thread of this process
