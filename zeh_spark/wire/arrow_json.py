"""Render Arrow columns as JSON text, for rows of a DataFrame and of a Parquet file.

Rule for editors: render a column at a time, and judge each row by itself, because `first_unfit`
searches for the bad row by halves. Every function returns one `large_string` for each element. The
form of a type must not change: a repeated batch is compared by its bytes. Nor must a reason that is
given for a row: it is part of a dead letter.

- Struct fields are in the schema's order. NULL ones are written as null.
- Maps are sorted by key: two attempts at a batch have to give the same bytes, and Spark keeps no
  order in maps.
- A decimal is a number with all digits of its scale; a float the shortest one that reads back the
  same.
- A date is "2026-11-20", a time "12:00:00.123456". A timestamp with a zone is
  "2026-11-20T12:00:00.123456Z", in UTC whatever its zone; one without a zone is the same without
  Z. A fraction of 0 is left out.
- Binary is Base64.

`problems` says which types have no form; `json_of` refuses values.

Pure. Runs in write tasks and in `zeh-spark load`, without PySpark.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXT = pa.large_string()
"""The type of all texts. It has 64-bit offsets: lines of a batch near 2 GiB do not fit others."""

_SLICE_BYTES = 1 << 20
_EXTENSIONS = ("arrow.bool8", "arrow.json", "arrow.uuid")

# pyarrow 15 has no views. List views are refused: pyarrow 26 loses elements when it casts one.
_VIEWS = {
    getattr(pa.lib, "Type_STRING_VIEW", None): TEXT,
    getattr(pa.lib, "Type_BINARY_VIEW", None): pa.large_binary(),
}

_encode_lines = msgspec.json.Encoder(decimal_format="number").encode_lines


class Unfit(Exception):
    """A row that cannot become an event.

    Args:
        reason: why. It is part of a dead letter, so it has to be the same for the same row.
        value: the value that is wrong, if it is to be shown.
    """

    def __init__(self, reason: str, value: bytes = b"") -> None:
        super().__init__(reason, value)
        self.reason = reason
        self.value = value


def problems(path: str, kind: pa.DataType) -> Iterator[str]:
    """Yield what in a type has no form in JSON.

    The texts name fields inside the type by their path, which begins with `path`.
    """
    kind = _plain(kind)
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        for field in kind:
            if names.count(field.name) > 1:
                yield f"{path}.{field.name} is there twice"
            yield from problems(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        if not is_name(kind.key_type):
            yield f"the keys of {path} are {kind.key_type}, not text, integers, booleans or dates"
        yield from problems(f"{path}[]", kind.item_type)
    elif _is_list(kind):
        yield from problems(f"{path}[]", kind.value_type)
    elif not has_form(kind):
        yield f"{path} is {kind}, for which there is no form in JSON; store it as text or a number"


def has_form(kind: pa.DataType) -> bool:
    """Return whether values of a type can be written as JSON, if it holds no other types.

    This is the list of all such types.
    """
    types = pa.types
    return (
        is_name(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_timestamp(kind)
        or types.is_time(kind)
        or _is_binary(kind)
        or types.is_null(kind)
        or getattr(kind, "extension_name", None) in _EXTENSIONS
    )


def is_name(kind: pa.DataType) -> bool:
    """Return whether values of a type can be the names in a JSON object."""
    types = pa.types
    is_number = types.is_integer(kind) or types.is_boolean(kind)
    return bool(is_number or _is_text(kind) or types.is_date(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    is_variable = types.is_binary(kind) or types.is_large_binary(kind)
    return bool(is_variable or types.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values, in the layout that is rendered."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field)
    return _VIEWS.get(kind.id, kind)


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of about 1 MiB, to be rendered one after the other.

    Their texts fit the cache, and freed memory is used again. Measured: a fifth faster than Spark's
    batches of 10,000 rows.
    """
    rows = max(1, batch.num_rows * _SLICE_BYTES // max(1, batch.nbytes))
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def first_unfit(
    render: Callable[[pa.RecordBatch], object], batch: pa.RecordBatch, found: Unfit
) -> tuple[int, Unfit]:
    """Return the number of the first row that `render` refuses, and why.

    `found` is the error that `render` raised for the whole batch.
    """
    # By halves: no such row is before `begin`, and `found` is about one in [begin, end).
    begin, end = 0, batch.num_rows
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            render(batch.slice(begin, middle - begin))
            begin = middle
        except Unfit as exc:
            end, found = middle, exc
    return begin, found


@contextmanager
def within(place: str) -> Iterator[None]:
    """Put the name of a column or field before the reason of an Unfit."""
    try:
        yield
    except Unfit as exc:
        raise Unfit(f"{place}: {exc.reason}", exc.value) from None


def refuse(bad: pa.Array, values: pa.Array, reason: str) -> None:
    """Raise Unfit with the first of the values for which `bad` is true, if there is one."""
    if pc.any(bad).as_py():
        raise Unfit(reason, str(values.filter(bad)[:1].cast(TEXT)[0].as_py()).encode())


def joined(*parts: pa.Array | str) -> pa.Array:
    """Return for each element its parts, one after the other. A string is a part of all."""
    scalars = (pa.scalar(part, TEXT) if isinstance(part, str) else part for part in parts)
    return pc.binary_join_element_wise(*scalars, pa.scalar("", TEXT))


def one_text(texts: pa.Array) -> bytes:
    """Return all texts of a column in one. No element may be NULL."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    text: bytes = pc.binary_join(whole, pa.scalar("", TEXT))[0].as_buffer().to_pybytes()
    return text


def or_else(array: pa.Array, texts: pa.Array, otherwise: str) -> pa.Array:
    """Return `texts`, with `otherwise` for elements that are NULL in the array."""
    if not array.null_count:
        return texts
    return pc.if_else(array.is_valid(), texts, pa.scalar(otherwise, TEXT))


def utf8(strings: pa.Array) -> pa.Array:
    """Return strings that are UTF-8. Raises Unfit if one is not: Spark's STRING holds any bytes."""
    raw = strings.cast(pa.large_binary())
    try:
        return raw.cast(TEXT)
    except pa.ArrowInvalid:
        raise Unfit("not UTF-8", next(filter(_is_broken, raw.to_pylist()))) from None


def _is_broken(text: bytes | None) -> bool:
    try:
        (text or b"").decode()
    except UnicodeDecodeError:
        return True
    return False


def json_of(array: pa.Array) -> pa.Array:
    """Return JSON for each element, null for NULL.

    `problems` finds nothing in its type. Raises Unfit if a value is NaN or infinite; a time is
    finer than a microsecond, or has a year that Python and others do not have; a map has a key
    twice; or a text is not UTF-8.
    """
    given = array.type
    kind = _plain(given)
    if kind is not given:
        array = array.cast(kind)
    if pa.types.is_struct(kind):
        texts = _structs(array)
    elif pa.types.is_map(kind):
        names, values, offsets = entries(array)
        texts = object_of(names_of(names), json_of(values), offsets)
    elif _is_list(kind):
        (values,), offsets = used(array, array.values)
        texts = joined("[", _listed(json_of(values), offsets), "]")
    else:
        texts = _leaves(array)
    return or_else(array, texts, "null")


def _leaves(array: pa.Array) -> pa.Array:
    kind = array.type
    if _is_text(kind):
        return _quoted(utf8(array))
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_decimal(kind):
        return _encoded(array)  # pyarrow 15 writes small ones as 1.E-18, which is not JSON
    if pa.types.is_date(kind):
        return joined('"', _dates(array), '"')
    if pa.types.is_timestamp(kind):
        return joined('"', _timestamps(array), '"')
    if pa.types.is_time(kind):
        return joined('"', _without_zeros(_in_micros(array, pa.time64("us"))), '"')
    if _is_binary(kind):
        encoded = [value and b64encode(value) for value in array.to_pylist()]
        return joined('"', pa.array(encoded, pa.large_binary()).cast(TEXT), '"')
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return array.cast(TEXT)
    if getattr(kind, "extension_name", None) in _EXTENSIONS:
        return _encoded(array)
    raise Unfit(f"there is no form in JSON for {kind}")


def _structs(array: pa.Array) -> pa.Array:
    parts: list[pa.Array | str] = []
    for field, column in zip(array.type, array.flatten(), strict=True):
        name = msgspec.json.encode(field.name).decode()
        with within(field.name):
            parts += [f"{',' if parts else '{'}{name}:", json_of(column)]
    return joined(*parts, "}") if parts else pa.array(["{}"] * len(array), TEXT)


def entries(maps: pa.Array) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Return the keys and values of all maps of a column, and the offsets where each map begins.

    A NULL map has none. No key is NULL: Spark refuses to make such a map, and Arrow to hold it.
    """
    (keys, values), offsets = used(maps, maps.keys, maps.items)
    return keys, values, offsets


def used(lists: pa.Array, *inner: pa.Array) -> tuple[Sequence[pa.Array], np.ndarray]:
    """Return the parts of the inner arrays that a column of lists or maps uses, and its offsets.

    A slice of a column shares its inner arrays with other slices.
    """
    offsets = np.asarray(lists.offsets)
    begin, end = offsets[0], offsets[-1]
    return [each.slice(begin, end - begin) for each in inner], offsets - begin


def object_of(names: pa.Array, values: pa.Array, offsets: np.ndarray) -> pa.Array:
    """Return JSON objects, with their members sorted by name.

    `names` are texts, `values` JSON; `offsets` say where each object begins, and the end, as in
    Arrow. Raises Unfit if a name is twice in one object.
    """
    members = joined(_quoted(names), ":", values)
    order = _order(names, offsets)
    return joined("{", _listed(members if order is None else members.take(order), offsets), "}")


def _order(names: pa.Array, offsets: np.ndarray) -> np.ndarray | None:
    """Return how to sort the names of each object; None if they are sorted, as in most cases."""
    distinct = names.dictionary_encode()
    ranks = np.argsort(pc.sort_indices(distinct.dictionary))[distinct.indices]
    objects = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    if np.all((np.diff(objects) > 0) | (np.diff(ranks) > 0)):
        return None
    order = np.lexsort((ranks, objects))
    twice = (np.diff(objects[order]) == 0) & (np.diff(ranks[order]) == 0)
    refuse(pa.array(twice), names.take(order[1:]), "a name is there twice")
    return order


def _listed(texts: pa.Array, offsets: np.ndarray) -> pa.Array:
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts)
    return pc.binary_join(lists, pa.scalar(",", TEXT))


def names_of(keys: pa.Array) -> pa.Array:
    """Return the keys of maps as text. Raises Unfit for one that is not UTF-8."""
    if _is_text(keys.type):
        return utf8(keys)
    return _dates(keys) if pa.types.is_date(keys.type) else keys.cast(TEXT)


def _quoted(texts: pa.Array) -> pa.Array:
    """Return texts as JSON strings. If nothing has to be escaped, none becomes a Python string."""
    every = np.frombuffer(one_text(or_else(texts, texts, "")), np.uint8)
    if ((every < ord(" ")) | (every == ord('"')) | (every == ord("\\"))).any():
        return _encoded(texts)
    return joined('"', texts, '"')


def _floats(array: pa.Array) -> pa.Array:
    if pa.types.is_float16(array.type):  # pyarrow 15 does not cast it
        values = [None if each is None else float(each) for each in array.to_pylist()]
        array = pa.array(values, pa.float64())
    refuse(pc.invert(pc.is_finite(array)), array, "JSON has no NaN and no Infinity")
    if pa.types.is_float32(array.type):  # 0.1 stays 0.1, not 0.10000000149011612
        array = array.cast(TEXT).cast(pa.float64())
    return _encoded(array)


def _encoded(array: pa.Array) -> pa.Array:
    lines = _encode_lines(array.to_pylist()).split(b"\n")[:-1]
    return pa.array(lines, pa.large_binary()).cast(TEXT)


def _dates(array: pa.Array) -> pa.Array:
    _check_year(array, date.min, date.max)
    return array.cast(TEXT)


def _timestamps(array: pa.Array) -> pa.Array:
    instants = _in_micros(array, pa.timestamp("us"))  # Arrow counts in UTC, with a zone or without
    _check_year(instants, datetime.min, datetime.max)
    return instants_of(array)


def instants_of(array: pa.Array) -> pa.Array:
    """Return timestamps as text, for any year that Arrow can write."""
    spaced = _without_zeros(array.cast(pa.timestamp("us")))
    return joined(pc.replace_substring(spaced, " ", "T"), "Z" if array.type.tz else "")


def _in_micros(array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        if array.type.unit == "ns":
            raise Unfit("a time is finer than a microsecond") from None
        raise Unfit("its year is not in 1 to 9999") from None


def _without_zeros(times: pa.Array) -> pa.Array:
    return pc.replace_substring(times.cast(TEXT), ".000000", "")


def _check_year(array: pa.Array, first: date, last: date) -> None:
    kind = array.type
    outside = pc.or_(
        pc.less(array, pa.scalar(first, kind)), pc.greater(array, pa.scalar(last, kind))
    )
    refuse(outside, array, "its year is not in 1 to 9999")
