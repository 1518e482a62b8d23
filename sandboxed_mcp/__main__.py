"""`python -m sandboxed_mcp`: the command line."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command line and exits with its status."""
    _open_missing()
    from sandboxed_mcp.cli.main import cli  # noqa: PLC0415 - importing the package costs nothing

    sys.exit(cli(prog_name="sandboxed-mcp"))


def _open_missing() -> None:
    """Puts /dev/null where a standard stream is closed: nothing else may get its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is given out first, so it is this one.
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    main()
