"""Bounds over time: a token bucket, and the new names that a wildcard may lead to.

Time comes in as an argument (seconds of a monotonic clock); this module never reads one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.values import NameRule, Unrestricted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandboxed_mcp.egress.values import Egress

__all__ = [
    "DEFAULT_BUDGETS",
    "MAX_KNOWN_NAMES",
    "Budgets",
    "LookupBudget",
    "NameBudget",
    "TokenBucket",
]

MAX_KNOWN_NAMES: Final = 1024
"""Names below wildcards that are remembered as already counted."""


class TokenBucket:
    """Allows `burst` at once and `rate` a second after that."""

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float) -> None:
        """Start full."""
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Take one token; False when there is none."""
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._tokens = min(self._burst, self._tokens + elapsed * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class NameBudget:
    """Bounds how many different names below one wildcard are ever forwarded in a while.

    Each name that goes upstream tells the resolver something; a few names an application
    needs, thousands are a tunnel. A name that was counted before is free.
    """

    def __init__(self, burst: int, per_minute: float) -> None:
        """Allow `burst` different names at once and `per_minute` after that."""
        self._bucket = TokenBucket(per_minute / 60, burst)
        self._known: dict[str, None] = {}

    def take(self, name: str, now: float) -> bool:
        """Count a name; False when it is new and the budget is used up."""
        if name in self._known:
            self._known[name] = self._known.pop(name)
            return True
        if not self._bucket.take(now):
            return False
        self._known[name] = None
        if len(self._known) > MAX_KNOWN_NAMES:
            del self._known[next(iter(self._known))]
        return True


@dataclass(frozen=True, slots=True)
class Budgets:
    """Bounds of one sandbox's lookups.

    Attributes:
        queries: Queries a second that the cache does not answer, and how many at once.
        lookups: Lookups a second that go upstream, and how many at once.
        names: Different names below one wildcard at once, and a minute after that.
    """

    queries: tuple[float, float] = (1000.0, 2000.0)
    lookups: tuple[float, float] = (50.0, 200.0)
    names: tuple[int, float] = (100, 10.0)


DEFAULT_BUDGETS: Final = Budgets()


class LookupBudget:
    """The budgets of one sandbox, as they are used up."""

    def __init__(self, budgets: Budgets) -> None:
        """Start with all of them full."""
        self._limits = budgets
        self._queries = TokenBucket(*budgets.queries)
        self._lookups = TokenBucket(*budgets.lookups)
        self._names: dict[str, NameBudget] = {}

    def take_query(self, now: float) -> bool:
        """Count a query, whatever becomes of it."""
        return self._queries.take(now)

    def take_lookup(self, name: str, wildcards: Iterable[NameRule], now: float) -> str:
        """Count a lookup that would go upstream.

        Args:
            name: The name.
            wildcards: The rules whose wildcard alone names it.
            now: The time.

        Returns:
            An empty string, or the reason why it must not go upstream.
        """
        if not self._lookups.take(now):
            return "too many lookups"
        for rule in wildcards:
            budget = self._names.setdefault(rule.pattern, NameBudget(*self._limits.names))
            if not budget.take(name, now):
                return f"too many different names below '{rule.pattern}'"
        return ""

    def keep(self, egress: Egress) -> None:
        """Forget the wildcards that no rule has any more."""
        rules = () if isinstance(egress, Unrestricted) else egress
        texts = {rule.pattern for rule in rules if isinstance(rule, NameRule)}
        self._names = {text: kept for text, kept in self._names.items() if text in texts}
