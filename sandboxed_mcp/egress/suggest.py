"""The fix for a key that nobody knows: the nearest one, or all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["suggest"]


def suggest(written: object, known: Iterable[str]) -> str:
    """Write `did you mean 'x'?` when a known word is near, else list the known words."""
    import difflib  # noqa: PLC0415 - only errors need it

    words = [word for word in known if word.isprintable()]
    near = difflib.get_close_matches(str(written), words, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(words) or 'none'}"
