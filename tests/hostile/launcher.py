"""A launcher on the library: opens a sandbox, says its container, and waits to be killed.

    python launcher.py CONFIG NAME [--fork]

With `--fork` it first leaves behind a child that holds everything it has open.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio

from sandboxed_mcp import open_sandbox
from sandboxed_mcp.config.loading import load_server


async def main() -> None:
    async with open_sandbox(load_server(Path(sys.argv[1]), sys.argv[2])) as sandbox:
        words = sandbox.container
        if "--fork" in sys.argv:
            child = os.fork()
            if child == 0:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # or whoever reads us would wait
                os.dup2(1, 2)
                signal.alarm(120)
                while True:
                    signal.pause()
            words += f" {child}"
        sys.stdout.write(f"{words}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
