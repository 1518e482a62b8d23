"""`python -m sandboxed_mcp`: the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and exits with its status."""
    from sandboxed_mcp.cli.main import cli  # noqa: PLC0415 - importing the package costs nothing

    sys.exit(cli(prog_name="sandboxed-mcp"))


if __name__ == "__main__":
    main()
