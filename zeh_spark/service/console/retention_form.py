"""The form for a feed's retention: its fields as texts, and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from zeh_spark.errors import StoreError
from zeh_spark.service.store.cursor_sets import NAME
from zeh_spark.service.store.interface import NAMES_MS, Retention
from zeh_spark.wire.option_values import parse_age_ms, parse_size
from zeh_spark.wire.phrases import in_units

FIELDS = ("age", "size", "readers", "names", "producers")
"""The names of the fields: durations like 30d, a size like 100g, a name on each line."""

FOREVER = "forever"

_AGES = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))
_SIZES = ((1 << 40, "t"), (1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k"), (1, ""))


def texts(rule: Retention) -> dict[str, str]:
    return {
        "age": "" if rule.age_ms is None else in_units(rule.age_ms, _AGES),
        "size": "" if rule.bytes is None else in_units(rule.bytes, _SIZES),
        "readers": "\n".join(rule.readers),
        "names": FOREVER if rule.names_ms is None else in_units(rule.names_ms, _AGES),
        "producers": "" if rule.producers_ms is None else in_units(rule.producers_ms, _AGES),
    }


def parsed(fields: Mapping[str, str]) -> Retention:
    """Return the retention of fields.

    Raises StoreError, which names the field and what is allowed.
    """
    age, size, names, producers = (
        fields.get(each, "").strip() for each in ("age", "size", "names", "producers")
    )
    readers = fields.get("readers", "").splitlines()
    if names == FOREVER:
        names_ms = None
    else:
        names_ms = _age("Receipts of named batches", names) if names else NAMES_MS
    return Retention(
        _age("Age", age) if age else None,
        _size(size) if size else None,
        tuple(dict.fromkeys(_cursor_set(line) for line in readers if line)),
        names_ms,
        _age("Idle producers", producers) if producers else None,
    )


def _age(what: str, text: str) -> int:
    try:
        return parse_age_ms(text)
    except ValueError as exc:
        raise StoreError(f"{what}: {exc}.") from None


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as exc:
        raise StoreError(f"Size: {text!r} {exc}.") from None


def _cursor_set(name: str) -> str:
    if not NAME.fullmatch(name):
        raise StoreError(
            f"Wait for cursor sets: {name!r} is no name of a cursor set. It has 1 to 50 printable "
            f"ASCII characters. Write one name on each line."
        )
    return name
