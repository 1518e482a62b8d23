"""The decision: may this packet or connection leave, and which rule says so.

Pure and total: every destination has a verdict, and what no rule names is denied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxed_mcp.egress.addresses import METADATA, classify, embedded_ipv4, never_reason
from sandboxed_mcp.egress.names import canonical_name, matches_name
from sandboxed_mcp.egress.networks import parse_network
from sandboxed_mcp.egress.parsing import split_text
from sandboxed_mcp.egress.values import (
    AddressRule,
    Destination,
    NameRule,
    Rule,
    RuleError,
    Unrestricted,
    Verdict,
)

if TYPE_CHECKING:
    from sandboxed_mcp.egress.addresses import IPAddress, IPNetwork
    from sandboxed_mcp.egress.values import Egress

__all__ = ["decide", "parse_destination", "rules_for_name"]


def decide(egress: Egress, destination: Destination) -> Verdict:
    """Decide whether a destination may be reached.

    A verified rule needs the TLS server name: pass it, or the verdict is a denial. An address
    of None stands for a name that is not resolved yet; the addresses it turns out to have are
    judged again.

    Args:
        egress: The sandbox's rules.
        destination: With canonical names.

    Returns:
        Allowed with the first rule that opens it; or denied with the rule that came closest,
        if any, and the reason.
    """
    if isinstance(egress, Unrestricted):
        return Verdict(True, None, "egress is unrestricted")
    if not egress:
        return Verdict(False, None, "the policy has no egress rule: no network")
    nearest: Verdict | None = None
    for rule in egress:
        verdict = _judge(rule, destination)
        if verdict is not None and verdict.allowed:
            return verdict
        nearest = nearest or verdict
    return nearest or Verdict(False, None, f"no rule names {_render_destination(destination)}")


def rules_for_name(egress: Egress, name: str) -> tuple[NameRule, ...]:
    """Select the rules that name a canonical name, whatever the port; for the resolver.

    Returns:
        The rules in their order; empty when none does, and when egress is unrestricted.
    """
    if isinstance(egress, Unrestricted):
        return ()
    return tuple(r for r in egress if isinstance(r, NameRule) and matches_name(r, name))


def parse_destination(text: str) -> Destination:
    """Read a destination that a person asks about: `HOST[:PORT][/PROTOCOL]`.

    Args:
        text: A name, an IPv4 address or a bracketed IPv6 address; the port is 443 and the
            protocol `tcp` unless written.

    Returns:
        The destination. A name on TCP is taken to show itself as its TLS server name.

    Raises:
        RuleError: Not of that form, a wildcard, a network or a range of ports.
    """
    target, ports, written = split_text(text)
    port, protocol = (ports.first if ports else 443), written or "tcp"
    if (ports and ports.first != ports.last) or "*" in target or "/" in target:
        raise RuleError(
            f"{text!r} is more than one destination",
            "write HOST:PORT, such as 'api.example.com:443' or '192.0.2.7:5432/tcp'",
        )
    network = parse_network(target)
    if network is not None:
        return Destination(None, network.network_address, port, protocol)
    host = canonical_name(target)
    return Destination(host, None, port, protocol, host if protocol == "tcp" else None)


def _judge(rule: Rule, destination: Destination) -> Verdict | None:
    """The rule's verdict; None when it does not name the destination's host or address."""
    if not _names(rule, destination):
        return None
    if rule.protocol != destination.protocol or destination.port not in rule.ports:
        return _deny(rule, f"opens {rule.ports}/{rule.protocol} only")
    if isinstance(rule, NameRule):
        return _judge_address(rule, destination) or _judge_tls(rule, destination)
    return _judge_literal(rule, destination.address)


def _names(rule: Rule, destination: Destination) -> bool:
    if isinstance(rule, NameRule):
        return destination.host is not None and matches_name(rule, destination.host)
    address = destination.address
    return address is not None and _within(address, rule.network)


def _judge_address(rule: NameRule, destination: Destination) -> Verdict | None:
    address = destination.address
    if address is None:
        return None
    kind = classify(address)
    if kind == "never":
        return _deny(rule, f"never opens {address} ({_describe(address)})")
    if kind == "private" and not rule.allow_private:
        return _deny(rule, f"does not say allow_private, and {address} is private")
    return None


def _judge_tls(rule: NameRule, destination: Destination) -> Verdict:
    if rule.tls == "off":
        return _allow(rule)
    shown = destination.tls_server_name
    if shown is None:
        return _deny(rule, "verifies the TLS server name, and the connection shows none")
    if not matches_name(rule, shown):
        return _deny(rule, f"does not name the TLS server name '{shown}'")
    return _allow(rule)


def _judge_literal(rule: AddressRule, address: IPAddress | None) -> Verdict:
    if address is None or classify(address) != "never":
        return _allow(rule)
    if rule.single and rule.allow_private and address in METADATA:
        return _allow(rule)
    return _deny(rule, f"never opens {address} ({_describe(address)})")


def _allow(rule: Rule) -> Verdict:
    return Verdict(True, rule, f"rule '{rule.text}' opens it")


def _deny(rule: Rule, why: str) -> Verdict:
    return Verdict(False, rule, f"rule '{rule.text}' {why}")


def _describe(address: IPAddress) -> str:
    inner = (never_reason(one) for one in (address, *embedded_ipv4(address)))
    return next((reason for reason in inner if reason), "reserved")


def _render_destination(destination: Destination) -> str:
    place = destination.host or destination.address or "a destination without name and address"
    return f"{place} on {destination.port}/{destination.protocol}"


def _within(address: IPAddress, network: IPNetwork) -> bool:
    return address.version == network.version and address in network
