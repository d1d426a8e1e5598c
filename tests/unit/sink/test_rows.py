"""Rows to events: what a frame's columns mean, what is stored, and which rows are refused."""

import itertools
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from tests import strategies
from tests.cases import each_case
from zeh_spark.errors import OptionError
from zeh_spark.spark.sink.row_layout import layout
from zeh_spark.spark.sink.rows import Renderer, RowError
from zeh_spark.wire import partitioning, upload_format, wire

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
    """data, headers and partition, in any order, become the line that the feed serves."""
    headers = {"b": "2", "a": "1"}
    values = {DATA: '{"id": 1}', HEADERS: headers, ("partition", INT): 3}

    for columns in itertools.permutations(values):
        got = render(columns, [values[each] for each in columns], n=4)

        stored = upload_format.prefix(got.partitions[0]) + got.rests[0]
        assert wire.event_line(3, headers, b'{"id": 1}') == stored


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
    """Spark sends empty batches too; without key and partition, rows may go anywhere."""
    columns = [DATA, HEADERS, ("key", STRING)]
    for some in (batch(columns), batch(columns, ("1", {"a": "b"}, "k")).slice(1)):
        got = Renderer(layout(frame(*columns)), 4).render(some)
        assert ([], []) == (got.rests, got.partitions.tolist())
    assert render([DATA], ("1",), ("2",)).partitions is None


# Where events go


@each_case("kind", [T.ByteType(), T.ShortType(), INT, LONG])
def test_a_partition_may_be_said(kind):
    """In any type of integer, of which 127 is only the last TINYINT; NULL may go anywhere."""
    rows = [("1", partition) for partition in (3, None, 0, 127)]

    got = render([DATA, ("partition", kind)], *rows, n=300)

    assert ([3, -1, 0, 127], "int32") == (got.partitions.tolist(), got.partitions.dtype)


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


# What is rendered


ID, KEY, NAME = ("id", INT), ("key", STRING), ("name", STRING)
OF_K = partitioning.partition_of("k", 4)
OBJECT = ("data", frame(ID))


@each_case(
    ("columns", "row", "stored", "partition"),
    [
        ([ID, KEY, NAME], (1, "k", None), rest(b'{"id":1,"key":"k","name":null}'), OF_K),
        ([ID, KEY, NAME], (2, None, 'a"b'), rest(b'{"id":2,"key":null,"name":"a\\"b"}'), -1),
        ([("Key", STRING), ID], ("k", 1), rest(b'{"Key":"k","id":1}'), OF_K),
        (
            [OBJECT, HEADERS, KEY],
            ({"id": 1}, {"a": "b"}, "k"),
            rest(b'{"id":1}', b'{"a":"b"}'),
            OF_K,
        ),
    ],
)
def test_what_is_no_text_is_rendered(columns, row, stored, partition):
    """Without data, a row is the event's object with all of its columns, in the case of their
    names; key also says where it goes. Or data is a struct, and headers go with it.
    """
    got = render(columns, row)

    assert ([stored], [partition]) == (got.rests, got.partitions.tolist())


# Frames that are refused

IN_ARRAY = T.ArrayType(frame(("v", T.VariantType())))
IN_MAP = T.MapType(STRING, T.YearMonthIntervalType())
REFUSED = {
    "no columns": ([], "data", "without columns"),
    "another column": ([DATA, ("x", INT)], "x", r"beside 'data': .*event, struct"),
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
    "INT": ([("data", INT)], "data", r"INT, .*struct\(data\) AS data, or CAST it AS STRING"),
    "TIMESTAMP": ([("data", T.TimestampType())], "data", "TIMESTAMP, which is no event"),
    "BINARY": ([("data", T.BinaryType())], "data", "BINARY, which is no event"),
    "partition of a row": ([("id", INT), ("partition", INT)], "partition", "only beside 'data'"),
    "headers of a row": ([HEADERS], "headers", "only beside 'data'"),
    "Headers of a row": ([("Headers", MAP)], "headers", "only beside 'data'"),
    "VARIANT of a row": ([("v", T.VariantType())], "v", "v is VARIANT; .*to_json"),
    "VARIANT inside": ([("data", IN_ARRAY)], "data", r"data\[\]\.v is VARIANT"),
    "interval": ([("i", T.DayTimeIntervalType())], "i", "INTERVAL.*CAST it AS STRING, or drop it"),
    "interval inside": ([("data", IN_MAP)], "data", r"data\[\] is INTERVAL"),
    "keys of a map": ([("m", T.MapType(T.DoubleType(), INT))], "m", "keys of m are DOUBLE"),
    "field twice": ([("s", frame(("a", INT), ("a", INT)))], "s", "s.a is there twice"),
}


@each_case(("columns", "option", "why"), REFUSED.values())
def test_a_frame_that_cannot_be_published_is_refused_by_column(columns, option, why):
    """Before anything is written I am told which column it is, and what to do."""
    with pytest.raises(OptionError, match=why) as caught:
        layout(frame(*columns))

    assert option == caught.value.option


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


GOOD, ODD = strings(b'"a"', b'"b"'), strings(b'"a"', b'"\xe9"')


@each_case(
    ("columns", "why"),
    [
        ({"data": ODD}, "data: not UTF-8: .*\ufffd"),
        ({"data": GOOD, "key": ODD}, "key: not UTF-8: .*\ufffd"),
        ({"data": GOOD, "headers": pa.MapArray.from_arrays([0, 0, 2], ODD, GOOD)}, "headers: not"),
        ({"data": GOOD, "headers": pa.MapArray.from_arrays([0, 0, 2], GOOD, ODD)}, "headers: not"),
    ],
)
def test_text_that_is_not_utf8_is_refused(columns, why):
    """Spark's strings may hold any bytes; a feed may not, nor names and values of headers."""
    kinds = {"headers": MAP}
    renderer = Renderer(layout(frame(*((each, kinds.get(each, STRING)) for each in columns))), 4)

    with pytest.raises(RowError, match=f"row 1 .*{why}"):
        renderer.render(pa.RecordBatch.from_pydict(columns))


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


# Laws

odd_texts = st.sampled_from(
    [
        *("", " ", "null", " null", "1 2", '{"a":1},"data":2', "1\n", "\r1", "[1,\r2]", "[\n]"),
        *("[1", ",2]", "]", "[", '"', '"\u2028"', '"\x85"', "\x0c1", "\xa01", "NaN", "1e999"),
        *('"\\ud800"', '"\\ud83d\\ude00"', "-0", "01", "\ufeff1", "[" * 2000, '"\x00"'),
        *('{"a":1,"a":2}', ' "null"', '{"a": 1.50, "b" :null}'),
    ]
)
json_texts = strategies.json_texts().map(bytes.decode)


def one_by_one(text):
    """What a row becomes by itself, None if it is refused."""
    try:
        data = None if text is None else upload_format.validated_json(text.encode())
    except ValueError:
        return None
    return None if data in (None, b"null") else rest(data)


@given(
    st.lists(json_texts)
    | st.lists(odd_texts, max_size=5)
    | st.lists(json_texts | odd_texts | strategies.text | st.none())
)
def test_a_column_is_what_its_rows_are_one_by_one(texts):
    """Law: rows pass or fail, and are stored, as by themselves, whatever stands beside them."""
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
    """Law: the same headers are the same bytes of any writer, also amid a batch."""
    columns = [DATA, HEADERS]
    some = batch(columns, *(("1", headers) for headers in each)).slice(begin)

    got = Renderer(layout(frame(*columns)), 1).render(some).rests

    assert [upload_format.rest_of(headers or {}, b"1") for headers in each[begin:]] == got


INTEGERS = {T.ByteType(): 7, INT: 31, LONG: 63}
KEYS = [(kind, st.integers(-(2**bits), 2**bits - 1)) for kind, bits in INTEGERS.items()]


@given(st.data(), st.sampled_from([(STRING, strategies.text), *KEYS]), st.integers(1, 1000))
def test_keys_go_where_partition_of_says(data, column, n):
    """Law: all writers agree on a key's partition (EH-02). Integers count as text, NULL is free."""
    kind, values = column
    keys = data.draw(st.lists(st.none() | values, min_size=1))

    got = render([DATA, ("key", kind)], *(("1", key) for key in keys), n=n).partitions

    assert "int32" == got.dtype
    assert [
        -1 if key is None else partitioning.partition_of(str(key), n) for key in keys
    ] == got.tolist()
