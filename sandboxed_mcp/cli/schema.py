"""`sandboxed-mcp schema`: the JSON Schema of the configuration file, on stdout."""

from __future__ import annotations

import json

import click

from sandboxed_mcp.config.schema import json_schema

__all__ = ["schema"]


@click.command()
def schema() -> None:
    """Print the JSON Schema (2020-12) of sandboxed-mcp.toml."""
    click.echo(json.dumps(json_schema(), indent=2))
