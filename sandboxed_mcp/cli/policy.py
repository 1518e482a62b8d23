"""`sandboxed-mcp policy`: commands about policies. `check` validates one and starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandboxed_mcp.config.policies import load_policy
from sandboxed_mcp.egress.rules import Unrestricted, render_rule
from sandboxed_mcp.egress.sizes import render_size

if TYPE_CHECKING:
    from sandboxed_mcp.config.policy import Policy

__all__ = ["policy"]


@click.group()
def policy() -> None:
    """Check policies."""


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
    return [f"egress   {render_rule(rule)}" for rule in checked.egress]
