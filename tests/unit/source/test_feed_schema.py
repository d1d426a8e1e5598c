"""Which type of Spark's a JSON Schema becomes: the table of docs/guides/read.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zeh_spark.spark.source.feed_schema import spark_type

ADDRESS = {"type": "object", "properties": {"city": {"type": "string"}}}


def ddl(schema: dict[str, Any]) -> str:
    return spark_type(json.loads(json.dumps(schema))).simpleString()


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "format": "date-time"}, "string"),
        ({"type": "integer"}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": ["integer", "null"]}, "bigint"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "double"),
        ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, "boolean"),
        ({"type": "array", "items": {"type": "integer"}}, "array<bigint>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string,double>"),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": ADDRESS}}, "struct<city:string>"),
        # what is not one type
        ({}, "string"),
        ({"type": ["integer", "string"]}, "string"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "string"),
        ({"enum": [1, "a"]}, "string"),
        ({"type": "null"}, "string"),
        ({"type": "array"}, "string"),
        ({"type": "object"}, "string"),
        ({"type": "object", "additionalProperties": False}, "string"),
        ({"$ref": "#/$defs/none"}, "string"),
        ({"$ref": "#"}, "string"),
    ],
)
def test_each_kind_of_value_has_a_type(schema: dict[str, Any], expected: str) -> None:
    assert expected == ddl(schema)


def test_fields_keep_their_order_and_nest() -> None:
    """As generators of schemas write them: with definitions, and optional parts."""
    node = {"type": "object", "properties": {"id": {}, "child": {"$ref": "#/$defs/node"}}}
    schema = {
        "type": "object",
        "properties": {
            "to": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
            "at": {"type": "array", "items": {"$ref": "#/$defs/address"}},
            "tree": {"$ref": "#/$defs/node"},
        },
        "$defs": {"address": ADDRESS, "node": node},
    }

    assert ddl(schema) == (
        "struct<to:struct<city:string>,at:array<struct<city:string>>,"
        "tree:struct<id:string,child:string>>"
    )
