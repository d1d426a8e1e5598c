"""Whose the numbers are that deduplication has seen without the id of their feed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.errors import CheckpointError
from zeh_spark.spark.stateful.dedup_state import (
    FORMAT,
    NO_FEED,
    SeenBucket,
    SeenNumbers,
    owner_of,
    split_pair,
    used_again,
)
from zeh_spark.spark.stateful.seen import Reuse, Seen
from zeh_spark.spark.stateful.state_parts import Parts

A, B = "a" * 16, "b" * 16
feeds = st.sampled_from([A, f"{A}~1", f"{A}~2", B, f"{B}~1", "https://example.com/orders"])


def added(bucket, feed, key, *numbers):
    seen = bucket.get(feed, key)
    seen.add(np.array(sorted(numbers), np.int64), 100)
    bucket.put(feed, key, seen)


def empty():
    bucket = SeenBucket(4)
    return SeenNumbers(bucket, Parts({}, bucket.layout))


def again(known):
    """The same in the next batch."""
    bucket = FORMAT.open(known.save(), 4)
    return SeenNumbers(bucket, Parts(known.parts._blobs, bucket.layout))


@pytest.fixture
def untold():
    """A bucket with numbers that were seen without the id of their feed."""
    bucket = empty()
    bucket.put(NO_FEED, "4 load0", Seen(49, 49, []))
    return again(bucket)


def test_the_first_feed_takes_over_numbers_without_one_and_keeps_them(untold):
    """Its own numbers, and no others; also after a restart."""
    untold.claim({(A, "4 load0"), (A, "4 load1")}, 1)
    bucket = again(untold)

    assert A == bucket.bucket.owner
    assert (NO_FEED, "4 load0") == bucket.slot(A, "4 load0", ())
    assert Seen(49, 49, []) == bucket.get(NO_FEED, "4 load0")
    assert (A, "4 load1") == bucket.slot(A, "4 load1", ())


@pytest.mark.parametrize(
    ("batches", "feeds", "came"),
    [
        # a second feed, in one batch or in a later one
        ([[A, B]], 1, f"{A}, {B}"),
        ([[A], [B]], 1, f"{A}, {B}"),
        # of a query with two feeds the first that comes is not the only one
        ([[A]], 2, A),
        # numbers of an epoch are used again in the next
        ([[f"{A}~1"]], 1, f"{A}~1"),
    ],
)
def test_numbers_without_a_feed_are_refused_where_they_may_be_anothers(
    untold, batches, feeds, came
):
    """Before they are used."""
    *first, last = ([(each, "4 load0") for each in batch] for batch in batches)
    for batch in first:
        untold.claim({*batch}, feeds)

    with pytest.raises(CheckpointError, match=rf"here came {came}\. .*Start a new checkpoint"):
        again(untold).claim({*last}, feeds)


def test_a_later_epoch_begins_anew(untold):
    """And if all events tell their feed, none needs to own numbers."""
    bucket = empty()
    bucket.claim({(A, "k"), (B, "k"), (f"{A}~1", "k")}, 5)
    assert NO_FEED == bucket.bucket.owner

    untold.claim({(A, "4 load0")}, 1)
    untold.claim({(f"{A}~1", "4 load0")}, 1)

    assert (f"{A}~1", "4 load0") == untold.slot(f"{A}~1", "4 load0", ())


def test_events_without_a_feed_are_of_the_only_one():
    """Whether it came before, comes with them, or comes later."""
    for batches in (
        [{(A, "k")}, {(NO_FEED, "k")}],
        [{(A, "k"), (NO_FEED, "k")}],
        [{(NO_FEED, "k")}, {(A, "k")}],
    ):
        bucket = empty()
        for number, batch in enumerate(batches):
            bucket.claim(batch, 1)
            untold = {key for feed, key in batch if feed == NO_FEED}
            for slot in {bucket.slot(*each, untold) for each in batch}:
                added(bucket, *slot, number)
            bucket = again(bucket)

        assert len(batches) - 1 == bucket.get(*bucket.slot(A, "k", ())).certain
        assert 1 == bucket.bucket.keys
        with pytest.raises(CheckpointError):
            bucket.claim({(B, "k")}, 1)


def test_a_feed_may_be_added_to_numbers_that_have_none(untold):
    """The first that comes owns them. It cannot be left out again, or added beside another."""
    untold.bucket.belong(["feed"])
    untold.claim({(A, "4 load0")}, 1)
    bucket = again(untold).bucket

    assert (A, ["feed"]) == (bucket.owner, bucket.arguments)
    with pytest.raises(CheckpointError, match=r"arguments=\[\], .* made with arguments=\['feed'\]"):
        bucket.belong([])
    told = SeenBucket(4, feeds=[A])
    with pytest.raises(CheckpointError, match=r"arguments=\['feed'\], .* with arguments=\[\]"):
        told.belong(["feed"])


@given(st.sets(feeds), st.sets(feeds, max_size=1))
def test_numbers_without_a_feed_are_of_one_feed_only(named, owner):
    """Of the first epoch of it that was read, and no later one's, if nothing is recorded."""
    recorded = next(iter(owner), NO_FEED)
    try:
        found = owner_of(recorded, {*named, *owner}, 1)
    except CheckpointError:
        return
    assert found == recorded or (not recorded and found in named and "~" not in found)
    assert all(each == found or each.startswith(f"{found}~") or recorded for each in named)
    assert len({each.partition("~")[0] for each in (*named, *owner)}) <= 1


@pytest.mark.parametrize("version", [1, 2, 3, 4, 6])
def test_state_of_another_version_is_refused(version):
    with pytest.raises(CheckpointError, match=f"format {version}, of another version.*knows 5"):
        FORMAT.open(bytes([version]) + FORMAT.write(SeenBucket(4))[1:], 4)


@pytest.mark.parametrize("blob", [b"", b"\x05", b"\x05\x07", FORMAT.write(SeenBucket(4))[:-1]])
def test_damaged_state_is_refused(blob):
    with pytest.raises(CheckpointError, match=r"the checkpoint's state has format [05], .*knows 5"):
        FORMAT.open(blob, 4)


def test_the_error_of_a_number_used_again_says_all_of_it():
    said = str(used_again(A, "4 load12", Reuse(7, 2000, 9, 1000)))

    for fact in (A, "'load'", "'12'", "number 7", "2000", "number 9", "1000", "new-history"):
        assert fact in said
    assert ("a 1", "2") == split_pair("3 a 12")
