"""Tools and results on a terminal, from a server that writes what it likes."""

from __future__ import annotations

import io
from typing import Any

import pytest
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    Tool,
)
from rich.console import Console

from sandboxed_mcp.cli.results import print_result, print_tools, render_block, render_signature

SCHEMAS: list[tuple[dict[str, Any], str]] = [
    ({}, "()"),
    ({"properties": {"q": {"type": "string"}}, "required": ["q"]}, "(q: string)"),
    ({"properties": {"q": {"type": "string"}}}, "(q?: string)"),
    ({"properties": {"q": {"enum": ["a", 1]}}}, '(q?: "a" | 1)'),
    ({"properties": {"q": {"type": ["string", "null"]}}}, "(q?: string | null)"),
    ({"properties": {"q": {"anyOf": [{"type": "string"}, {}]}}}, "(q?: string | any)"),
    ({"properties": {"q": True}}, "(q?: any)"),
    ({"properties": [], "required": "q"}, "()"),
    ({"properties": {"q": {"enum": 5, "type": 5, "anyOf": 5}}}, "(q?: any)"),
    ({"properties": {"q": {"oneOf": ["x"]}}, "required": [[], {}]}, "(q?: any)"),
]
NASTY = "\x1b]0;owned\x07\x1b[2J\u202egpj.exe\u200b\x9b31m"


def shown(tools: list[Tool]) -> str:
    out = io.StringIO()
    print_tools(Console(file=out, markup=False, emoji=False, highlight=False, width=80), tools)
    return out.getvalue()


def test_no_character_of_a_server_reaches_the_terminal_as_control() -> None:
    schema = {"properties": {NASTY: {"type": NASTY}}, "required": [NASTY]}
    text = shown([Tool(name=NASTY, description=f"[red]{NASTY}[/red]", input_schema=schema)])
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "[red]" in text


def test_a_result_is_sanitized() -> None:
    out = io.StringIO()
    result = CallToolResult(content=[TextContent(type="text", text=NASTY + "\nline two")])
    print_result(Console(file=out, markup=False, emoji=False, highlight=False), result)
    assert all(char.isprintable() or char == "\n" for char in out.getvalue())
    assert out.getvalue().endswith("line two\n")


def test_structured_content_is_shown_when_there_is_no_text() -> None:
    out = io.StringIO()
    print_result(Console(file=out), CallToolResult(content=[], structured_content={"a": NASTY}))
    assert '"a":' in out.getvalue()
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(("schema", "said"), SCHEMAS)
def test_a_signature_is_shown_whatever_the_schema(schema: dict[str, Any], said: str) -> None:
    assert render_signature(Tool(name="t", input_schema=schema)) == ("t", said)


def test_a_thousand_parameters_are_cut() -> None:
    schema: dict[str, Any] = {"properties": {f"p{n}": {} for n in range(1000)}}
    assert render_signature(Tool(name="t", input_schema=schema))[1].endswith("and 960 more)")


def test_what_is_no_text_is_named() -> None:
    image = ImageContent(type="image", data="AAAA", mime_type="image/png\x1b[0m")
    assert render_block(image) == "[image: image/png\\x1b[0m, 3 bytes; see --json]"
    link = ResourceLink(type="resource_link", name="n\x07", uri="file:///x")
    assert render_block(link) == "[link: file:///x n\\x07]"
    blob = BlobResourceContents(uri="file:///x", blob="AAAA")
    assert "3 bytes" in render_block(EmbeddedResource(type="resource", resource=blob))
