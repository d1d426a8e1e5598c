"""Arrow values to JSON text: one clear form for each type, the same from any slice."""

import base64
import json
import math
from datetime import date, datetime, time, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from tests.cases import each_case
from zeh_spark.wire.arrow_json import Unfit, json_of, problems

BERLIN, LOCAL = pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us")
TEXT = pa.string()


NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
PAIR = pa.struct([("b", TEXT), ('a"', pa.struct([("c", pa.int8())]))])
LIST = pa.list_(pa.struct([("a", TEXT)]))
LARGE = pa.large_list(pa.map_(pa.large_string(), pa.large_binary()))
FORMS = {
    "BOOLEAN": (True, pa.bool_(), "true"),
    "TINYINT": (-128, pa.int8(), "-128"),
    "BIGINT": (2**63 - 1, pa.int64(), "9223372036854775807"),
    "FLOAT": (0.1, pa.float32(), "0.1"),
    "DOUBLE": (0.1 + 0.2, pa.float64(), "0.30000000000000004"),
    "DOUBLE without a fraction": (1.0, pa.float64(), "1.0"),
    "large DOUBLE": (1e300, pa.float64(), "1e300"),
    "-0": (-0.0, pa.float64(), "-0.0"),
    "DECIMAL": (Decimal("1.50"), pa.decimal128(10, 3), "1.500"),
    "large DECIMAL": (Decimal("-" + "9" * 38), pa.decimal128(38, 0), "-" + "9" * 38),
    "small DECIMAL": (Decimal("1e-18"), pa.decimal128(38, 18), "1E-18"),
    "STRING": ('é"\\/\n\u2028\x00', TEXT, '"é\\"\\\\/\\n\u2028\\u0000"'),
    "empty STRING": ("", TEXT, '""'),
    "DATE": (date(2026, 11, 20), pa.date32(), '"2026-11-20"'),
    "early DATE": (date(1, 1, 1), pa.date32(), '"0001-01-01"'),
    "TIMESTAMP": (NOON, BERLIN, '"2026-11-20T12:00:00Z"'),
    "micros": (NOON.replace(microsecond=1200), BERLIN, '"2026-11-20T12:00:00.001200Z"'),
    "TIMESTAMP_NTZ": (datetime(9999, 12, 31), pa.timestamp("us"), '"9999-12-31T00:00:00"'),
    "seconds": (datetime(2026, 1, 2), pa.timestamp("s"), '"2026-01-02T00:00:00"'),
    "whole micros": (NOON, pa.timestamp("ns", "Mars/X"), '"2026-11-20T12:00:00Z"'),
    "milliseconds of a DATE": (date(2026, 11, 20), pa.date64(), '"2026-11-20"'),
    "TIME": (time(12), pa.time64("us"), '"12:00:00"'),
    "TIME with micros": (time(23, 59, 59, 5), pa.time64("us"), '"23:59:59.000005"'),
    "TIME of seconds": (time(0, 0, 1), pa.time32("s"), '"00:00:01"'),
    "half a FLOAT": (np.float16(0.5 + 2**-11), pa.float16(), "0.50048828125"),
    "large integer": (2**64 - 1, pa.uint64(), "18446744073709551615"),
    "fixed BINARY": (b"\xff\x00", pa.binary(2), '"/wA="'),
    "fixed ARRAY": ([1, 2], pa.list_(pa.int8(), 2), "[1,2]"),
    "fixed ARRAY of ARRAYs": ([[1.0]], pa.list_(pa.list_(pa.float64(), 1), 1), "[[1.0]]"),
    "BINARY": (b"\xff\x00", pa.binary(), '"/wA="'),
    "empty BINARY": (b"", pa.binary(), '""'),
    "ARRAY": ([1, None], pa.list_(pa.int32()), "[1,null]"),
    "empty ARRAY": ([], pa.list_(pa.int32()), "[]"),
    "MAP": ({"b": 1, "a!": None, "a": 2}, pa.map_(TEXT, pa.int32()), '{"a":2,"a!":null,"b":1}'),
    "empty MAP": ({}, pa.map_(TEXT, TEXT), "{}"),
    "INT keys": ({-1: "x"}, pa.map_(pa.int32(), TEXT), '{"-1":"x"}'),
    "BOOLEAN keys": ({True: "x"}, pa.map_(pa.bool_(), TEXT), '{"true":"x"}'),
    "DATE keys": ({date(2026, 1, 2): 1}, pa.map_(pa.date32(), pa.int8()), '{"2026-01-02":1}'),
    "STRUCT": ({"b": None, 'a"': {"c": 1}}, PAIR, '{"b":null,"a\\"":{"c":1}}'),
    "empty STRUCT": ({}, pa.struct([]), "{}"),
    "STRUCT in ARRAY": ([{"a": "x"}, None], LIST, '[{"a":"x"},null]'),
    "always NULL": (None, pa.null(), "null"),
    "large types": ([{"a": b"x"}], LARGE, '[{"a":"eA=="}]'),
}


@each_case(("value", "kind", "text"), FORMS.values())
def test_every_type_has_one_form(value, kind, text):
    """I know what an event looks like from the types of its columns; NULL is null. What `json_of`
    writes is what `problems` lets pass.
    """
    array = pa.array([value, None, value], kind)

    assert [text, "null", text] == json_of(array).to_pylist()
    assert [text] == json_of(array.slice(2)).to_pylist()
    assert [] == json_of(array.slice(3)).to_pylist()
    assert [] == list(problems("v", kind))


TEXTS = pa.Array.from_buffers(TEXT, 2, pa.array([b"ok", b"\xe9"], pa.binary()).buffers())
REFUSED = {
    "NaN": ([1.0, math.nan], pa.float64(), "NaN", b"nan"),
    "Infinity": ([-math.inf], pa.float32(), "Infinity", b"-inf"),
    "NaN inside": ([[{"a": [math.nan]}]], None, "a: JSON has no NaN", b"nan"),
    "year 0": ([-719163], pa.date32(), "year", b"0000-12-31"),
    "year 10000": ([253402300800000000], LOCAL, "year", b"10000-01-01 00:00:00.000000"),
    "year 0 in UTC": ([-62135596800000001], BERLIN, "year", b"0000-12-31 23:59:59.999999"),
    "DATE key": ([[(2932897, 1)]], pa.map_(pa.date32(), pa.int8()), "year", b"10000-01-01"),
    "nanoseconds": ([1], pa.timestamp("ns"), "finer than a microsecond", b""),
    "nanoseconds of a TIME": ([1], pa.time64("ns"), "finer than a microsecond", b""),
    "far second": ([2**62], pa.timestamp("s"), "year", b""),
    "duration": ([1], pa.duration("s"), r"no form in JSON for duration\[s\]", b""),
    "name twice": ([[("b", 1), ("a", 1), ("b", 2)]], pa.map_(TEXT, pa.int8()), "twice", b"b"),
    "field": (pa.StructArray.from_arrays([TEXTS], ["a"]), None, "not UTF-8", b"\xe9"),
    "list": (pa.ListArray.from_arrays([0, 2], TEXTS), None, "not UTF-8", b"\xe9"),
    "map": (pa.MapArray.from_arrays([0, 2], TEXTS, TEXTS), None, "not UTF-8", b"\xe9"),
}


@each_case(("values", "kind", "why", "value"), REFUSED.values())
def test_what_json_cannot_say_is_refused(values, kind, why, value):
    """Never null or a rounded value in silence: the reason and the value are named."""
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    with pytest.raises(Unfit, match=why) as caught:
        json_of(array)

    assert value == caught.value.value


@each_case("values", [["a", None, "b", "a"], [1.5, None, 2.5, 1.5]])
def test_dictionaries_are_written_as_their_values(values):
    """How a file packs a column does not show; what nobody uses of a dictionary does not matter."""
    plain = pa.array(values)
    packed = plain.dictionary_encode()
    inside = pa.StructArray.from_arrays([packed], ["a"])

    assert json_of(plain) == json_of(packed)
    assert json_of(plain.slice(1)) == json_of(packed.slice(1))
    assert json_of(pa.StructArray.from_arrays([plain], ["a"])) == json_of(inside)
    unused = pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array([1.5, math.nan]))
    assert ["1.5", "null"] == json_of(unused).to_pylist()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("string_view", "x", '"x"'),
        ("binary_view", b"x", '"eA=="'),
        ("bool8", 1, "true"),
        ("json_", "{}", '"{}"'),
        # As a Parquet file names it; its bytes would say nothing.
        ("uuid", bytes(range(16)), '"00010203-0405-0607-0809-0a0b0c0d0e0f"'),
    ],
)
def test_newer_types_of_arrow_are_written_as_older_ones(name, value, text):
    """How a library lays values out does not show."""
    if not hasattr(pa, name):
        pytest.skip(f"this pyarrow has no {name}")
    kind = getattr(pa, name)()

    assert [] == list(problems("v", kind))
    assert [text, "null"] == json_of(pa.array([value, None], kind)).to_pylist()


WITHOUT_FORM = {
    "duration": (pa.duration("s"), ["v is duration[s]"]),
    "interval": (pa.month_day_nano_interval(), ["v is month_day_nano_interval"]),
    "in lists": (pa.list_(pa.large_list(pa.duration("s"))), ["v[][] is duration[s]"]),
    "in maps": (pa.map_(TEXT, pa.duration("s")), ["v[] is duration[s]"]),
    "in dictionaries": (pa.dictionary(pa.int8(), pa.duration("s")), ["v is duration[s]"]),
    "keys": (pa.map_(pa.binary(), TEXT), ["the keys of v are binary"]),
    "name twice": (
        pa.struct([("a", TEXT), ("a", TEXT)]),
        ["v.a is there twice", "v.a is there twice"],
    ),
    "several": (
        pa.struct([("a", pa.duration("s")), ("b", TEXT), ("c", pa.duration("ms"))]),
        ["v.a is duration[s]", "v.c is duration[ms]"],
    ),
}


@each_case(("kind", "expected"), WITHOUT_FORM.values())
def test_types_without_a_form_are_named(kind, expected):
    """Before a row is read, I am told which field it is."""
    found = list(problems("v", kind))

    assert [True] * len(expected) == [
        each.startswith(begin) for each, begin in zip(found, expected, strict=True)
    ]


def test_what_is_hidden_under_null_is_not_looked_at():
    """A NULL struct is null, whatever its fields hold."""
    fields = [pa.array([math.nan, 1.0]), pa.array(["a", "b"])]
    array = pa.StructArray.from_arrays(fields, ["x", "y"], mask=pa.array([True, False]))

    assert ["null", '{"x":1.0,"y":"b"}'] == json_of(array).to_pylist()


# Laws

numbers = st.none() | st.integers(-(2**63), 2**63 - 1)
floats = st.none() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.none() | strategies.text
instants = st.none() | st.datetimes(timezones=st.just(timezone.utc))
maps = st.none() | st.dictionaries(strategies.text, floats, max_size=4)
ROW = pa.struct(
    [
        *(("n", pa.int64()), ("f", pa.float64()), ("t", TEXT), ("b", pa.binary())),
        *(("at", BERLIN), ("m", pa.map_(TEXT, pa.float64())), ("l", pa.list_(pa.list_(TEXT)))),
        ("s", pa.struct([("m", pa.map_(TEXT, pa.float64()))])),
    ]
)
FIELDS = {
    "n": numbers,
    "f": floats,
    "t": texts,
    "b": st.none() | st.binary(),
    "at": instants,
    "m": maps,
    "l": st.none() | st.lists(st.none() | st.lists(texts, max_size=3), max_size=3),
    "s": st.none() | st.fixed_dictionaries({"m": maps}),
}
rows = st.none() | st.fixed_dictionaries(FIELDS)


def plain(row):
    """A row as json.loads would give it back."""
    if row is None:
        return None
    at, binary = row["at"], row["b"]
    at = at and at.replace(tzinfo=None).isoformat() + "Z"
    return {**row, "at": at, "b": None if binary is None else base64.b64encode(binary).decode()}


@given(st.lists(rows, max_size=6), st.integers(0, 3))
def test_what_is_written_can_be_read(values, begin):
    """Law: JSON's parser gives back every value, from any slice, and no newline is in it."""
    got = json_of(pa.array(values, ROW).slice(begin)).to_pylist()

    assert [plain(value) for value in values[begin:]] == [json.loads(text) for text in got]
    assert not any("\n" in text or "\r" in text for text in got)


@given(st.lists(st.dictionaries(strategies.text, strategies.text)), st.randoms())
def test_maps_are_sorted(each, random):
    """Law: the order in which Spark holds a map does not show."""
    shuffled = [random.sample(list(one.items()), len(one)) for one in each]
    kind = pa.map_(TEXT, TEXT)

    assert json_of(pa.array(each, kind)) == json_of(pa.array(shuffled, kind))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_floats_read_back_the_same(values):
    """Law: FLOAT loses nothing though it is written as short as can be."""
    got = [float(text) for text in json_of(pa.array(values, pa.float32())).to_pylist()]

    assert values == pa.array(got, pa.float32()).to_pylist()
