"""Arrow columns to JSON text: what STRUCT, MAP and ARRAY become in an event. Pure; on executors.

Rule for editors: a column at a time, and each row judged by itself, because whoever looks for the
row at fault cuts batches in halves. Every function returns one `large_string` for each element.

Struct fields are in the schema's order and NULL ones are written as null; maps are sorted by key
[two attempts at a batch have to give the same bytes, and Spark keeps no order in maps]. DECIMAL is
a number with all digits of its scale, FLOAT and DOUBLE the shortest that reads back the same, DATE
"2026-11-20", TIMESTAMP "2026-11-20T12:00:00.123456Z", in UTC whatever the session's zone and
without a fraction that is 0, TIMESTAMP_NTZ the same without Z, BINARY is Base64.

Spark's own `to_json` is the fast way: there is no Python in it, and it runs before rows travel.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

TEXT = pa.large_string()
"""64-bit offsets: a batch near 2 GiB would not fit the others once its rows are lines."""

INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
STRINGS = (T.StringType, T.CharType, T.VarcharType)
_KEYS = (*STRINGS, *INTEGERS, T.BooleanType, T.DateType)
_LEAVES = (
    *_KEYS,
    *(T.FloatType, T.DoubleType, T.DecimalType),
    *(T.TimestampType, T.TimestampNTZType, T.BinaryType, T.NullType),
)

_encode_lines = msgspec.json.Encoder(decimal_format="number").encode_lines


class Unfit(Exception):
    """Some row cannot become an event. `reason` says why; `value` is what is wrong, if shown."""

    def __init__(self, reason: str, value: bytes = b"") -> None:
        super().__init__(reason, value)
        self.reason = reason
        self.value = value


def problems(path: str, kind: T.DataType) -> Iterator[str]:
    """What in a type has no form in JSON."""
    if isinstance(kind, T.StructType):
        for field in kind:
            if kind.names.count(field.name) > 1:
                yield f"cannot be an object: {path}.{field.name} is there twice"
            yield from problems(f"{path}.{field.name}", field.dataType)
    elif isinstance(kind, T.ArrayType):
        yield from problems(f"{path}[]", kind.elementType)
    elif isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, _KEYS):
            yield (
                f"cannot be an object: the keys of {path} are {named(kind.keyType)}, not STRING, "
                f"BOOLEAN, DATE or an integer type"
            )
        yield from problems(f"{path}[]", kind.valueType)
    elif isinstance(kind, T.VariantType):
        yield f"cannot be rendered: {path} is VARIANT; make the event with to_json in Spark"
    elif not isinstance(kind, _LEAVES):
        yield f"cannot be rendered: {path} is {named(kind)}; CAST it AS STRING, or drop it"


def named(kind: T.DataType) -> str:
    return kind.simpleString().upper()


@contextmanager
def within(place: str) -> Iterator[None]:
    """Put a column's or a field's name before the reason."""
    try:
        yield
    except Unfit as exc:
        raise Unfit(f"{place}: {exc.reason}", exc.value) from None


def refuse(bad: pa.Array, values: pa.Array, reason: str) -> None:
    """Raises Unfit with the first of the values for which `bad` is true."""
    if pc.any(bad).as_py():
        raise Unfit(reason, str(values.filter(bad)[:1].cast(TEXT)[0].as_py()).encode())


def joined(*parts: pa.Array | str) -> pa.Array:
    """The parts of each element behind one another; a string is the same in all."""
    scalars = (pa.scalar(part, TEXT) if isinstance(part, str) else part for part in parts)
    return pc.binary_join_element_wise(*scalars, pa.scalar("", TEXT))


def one_text(texts: pa.Array, separator: str = "") -> bytes:
    """The whole column in one. Its elements are not NULL."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    text: bytes = pc.binary_join(whole, pa.scalar(separator, TEXT))[0].as_buffer().to_pybytes()
    return text


def or_else(array: pa.Array, texts: pa.Array, otherwise: str) -> pa.Array:
    """`texts`, and `otherwise` where the array is NULL."""
    if not array.null_count:
        return texts
    return pc.if_else(array.is_valid(), texts, pa.scalar(otherwise, TEXT))


def utf8(strings: pa.Array) -> pa.Array:
    """Strings, known to be UTF-8. Raises Unfit for others [Spark's STRING takes any bytes]."""
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
    """JSON for each element, null for NULL, of all types in which `problems` sees none.

    Raises Unfit for NaN, infinities, years that Python and others do not have, a key that is twice
    in a map, and text that is not UTF-8.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        texts = _structs(array)
    elif pa.types.is_map(kind):
        names, values, offsets = entries(array)
        texts = object_of(names_of(names), json_of(values), offsets)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        (values,), offsets = used(array, array.values)
        texts = joined("[", _listed(json_of(values), offsets), "]")
    else:
        texts = _leaves(array)
    return or_else(array, texts, "null")


def _leaves(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(utf8(array))
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_decimal(kind):
        return _encoded(array)  # pyarrow 15 makes text of a small one that is not JSON: 1.E-18
    if pa.types.is_date(kind):
        return joined('"', _dates(array), '"')
    if pa.types.is_timestamp(kind):
        return joined('"', _timestamps(array), '"')
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        encoded = [value and b64encode(value) for value in array.to_pylist()]
        return joined('"', pa.array(encoded, pa.large_binary()).cast(TEXT), '"')
    return array.cast(TEXT)  # integers, booleans and what is always NULL


def _structs(array: pa.Array) -> pa.Array:
    parts: list[pa.Array | str] = []
    for field, column in zip(array.type, array.flatten(), strict=True):
        name = msgspec.json.encode(field.name).decode()
        with within(field.name):
            parts += [f"{',' if parts else '{'}{name}:", json_of(column)]
    return joined(*parts, "}") if parts else pa.array(["{}"] * len(array), TEXT)


def entries(maps: pa.Array) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Keys and values of all maps of a column, and where each map's begin; NULL maps have none.

    No key is NULL [Spark refuses to make such a map, and Arrow to hold it].
    """
    (keys, values), offsets = used(maps, maps.keys, maps.items)
    return keys, values, offsets


def used(lists: pa.Array, *inner: pa.Array) -> tuple[Sequence[pa.Array], np.ndarray]:
    """What a column of lists or maps uses of its inner arrays: a slice shares them with others."""
    offsets = np.asarray(lists.offsets)
    begin, end = offsets[0], offsets[-1]
    return [each.slice(begin, end - begin) for each in inner], offsets - begin


def object_of(names: pa.Array, values: pa.Array, offsets: np.ndarray) -> pa.Array:
    """JSON objects of names (text) and values (JSON), sorted by name.

    `offsets` are as Arrow's: where each object begins, and the end. Raises Unfit for a name that is
    twice in one object.
    """
    members = joined(_quoted(names), ":", values)
    order = _order(names, offsets)
    return joined("{", _listed(members if order is None else members.take(order), offsets), "}")


def _order(names: pa.Array, offsets: np.ndarray) -> np.ndarray | None:
    """How to sort the names of each object; None if they are sorted, as they mostly are."""
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
    """The keys of maps as text."""
    if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type):
        return utf8(keys)
    return _dates(keys) if pa.types.is_date(keys.type) else keys.cast(TEXT)


def _quoted(texts: pa.Array) -> pa.Array:
    """JSON strings. Texts in which nothing has to be escaped never become Python's."""
    every = np.frombuffer(one_text(or_else(texts, texts, "")), np.uint8)
    if ((every < ord(" ")) | (every == ord('"')) | (every == ord("\\"))).any():
        return _encoded(texts)
    return joined('"', texts, '"')


def _floats(array: pa.Array) -> pa.Array:
    refuse(pc.invert(pc.is_finite(array)), array, "JSON has no NaN and no Infinity")
    if not pa.types.is_float64(array.type):  # 0.1 stays 0.1, and is not 0.10000000149011612
        array = array.cast(TEXT).cast(pa.float64())
    return _encoded(array)


def _encoded(array: pa.Array) -> pa.Array:
    lines = _encode_lines(array.to_pylist()).split(b"\n")[:-1]
    return pa.array(lines, pa.large_binary()).cast(TEXT)


def _dates(array: pa.Array) -> pa.Array:
    _check_year(array, date.min, date.max)
    return array.cast(TEXT)


def _timestamps(array: pa.Array) -> pa.Array:
    instants = array.cast(pa.timestamp("us"))  # with a zone or without: Arrow counts in UTC
    _check_year(instants, datetime.min, datetime.max)
    return instants_of(array)


def instants_of(array: pa.Array) -> pa.Array:
    """As text, of any year that Arrow can write."""
    instants = array.cast(pa.timestamp("us"))
    spaced = pc.replace_substring(instants.cast(TEXT), ".000000", "")
    return joined(pc.replace_substring(spaced, " ", "T"), "Z" if array.type.tz else "")


def _check_year(array: pa.Array, first: date, last: date) -> None:
    kind = array.type
    outside = pc.or_(
        pc.less(array, pa.scalar(first, kind)), pc.greater(array, pa.scalar(last, kind))
    )
    refuse(outside, array, "its year is not in 1 to 9999")
