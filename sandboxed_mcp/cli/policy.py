"""`sandboxed-mcp policy`: what a policy grants, decides, really does, and could be.

`check` and `explain` start nothing and send nothing.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandboxed_mcp.cli.main import EXIT_FOUND
from sandboxed_mcp.cli.policy_live import apply, suggest
from sandboxed_mcp.cli.policy_test import test
from sandboxed_mcp.cli.tables import print_json
from sandboxed_mcp.config.loading import load_server_policy
from sandboxed_mcp.config.policies import load_policy
from sandboxed_mcp.egress.rules import (
    NameRule,
    RuleError,
    Unrestricted,
    canonical_name,
    decide,
    parse_destination,
    render_rule,
    rules_for_name,
)
from sandboxed_mcp.egress.sizes import render_size
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from sandboxed_mcp.config.policy import Policy
    from sandboxed_mcp.egress.rules import Destination, Verdict

__all__ = ["policy"]


@click.group()
def policy() -> None:
    """Check, explain, test, suggest and apply policies."""


policy.add_command(test)
policy.add_command(apply)
policy.add_command(suggest)


@policy.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Validate a policy FILE and show what it grants.

    Exits with 2 when a setting is refused; each is named on stderr.
    """
    checked = load_policy(file)
    click.echo(f"{file}: valid")
    for line in _describe(checked):
        click.echo(f"  {line}")


@policy.command()
@click.argument("name")
@click.argument("destination", metavar="HOST[:PORT][/PROTOCOL]")
@click.option("--tls", metavar="SERVERNAME", help="The TLS server name it shows; HOST unless set.")
@click.option(
    "--config", type=click.Path(path_type=Path), help="Configuration file that has the server."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    name: str, destination: str, tls: str | None, config: Path | None, *, as_json: bool
) -> None:
    """Tell which rule of server NAME's policy decides about a destination, and why.

    The port is 443 and the protocol tcp unless written. Nothing is sent, and no name is looked
    up: a name that is allowed may still lead to an address that is not. Exits with 1 when the
    destination is denied.
    """
    checked = load_server_policy(name, config, Path.cwd(), os.environ)
    where = _read_destination(destination, tls)
    verdict = decide(checked.egress, where)
    rule = None if verdict.rule is None else render_rule(verdict.rule)
    notes = _note(checked, where, verdict)
    if as_json:
        found = {"allowed": verdict.allowed, "rule": rule, "reason": verdict.reason}
        print_json({**found, "notes": notes})
    else:
        click.echo(f"{'ALLOWED' if verdict.allowed else 'DENIED'}: {verdict.reason}")
        for note in notes:
            click.echo(f"  {note}")
    if not verdict.allowed:
        raise SystemExit(EXIT_FOUND)


def _read_destination(text: str, tls: str | None) -> Destination:
    try:
        where = parse_destination(text)
    except RuleError as error:
        raise ConfigError("HOST[:PORT]", error.problem, error.fix) from error
    if tls is None:
        return where
    if where.protocol != "tcp":
        raise ConfigError("--tls", f"{text!r} is not TCP", "leave --tls out")
    try:
        return replace(where, tls_server_name=canonical_name(tls))
    except RuleError as error:
        raise ConfigError("--tls", error.problem, error.fix) from error


def _note(checked: Policy, where: Destination, verdict: Verdict) -> list[str]:
    """What else decides, now that the rules have."""
    if isinstance(checked.egress, Unrestricted):
        return []
    named = where.host is not None and rules_for_name(checked.egress, where.host)
    notes: list[str] = []
    if where.host is not None:
        word = "is" if named else "is not"
        notes.append(f"the name {where.host} {word} looked up for the server")
    if verdict.allowed and isinstance(verdict.rule, NameRule):
        kinds = "any address" if verdict.rule.allow_private else "public addresses"
        notes.append(f"of the addresses it has, {kinds} are opened; never one of this host's own")
        if verdict.rule.tls == "verify":
            notes.append(f"the connection must be TLS and show {where.tls_server_name}")
    if where.host is None and any(isinstance(rule, NameRule) for rule in checked.egress):
        notes.append("an address is also open for a while after a name of a rule led to it")
    return notes


def _describe(checked: Policy) -> list[str]:
    limits = checked.limits
    sizes = f"memory {render_size(limits.memory)}, scratch {render_size(limits.scratch)}"
    sizes += f", message {render_size(limits.message_size)}"
    return [
        *_describe_egress(checked),
        f"user     {checked.user}",
        f"runtime  {checked.runtime or 'the default of the engine'}",
        f"limits   {sizes}",
        f"         cpus {limits.cpus:g}, pids {limits.pids}, start {limits.start_timeout:g} s",
    ]


def _describe_egress(checked: Policy) -> list[str]:
    if isinstance(checked.egress, Unrestricted):
        return ["egress   UNRESTRICTED: every destination"]
    if not checked.egress:
        return ["egress   none: no network"]
    resolvers = [f"dns      {', '.join(checked.dns)}"] if checked.dns else []
    return [*(f"egress   {render_rule(rule)}" for rule in checked.egress), *resolvers]
