"""Offsets: canonical text, back as they were, and the ways on where they do not fit."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from zeh_spark.client.options.given import parse as parse_options
from zeh_spark.errors import CheckpointError
from zeh_spark.spark.source import offsets
from zeh_spark.spark.source.offsets import Offset, Position, StagedBatch, initial, parse
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.wire.phrases import in_ranges

URL = "https://orders.example/feed"


def options(**given):
    return parse_options(SourceOptions, {"url": URL, **given})


def still(cursor):
    """A partition at rest."""
    return {"cursor": cursor, "events": 0, "bytes": 0}


cursors = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
counts = st.integers(0, 10**12)
digests = st.none() | st.just("0" * 32)
positions = st.builds(Position, cursors, counts, counts, digests, st.none() | cursors)
names = st.from_regex(r"\A[0-9A-Za-z]+\Z")
staged = st.builds(StagedBatch, names, names, st.integers(0, 1000))


@st.composite
def places(draw):
    """Positions in all partitions of a feed, or in some of them."""
    count = draw(st.integers(1, 12))
    read = draw(st.just({*range(count)}) | st.sets(st.integers(0, count - 1), min_size=1))
    return {each: draw(positions) for each in sorted(read)}, count


known = st.builds(
    lambda place, **more: Offset(URL, *place, **more),
    places(),
    staged=st.none() | staged,
    id=st.none() | st.just("9f86d081884c7d65"),
    reader=st.none() | st.just("5f0c"),
).filter(
    lambda offset: (
        not offset.staged
        or (offset.staged.segments > 0) == any(each.events for each in offset.positions.values())
    )
)
unknown = st.sampled_from([Offset(URL, {}, everywhere=each) for each in ("_first", "_last")])


@given(known | unknown)
def test_an_offset_comes_back_as_it_was(offset):
    """Law: what Spark's checkpoint keeps is the offset; written again, it is the same text."""
    text = json.dumps(offset.to_json())

    some = {"partitions": in_ranges(offset.positions)} if offset.version == 4 else {}
    again = parse(json.loads(text), options(**some))

    assert (offset, text) == (again, json.dumps(again.to_json()))


STORED = Offset(URL, {0: Position("c1", 3, 60, "d"), 1: Position("c2")}, 2).to_json()
SOME = Offset(URL, {0: Position("c1", 3, 60, "d"), 2: Position("c2")}, 4).to_json()


def test_the_text_is_canonical():
    """Spark compares offsets as text: keys have one order, a partition at rest one form. A count
    that came along would make each offset a new one, and batches without end. The feed's own id
    stands behind its name, where the publisher told it; two queries with one cursorSet are told
    apart; and a repeated batch after a loss has nothing but its offsets.
    """
    moved = Position("c1", 3, 45, "0f" * 16, "c0")
    whole = Offset(
        URL,
        {0: moved, 1: Position("c9")},
        2,
        staged=StagedBatch("s", "b", 2),
        id="9f86d081884c7d65",
        reader="5f0c",
    ).to_json()

    assert json.dumps(whole, separators=(",", ":")) == (
        '{"version":3,"feed":"https://orders.example/feed","id":"9f86d081884c7d65",'
        '"reader":"5f0c","partitionCount":2,"stage":"s","batch":"b","segments":2,"partitions":{'
        '"0":{"cursor":"c1","from":"c0","events":3,"bytes":45,"digest":"' + "0f" * 16 + '"},'
        '"1":{"cursor":"c9","events":0,"bytes":0}}}'
    )
    assert ["version", "feed", "partitionCount", "partitions"] == list(STORED)
    assert ("9f86d081884c7d65", None) == (offsets.reached(whole).id, offsets.reached(STORED).id)
    assert Position("c1") == moved.unmoved()


def test_the_checkpoint_holds_no_secret():
    """A key in the URL's query goes into the checkpoint as a digest."""
    text = json.dumps(initial(parse_options(SourceOptions, {"url": f"{URL}?key=hush"})).to_json())

    assert "hush" not in text
    assert re.search(r"feed\?[0-9a-f]{64}", text)


# What does not fit


READS = (
    "this version of zeh-spark reads formats 2 to 4. Use the version that wrote it, or a new "
    "checkpointLocation"
)


@each_case(
    ("document", "given", "remedy"),
    [
        ({"version": 5, "all": "new"}, {}, f"format 5, {READS}"),
        ({"version": 1, "all": "old"}, {}, f"format 1, {READS}"),
        ({**STORED, "version": None}, {}, "format None"),
        ({**STORED, "version": 2}, {}, "new checkpointLocation"),
        ({**STORED, "version": 4}, {}, "new checkpointLocation"),
        ({**SOME, "version": 3}, {"partitions": "0,2"}, "new checkpointLocation"),
        (SOME, {}, "Continue with partitions=0,2; or, to split or merge queries"),
        (SOME, {"partitions": "0-2"}, "0,2 of 4, and the option 'partitions' is 0-2. Continue"),
        (STORED, {"partitions": "1"}, "that the command zeh-spark cursors prints"),
        ({**STORED, "feed": "https://old/feed"}, {}, "add the option feedId='https://old/feed'"),
        ({**STORED, "feed": "mine"}, {"feedId": "yours"}, "add the option feedId='mine'"),
        (STORED, {"partitionCount": "3"}, "Continue with partitionCount=2, or start with a new"),
    ],
)
def test_a_checkpoint_that_does_not_fit_names_the_way_on(document, given, remedy):
    """Another version may have changed everything but the version. Another feed's cursors are never
    taken in silence; the error says what to do. The same feed at another address goes on under its
    stored name: feedId is what the error printed.
    """
    with pytest.raises(CheckpointError, match=re.escape(remedy)) as caught:
        parse(document, options(**given))

    assert caught.value.expected != caught.value.got
    moved = parse_options(SourceOptions, {"url": "https://new.example/feed", "feedId": URL})
    assert URL == parse(STORED, moved).feed


@each_case(
    "document",
    [
        {"version": 3},
        {**STORED, "partitions": {"0": still("a")}},
        {**STORED, "partitions": []},
        {**STORED, "partitions": {"0": {}, "1": {}}},
        {**STORED, "partitions": {"0": {**still("a"), "from": None}, "1": still("b")}},
        {**STORED, "partitionCount": "two"},
        {**STORED, "partitionCount": None},
        {**STORED, "partitionCount": 0},
        {**STORED, "partitions": {**STORED["partitions"], "7": still("a")}},
        {**STORED, "stage": "s", "batch": "b", "segments": 0},
        {**STORED, "stage": "s", "batch": "b", "segments": -1},
        {**STORED, "stage": "s"},
        {**STORED, "stage": "..", "batch": "b", "segments": 1},
        {**STORED, "stage": "s", "batch": "../../other", "segments": 1},
        {**STORED, "stage": "s", "batch": "", "segments": 1},
        {**STORED, "id": 5},
        {**STORED, "id": None},
        {**STORED, "reader": 5},
    ],
)
def test_what_we_did_not_write_is_named(document):
    """A damaged checkpoint is an error with its text, not a Python accident."""
    with pytest.raises(CheckpointError, match=r"did not write.*new checkpointLocation"):
        parse(document, options())
