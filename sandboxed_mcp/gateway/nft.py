"""Run `nft`: put a ruleset in force, and tell later whether it still stands.

One process for each call, text on its standard input, no shell. The only module that starts
`nft`; set elements go through `sets`, which is a hundred times faster.
"""

from __future__ import annotations

import subprocess
from typing import Final

from sandboxed_mcp.egress.ruleset_values import LINK_TABLE, TABLE

__all__ = ["NftError", "load_ruleset", "read_fingerprint"]

_NFT: Final = "/usr/sbin/nft"
_TIMEOUT: Final = 10.0
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class NftError(Exception):
    """`nft` refused; its own words. The ruleset before it is still in force."""


def load_ruleset(text: str) -> None:
    """Put a ruleset in force in one transaction: all of it or nothing.

    Raises:
        NftError: A line was refused, NET_ADMIN is missing, or the kernel lacks a feature.
    """
    _run(["-f", "-"], text)


def read_fingerprint(*, link: bool) -> str:
    """Hash the rules in force, without counts and learned addresses.

    Args:
        link: Whether the ruleset has the backstop at the link.

    Returns:
        A hash that stays the same until somebody changes the rules.

    Raises:
        NftError: A table is gone.
    """
    import hashlib  # noqa: PLC0415 - not needed before the ruleset stands

    listed = _run(["-s", "-t", "list", "table", "inet", TABLE])
    if link:
        listed += _run(["-s", "-t", "list", "table", "netdev", LINK_TABLE])
    return hashlib.sha256(listed.encode()).hexdigest()


def _run(arguments: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program, no shell
            [_NFT, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            env=_ENVIRONMENT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NftError(f"cannot run {_NFT}: {error}") from error
    if done.returncode:
        raise NftError(f"nft refused: {done.stderr.strip()[:2000]}")
    return done.stdout
