"""Rows that cannot be published, as letters: nothing of them is lost, whatever is beside them."""

import base64
import json
import math
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from tests.cases import each_case
from tests.unit.sink.test_rows import strings
from zeh_spark.client.http.publish_client import BatchCall
from zeh_spark.spark.sink.letters import lenient, letters_of
from zeh_spark.spark.sink.row_layout import RowLayout
from zeh_spark.spark.sink.rows import Renderer
from zeh_spark.wire import partitioning, upload_format
from zeh_spark.wire.arrow_json import Unfit, json_of
from zeh_spark.wire.dead_letters import letters

BATCH = BatchCall("p", "query", "run", 17)
TEXT = RowLayout(("data",), text=True)
HEADERS = pa.map_(pa.string(), pa.string())
NO_HEADERS = pa.array([None], HEADERS)
ODD = {"base64": base64.b64encode(b'"\xe9"').decode()}


def frame(columns):
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def sifted(columns, *, text=True, n=4):
    """The dead letters of a frame, and where they go."""
    layout = RowLayout(tuple(columns), text)
    rows = frame(columns)
    _, reasons = Renderer(layout, n).sift(rows)
    found = letters_of(layout, BATCH, rows, reasons, n)
    return [json.loads(b"{" + rest)["data"] for rest in found.rests], found.partitions.tolist()


def rows_of(columns, **how):
    return [each["row"] for each in sifted(columns, **how)[0]]


# What is in a letter


def test_a_letter_names_reason_producer_and_batch():
    """And nothing that may differ when the batch is repeated."""
    ((letter,), _) = sifted({"data": pa.array(["1", "{"])})

    assert {"reason", "producer", "batch", "row"} == letter.keys()
    assert ("p", 17, {"data": "{"}) == (letter["producer"], letter["batch"], letter["row"])
    assert letter["reason"].startswith("data: not JSON: ")


BAD, FIT, H = (pa.array([each]) for each in ("{", "1", "h"))


@each_case(
    ("columns", "row"),
    [
        ({"data": pa.array(['{"a": NaN, "é":\n1}\u2028'])}, {"data": '{"a": NaN, "é":\n1}\u2028'}),
        ({"data": pa.array([None], pa.string())}, {"data": None}),
        ({"data": strings(b'"\xe9"')}, ODD),
        ({"data": BAD, "key": pa.array(["k"]), "headers": NO_HEADERS}, {"data": "{", "key": "k"}),
        ({"data": FIT, "partition": pa.array([4], pa.int8())}, {"data": "1", "partition": 4}),
        ({"data": BAD, "key": pa.array([2**62])}, {"data": "{", "key": str(2**62)}),
        ({"data": FIT, "key": strings(b'"\xe9"')}, {"data": "1", "key": ODD}),
        *(
            ({"data": FIT, "headers": headers}, {"data": "1", "headers": given})
            for headers, given in [
                (pa.array([[("b", None), ("a", "1")]], HEADERS), {"a": "1", "b": None}),
                (pa.array([[("h", "2"), ("h", "1")]], HEADERS), [["h", "1"], ["h", "2"]]),
                (pa.MapArray.from_arrays([0, 1], H, strings(b'"\xe9"')), {"h": ODD}),
                (pa.MapArray.from_arrays([0, 1], strings(b'"\xe9"'), H), [[ODD, "h"]]),
            ]
        ),
    ],
)
def test_a_row_is_given_as_it_was(columns, row):
    """Text as text, what is not UTF-8 as Base64; NULL is left out, but for data. Headers are an
    object where they can be one, else pairs; sorted, for Spark keeps no order.
    """
    assert [row] == rows_of(columns)


# What is rendered

DAY = 86_400_000_000
FLOATS, INTS = (pa.map_(pa.string(), each) for each in (pa.float64(), pa.int8()))
NESTED = pa.struct([("a", pa.struct([("b", pa.float64()), ("c", pa.binary())]))])


def days(number):
    return pa.array([number], pa.int32()).cast(pa.date32())


def times(number, zone=None):
    return pa.array([number], pa.int64()).cast(pa.timestamp("us", zone))


LATE = days(3_000_000)
FORMS = {
    "NaN": (pa.array([math.nan]), "NaN"),
    "Infinity": (pa.array([math.inf], pa.float32()), "Infinity"),
    "-Infinity": (pa.array([-math.inf]), "-Infinity"),
    "late DATE": (LATE, "10183-09-21"),
    "early DATE": (days(-719_529), "-0001-12-31"),
    "last DATE": (days(2**31 - 1), "1970-01-01 +2147483647 days"),
    "TIMESTAMP": (times(3_000_000 * DAY + 1, "Europe/Berlin"), "10183-09-21T00:00:00.000001Z"),
    "first TIMESTAMP": (times(-(2**63)), "1970-01-01 -9223372036854775808 microseconds"),
    "STRING": (strings(b'"\xe9"'), ODD),
    "ARRAY": (pa.array([[1.5, math.nan, None]]), [1.5, "NaN", None]),
    "MAP": (pa.array([[("b", math.nan), ("a", 1.5)]], FLOATS), {"a": 1.5, "b": "NaN"}),
    "MAP of pairs": (
        pa.array([[("b", 1), ("a", 2), ("b", 0)]], INTS),
        [["a", 2], ["b", 0], ["b", 1]],
    ),
    "MAP of days": (pa.MapArray.from_arrays([0, 1], LATE, LATE), {"10183-09-21": "10183-09-21"}),
    "STRUCT": (
        pa.array([{"a": {"b": math.nan, "c": b"\xff"}}], NESTED),
        {"a": {"b": "NaN", "c": "/w=="}},
    ),
}


@each_case(("column", "value"), FORMS.values())
def test_what_has_no_form_in_json_is_written_in_another_one(column, value):
    """Under a name which says that it is not what it should be."""
    columns = {"a": pa.array([7]), "x": column, "key": pa.array(["k"])}

    (row,) = rows_of(columns, text=False)

    unfit = json.loads(row["unfit"])
    assert ({"a": 7, "x": value, "key": "k"}, "k", 2) == (unfit, row["key"], len(row))


def test_rendered_data_that_is_fit_is_called_so():
    """Here it is the header that has to be repaired; and structured data may be NULL."""
    headers = pa.array([[("h", None)]] * 3, HEADERS)
    data = pa.array([{"x": 1.5}, {"x": math.nan}, None])

    assert [
        {"data": '{"x":1.5}', "headers": {"h": None}},
        {"unfit": '{"x":"NaN"}', "headers": {"h": None}},
        {"data": None, "headers": {"h": None}},
    ] == rows_of({"data": data, "headers": headers}, text=False)


def test_no_digit_is_lost_on_the_way():
    """JSON tools read numbers as doubles, also those that they do not touch; text they leave."""
    columns = {
        "data": pa.array([{"id": 2**53 + 1, "price": Decimal("1234567890123456.78")}]),
        "key": pa.array([2**53 + 1]),
        "headers": pa.array([[("h", None)]], HEADERS),
    }

    (row,) = rows_of(columns, text=False)

    assert str(2**53 + 1) == row["key"]
    assert '{"id":9007199254740993,"price":1234567890123456.78}' == row["data"]


# Where letters go


@each_case(("data", "keys", "n"), [("{", ["a", "b", None], 7), ("x" * 200_000, [5, 6, None], 1000)])
def test_a_letter_goes_where_its_rows_key_goes(data, keys, n):
    """Its parts stay together, with a key and without one, in any number of partitions."""
    found, partitions = sifted({"data": pa.array([data] * 3), "key": pa.array(keys)}, n=n)

    count = found[0].get("parts", 1)
    if count > 1:
        assert [*range(1, count + 1)] * 3 == [each["part"] for each in found]
    of_keys = [partitioning.partition_of(str(each), n) for each in keys[:2] for _ in range(count)]
    assert of_keys == partitions[: 2 * count]
    assert 1 == len(set(partitions[2 * count :]))
    assert (count == 1) == (-1 in partitions)


# Which rows are sifted out

TEXTS = st.lists(
    st.sampled_from(["1", "{", '{"a":NaN}', '"b"', " null ", "[" * 999, "[]"]), max_size=60
)


@given(TEXTS)
def test_rows_are_sifted_one_by_one(texts):
    """Law: each is published, or a letter with the reason that it has alone, in any task."""

    def sift(some):
        good, reasons = Renderer(TEXT, 4).sift(some)
        return good.rests, reasons, letters_of(TEXT, BATCH, some, reasons, 4).rests

    rows = frame({"data": pa.array(texts, pa.string())})
    alone = [sift(rows.slice(each, 1)) for each in range(len(texts))]

    good, reasons, found = sift(rows)

    assert [rest for rests, *_ in alone for rest in rests] == good
    assert {n: why[0] for n, (_, why, _) in enumerate(alone) if why} == reasons
    assert [rest for *_, rests in alone for rest in rests] == found


@each_case("depth", [501, 980, 986, 992, 999])
@each_case("closed", [True, False])
def test_reason_of_a_deep_row_does_not_depend_on_its_neighbours(depth, closed):
    """How deep a parser comes depends on how deep its caller stands."""
    deep = "[" * depth + "]" * depth * closed
    alone, _ = sifted({"data": pa.array([deep])})
    for beside in (1, 100, 4000):
        (_, found), _ = sifted({"data": pa.array(["{", deep, *["1"] * beside])})
        assert alone == [found]


def test_partitions_come_along():
    """Of the rows that are published."""
    columns = {"data": pa.array(["1", "{", "2"] * 40), "partition": pa.array([0, 1, 2] * 40)}

    good, reasons = Renderer(RowLayout(tuple(columns), True), 3).sift(frame(columns))

    assert ([0, 2] * 40, [*range(1, 120, 3)]) == (good.partitions.tolist(), list(reasons))


@pytest.mark.parametrize(("bad", "most"), [(0, 1), (1, 60), (10, 500), (10_000, 12_500)])
def test_many_bad_rows_are_found_in_few_tries(bad, most, monkeypatch):
    """10,000 rows, in time that grows with the bad ones, and never beyond a try for each row."""
    step = 10_000 // bad if bad else 0
    texts = ["{" if step and each % step == 0 else "1" for each in range(10_000)]
    tries = []
    render = Renderer._render
    monkeypatch.setattr(
        Renderer, "_render", lambda self, rows: tries.append(rows.num_rows) or render(self, rows)
    )

    good, reasons = Renderer(TEXT, 4).sift(frame({"data": pa.array(texts)}))

    assert (10_000 - bad, bad) == (len(good.rests), len(reasons))
    assert len(tries) <= most


# Laws of what is rendered

encoded = msgspec.json.encode
floats = st.floats() | st.none()
VALUES = {
    "list": (st.lists(floats), pa.list_(pa.float64())),
    "map": (st.lists(st.tuples(strategies.text, floats), max_size=4), FLOATS),
    "struct": (
        st.fixed_dictionaries(
            {"a": floats, "b": st.lists(floats, max_size=2), "c": strategies.text}
        ),
        pa.struct([("a", pa.float64()), ("b", pa.list_(pa.float64())), ("c", pa.string())]),
    ),
}


@pytest.mark.parametrize(("values", "kind"), VALUES.values(), ids=VALUES)
@given(st.data())
def test_each_row_is_rendered_as_if_it_were_alone(values, kind, data):
    """Law: and as an event's data where it can be one; only then it is called fit."""
    array = pa.array(data.draw(st.lists(values | st.none(), max_size=5)), kind)

    rendered, odd = lenient(array)

    for each in range(len(array)):
        alone, (odd_alone,) = lenient(array.slice(each, 1))
        assert encoded(rendered[each]) == encoded(alone[0])
        assert odd[each] == odd_alone
        try:
            assert encoded(rendered[each]) == json_of(array.slice(each, 1))[0].as_py().encode()
        except Unfit:
            assert odd[each]
        else:
            assert not odd[each]


json_texts = strategies.json_texts().filter(lambda text: text != b"null").map(bytes.decode)


@given(st.lists(st.tuples(json_texts, st.none() | strategies.text, strategies.headers), min_size=1))
def test_a_repaired_dead_letter_is_the_row(rows):
    """Law: data, key and headers come back from a letter as they went into it."""
    texts, keys, headers = zip(*rows, strict=True)
    layout = RowLayout(("data", "key", "headers"), text=True)
    columns = {
        "data": pa.array(texts, pa.string()),
        "key": pa.array(keys, pa.string()),
        "headers": pa.array([list(each.items()) for each in headers], HEADERS),
    }
    reasons = dict.fromkeys(range(len(rows)), "why")

    found = letters_of(layout, BATCH, frame(columns), reasons, 4)

    stamped = b'{"partition":0,"headers":{"zeh-producer":"p","zeh-batch":"17","zeh-partition":"0",'
    stamped += b'"zeh-time":"7","zeh-feed":"9f86d081884c7d65",'
    lines = [
        stamped + b'"zeh-sequence":"%d"},' % number + rest.partition(b'"headers":{},')[2]
        for number, rest in enumerate(found.rests)
    ]
    back = [each.row for each in letters(lines)]
    assert list(keys) == [each.key for each in back]
    assert list(headers) == [each.headers for each in back]
    assert [upload_format.validated_json(each.encode()) for each in texts] == [
        each.event() for each in back
    ]
