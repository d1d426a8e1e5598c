"""What the description of the API is put together from: schemas, references, parameters. Pure."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
"""A piece of the document."""

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
LAST_BATCH: Schema = {"type": "integer", "minimum": -1, "description": "-1: there is none"}
DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}


def record(optional: tuple[str, ...] = (), /, **members: Schema) -> Schema:
    """An object that has all these members, but perhaps the optional ones."""
    required = [name for name in members if name not in optional]
    return {"type": "object", "properties": members, "required": required}


def ref(name: str, kind: str = "schemas") -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


def in_query(name: str, schema: Schema, says: str, **more: Any) -> Schema:
    return {"name": name, "in": "query", "description": says, "schema": schema, **more}


def in_path(name: str, schema: Schema, says: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "description": says, "schema": schema}


def in_header(name: str, schema: Schema, says: str, **more: Any) -> Schema:
    return {"name": name, "in": "header", "description": says, "schema": schema, **more}


def json_answer(schema: Schema, says: str = "As asked.") -> Schema:
    return {"description": says, "content": {"application/json": {"schema": schema}}}
