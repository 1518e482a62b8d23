"""What this machine's own network looks like, as far as a sandbox's rules depend on it.

Only for an engine on this machine; Linux's /proc is read, nothing is changed or sent.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Final

__all__ = ["host_addresses", "parse_fib_trie", "parse_if_inet6", "usable_resolvers"]

_STUB: Final = "127.0.0.53"
_GLOBAL_SCOPE: Final = "00"


def host_addresses() -> tuple[str, ...]:
    """Every address of this machine but the loopback ones; empty where /proc does not tell."""
    found = [
        *parse_fib_trie(_read("/proc/net/fib_trie")),
        *parse_if_inet6(_read("/proc/net/if_inet6")),
    ]
    return tuple(dict.fromkeys(found))


def parse_fib_trie(text: str) -> list[str]:
    """The local IPv4 addresses in /proc/net/fib_trie, loopback left out."""
    found: list[str] = []
    leaf = ""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words[:3] == ["/32", "host", "LOCAL"] and not ip_address(leaf).is_loopback:
            found.append(leaf)
    return found


def parse_if_inet6(text: str) -> list[str]:
    """The global IPv6 addresses in /proc/net/if_inet6."""
    rows = (line.split() for line in text.splitlines())
    return [
        str(ip_address(int(digits, 16)))
        for digits, _index, _prefix, scope, *_ in rows
        if scope == _GLOBAL_SCOPE
    ]


def usable_resolvers(
    resolv_conf: Path = Path("/etc/resolv.conf"),
    behind_stub: Path = Path("/run/systemd/resolve/resolv.conf"),
) -> tuple[str, ...]:
    """The resolvers of this machine that a container can ask.

    Chosen as Docker chooses them: where only the stub of systemd-resolved is named, the
    resolvers behind it count. When none is left Docker names public ones of its own choice.
    """
    found = _nameservers(_read(resolv_conf))
    if found == [_STUB]:
        found = _nameservers(_read(behind_stub))
    return tuple(address for address in found if not _is_loopback(address))


def _nameservers(text: str) -> list[str]:
    rows = (line.split() for line in text.splitlines())
    return [row[1] for row in rows if row[:1] == ["nameserver"] and len(row) > 1]


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
