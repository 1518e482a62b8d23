"""A notes server for demonstrations: a few fixed notes, searched and counted.

It speaks MCP on stdin and stdout, keeps everything in memory and needs neither network
nor files.
"""

from __future__ import annotations

from typing import TypedDict

from mcp.server.mcpserver import MCPServer

NOTES: dict[str, str] = {
    "bread": "Feed the starter the evening before; bake at 240 degrees for 35 minutes.",
    "bicycle": "Front tyre 5 bar, rear tyre 5.5 bar; oil the chain after rain.",
    "garden": "Tomatoes want sun and little wind. Water the bread-and-butter pickles too.",
    "release": "Changelog first, then the tag; bench figures belong in the notes.",
    "café": "Meet Zoë at the café — 9 o'clock, bring the blue folder. ☕",
}


class NoteStats(TypedDict):
    """Counts over all notes.

    Attributes:
        notes: How many notes there are.
        words: Words in all bodies, split at white space.
        longest: Title of the note with the longest body.
    """

    notes: int
    words: int
    longest: str


server = MCPServer("notes")


@server.tool()
def search_notes(query: str) -> str:
    """Find notes whose title or body holds the query, ignoring case; one line a note."""
    wanted = query.casefold()
    found = [
        f"{title}: {body}"
        for title, body in NOTES.items()
        if wanted in title.casefold() or wanted in body.casefold()
    ]
    return "\n".join(found) or f"no note mentions {query!r}"


@server.tool()
def note_stats() -> NoteStats:
    """Count the notes and their words."""
    return NoteStats(
        notes=len(NOTES),
        words=sum(len(body.split()) for body in NOTES.values()),
        longest=max(NOTES, key=lambda title: len(NOTES[title])),
    )


if __name__ == "__main__":
    server.run(transport="stdio")
