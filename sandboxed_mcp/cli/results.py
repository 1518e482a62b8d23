"""Tools and results as a person reads them. Everything a server wrote is sanitized here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from mcp_types import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from rich.text import Text

from sandboxed_mcp.cli.tables import print_indented
from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock, Tool
    from rich.console import Console

__all__ = ["print_result", "print_tools", "render_block", "render_signature"]

TEXT_CHARS: Final = 1_000_000
LINE_CHARS: Final = 200
NAME_CHARS: Final = 128
KIND_CHARS: Final = 40
SHOWN_PARAMETERS: Final = 40


def print_tools(console: Console, tools: list[Tool]) -> None:
    """Prints each tool's signature, and below it what the server says of it."""
    for tool in tools:
        name, rest = render_signature(tool)
        console.print(Text.assemble((name, "bold"), rest), soft_wrap=True)
        if tool.description:
            print_indented(console, sanitize(tool.description.strip(), 4000, multiline=True))


def render_signature(tool: Tool) -> tuple[str, str]:
    """A tool's name and its parameters, such as `(query: string, limit?: integer)`."""
    schema: dict[str, Any] = tool.input_schema
    properties = _table(schema.get("properties"))
    listed = schema.get("required")
    required = cast("list[object]", listed) if isinstance(listed, list) else []
    parts = [
        f"{sanitize(name, KIND_CHARS)}{'' if name in required else '?'}: {_kind(value)}"
        for name, value in list(properties.items())[:SHOWN_PARAMETERS]
    ]
    if len(properties) > SHOWN_PARAMETERS:
        parts.append(f"and {len(properties) - SHOWN_PARAMETERS} more")
    return sanitize(tool.name, NAME_CHARS), f"({', '.join(parts)})"


def _kind(schema: object) -> str:
    """The type of a parameter as its JSON Schema names it."""
    table = _table(schema)
    if isinstance(table.get("enum"), list):
        return sanitize(" | ".join(map(json.dumps, table["enum"][:SHOWN_PARAMETERS])), KIND_CHARS)
    kind = table.get("type")
    if isinstance(kind, list):
        return sanitize(" | ".join(map(str, cast("list[object]", kind))), KIND_CHARS)
    choices = table.get("anyOf") or table.get("oneOf")
    if isinstance(choices, list):
        kinds = [str(_table(one).get("type", "any")) for one in cast("list[object]", choices)]
        return sanitize(" | ".join(kinds), KIND_CHARS)
    return sanitize(str(kind), KIND_CHARS) if isinstance(kind, str) else "any"


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def print_result(console: Console, result: CallToolResult) -> None:
    """Prints the blocks of a result; structured content only when there is no text."""
    for block in result.content:
        console.print(Text(render_block(block)), soft_wrap=True)
    if not result.content and result.structured_content is not None:
        shown = json.dumps(result.structured_content, indent=2, ensure_ascii=False)
        console.print(Text(sanitize(shown, TEXT_CHARS, multiline=True)), soft_wrap=True)


def render_block(block: ContentBlock) -> str:
    """One block of a result as text; what is no text is named, with its type and size."""
    if isinstance(block, TextContent):
        return sanitize(block.text, TEXT_CHARS, multiline=True)
    if isinstance(block, ImageContent | AudioContent):
        kind = sanitize(block.mime_type, LINE_CHARS)
        return f"[{block.type}: {kind}, {len(block.data) * 3 // 4} bytes; see --json]"
    if isinstance(block, ResourceLink):
        return f"[link: {sanitize(block.uri, LINE_CHARS)} {sanitize(block.name, LINE_CHARS)}]"
    return _render_resource(block)


def _render_resource(block: EmbeddedResource) -> str:
    resource = block.resource
    head = f"[resource: {sanitize(resource.uri, LINE_CHARS)}"
    if isinstance(resource, TextResourceContents):
        return f"{head}]\n{sanitize(resource.text, TEXT_CHARS, multiline=True)}"
    return f"{head}, {len(resource.blob) * 3 // 4} bytes; see --json]"
