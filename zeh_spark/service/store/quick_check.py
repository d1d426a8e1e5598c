"""A quick check of events that a schema describes by types: decoding them is the check.

It takes a third of the time of building objects and checking these. What it takes keeps the schema;
what it does not take is checked by the schema itself, so it need not know every keyword, and a
value may be written in a way that it does not know (1.0 for an integer).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, defstruct

_SCALARS = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
_SAYS_NOTHING = frozenset(
    "$comment title description default examples deprecated readOnly writeOnly format".split()
)
_LIMITS = {
    "minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt",
    "minLength": "min_length", "maxLength": "max_length",
    "minItems": "min_length", "maxItems": "max_length",
}  # fmt: skip
_OF = {
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "string": {"minLength", "maxLength"},
    "array": {"minItems", "maxItems", "items"},
    "object": {"properties", "required", "additionalProperties"},
}
"""The keywords that are known, by type. Another one of the type, or one without it, is not."""


def quick_check(schema: dict[str, Any]) -> Callable[[bytes], object] | None:
    """Return what takes a JSON list of events if all keep the schema, and raises if it is not sure.

    It raises msgspec.MsgspecError. None if the schema has a keyword that is not known here.
    """
    described = {name: each for name, each in schema.items() if name not in ("$schema", "$id")}
    try:
        return msgspec.json.Decoder(list[_type(described)]).decode  # type: ignore[misc]
    except (LookupError, TypeError, ValueError, RecursionError):  # also if msgspec has no such type
        return None


def _type(schema: Any) -> Any:
    """Return a type whose values all keep a schema. Raises LookupError if none is known."""
    if schema is True:
        return Raw
    if schema is False:
        raise LookupError
    said = {name: value for name, value in schema.items() if name not in _SAYS_NOTHING}
    if not said:
        return Raw
    kind = said.pop("type", None)
    if said.keys() == {"enum"}:
        values = [each for each in said["enum"] if isinstance(each, str)]
        if kind in (None, "string") and len(values) == len(said["enum"]):
            return Literal[tuple(values)]
    if kind is None and said.keys() == {"anyOf"}:
        return functools.reduce(operator.or_, map(_type, said["anyOf"]))
    if isinstance(kind, list) and not said:
        return functools.reduce(operator.or_, (_type({"type": each}) for each in kind))
    if not isinstance(kind, str) or said.keys() - _OF.get(kind, set()):
        raise LookupError
    if kind == "object":
        return _object(**said)
    of = list[_type(said.pop("items", True))] if kind == "array" else _SCALARS[kind]  # type: ignore[misc]
    if any(type(each) is not int or abs(each) > 2**31 for each in said.values()):
        raise LookupError  # beyond them, a number may not be compared as it is written
    return Annotated[of, Meta(**{_LIMITS[each]: said[each] for each in said})] if said else of


def _object(
    properties: dict[str, Any] | None = None,
    required: tuple[str, ...] = (),
    additionalProperties: Any = True,
) -> Any:
    properties = properties or {}
    names = dict.fromkeys([*properties, *required])
    if isinstance(additionalProperties, dict) and not names:
        return dict[str, _type(additionalProperties)]  # type: ignore[misc]
    is_closed = additionalProperties is False
    if additionalProperties not in (True, False, {}) or (
        is_closed and names.keys() != properties.keys()
    ):
        raise LookupError
    fields = [
        (f"f{at}", _type(properties.get(name, True)), *(() if name in required else (UNSET,)))
        for at, name in enumerate(names)
    ]
    return defstruct(
        "Event",
        fields,
        rename={f"f{at}": name for at, name in enumerate(names)},
        forbid_unknown_fields=is_closed,
        kw_only=True,
        gc=False,
    )
