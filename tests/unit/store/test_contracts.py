"""Which versions of a schema are compatible: decided exactly, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.errors import StoreError
from zeh_spark.service.store.contracts import fault, next_version, validator

BASE = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer", "minimum": 0}, "kind": {"enum": ["a", "b"]}},
    "additionalProperties": False,
}
_ID = {"type": "integer", "minimum": 0}


def document(schema: object) -> bytes:
    return json.dumps(schema).encode()


def compatible(before: object, after: object) -> str | None:
    """Return why a version is refused; None if it is compatible."""
    first = next_version(None, document(before), 0)
    assert first
    try:
        second = next_version(first, document(after), 0)
    except StoreError as exc:
        assert next_version(first, document(after), 0, compatible=False).since == 2
        return exc.what
    assert second is first or (second.version, second.since) == (2, 1)
    return None


def props(**changes: object) -> dict[str, object]:
    return {**BASE, "properties": {**BASE["properties"], **changes}}


@pytest.mark.parametrize(
    "after",
    [
        props(note={"type": "string", "maxLength": 5}),
        props(id={"type": "number"}),
        props(id={"type": ["integer", "string"], "minimum": -5}),
        props(kind={"enum": ["a", "b", "c"]}),
        {**BASE, "required": []},
        {**BASE, "additionalProperties": True},
        {
            **BASE,
            "title": "Order",
            "properties": {**BASE["properties"], "id": {**_ID, "title": "x"}},
        },
        {},
    ],
)
def test_what_takes_more_is_compatible(after):
    """New members, wider types, looser bounds (CN-03)."""
    assert compatible(BASE, after) is None


@pytest.mark.parametrize(
    ("after", "where"),
    [
        (props(id={"type": "integer", "minimum": 1}), "/properties/id"),
        (props(id={"type": "string"}), "/properties/id"),
        (props(kind={"enum": ["a"]}), "/properties/kind"),
        ({**BASE, "required": ["id", "kind"]}, "see /required"),
        ({**BASE, "properties": {"id": _ID}}, "around its properties"),
        (
            props(id={**_ID, "multipleOf": 2}),
            "not decided, because of 'multipleOf' in /properties/id",
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": BASE}}, "not decided, because of '$ref' in /"),
        ({"anyOf": [BASE, {"type": "null"}]}, "not decided, because of 'anyOf' in /"),
    ],
)
def test_what_may_refuse_an_earlier_event_is_not(after, where):
    """I am told where to look (CN-03)."""
    said = compatible(BASE, after)
    assert said and where in said and "the feed keeps version 1" in said


def test_a_new_property_of_an_open_object_is_named():
    """The commonest change: an earlier event may have it with another type (CN-03)."""
    is_open = {name: value for name, value in BASE.items() if name != "additionalProperties"}
    said = compatible(is_open, {**is_open, "properties": {**BASE["properties"], "note": _ID}})
    assert said and "see /properties/note" in said


_NUMBERS = st.sampled_from([-2, -1, 0, 1, 1.5, 2, 3, 1e300, 2**60])
_LEAVES = st.none() | st.booleans() | _NUMBERS | st.sampled_from(["", "a", "ab", "abc"])
VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)
_COUNT, _TYPES = (
    st.integers(0, 3),
    ["null", "boolean", "integer", "number", "string", "array", "object"],
)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from("abc")
    numbers = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    bounds = dict.fromkeys(numbers, _NUMBERS) | dict.fromkeys(
        (
            f"{which}{what}"
            for which in ("min", "max")
            for what in ("Length", "Items", "Properties")
        ),
        _COUNT,
    )
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.lists(st.sampled_from(_TYPES), min_size=1, max_size=3, unique=True),
            "required": st.lists(names, max_size=2, unique=True),
            "properties": st.dictionaries(names, inner, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "enum": st.lists(_LEAVES, min_size=1, max_size=4, unique_by=repr),
            "const": _LEAVES,
            **bounds,
        },
    )


SCHEMAS = _schemas(st.recursive(st.booleans() | st.just({}), _schemas, max_leaves=3))


@given(SCHEMAS, SCHEMAS, st.data())
def test_a_compatible_version_takes_each_event_of_the_version_before(old, new, drawn):
    """Whatever the schemas are (CN-03)."""
    if drawn.draw(st.booleans()):  # most random pairs are not compatible
        new = {**old, **{name: new[name] for name in list(new)[:1]}}
    if compatible(old, new) is not None:
        return
    before, after = validator(document(old)), validator(document(new))
    for each in drawn.draw(st.lists(VALUES, max_size=20)):
        event = document(each)
        assert fault(before, event) or not fault(after, event), (old, new, each)
