"""Rows to events: what a frame's columns mean, what is stored, and which rows are refused."""

from __future__ import annotations

import math
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from tests import strategies
from tests.cases import each_case
from zeh_spark.errors import OptionError
from zeh_spark.protocol import partitioning, upload_format, wire
from zeh_spark.sink.row_layout import layout
from zeh_spark.sink.rows import Renderer, RowError

STRING, INT, LONG = T.StringType(), T.IntegerType(), T.LongType()
MAP = T.MapType(STRING, STRING)
DATA, HEADERS = ("data", STRING), ("headers", MAP)
STRUCT = T.StructType([T.StructField("a", T.FloatType())])


def frame(*columns):
    """A schema of columns, each a name and a type."""
    return T.StructType([T.StructField(*column) for column in columns])


def batch(columns, *rows):
    """Rows as Spark hands them over."""
    types = [to_arrow_type(kind) for _, kind in columns]
    arrays = [pa.array([row[each] for row in rows], kind) for each, kind in enumerate(types)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])


def render(columns, *rows, n=4):
    return Renderer(layout(frame(*columns)), n).render(batch(columns, *rows))


def rest(data, headers=b"{}"):
    return b'"headers":%b,"data":%b}' % (headers, data)


def strings(*texts):
    """A column that may hold bytes which are not UTF-8, as Spark's may."""
    return pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())


# What is stored


def test_a_row_is_an_event():
    """data, headers and partition become the line that the feed serves."""
    columns = [DATA, HEADERS, ("partition", INT)]

    got = render(columns, ('{"id": 1}', {"b": "2", "a": "1"}, 3), n=4)

    stored = upload_format.prefix(got.partitions[0]) + got.rests[0]
    assert wire.event_line(3, {"b": "2", "a": "1"}, b'{"id": 1}') == stored


def test_rows_without_key_and_partition_may_go_anywhere():
    """Who does not say where events go leaves it to the sink."""
    assert render([DATA], ("1",), ("2",)).partitions is None


def test_the_order_of_columns_does_not_matter():
    """Columns are known by their names."""
    got = render([("key", STRING), HEADERS, DATA], ("k", {"a": "b"}, "1"))

    assert [rest(b"1", b'{"a":"b"}')] == got.rests
    assert [partitioning.partition_of("k", 4)] == got.partitions.tolist()


@each_case(
    ("text", "stored"),
    [
        ('{"a": 1.50, "b" :null}', b'{"a": 1.50, "b" :null}'),
        (' \n{"a":\r\n 1}\t', b'{"a":   1}'),
        ('"\\u00e9é\u2028\\n"', '"\\u00e9é\u2028\\n"'.encode()),
        ("1e999", b"1e999"),
        ('{"a":1,"a":2}', b'{"a":1,"a":2}'),
        (' "null"', b'"null"'),
    ],
)
def test_json_is_kept_as_it_is(text, stored):
    """No number is rounded and no key is lost; only newlines between tokens become spaces."""
    assert [rest(b"1"), rest(stored)] == render([DATA], ("1",), (text,)).rests


@each_case(
    ("headers", "stored"),
    [
        (None, b"{}"),
        ({}, b"{}"),
        ({"b": '"', "a": "\n", "": "é"}, b'{"":"\xc3\xa9","a":"\\n","b":"\\""}'),
        ({"zeh-sequence": "7", "z": "1", "zeh-time": None}, b'{"z":"1"}'),
        ({"zeh-": ""}, b"{}"),
        ({"Zeh-x": "1"}, b'{"Zeh-x":"1"}'),
    ],
)
def test_headers_are_sorted_and_the_publishers_own_are_dropped(headers, stored):
    """A relay may hand on what it read, stamps and all; no headers is a choice too."""
    rows = [("1", {"x": "y"}), ("1", headers), ("1", None)]
    expected = [rest(b"1", b'{"x":"y"}'), rest(b"1", stored), rest(b"1")]
    assert expected == render([DATA, HEADERS], *rows).rests


def test_no_rows_are_no_events():
    """Spark sends empty batches too."""
    columns = [DATA, HEADERS, ("key", STRING)]
    for some in (batch(columns), batch(columns, ("1", {"a": "b"}, "k")).slice(1)):
        got = Renderer(layout(frame(*columns)), 4).render(some)
        assert ([], []) == (got.rests, got.partitions.tolist())


# Where events go


@each_case(
    ("kind", "keys"),
    [
        (STRING, ["a", "é\u2028", "", "a", None]),
        (INT, [0, -1, 2**31 - 1, None]),
        (LONG, [-(2**63), 17, 17]),
        (T.ByteType(), [-128, None, 127]),
    ],
)
def test_a_key_decides_the_partition(kind, keys):
    """The same partition as every other writer chooses; integers count as text, NULL is free."""
    got = render([DATA, ("key", kind)], *(("1", key) for key in keys), n=7)

    assert "int32" == got.partitions.dtype
    assert [
        -1 if key is None else partitioning.partition_of(str(key), 7) for key in keys
    ] == got.partitions.tolist()


@each_case("kind", [T.ByteType(), T.ShortType(), INT, LONG])
def test_a_partition_may_be_said(kind):
    """Any integer type will do, and NULL may go anywhere."""
    rows = [("1", partition) for partition in (3, None, 0)]

    got = render([DATA, ("partition", kind)], *rows, n=4)

    assert ([3, -1, 0], "int32") == (got.partitions.tolist(), got.partitions.dtype)


def test_a_small_type_goes_with_many_partitions():
    """127 is the last TINYINT, not the last partition."""
    rows = [("1", 127), ("2", 0)]

    assert [127, 0] == render([DATA, ("partition", T.ByteType())], *rows, n=300).partitions.tolist()


@each_case(
    ("names", "row"),
    [
        (("DATA", "Headers", "KEY"), ("1", {"a": "b"}, "k")),
        (("Data", "HEADERS", "Partition"), ("1", {"a": "b"}, 2)),
    ],
)
def test_columns_are_found_in_any_case(names, row):
    """As Spark finds them: an upper-case KEY is no payload, and decides the partition."""
    kinds = (STRING, MAP, INT if row[2] == 2 else STRING)
    columns = list(zip(names, kinds, strict=True))
    expected = render([(name.lower(), kind) for name, kind in columns], row)

    got = render(columns, row)

    assert (expected.rests, [*expected.partitions]) == (got.rests, [*got.partitions])
    with pytest.raises(OptionError, match=f"caseSensitive=true, .* column {names[0]!r}"):
        layout(frame(*columns)).check_case("true")


# Frames without data


def test_a_frame_without_data_is_published_row_by_row():
    """Each row is the event's object with all of its columns; key also says where it goes."""
    columns = [("id", INT), ("key", STRING), ("name", STRING)]

    got = render(columns, (1, "k", None), (2, None, 'a"b'))

    assert [
        rest(b'{"id":1,"key":"k","name":null}'),
        rest(b'{"id":2,"key":null,"name":"a\\"b"}'),
    ] == got.rests
    assert [partitioning.partition_of("k", 4), -1] == got.partitions.tolist()


def test_a_row_keeps_the_case_of_its_key():
    """Its readers know the column by the name that I gave it."""
    got = render([("Key", STRING), ("id", INT)], ("k", 1))

    assert [rest(b'{"Key":"k","id":1}')] == got.rests
    assert [partitioning.partition_of("k", 4)] == got.partitions.tolist()


def test_structured_data_is_rendered():
    """data may be a struct, and headers go with it."""
    columns = [("data", frame(("id", INT))), HEADERS]

    assert [rest(b'{"id":1}', b'{"a":"b"}')] == render(columns, ({"id": 1}, {"a": "b"})).rests


# Frames that are refused

REFUSED = {
    "no columns": ([], "data", "without columns"),
    "another column": ([DATA, ("x", INT)], "x", r"beside 'data': .*to_json\(struct"),
    "another case twice": ([DATA, ("Key", INT), ("KEY", INT)], "key", "'Key' and 'KEY' have the"),
    "two cases": ([DATA, ("DATA", STRING)], "DATA", "'DATA' has the same name as 'data' for Spark"),
    "twice": ([("a", INT), ("a", INT)], "a", "twice"),
    "both": ([DATA, ("partition", INT), ("key", STRING)], "key", "contradicts 'partition'"),
    "partition STRING": ([DATA, ("partition", STRING)], "partition", "is STRING: CAST it AS INT"),
    "key BINARY": ([DATA, ("key", T.BinaryType())], "key", "is BINARY: CAST it AS STRING"),
    "key of a row": ([("key", T.DoubleType())], "key", "is DOUBLE: CAST it AS STRING"),
    "headers STRING": ([DATA, ("headers", STRING)], "headers", "MAP<STRING, STRING>"),
    "headers INT": ([DATA, ("headers", T.MapType(STRING, INT))], "headers", "MAP<STRING,INT>"),
    "VARIANT": ([("data", T.VariantType())], "data", r"VARIANT: publish to_json\(data\)"),
    "INT": ([("data", INT)], "data", r"INT, .*to_json\(struct\(data\)\), or CAST it AS STRING"),
    "TIMESTAMP": ([("data", T.TimestampType())], "data", "TIMESTAMP, which is no event"),
    "BINARY": ([("data", T.BinaryType())], "data", "BINARY, which is no event"),
    "partition of a row": ([("id", INT), ("partition", INT)], "partition", "only beside 'data'"),
    "headers of a row": ([HEADERS], "headers", "only beside 'data'"),
    "Headers of a row": ([("Headers", MAP)], "headers", "only beside 'data'"),
    "VARIANT of a row": ([("v", T.VariantType())], "v", "v is VARIANT; .*to_json"),
    "VARIANT inside": (
        [("data", T.ArrayType(frame(("v", T.VariantType()))))],
        "data",
        r"data\[\]\.v is VARIANT",
    ),
    "interval": ([("i", T.DayTimeIntervalType())], "i", "INTERVAL.*CAST it AS STRING, or drop it"),
    "interval inside": (
        [("data", T.MapType(STRING, T.YearMonthIntervalType()))],
        "data",
        r"data\[\] is INTERVAL",
    ),
    "keys of a map": ([("m", T.MapType(T.DoubleType(), INT))], "m", "keys of m are DOUBLE"),
    "field twice": ([("s", frame(("a", INT), ("a", INT)))], "s", "s.a is there twice"),
}


@each_case(("columns", "option", "why"), REFUSED.values())
def test_a_frame_that_cannot_be_published_is_refused_by_column(columns, option, why):
    """Before anything is written I am told which column it is, and what to do."""
    with pytest.raises(OptionError, match=why) as caught:
        layout(frame(*columns))

    assert option == caught.value.option


def test_the_layout_travels():
    """It is decided on the driver and used on executors."""
    decided = layout(frame(DATA, HEADERS))

    assert decided == pickle.loads(pickle.dumps(decided))


# Rows that are refused

LONG_TEXT = '"' + "x" * upload_format.LINE_BYTES + '"'
BAD = {
    "NULL": ([DATA], (None,), "data is NULL;"),
    "null": ([DATA], (" null ",), "the JSON null"),
    "blank": ([DATA], (" ",), "not JSON"),
    "two values": ([DATA], ("1 2",), "not JSON: .*'1 2'"),
    "a way out": ([DATA], ('{"a":1},"data":2',), "not JSON"),
    "NaN": ([DATA], ('{"a":NaN}',), r"NaN is not JSON.*'{\"a\":NaN}'"),
    "half a character": ([DATA], ('"\\ud800"',), "half of a surrogate pair"),
    "too deep": ([DATA], ("[" * 9999 + "]" * 9999,), "nested 9999 deep"),
    "deeper than all follow": ([DATA], ("[" * 501 + "]" * 501,), "nested 501 deep"),
    "too long": ([DATA], (LONG_TEXT,), f"bytes as a line .* at most {upload_format.LINE_BYTES:,}"),
    "header NULL": ([DATA, HEADERS], ("1", {"h": None}), "headers: the value .* NULL: 'h'"),
    "header twice": ([DATA, HEADERS], ("1", [("h", ""), ("h", "")]), "headers: .*twice: 'h'"),
    "partition": ([DATA, ("partition", LONG)], ("1", 4), "not in 0 to 3: '4'"),
    "partition -1": ([DATA, ("partition", INT)], ("1", -1), "not in 0 to 3: '-1'"),
    "partition 2^32": ([DATA, ("partition", LONG)], ("1", 2**32), "not in 0 to 3"),
    "struct NULL": ([("data", STRUCT)], (None,), "data is NULL;"),
    "struct with NaN": ([("data", STRUCT)], ({"a": math.nan},), "data: a: JSON has no NaN.*'nan'"),
}


@each_case(("columns", "row", "why"), BAD.values())
def test_a_row_that_cannot_be_published_is_named(columns, row, why):
    """I learn which row it is, why, and how its value begins."""
    good = ("1" if columns[0] == DATA else {"a": 1.0}, None)
    renderer = Renderer(layout(frame(*columns)), 4)
    renderer.render(batch(columns, good, good))

    with pytest.raises(RowError, match=rf"row 5 of this task cannot .*{why}.*repair") as caught:
        renderer.render(batch(columns, good, good, good, row, good, row))

    assert 5 == caught.value.row
    assert caught.value.reason in str(caught.value)


@each_case("name", ["data", "key"])
def test_text_that_is_not_utf8_is_refused(name):
    """Spark's strings may hold any bytes; a feed may not."""
    text = strings(b'"a"', b'"\xe9"')
    arrays = {"data": pa.array(["1", "2"]), name: text}
    renderer = Renderer(layout(frame(*((each, STRING) for each in arrays))), 4)

    with pytest.raises(RowError, match=f"row 1 .*{name}: not UTF-8: .*\ufffd"):
        renderer.render(pa.RecordBatch.from_pydict(arrays))


@each_case(("names", "values"), [(b"\xe9", b"v"), (b"n", b"\xe9")])
def test_headers_that_are_not_utf8_are_refused(names, values):
    """Names and values alike."""
    headers = pa.MapArray.from_arrays([0, 0, 1], strings(names), strings(values))
    renderer = Renderer(layout(frame(DATA, HEADERS)), 4)

    with pytest.raises(RowError, match=r"row 1 .*headers: not UTF-8"):
        renderer.render(pa.RecordBatch.from_pydict({"data": ["1", "1"], "headers": headers}))


@each_case(
    ("columns", "row", "partition"),
    [
        ([DATA], (), 999),
        ([DATA, ("key", STRING)], (None,), 999),
        ([DATA, ("partition", INT)], (9,), 9),
    ],
)
def test_a_line_may_be_as_long_as_the_limit(columns, row, partition):
    """To the byte, in the partition where it goes, or in any if that is open."""
    room = upload_format.LINE_BYTES - len(upload_format.prefix(partition)) - len(rest(b'""'))
    renderer = Renderer(layout(frame(*columns)), 1000)

    got = renderer.render(batch(columns, ('"' + "x" * room + '"', *row)))
    assert upload_format.LINE_BYTES == len(upload_format.prefix(partition) + got.rests[0])

    with pytest.raises(RowError, match=f"takes {upload_format.LINE_BYTES + 1:,} bytes"):
        renderer.render(batch(columns, ('"' + "x" * (room + 1) + '"', *row)))


def test_a_row_error_travels():
    """It is raised on an executor and read on the driver."""
    error = RowError("what happened", row=3, reason="NULL")

    copy = pickle.loads(pickle.dumps(error))

    assert (str(error), vars(error)) == (str(copy), vars(copy))


# Laws

odd_texts = st.sampled_from(
    [
        *("", " ", "null", " null", "1 2", '{"a":1},"data":2', "1\n", "\r1", "[1,\r2]", "[\n]"),
        *("[1", ",2]", "]", "[", '"', '"\u2028"', '"\x85"', "\x0c1", "\xa01", "NaN", "1e999"),
        *('"\\ud800"', '"\\ud83d\\ude00"', "-0", "01", "\ufeff1", "[" * 2000, '"\x00"'),
    ]
)
json_texts = strategies.json_texts().map(bytes.decode)


def one_by_one(text):
    """What a row becomes by itself, None if it is refused."""
    try:
        data = None if text is None else wire.validated_json(text.encode())
    except ValueError:
        return None
    return None if data in (None, b"null") else rest(data)


@given(
    st.lists(json_texts)
    | st.lists(odd_texts, max_size=5)
    | st.lists(json_texts | odd_texts | strategies.text | st.none())
)
def test_a_column_is_what_its_rows_are_one_by_one(texts):
    """Law: rows pass, or fail, and are stored as each of them is by itself, whatever stands in the
    rows beside it.
    """
    expected = [one_by_one(text) for text in texts]
    try:
        got = render([DATA], *((text,) for text in texts)).rests
    except RowError as exc:
        assert expected.index(None) == exc.row
    else:
        assert expected == got


names = strategies.text | st.just(wire.RESERVED_HEADER) | strategies.text.map("zeh-{}".format)


@given(st.lists(st.none() | st.dictionaries(names, strategies.text)), st.integers(0, 9))
def test_headers_are_as_every_writer_stores_them(each, begin):
    """Law: the same headers are the same bytes, whoever writes them, also from the middle of a
    batch.
    """
    columns = [DATA, HEADERS]
    some = batch(columns, *(("1", headers) for headers in each)).slice(begin)

    got = Renderer(layout(frame(*columns)), 1).render(some).rests

    assert [upload_format.rest_of(headers or {}, b"1") for headers in each[begin:]] == got


@given(st.lists(st.none() | strategies.text), st.integers(1, 1000))
def test_keys_go_where_partition_of_says(keys, n):
    """Law: the sink and other writers agree on the partition of each key (EH-02)."""
    got = render([DATA, ("key", STRING)], *(("1", key) for key in keys), n=n).partitions

    assert [
        -1 if key is None else partitioning.partition_of(key, n) for key in keys
    ] == got.tolist()
