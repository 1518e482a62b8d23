"""What `policy test` tries, and what came of it: destinations, attempts, judgements.

`list_trials` and `judge` are pure; `try_all` starts the throwaway sandbox. A trial counts as let
through when it reached something, or when the gateway recorded that it let it go: a refusal by
the destination itself is not the policy's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from sandboxed_mcp.cli import reach_inside
from sandboxed_mcp.config.policy import Policy
from sandboxed_mcp.config.servers import ServerConfig
from sandboxed_mcp.egress.rules import (
    AddressRule,
    Destination,
    NameRule,
    Unrestricted,
    decide,
    parse_destination,
)
from sandboxed_mcp.events import NetworkEvent
from sandboxed_mcp.sandbox import open_sandbox
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandboxed_mcp.egress.rules import Egress, Rule
    from sandboxed_mcp.events import Event
    from sandboxed_mcp.sandbox import Sandbox

__all__ = ["Trial", "TrialResult", "judge", "list_trials", "try_all"]

PROGRAM: Final = Path(reach_inside.__file__)
TRIAL_SECONDS: Final = 300.0
REPORT_BYTES: Final = 1 << 20
OUTCOME_CHARS: Final = 80
GATEWAY: Final = "@gateway"
FOREIGN_NAME: Final = "name-of-no-rule.invalid"
"""RFC 6761: no resolver has it, should it ever get that far."""

MUST_FAIL: Final = (
    ("198.51.100.1:443", "an address of no rule (documentation, routed nowhere)"),
    ("[2001:db8::1]:443", "an IPv6 address of no rule (likewise)"),
    ("198.51.100.1:9/udp", "UDP to an address of no rule"),
    (f"{FOREIGN_NAME}:443", "a name of no rule"),
    ("169.254.169.254:80", "the metadata service of clouds"),
    ("127.0.0.1:15443", "the gateway's own relay"),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing to try.

    Attributes:
        shown: The destination as a person reads it.
        destination: Where to go; `host` is the name to look up, if any.
        note: Why it is tried.
        expected: Whether the rules let it through.
        host: What the probe connects to.
    """

    shown: str
    destination: Destination
    note: str
    expected: bool
    host: str


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of a trial.

    Attributes:
        trial: The trial.
        passed: Whether it was let through.
        outcome: What the probe saw, or why it was denied; sanitized.
    """

    trial: Trial
    passed: bool
    outcome: str

    @property
    def agreed(self) -> bool:
        """Whether the sandbox did what the rules say."""
        return self.passed == self.trial.expected


def list_trials(egress: Egress, wanted: Iterable[str]) -> tuple[list[Trial], list[str]]:
    """Everything to try.

    Args:
        egress: The rules.
        wanted: Destinations that a person adds.

    Returns:
        The trials, and the rules for which none can be made up, such as wildcards.

    Raises:
        RuleError: A destination is none.
    """
    trials = [_make(egress, text, "asked for") for text in wanted]
    untried: list[str] = []
    for rule in () if isinstance(egress, Unrestricted) else egress:
        if (isinstance(rule, NameRule) and rule.wildcard) or not _is_single(rule):
            untried.append(rule.text)
            continue
        trials += _list_for_rule(egress, rule)
    trials += [_make(egress, text, note) for text, note in MUST_FAIL]
    gateway = Destination(None, None, 22)
    trials.append(Trial("this host:22", gateway, "the host's own address", False, GATEWAY))
    if isinstance(egress, Unrestricted):
        return [one for one in trials if one.note == "asked for"], []
    return list({one.shown: one for one in reversed(trials)}.values())[::-1], untried


def _is_single(rule: Rule) -> bool:
    return isinstance(rule, NameRule) or rule.single


def _list_for_rule(egress: Egress, rule: Rule) -> list[Trial]:
    target = rule.target if isinstance(rule, AddressRule) else rule.pattern
    first = f"{target}:{rule.ports.first}/{rule.protocol}"
    trials = [_make(egress, first, "of a rule")]
    if isinstance(rule, NameRule) and rule.tls == "verify":
        own = trials[0].destination
        foreign = replace(own, tls_server_name=FOREIGN_NAME)
        shown = f"{target}:{rule.ports.first} as {FOREIGN_NAME}"
        allowed = decide(egress, foreign).allowed
        trials.append(Trial(shown, foreign, "under another TLS name", allowed, target))
    other = 9 if rule.ports.first != 9 else 11  # noqa: PLR2004 - discard and systat
    trials.append(_make(egress, f"{target}:{other}/{rule.protocol}", "another port of a rule"))
    return trials


def _make(egress: Egress, text: str, note: str) -> Trial:
    where = parse_destination(text)
    host = where.host or str(where.address)
    named = f"[{host}]" if ":" in host else host
    verdict = decide(egress, where)
    verified = isinstance(verdict.rule, NameRule) and verdict.rule.tls == "verify"
    if not verified:
        where = replace(where, tls_server_name=None)
    return Trial(f"{named}:{where.port}/{where.protocol}", where, note, verdict.allowed, host)


async def try_all(policy: Policy, trials: list[Trial]) -> list[TrialResult]:
    """Makes the trials in a throwaway sandbox that has the policy's network.

    Args:
        policy: The server's; its `egress`, `dns` and `runtime` count.
        trials: From `list_trials`.

    Raises:
        SandboxError: The sandbox does not start.
    """
    source = PROGRAM.read_text(encoding="utf-8")
    tasks = [
        {
            "id": number,
            "host": one.host,
            "port": one.destination.port,
            "protocol": one.destination.protocol,
            "tls": one.destination.tls_server_name,
        }
        for number, one in enumerate(trials)
    ]
    server = ServerConfig(
        name="policy-test",
        command="python3",
        args=("-I", "-c", source, json.dumps(tasks)),
        policy=Policy(egress=policy.egress, dns=policy.dns, runtime=policy.runtime),
    )
    report = b""
    async with open_sandbox(server) as sandbox:
        with anyio.move_on_after(TRIAL_SECONDS):
            report = await _read(sandbox)
    reports = _parse(report)
    events = sandbox.events.take_queued()
    return [judge(one, reports.get(number), events) for number, one in enumerate(trials)]


async def _read(sandbox: Sandbox) -> bytes:
    report = bytearray()
    while len(report) < REPORT_BYTES:
        try:
            report += await sandbox.receive()
        except anyio.EndOfStream:
            break
    return bytes(report)


def _parse(report: bytes) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for line in report.splitlines():
        try:
            loaded = json.loads(line)
            found[loaded["id"]] = loaded
        except (ValueError, KeyError, TypeError):
            continue
    return found


def judge(trial: Trial, report: dict[str, Any] | None, events: Iterable[Event]) -> TrialResult:
    """Whether a trial was let through: by what the probe saw, and by what the gateway recorded.

    Args:
        trial: The trial.
        report: The probe's line; None when there is none.
        events: Everything recorded meanwhile.
    """
    if report is None:
        return TrialResult(trial, not trial.expected, "the probe did not report it")
    outcome = sanitize(str(report.get("outcome")), OUTCOME_CHARS)
    address = str(report.get("address"))
    if report.get("reached") is True:
        return TrialResult(trial, True, outcome)
    mine = [
        one for one in events if isinstance(one, NetworkEvent) and _concerns(one, trial, address)
    ]
    denied = [one for one in mine if one.kind == "deny"]
    if any(one.kind == "connect" for one in mine):
        return TrialResult(trial, True, f"let through; {outcome}")
    if denied:
        reason = sanitize(str(denied[-1].details.get("reason")), OUTCOME_CHARS)
        return TrialResult(trial, False, f"{outcome} ({reason})")
    # A name without an address: the lookup is all that the policy could let through.
    looked_up = not address and any(one.kind == "dns" for one in mine)
    return TrialResult(trial, trial.expected and looked_up, outcome)


def _concerns(event: NetworkEvent, trial: Trial, address: str) -> bool:
    details, where = event.details, trial.destination
    if event.kind == "dns" or (event.kind == "deny" and details.get("layer") == "dns"):
        return where.host is not None and details.get("name") == where.host and not address
    if event.kind not in {"connect", "deny"}:
        return False
    same = (details.get("port"), details.get("protocol")) == (where.port, where.protocol)
    shown = where.tls_server_name
    if not same or str(details.get("address")) != address:
        return False
    return shown is None or details.get("name") in {"", shown}
