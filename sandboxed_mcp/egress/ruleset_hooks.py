"""The base chains of a ruleset: where packets enter it, for either topology.

`output`: server and gateway share one network namespace. `forward`: the gateway routes for a
server in another one, which then cannot touch the ruleset even with NET_ADMIN.

Pure: values in, lines out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.ruleset_egress import DISCOVERY, render_redirects
from sandboxed_mcp.egress.ruleset_text import block, hexadecimal, match_gateway
from sandboxed_mcp.egress.ruleset_values import LINK_TABLE, UPSTREAM_SLOT, ct_mark

if TYPE_CHECKING:
    from sandboxed_mcp.egress.ruleset_values import RulesetSpec, Slot, Upstream

__all__ = ["render_hooks", "render_link"]

_EMBEDDED_RESOLVER: Final = "127.0.0.11"
_BEFORE_ENGINE: Final = -110  # the engine's own rewrite of its resolver stands at -100
_ANSWER: Final = "ct state established ct direction reply goto answered"
_ICMP_ERRORS: Final = (
    "ct state related icmp type"
    " { destination-unreachable, time-exceeded, parameter-problem } accept\n"
    "ct state related icmpv6 type"
    " { destination-unreachable, packet-too-big, time-exceeded, parameter-problem } accept"
).splitlines()
_TO_SERVER: Final = (
    "ct status and dnat == dnat",  # answers of the resolver and the relay
    "tcp flags & rst == rst",  # refusals
    "icmp type { destination-unreachable, time-exceeded }",
    "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded }",
)


def render_hooks(spec: RulesetSpec, slots: tuple[Slot, ...]) -> list[str]:
    """Write the base chains; each denies what it does not know."""
    upstream = block("chain upstream", _render_upstreams(spec))
    if spec.hook == "output":
        return [
            *upstream,
            *block("chain loopback", _render_loopback(spec)),
            *_base("output", "filter hook output priority filter", _output(spec)),
            *_base("input", "filter hook input priority filter", _input(spec)),
            *_base("forward", "filter hook forward priority filter", ["counter drop"]),
            *_rewrite("output", f"{match_gateway(spec.gateway)} return", spec, slots),
        ]
    server = f'iifname "{spec.server_link}"'
    return [
        *upstream,
        *_base("output", "filter hook output priority filter", _router_output(spec)),
        *_base("input", "filter hook input priority filter", _router_input(spec, server)),
        *_base("forward", "filter hook forward priority filter", _forward(server)),
        *_rewrite("prerouting", f'iifname != "{spec.server_link}" return', spec, slots),
    ]


def render_link(spec: RulesetSpec) -> list[str]:
    """Write the backstop: nothing passes the link that the rules did not stamp on its way.

    It stops packet sockets, which pass the other hooks by. The stamp is taken off before
    anybody can see the packet. ARP passes: without it there is no IPv4.
    """
    if spec.link is None:
        return []
    body = [
        f'type filter hook egress device "{spec.link}" priority filter; policy drop;',
        f"meta mark {hexadecimal(spec.stamp)} meta mark set 0 accept",
        "meta protocol arp accept",
        "counter drop",
    ]
    return block(f"table netdev {LINK_TABLE}", block("chain egress", body))


def _base(name: str, kind: str, body: list[str]) -> list[str]:
    return block(f"chain {name}", [f"type {kind}; policy drop;", *body])


def _rewrite(hook: str, exempt: str, spec: RulesetSpec, slots: tuple[Slot, ...]) -> list[str]:
    kind = f"type nat hook {hook} priority {_BEFORE_ENGINE}; policy accept;"
    return block("chain rewrite", [kind, exempt, *render_redirects(spec, slots)])


def _output(spec: RulesetSpec) -> list[str]:
    relay = f"tcp dport {spec.gateway.relay_port}"
    return [
        f"{match_gateway(spec.gateway)} jump upstream",
        f"ip daddr {_EMBEDDED_RESOLVER} goto deny_embedded",
        f"fib daddr type local {relay} ct status and dnat == 0 goto deny_relay",
        "fib daddr type local goto loopback",
        "goto egress",
    ]


def _input(spec: RulesetSpec) -> list[str]:
    return [
        f'iif "lo" udp dport {spec.gateway.upstream_ports} goto deny_injection',
        'iif "lo" accept',
        *_answers(spec),
    ]


def _router_output(spec: RulesetSpec) -> list[str]:
    return [
        f"{match_gateway(spec.gateway)} jump upstream",
        'oif "lo" accept',
        *(f'oifname "{spec.server_link}" {match} accept' for match in _TO_SERVER),
        *([f"{DISCOVERY} accept"] if spec.ipv6 else []),
        f"{match_gateway(spec.gateway)} goto egress",
        "goto deny_default",
    ]


def _router_input(spec: RulesetSpec, server: str) -> list[str]:
    ports = f"{{ {spec.gateway.resolver_port}, {spec.gateway.relay_port} }}"
    redirected = f"ct status and dnat == dnat meta l4proto {{ tcp, udp }} th dport {ports}"
    return ['iif "lo" accept', f"{server} {redirected} accept", *_answers(spec)]


def _forward(server: str) -> list[str]:
    return [f"{server} goto egress", _ANSWER, *_ICMP_ERRORS, "goto deny_inbound"]


def _answers(spec: RulesetSpec) -> list[str]:
    """What may come in by the link: answers, and errors about what went out."""
    discovery = [f"{DISCOVERY} accept"] if spec.ipv6 else []
    return [_ANSWER, *_ICMP_ERRORS, *discovery, "goto deny_inbound"]


def _render_loopback(spec: RulesetSpec) -> list[str]:
    """Loopback is free, but for the memory of its flows; it wakes no listener to flows."""
    return [
        "ct state new ct event set 0x0",
        f"ct state new ct count over {spec.max_connections} goto deny_connections",
        "accept",
    ]


def _render_upstreams(spec: RulesetSpec) -> list[str]:
    if spec.mode == "observe":
        return []
    return [line for upstream in spec.upstreams for line in _render_upstream(spec, upstream)]


def _render_upstream(spec: RulesetSpec, upstream: Upstream) -> list[str]:
    header = "ip" if upstream.address.version == 4 else "ip6"  # noqa: PLR2004 - IP version
    mark = f"ct mark set {hexadecimal(ct_mark(spec.generation, UPSTREAM_SLOT))} goto leave"
    to = f"{header} daddr {upstream.address}"
    return [
        f"{to} udp sport {spec.gateway.upstream_ports} udp dport {upstream.port} {mark}",
        f"{to} tcp dport {upstream.port} {mark}",
    ]
