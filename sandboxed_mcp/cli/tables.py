"""How the commands print: text and tables on stdout, progress on stderr of a terminal only.

No markup, no emoji names, no highlighting: what is printed may come from a server. It must be
sanitized before it comes here. A pipe gets whole lines, however long; a terminal wraps.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

__all__ = ["Cell", "open_console", "print_indented", "print_json", "print_table", "working"]

INDENT: Final = 4
_PIPE_WIDTH: Final = 100_000

Cell = str | tuple[str, str]
"""A text, or a text and its style."""


def open_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it stands."""
    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Prints rows below a head; cells are cut only where a terminal is too narrow."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for row in rows:
        table.add_row(*map(_text, row))
    console.print(table)


def print_indented(console: Console, text: str, style: str = "") -> None:
    """Prints a text set in by four columns, wrapped on a terminal."""
    console.print(Padding(Text(text, style), (0, 0, 0, INDENT), expand=False))


def print_json(value: object) -> None:
    """Prints JSON in ASCII: no character of it can do anything to a terminal."""
    click.echo(json.dumps(value, indent=2))


@contextmanager
def working(text: str) -> Generator[Callable[[str], None]]:
    """Shows on a terminal that something takes time; elsewhere it shows nothing.

    Yields:
        Takes a new text, one line.
    """
    console = open_console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    room = max(20, console.width - INDENT)
    with console.status(Text(text[:room])) as status:
        yield lambda line: status.update(Text(line[:room]))


def _text(cell: Cell) -> Text:
    return Text(cell) if isinstance(cell, str) else Text(cell[0], cell[1])
