"""Bounds over time: a token bucket, and the new names that a wildcard may lead to.

Time comes in as an argument (seconds of a monotonic clock); this module never reads one.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_KNOWN_NAMES", "NameBudget", "TokenBucket"]

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
