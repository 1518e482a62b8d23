"""The hostile server of the egress suite: does what it is told, from inside.

    python3 -u main.py [--eager ADDRESS PORT SECONDS]

Reads one JSON object a line, `{"do": "module.function", ...arguments}` (`agent` when there is no
module), and writes one line: `{"value": ...}` or `{"error": "ECONNREFUSED"}`. With `--eager` it
first sends without a pause to an address, from its first instruction on.
"""

from __future__ import annotations

import errno
import importlib
import json
import socket
import ssl
import sys
from typing import Any

_NAMES = {value: name for name, value in vars(socket).items() if name.startswith("EAI_")}


def name_error(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return _NAMES.get(error.errno or 0, "EAI")
    if isinstance(error, TimeoutError):
        return "TIMEOUT"
    if isinstance(error, ssl.SSLError):
        return f"SSL:{error.reason}"
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__


def do(wish: dict[str, Any]) -> dict[str, Any]:
    module, _, deed = wish.pop("do").rpartition(".")
    try:
        return {"value": getattr(importlib.import_module(module or "agent"), deed)(**wish)}
    except Exception as error:  # noqa: BLE001 - every outcome is a result here
        return {"error": name_error(error)}


def main() -> None:
    if sys.argv[1:2] == ["--eager"]:
        from flood import send_eagerly  # pyright: ignore[reportMissingImports, reportUnknownVariableType] # fmt: skip

        send_eagerly(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(do(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
