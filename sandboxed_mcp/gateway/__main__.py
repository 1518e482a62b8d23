"""The gateway's process: `python -m sandboxed_mcp.gateway`.

    arm (deny all) -> `armed` -> first control line -> policy in force -> `ready` -> ... -> arm

Control lines come in on stdin, events go out on stdout; there is no other way to speak to it.
It ends when stdin ends, when it is told to, or when anything goes wrong: then with a `failed`
event and exit code 1. In each case the network is shut first.
"""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING, Final, cast

from sandboxed_mcp.gateway.kernel import Kernel
from sandboxed_mcp.gateway.link import read_link

if TYPE_CHECKING:
    from types import ModuleType

MAX_FILES: Final = 4096
"""Two sockets for each relayed connection, two pipe ends for each direction under way."""


def main() -> int:
    """Run until stdin ends.

    Returns:
        0 after a regular end, 1 after a failure; its reason is the last event, or on stderr
        when not even events could be written.
    """
    try:
        link = read_link()
        kernel = Kernel(link)
    except Exception as error:  # noqa: BLE001 - whatever it is, there is no gateway
        print(f"gateway: the network cannot be shut: {error}", file=sys.stderr)  # noqa: T201
        return 1
    _raise_file_limit()
    # asyncio does without TLS when there is none; it would cost 5 MiB and is never used here
    sys.modules.setdefault("ssl", cast("ModuleType", None))
    from sandboxed_mcp.gateway.session import run_session  # noqa: PLC0415 - armed first

    return run_session(kernel, link)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main())
