"""The JSON Schema (2020-12) of the configuration file, for editors and other tools.

The schema describes shapes. What it cannot say (which mounts are too broad, whether a secret is
there) is checked on loading; whatever loading accepts, the schema accepts as well.
"""

from __future__ import annotations

from typing import Any

from sandboxed_mcp.config.policy import Policy
from sandboxed_mcp.config.servers import ServerTable

__all__ = ["json_schema"]

_NAME = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"


def json_schema() -> dict[str, Any]:
    """Describe `sandboxed-mcp.toml`; a policy file alone is `#/$defs/Policy`."""
    server, definitions = _describe(ServerTable)
    policy, more = _describe(Policy)
    _allow_text(server["properties"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "sandboxed-mcp.toml",
        "type": "object",
        "additionalProperties": False,
        "required": ["servers"],
        "properties": {
            "servers": {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": False,
                "patternProperties": {_NAME: {"$ref": "#/$defs/Server"}},
            }
        },
        "$defs": {**definitions, **more, "Policy": policy, "Server": server},
    }


def _describe(model: type[ServerTable | Policy]) -> tuple[dict[str, Any], dict[str, Any]]:
    schema = model.model_json_schema(ref_template="#/$defs/{model}")
    definitions: dict[str, Any] = schema.pop("$defs", {})
    return schema, definitions


def _allow_text(properties: dict[str, Any]) -> None:
    """Say that the short texts stand for tables, which the validators of the models know."""
    text = {"type": "string"}
    for key in ("mounts", "secrets"):
        properties[key]["items"] = {"anyOf": [text, properties[key]["items"]]}
    properties["policy"]["anyOf"] = [text, {"$ref": "#/$defs/Policy"}]
