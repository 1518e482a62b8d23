"""Answers that were given, kept for as long as they are served. Time comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sandboxed_mcp.gateway.question import Query

__all__ = ["Answer", "AnswerCache"]

MAX_CACHED: Final = 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What to tell the client.

    Attributes:
        code: The response code.
        addresses: Packed, of the query's type.
        ttl: Seconds.
    """

    code: int
    addresses: tuple[bytes, ...] = ()
    ttl: int = 0


class AnswerCache:
    """At most `MAX_CACHED` answers; the oldest goes first."""

    def __init__(self) -> None:
        """Start empty."""
        self._kept: dict[tuple[str, int], tuple[Answer, float]] = {}

    def find(self, query: Query, now: float) -> Answer | None:
        """The answer to an equal query, with the seconds that are left; None when it ran out."""
        kept = self._kept.get((query.name, query.type))
        if kept is None or kept[1] <= now:
            return None
        answer, until = kept
        return Answer(answer.code, answer.addresses, min(answer.ttl, int(until - now)))

    def keep(self, query: Query, answer: Answer, until: float) -> None:
        """Keep an answer until a moment."""
        key = (query.name, query.type)
        self._kept.pop(key, None)
        self._kept[key] = (answer, until)
        if len(self._kept) > MAX_CACHED:
            del self._kept[next(iter(self._kept))]

    def clear(self) -> None:
        """Forget every answer."""
        self._kept.clear()
