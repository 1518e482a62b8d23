"""Whether a connection with this ClientHello may go on to the address it was meant for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandboxed_mcp.egress.rules import Destination, NameRule, decide
from sandboxed_mcp.gateway.tls import (
    ACCESS_DENIED,
    UNRECOGNIZED_NAME,
    Incomplete,
    Outcome,
    Refused,
    ServerName,
)

if TYPE_CHECKING:
    from sandboxed_mcp.egress.addresses import IPAddress
    from sandboxed_mcp.egress.ruleset_values import Mode
    from sandboxed_mcp.egress.values import Rule

__all__ = ["Admitted", "Rejected", "RelayPolicy", "Target", "judge_hello", "still_allowed"]


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """The part of a policy that the relay needs.

    Attributes:
        rules: The rules in their order.
        mode: `observe`: nothing goes on, every server name is recorded.
    """

    rules: tuple[Rule, ...]
    mode: Mode = "enforce"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a connection was meant to go before it was redirected.

    Attributes:
        address: The original destination.
        port: Its port.
    """

    address: IPAddress
    port: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """The connection goes on.

    Attributes:
        rule: The rule that names it.
        name: The verified server name.
        ech: Whether an encrypted ClientHello came along.
    """

    rule: NameRule
    name: str
    ech: bool


@dataclass(frozen=True, slots=True)
class Rejected:
    """The connection ends here.

    Attributes:
        reason: Why.
        name: The server name it shows, or the one that the address was looked up for.
        alert: The TLS alert to send; None for a reset, where TLS is not spoken.
        rule: Id of the rule that came closest, if any.
    """

    reason: str
    name: str = ""
    alert: int | None = None
    rule: str = ""


def judge_hello(
    policy: RelayPolicy, target: Target, learned: tuple[str, ...], outcome: Outcome
) -> Admitted | Rejected:
    """Decide about a connection.

    Args:
        policy: What is in force.
        target: The original destination.
        learned: The names that the address is open for.
        outcome: What was read of the ClientHello.

    Returns:
        Admitted when the server name is one of `learned` and a rule opens it at this address
        and port.
    """
    looked_up = learned[0] if len(learned) == 1 else ""
    match outcome:
        case Incomplete():
            return Rejected("client hello did not arrive", looked_up)
        case Refused(reason, is_tls):
            return Rejected(reason, looked_up, ACCESS_DENIED if is_tls else None)
        case ServerName():
            return _judge_name(policy, target, learned, outcome)


def still_allowed(policy: RelayPolicy, target: Target, name: str) -> bool:
    """Whether a connection that was admitted before may stay open."""
    return policy.mode == "enforce" and decide(policy.rules, _destination(target, name)).allowed


def _judge_name(
    policy: RelayPolicy, target: Target, learned: tuple[str, ...], shown: ServerName
) -> Admitted | Rejected:
    name = shown.name
    if policy.mode == "observe":
        return Rejected("observed", name, ACCESS_DENIED)
    verdict = decide(policy.rules, _destination(target, name))
    rule = verdict.rule
    if not verdict.allowed or not isinstance(rule, NameRule):
        return Rejected(verdict.reason, name, UNRECOGNIZED_NAME, "" if rule is None else rule.id)
    if name not in learned:
        reason = f"the address was not looked up for the server name '{name}'"
        return Rejected(reason, name, UNRECOGNIZED_NAME, rule.id)
    return Admitted(rule, name, shown.ech)


def _destination(target: Target, name: str) -> Destination:
    return Destination(name, target.address, target.port, "tcp", name)
