"""Sizes in bytes: an integer, or a whole number with `B`, `KiB`, `MiB` or `GiB`."""

from __future__ import annotations

import re
from typing import Final

from sandboxed_mcp.egress.values import RuleError

__all__ = ["parse_size", "render_size"]

MAX_SIZE: Final = 1 << 50

_UNITS: Final = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_SIZE: Final = re.compile(r"([1-9][0-9]{0,15})(GiB|MiB|KiB|B)\Z")


def parse_size(value: object) -> int:
    """Read a size.

    Args:
        value: A positive integer (bytes), or text such as `512MiB`: no space, no fraction.

    Returns:
        The size in bytes, 1 to 2**50.

    Raises:
        RuleError: Anything else, booleans and floats included.
    """
    size = value
    if isinstance(value, str) and (found := _SIZE.match(value)):
        size = int(found[1]) * _UNITS[found[2]]
    if isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_SIZE:
        return size
    raise RuleError(
        f"{_shown(value)} is not a size",
        'write bytes as a whole number, or a text such as "512MiB" (B, KiB, MiB or GiB)',
    )


def render_size(size: int) -> str:
    """Write a positive size with the largest unit that divides it, such as `512MiB`."""
    unit, factor = next((unit, factor) for unit, factor in _UNITS.items() if size % factor == 0)
    return f"{size // factor}{unit}"


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > MAX_SIZE:
        return "a number that large"
    return repr(value)[:80]
