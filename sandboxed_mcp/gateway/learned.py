"""Which names lead to which addresses, and until when: what the resolver has opened.

The kernel holds the same addresses in its sets, without the names; the relay and the events
ask here. An entry that is still open is never pushed out by a newer one. Time comes in as an
argument (seconds of a monotonic clock). This module never opens an address by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sandboxed_mcp.egress.addresses import IPAddress

__all__ = ["MAX_ENTRIES", "LearnedNames"]

MAX_ENTRIES: Final = 8192
"""Pairs of name and address; more are not opened."""


class LearnedNames:
    """Pairs of name and address, each open until a moment."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES) -> None:
        """Start empty."""
        self._max_entries = max_entries
        self._by_name: dict[str, dict[IPAddress, float]] = {}
        self._by_address: dict[IPAddress, set[str]] = {}
        self._entries = 0

    def __len__(self) -> int:
        """How many pairs are held, those that have run out since the last look included."""
        return self._entries

    def room(
        self, name: str, addresses: Iterable[IPAddress], limit: int, now: float
    ) -> list[IPAddress]:
        """Select the addresses that may be opened for a name.

        Args:
            name: The name.
            addresses: In order of preference.
            limit: The most addresses that may be open for the name at once.
            now: The time.

        Returns:
            Those that are open already, and new ones as far as there is room.
        """
        self._drop_expired(name, now)
        if self._entries >= self._max_entries:
            self.purge(now)
        held = self._by_name.get(name, {})
        free = min(limit - len(held), self._max_entries - self._entries)
        chosen: list[IPAddress] = []
        for address in addresses:
            if address not in held:
                free -= 1
                if free < 0:
                    continue
            chosen.append(address)
        return chosen

    def add(self, name: str, addresses: Iterable[IPAddress], until: float) -> None:
        """Note that addresses are open for a name; an entry is only ever prolonged."""
        held = self._by_name.setdefault(name, {})
        for address in addresses:
            if address not in held:
                self._entries += 1
                self._by_address.setdefault(address, set()).add(name)
            held[address] = max(until, held.get(address, 0.0))

    def names(self, address: IPAddress, now: float) -> tuple[str, ...]:
        """The names that an address is open for, sorted."""
        return tuple(sorted(name for name, _ in self.seconds_left(address, now)))

    def seconds_left(self, address: IPAddress, now: float) -> list[tuple[str, float]]:
        """The names that an address is open for, each with the seconds that it stays open."""
        known = self._by_address.get(address, ())
        left = [(name, self._by_name[name][address] - now) for name in known]
        return [(name, seconds) for name, seconds in left if seconds > 0]

    def items(self, now: float) -> list[tuple[str, IPAddress, float]]:
        """Every open pair, with the seconds that it stays open."""
        return [
            (name, address, until - now)
            for name, held in self._by_name.items()
            for address, until in held.items()
            if until > now
        ]

    def keep(self, allowed: Callable[[str, IPAddress], bool]) -> None:
        """Forget every pair that is not allowed any more."""
        for name in list(self._by_name):
            gone = [each for each in self._by_name[name] if not allowed(name, each)]
            self._forget(name, gone)

    def forget(self, name: str) -> None:
        """Forget every pair of a name."""
        self._forget(name, list(self._by_name.get(name, ())))

    def purge(self, now: float) -> None:
        """Forget every pair that has run out."""
        for name in list(self._by_name):
            self._drop_expired(name, now)

    def _drop_expired(self, name: str, now: float) -> None:
        held = self._by_name.get(name, {})
        self._forget(name, [address for address, until in held.items() if until <= now])

    def _forget(self, name: str, addresses: Iterable[IPAddress]) -> None:
        held = self._by_name.get(name, {})
        for address in addresses:
            del held[address]
            self._entries -= 1
            self._by_address[address].discard(name)
            if not self._by_address[address]:
                del self._by_address[address]
        if not held:
            self._by_name.pop(name, None)
