"""`policy test`: what a server's network policy really does, tried from inside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from sandboxed_mcp.cli.main import EXIT_FOUND
from sandboxed_mcp.cli.reach import list_trials, try_all
from sandboxed_mcp.cli.tables import open_console, print_json, print_table, working
from sandboxed_mcp.config.loading import load_server_policy
from sandboxed_mcp.egress.rules import RuleError
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from sandboxed_mcp.cli.reach import Trial, TrialResult
    from sandboxed_mcp.cli.tables import Cell
    from sandboxed_mcp.config.policy import Policy

__all__ = ["test"]


@click.command()
@click.argument("name")
@click.argument("destinations", nargs=-1, metavar="[HOST:PORT[/PROTOCOL]...]")
@click.option(
    "--config", type=click.Path(path_type=Path), help="Configuration file that has the server."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def test(name: str, destinations: tuple[str, ...], config: Path | None, *, as_json: bool) -> None:
    """Try from inside what server NAME's policy opens, and what it must not.

    Starts a throwaway sandbox with the server's network policy, not the server. The target of
    each rule is really connected to; so is each HOST:PORT, if the policy lets it. Exits with 1
    when the sandbox does not do what the rules say.
    """
    policy = load_server_policy(name, config, Path.cwd(), os.environ)
    trials, untried = _list(policy, destinations)
    with working(f"trying {len(trials)} destinations"):
        results = anyio.run(try_all, policy, trials)
    if as_json:
        print_json([_describe(one) for one in results])
    else:
        columns = ("DESTINATION", "RULES SAY", "OUTCOME", "AGREED", "TRIED AS")
        print_table(open_console(), columns, [_row(one) for one in results])
    for rule in untried:
        click.echo(
            f"sandboxed-mcp: not tried: rule '{rule}'; name a destination of it as an argument",
            err=True,
        )
    if not all(one.agreed for one in results):
        raise SystemExit(EXIT_FOUND)


def _list(policy: Policy, destinations: tuple[str, ...]) -> tuple[list[Trial], list[str]]:
    try:
        trials, untried = list_trials(policy.egress, destinations)
    except RuleError as error:
        raise ConfigError("HOST:PORT", error.problem, error.fix) from error
    if not trials:
        raise click.UsageError(
            "egress is unrestricted, so that nothing must fail; name destinations to try"
        )
    return trials, untried


def _row(result: TrialResult) -> list[Cell]:
    return [
        result.trial.shown,
        "allowed" if result.trial.expected else "denied",
        f"{'passed' if result.passed else 'blocked'}: {result.outcome}",
        ("yes", "green") if result.agreed else ("NO", "bold red"),
        result.trial.note,
    ]


def _describe(result: TrialResult) -> dict[str, object]:
    return {
        "destination": result.trial.shown,
        "note": result.trial.note,
        "expected": "allowed" if result.trial.expected else "denied",
        "passed": result.passed,
        "outcome": result.outcome,
        "agreed": result.agreed,
    }
