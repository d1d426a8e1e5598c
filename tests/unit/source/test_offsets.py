"""Offsets: canonical text, back as they were, and the ways on where they do not fit."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from zeh_spark.errors import CheckpointError
from zeh_spark.options.given import parse as parse_options
from zeh_spark.protocol.feed_identity import Epoch, FeedIdentity, untold
from zeh_spark.source import offsets
from zeh_spark.source.offsets import Offset, Position, StagedBatch, check_identity, initial, parse
from zeh_spark.source.options import SourceOptions

URL = "https://orders.example/feed"


def options(**given):
    return parse_options(SourceOptions, {"url": URL, **given})


cursors = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
counts = st.integers(0, 10**12)
positions = st.builds(Position, cursors, counts, counts, st.none() | st.just("0" * 32))
names = st.from_regex(r"\A[0-9A-Za-z]+\Z")
staged = st.builds(StagedBatch, names, names, st.integers(0, 1000))
known = st.builds(
    Offset,
    st.just(URL),
    st.lists(positions, min_size=1, max_size=12).map(tuple),
    staged=st.none() | staged,
    id=st.none() | st.just("9f86d081884c7d65"),
).filter(
    lambda offset: (
        not offset.staged
        or (offset.staged.segments > 0) == any(each.events for each in offset.positions)
    )
)
unknown = st.builds(Offset, st.just(URL), st.just(()), st.sampled_from(["_first", "_last"]))


@given(known | unknown)
def test_an_offset_comes_back_as_it_was(offset):
    """Law: what Spark's checkpoint keeps is the offset; written again, it is the same text."""
    text = json.dumps(offset.to_json())

    again = parse(json.loads(text), options())

    assert (offset, text) == (again, json.dumps(again.to_json()))


@each_case(
    "given",
    [
        {},
        {"partitionCount": "2"},
        {"startingCursors": "last"},
        {"startingCursors": "last", "partitionCount": "2"},
        {"startingCursors": '{"0": "a", "1": "_last"}'},
    ],
)
def test_where_a_query_starts_comes_back_as_it_was(given):
    """The first offset is one like any other."""
    first = initial(options(**given))

    assert first == parse(first.to_json(), options(**given))


def test_the_text_is_canonical():
    """Spark compares offsets as text: keys have one order, a partition at rest one form."""
    offset = Offset(
        URL, (Position("c1", 3, 45, "0f" * 16), Position("c9")), staged=StagedBatch("s", "b", 2)
    )

    assert json.dumps(offset.to_json(), separators=(",", ":")) == (
        '{"version":3,"feed":"https://orders.example/feed","partitionCount":2,'
        '"stage":"s","batch":"b","segments":2,"partitions":{'
        '"0":{"cursor":"c1","events":3,"bytes":45,"digest":"' + "0f" * 16 + '"},'
        '"1":{"cursor":"c9","events":0,"bytes":0}}}'
    )


def test_the_feeds_own_id_stands_behind_its_name():
    """Where the publisher told it; offsets without it stay as they were."""
    with_id = Offset(URL, (Position("c1"),), id="9f86d081884c7d65").to_json()
    without = Offset(URL, (Position("c1"),)).to_json()

    assert ["version", "feed", "id", "partitionCount", "partitions"] == list(with_id)
    assert ["version", "feed", "partitionCount", "partitions"] == list(without)
    assert ("9f86d081884c7d65", None) == (
        offsets.reached(with_id).id,
        offsets.reached(without).id,
    )


def test_a_checkpoint_keeps_its_identity_as_a_consumer():
    """Two queries with one cursorSet are told apart; offsets without it stay as they were."""
    offset = Offset(URL, (Position("c1"), Position("c2")), id="9f86d081884c7d65", reader="5f0c")
    document = offset.to_json()

    assert ["version", "feed", "id", "reader", "partitionCount", "partitions"] == list(document)
    assert offset == parse(document, options())
    assert parse(STORED, options()).reader is None


def test_a_partition_at_rest_has_no_count():
    """A count that came along would make each offset a new one, and batches without end."""
    assert Position("c1") == Position("c1", 3, 45, "0f").unmoved()


@each_case(
    ("given", "expected"),
    [
        ({}, {"*": {"cursor": "_first"}}),
        ({"startingCursors": "last"}, {"*": {"cursor": "_last"}}),
        ({"partitionCount": "1"}, {"0": {"cursor": "_first", "events": 0, "bytes": 0}}),
        (
            {"startingCursors": '{"0": "17"}'},
            {"0": {"cursor": "17", "events": 0, "bytes": 0}},
        ),
    ],
)
def test_where_a_query_starts(given, expected):
    """Without the network: before the partition count is known, one place stands for all."""
    assert expected == initial(options(**given)).to_json()["partitions"]


@each_case("everywhere", ["_first", "_last"])
def test_the_number_of_partitions_comes_later(everywhere):
    """Once the publisher has told it, each has the place that stood for all."""
    offset = Offset(URL, (), everywhere).resolved(2)

    assert Offset(URL, (Position(everywhere),) * 2) == offset
    assert offset is offset.resolved(2)


def test_the_checkpoint_holds_no_secret():
    """A key in the URL's query goes into the checkpoint as a digest."""
    text = json.dumps(initial(parse_options(SourceOptions, {"url": f"{URL}?key=hush"})).to_json())

    assert "hush" not in text
    assert re.search(r"feed\?[0-9a-f]{64}", text)


# What does not fit

STORED = Offset(URL, (Position("c1", 3, 60, "d"), Position("c2"))).to_json()


@each_case(
    ("change", "given", "remedy"),
    [
        ({"version": 4}, {}, "Use the version that wrote it, or a new checkpointLocation"),
        ({"version": None}, {}, "format None"),
        ({"feed": "https://old/feed"}, {}, "add the option feedId='https://old/feed'"),
        ({"feed": "mine"}, {"feedId": "yours"}, "add the option feedId='mine'"),
        ({}, {"partitionCount": "3"}, "Continue with partitionCount=2, or start with a new"),
    ],
)
def test_a_checkpoint_that_does_not_fit_names_the_way_on(change, given, remedy):
    """Another feed's cursors are never taken in silence; the error says what to do."""
    with pytest.raises(CheckpointError, match=re.escape(remedy)) as caught:
        parse({**STORED, **change}, options(**given))

    assert caught.value.expected != caught.value.got


def test_a_feed_that_moved_goes_on_under_its_stored_name():
    """The same feed at another address: feedId is what the error printed."""
    moved = parse_options(SourceOptions, {"url": "https://new.example/feed", "feedId": URL})

    assert URL == parse(STORED, moved).feed


@each_case(
    "document",
    [
        {"version": 3},
        {**STORED, "partitions": {"0": {"cursor": "a", "events": 0, "bytes": 0}}},
        {**STORED, "partitions": []},
        {**STORED, "partitions": {"0": {}, "1": {}}},
        {**STORED, "partitionCount": "two"},
        {**STORED, "partitionCount": None},
        {**STORED, "partitionCount": 0},
        {**STORED, "partitions": {**STORED["partitions"], "7": {"cursor": "a"}}},
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


A, B = "9f86d081884c7d65", "60303ae22b998861"
COPY = FeedIdentity(B, (Epoch(A), Epoch(f"{A}~1", 10), Epoch(B, 20)))


@each_case(
    ("known", "identity"),
    [
        (None, untold("orders")),
        (None, FeedIdentity(A, (Epoch(A),))),
        (A, FeedIdentity(A, (Epoch(A),))),
        (A, FeedIdentity(A, (Epoch(A), Epoch(f"{A}~1", 10)))),
        (A, COPY),
    ],
)
def test_a_checkpoint_goes_on_with_its_feed_and_with_a_copy_of_it(known, identity):
    """Whether it knows the feed's id already, or not."""
    check_identity(known, identity, URL)


@each_case(
    ("known", "identity", "why"),
    [
        (A, FeedIdentity(B, (Epoch(B),)), f"{A}.*{URL} now serves another feed, '{B}'"),
        (B, FeedIdentity(A, (Epoch(A),)), f"{B}.*now serves another feed, '{A}'"),
        (A, untold(URL), f"{A}.*tells no id, so it is another publisher"),
    ],
)
def test_a_checkpoint_does_not_go_on_with_another_feed(known, identity, why):
    """Its cursors would mean other events; the error has both ids and what to do."""
    with pytest.raises(CheckpointError, match=why) as caught:
        check_identity(known, identity, URL)

    assert known == caught.value.expected != caught.value.got


@pytest.mark.parametrize("version", [1, offsets.VERSION + 1])
def test_another_format_is_refused_before_anything_else_is_read(version):
    """Another version may have changed everything but the version."""
    with pytest.raises(CheckpointError, match=f"format {version}, .* reads formats 2 and 3"):
        parse({"version": version, "all": "new"}, options())


def test_an_offset_keeps_where_a_batch_after_a_loss_begins():
    """A repeated batch has nothing but its offsets."""
    offset = Offset(URL, (Position("c9", 3, 45, "0f", "c5"), Position("c7", begun="c7")))
    document = offset.to_json()

    assert offset == parse(json.loads(json.dumps(document)), options())
    assert ["cursor", "from", "events", "bytes", "digest"] == list(document["partitions"]["0"])
    with pytest.raises(CheckpointError, match="did not write"):
        parse({**document, "partitions": {"0": {"cursor": "c9", "from": None}}}, options())
