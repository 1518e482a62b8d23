"""Gives back what came in."""

from __future__ import annotations


def echo(text: str) -> str:
    return text
