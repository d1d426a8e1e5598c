"""What the quick check takes keeps the schema, whatever schema and whatever events (CN-01)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zeh_spark.service.store.contracts import FeedSchema, validator, wrong_in
from zeh_spark.service.store.quick_check import quick_check

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Order",
    "type": "object",
    "required": ["id", "lines", "note"],
    "properties": {
        "id": {"type": "integer", "minimum": 1, "description": "of the shop"},
        "state": {"enum": ["paid", "sent"]},
        "to": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        "lines": {"type": "array", "minItems": 1, "items": {"type": ["number", "null"]}},
        "by": {"type": "object", "properties": {"till": {"type": "boolean"}}},
        "share": {"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 1},
        "at": {"type": "object", "properties": {"h": True}, "additionalProperties": False},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
RIGHT = {"id": 1, "state": "sent", "to": None, "lines": [1, 2.5, None], "note": [1], "new": 2}


def takes(schema: dict[str, Any], *events: object) -> bool:
    quick = quick_check(schema)
    assert quick is not None
    try:
        quick(json.dumps(events).encode())
    except msgspec.MsgspecError:
        return False
    return True


def test_usual_schemas_are_checked_while_events_are_decoded():
    assert takes(
        ORDER,
        RIGHT,
        {**RIGHT, "to": "abc", "by": {"till": True}, "at": {"h": 1}, "tags": {"a": "b"}},
    )
    assert not takes(ORDER, {**RIGHT}, {"id": 1, "lines": [1]}), "a required property is missing"


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 0},
        {"id": True},
        {"id": 2**70, "lines": []},
        {"state": "lost"},
        {"to": "abcd"},
        {"lines": ["1"]},
        {"by": {"till": 1}},
        {"tags": {"a": 1}},
        {"share": 1},
        {"share": -1},
        {"at": {"m": 1}},
    ],
)
def test_what_breaks_such_a_schema_is_found_and_named(wrong):
    schema = FeedSchema(1, 1, 0, json.dumps(ORDER).encode())
    events = [json.dumps({**RIGHT, **each}).encode() for each in ({}, wrong, {})]

    found = list(wrong_in(schema, 0, 0, events))

    assert not takes(ORDER, {**RIGHT, **wrong})
    assert [each.line for each in found] == [1]
    assert found[0].path.startswith("/" + list(wrong)[-1])


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^a"},
        {"minimum": 1},
        {"type": "integer", "minimum": 1.5},
        {"type": ["integer", "null"], "minimum": 1},
        {"type": "integer", "enum": ["a"]},
        {"type": "integer", "maximum": 2**40},
        {"properties": {"a": {}}},
        {"type": "object", "properties": {"a": False}},
        {"type": "object", "properties": {'"': {}}},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a": {"$schema": "http://json-schema.org/schema#"}}},
        {"type": "string", "enum": ["a", 1]},
        {"oneOf": [{"type": "string"}]},
        {"anyOf": [{"type": "object"}, {"type": "object", "required": ["a"]}]},
    ],
)
def test_what_is_not_known_is_left_to_the_schema(schema):
    assert quick_check(schema) is None


NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS | st.sampled_from([2**63, -(2**64), 1e300, 1.0, "a", "ß𝄞"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
BOUNDS = {
    "integer": ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
    "number": ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
    "string": ["minLength", "maxLength"],
}


def _bounded(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.dictionaries(st.sampled_from(BOUNDS[kind]), st.integers(0, 3), max_size=2)
    return bounds.map(lambda some: {"type": kind, **some})


def _with_parts(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = {
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "required": st.lists(NAMES, unique=True),
        "additionalProperties": st.booleans() | inner,
    }
    items = {"items": inner, "minItems": st.integers(0, 2), "maxItems": st.integers(0, 2)}
    return (
        st.fixed_dictionaries({"type": st.just("object")}, optional=fields)
        | st.fixed_dictionaries({"type": st.just("array")}, optional=items)
        | st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some})
    )


KINDS = st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"])
SCHEMAS = st.recursive(
    st.booleans()
    | st.just({"title": "any"})
    | KINDS.flatmap(lambda kind: _bounded(kind) if kind in BOUNDS else st.just({"type": kind}))
    | st.lists(KINDS, min_size=1, unique=True).map(lambda kinds: {"type": kinds})
    | st.lists(SCALARS, min_size=1, max_size=3, unique_by=repr).map(lambda some: {"enum": some}),
    _with_parts,
    max_leaves=8,
).filter(lambda schema: isinstance(schema, dict))


@given(SCHEMAS, VALUES)
@example({"type": "number", "maximum": 1}, 1.0000000000000002)
@example({"type": "integer", "maximum": 3}, 2**64)
@example({"type": "object", "required": ["a"], "additionalProperties": False}, {"a": 1})
def test_what_it_takes_keeps_the_schema(schema, value):
    text = json.dumps([value]).encode()
    if not (quick := quick_check(schema)):
        return
    try:
        quick(text)
    except msgspec.MsgspecError:
        return
    assert validator(json.dumps(schema).encode()).is_valid(json.loads(text))
