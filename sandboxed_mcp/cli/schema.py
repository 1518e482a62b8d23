"""`sandboxed-mcp schema`: the JSON Schema of the configuration file or the audit log, on stdout."""

from __future__ import annotations

import json

import click

from sandboxed_mcp.audit.schema import audit_schema
from sandboxed_mcp.config.schema import json_schema

__all__ = ["schema"]


@click.command()
@click.option("--audit", is_flag=True, help="Of a line of the audit log instead.")
def schema(*, audit: bool) -> None:
    """Print the JSON Schema (2020-12) of sandboxed-mcp.toml."""
    click.echo(json.dumps(audit_schema() if audit else json_schema(), indent=2))
