"""The header `zeh-origin` of events that are relayed: the first identity stays."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from tests.cases import each_case
from zeh_spark.errors import OptionError, RowError
from zeh_spark.spark.sink.origins import SeenOrigins
from zeh_spark.spark.sink.row_layout import layout
from zeh_spark.spark.sink.rows import Renderer
from zeh_spark.wire import wire
from zeh_spark.wire.event_origin import EventOrigin
from zeh_spark.wire.upload_format import LINE_BYTES

TEXTS = T.MapType(T.StringType(), T.StringType())
COLUMNS = [T.StructField("data", T.StringType()), T.StructField("headers", TEXTS)]
PART = T.StructField("origin_part", T.IntegerType())
ARROW = pa.map_(pa.string(), pa.string())
FEED = "9f86d081884c7d65"


def stamped(number, *, feed=FEED, **headers):
    stamps = {"zeh-feed": feed, "zeh-producer": "p", "zeh-batch": "7", "zeh-partition": "1"}
    return {**stamps, "zeh-sequence": f"{number}", "zeh-time": "50", **headers}


def renderer(*more):
    return Renderer(layout(T.StructType([*COLUMNS, *more]), keeps_origin=True), 2)


def batch(rows, parts=None):
    """Rows as (headers, data)."""
    columns = [
        pa.array([data for _, data in rows], pa.string()),
        pa.array([None if h is None else list(h.items()) for h, _ in rows], ARROW),
    ]
    names = ["data", "headers"]
    if parts is not None:
        columns.append(pa.array(parts, pa.int32()))
        names.append("origin_part")
    return pa.RecordBatch.from_arrays(columns, names=names)


def headers_of(rendered):
    return [json.loads(b"{" + rest)["headers"] for rest in rendered.rests]


def test_the_first_identity_is_kept_beside_the_events_own_headers():
    """However often an event is relayed. Without the option it is dropped like stamps."""
    relayed = stamped(5, **{"zeh-origin": "f/first/0/9/1"})
    rows = batch([(stamped(3, a="1", zz="2"), "1"), (stamped(4), "2"), (relayed, "3")])

    assert [
        {"a": "1", "zeh-origin": f"{FEED}/p/1/3/50", "zz": "2"},
        {"zeh-origin": f"{FEED}/p/1/4/50"},
        {"zeh-origin": "f/first/0/9/1"},
    ] == headers_of(renderer().render(rows))
    plain = Renderer(layout(T.StructType(COLUMNS)), 2)
    assert [{"a": "1", "zz": "2"}, {}, {}] == headers_of(plain.render(rows))


def test_parts_of_an_event_are_numbered_also_by_a_second_relay():
    rows = [(stamped(3), "1"), (stamped(3), "2"), (stamped(4), "3")]
    found = headers_of(renderer(PART).render(batch(rows, [0, 1, None])))
    texts = [each["zeh-origin"] for each in found]
    assert [f"{FEED}/p/1/3/50/0", f"{FEED}/p/1/3/50/1", f"{FEED}/p/1/4/50"] == texts

    again = [(stamped(8, **{"zeh-origin": text}), "1") for text in texts]
    found = headers_of(renderer(PART).render(batch(again, [5, 6, 7])))
    assert [f"{texts[0]}.5", f"{texts[1]}.6", f"{texts[2]}/7"] == [e["zeh-origin"] for e in found]


@each_case("other", [(stamped(3), "2"), (stamped(3, a="1"), "1")])
@each_case("between", [0, 1, 40])
def test_an_origin_is_known_for_the_whole_task(other, between):
    """Also if Spark hands the events over far apart, and only their headers differ."""
    for publish in (Renderer.render, Renderer.sift):
        task = renderer()
        publish(task, batch([(stamped(3), "1")]))
        for number in range(100, 100 + between):
            publish(task, batch([(stamped(number), "1"), (stamped(3), "1"), (stamped(2), "0")]))
        with pytest.raises(RowError, match=f"two events .* the origin '{FEED}/p/1/3/50'") as e:
            publish(task, batch([(stamped(4), "1"), other, (stamped(3), "1")]))
        assert 1 + 3 * between + 1 == e.value.row


def test_a_row_that_becomes_a_dead_letter_has_no_origin():
    """It is not on the feed, so it is no second event there."""
    task = renderer()

    rendered, reasons = task.sift(batch([(stamped(3), "{"), (stamped(3), "1"), (stamped(4), "2")]))

    assert ([0], 2) == (list(reasons), len(rendered.rests))
    with pytest.raises(RowError, match=f"the origin '{FEED}/p/1/4/50'") as refused:
        task.sift(batch([(stamped(5), "{"), (stamped(4), "3")]))
    assert 4 == refused.value.row


@given(st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), max_size=5), max_size=9))
def test_origins_are_looked_up_as_in_a_dict(batches):
    """Law: whatever comes when, the first event with an origin of another one is found."""
    seen, task = {}, SeenOrigins()
    for some in batches:
        conflicts = [
            row
            for row, (name, content) in enumerate(some)
            if seen.setdefault(name, content) != content
        ]
        found = task.add([b"%d" % name for name, _ in some], [b"%d" % each for _, each in some])
        if conflicts:
            assert found in conflicts
            return
        assert found is None


@each_case(
    ("headers", "reason"),
    [
        ({"a": "1"}, "there is no zeh-feed, which keepOrigin needs"),
        (None, "there is no zeh-feed"),
        ({**stamped(1), "zeh-time": None}, "there is no zeh-time"),
        (stamped("x"), "no zeh-origin of the form"),
        (stamped(1, **{"zeh-origin": "forged"}), "no zeh-origin of the form"),
    ],
)
def test_a_row_without_an_identity_is_at_fault(headers, reason):
    """It goes to the dead letters if there is a feed for them; the others are published."""
    rows = [(stamped(1), "1"), (headers, "2"), (stamped(3), "3")]

    with pytest.raises(RowError, match=reason):
        renderer().render(batch(rows))
    rendered, reasons = renderer().sift(batch(rows))
    assert (2, [1]) == (len(rendered.rests), list(reasons))
    assert reason in reasons[1]


@each_case("own", [{}, {"a": "1"}])
def test_a_line_is_too_long_because_of_its_origin_only_if_it_would_fit_without(own):
    """To the byte. So I know whether to shorten the event, or to relay without keepOrigin."""
    kept = {**own, "zeh-origin": f"{FEED}/p/1/1/50"}
    most, plain = (LINE_BYTES - len(wire.event_line(1, each, b'""')) for each in (kept, own))
    sizes = [most, most + 1, plain, plain + 1]
    rows = [(stamped(n, **own), f'"{"x" * size}"') for n, size in enumerate(sizes)]

    rendered, reasons = renderer().sift(batch(rows))

    assert (1, [1, 2, 3]) == (len(rendered.rests), list(reasons))
    assert f"{LINE_BYTES + 1:,} bytes as a line" in reasons[1]
    for row, why in enumerate([" with the header zeh-origin"] * 2 + [""], 1):
        assert f" as a line of the feed{why}; at most {LINE_BYTES:,} are allowed" in reasons[row]


@each_case(
    ("fields", "keeps", "message"),
    [
        (COLUMNS[:1], True, "there is no headers"),
        ([T.StructField("a", T.StringType())], True, "there is no data"),
        ([*COLUMNS, T.StructField("origin_part", T.StringType())], True, "'origin_part' is STRING"),
        ([*COLUMNS, PART], False, "origin_part"),
    ],
)
def test_frames_that_cannot_keep_an_origin_are_refused(fields, keeps, message):
    """And a part without the option, where it is a column without meaning."""
    with pytest.raises(OptionError, match=message):
        layout(T.StructType(fields), keeps_origin=keeps)


names = st.text("ab", min_size=1, max_size=2)
events = st.tuples(
    st.dictionaries(names, st.text(max_size=3), max_size=3),
    st.text(min_size=1, max_size=9),
    st.integers(0, 10**17),
    st.none() | st.integers(0, 99),
)


@given(st.lists(events, max_size=6, unique_by=lambda each: each[2]))
def test_columns_make_what_the_pure_function_makes(several):
    """Law: with any headers, feeds and parts."""
    rows = [(stamped(n, feed=feed, **own), "1") for own, feed, n, _ in several]
    parts = [part for *_, part in several]

    found = headers_of(renderer(PART).render(batch(rows, parts)))

    for (own, feed, number, part), headers in zip(several, found, strict=True):
        given_parts = () if part is None else (part,)
        origin = EventOrigin(feed, "p", 1, number, 50, given_parts)
        assert {**own, "zeh-origin": str(origin)} == headers
