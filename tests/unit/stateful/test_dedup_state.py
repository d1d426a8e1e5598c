"""Whose the numbers are that deduplication has seen without the id of their feed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.errors import CheckpointError, OptionError
from zeh_spark.stateful.dedup_state import (
    NO_FEED,
    Accepted,
    SeenBucket,
    accepted,
    encoded,
    opened,
    owner_of,
    producer_of,
    used_again,
)
from zeh_spark.stateful.seen import Reuse, Seen

A, B = "a" * 16, "b" * 16
VERSION_1 = bytes([1]) + msgspec.msgpack.encode([4, {"4 load0": [49, 49, []]}])
feeds = st.sampled_from([A, f"{A}~1", f"{A}~2", B, f"{B}~1", "https://example.com/orders"])


def added(bucket, feed, key, *numbers):
    seen = bucket.get(feed, key)
    seen.add(np.array(sorted(numbers), np.int64), 100)
    bucket.put(feed, key, seen)


def again(bucket):
    return opened(encoded(bucket), bucket.buckets)


def test_numbers_of_version_1_are_read_and_kept():
    bucket = again(opened(VERSION_1, 4))

    assert Seen(49, 49, []) == bucket.get(NO_FEED, "4 load0")
    assert NO_FEED == bucket.owner


def test_the_first_feed_takes_over_old_numbers_and_keeps_them():
    """Its own numbers, and no others; also after a restart."""
    bucket = opened(VERSION_1, 4)
    bucket.claim({(A, "4 load0"), (A, "4 load1")}, 1, None)
    bucket = again(bucket)

    assert A == bucket.owner
    assert (NO_FEED, "4 load0") == bucket.slot(A, "4 load0", ())
    assert (A, "4 load1") == bucket.slot(A, "4 load1", ())


@pytest.mark.parametrize("together", [True, False])
def test_a_second_feed_at_old_numbers_is_refused(together):
    """In one batch, or in a later one."""
    bucket = opened(VERSION_1, 4)
    with pytest.raises(CheckpointError, match="Start a new checkpoint") as refused:
        if together:
            bucket.claim({(A, "4 load0"), (B, "4 load0")}, 1, None)
        else:
            bucket.claim({(A, "4 load0")}, 1, None)
            again(bucket).claim({(B, "4 load0")}, 1, None)

    assert f"accept='old numbers are of {A}, not of {B}'" in str(refused.value)


def test_what_the_error_says_is_accepted_and_remembered():
    """The other feeds begin anew. Later runs need it no more."""
    bucket = opened(VERSION_1, 4)
    said = accepted(f"old numbers are of {A}, not of {B}")
    bucket.claim({(B, "4 load0")}, 2, said)
    bucket = again(bucket)
    bucket.claim({(A, "4 load0"), (B, "4 load0")}, 2, None)

    assert (NO_FEED, "4 load0") == bucket.slot(A, "4 load0", ())
    assert Seen() == bucket.get(*bucket.slot(B, "4 load0", ()))


def test_a_name_that_was_mistyped_lets_nothing_pass():
    """Its events would all be new."""
    with pytest.raises(CheckpointError, match="No event of 'typo' was seen here"):
        opened(VERSION_1, 4).claim({(A, "4 load0")}, 1, accepted("old numbers are of typo"))


def test_an_owner_that_is_recorded_is_not_changed():
    bucket = opened(VERSION_1, 4)
    bucket.claim({(A, "4 load0")}, 1, None)

    with pytest.raises(CheckpointError, match="has recorded"):
        bucket.claim({(B, "4 load0")}, 1, accepted(f"old numbers are of {B}, not of {A}"))


def test_old_numbers_of_a_query_with_two_feeds_are_refused_before_they_are_used():
    """The first feed that comes is not the only one."""
    with pytest.raises(CheckpointError):
        opened(VERSION_1, 4).claim({(A, "4 load0")}, 2, None)


def test_a_later_epoch_begins_anew_and_owns_no_old_numbers():
    """Numbers of an epoch are used again in the next."""
    bucket = opened(VERSION_1, 4)
    with pytest.raises(CheckpointError):
        opened(VERSION_1, 4).claim({(f"{A}~1", "4 load0")}, 1, None)
    bucket.claim({(A, "4 load0")}, 1, None)
    bucket.claim({(f"{A}~1", "4 load0")}, 1, None)

    assert (f"{A}~1", "4 load0") == bucket.slot(f"{A}~1", "4 load0", ())


def test_events_without_a_feed_are_of_the_only_one():
    """Whether it came before, comes with them, or comes later."""
    for batches in (
        [{(A, "k")}, {(NO_FEED, "k")}],
        [{(A, "k"), (NO_FEED, "k")}],
        [{(NO_FEED, "k")}, {(A, "k")}],
    ):
        bucket = SeenBucket(4)
        for number, batch in enumerate(batches):
            bucket.claim(batch, 1, None)
            untold = {key for feed, key in batch if feed == NO_FEED}
            for slot in {bucket.slot(*each, untold) for each in batch}:
                added(bucket, *slot, number)
            bucket = again(bucket)

        assert len(batches) - 1 == bucket.get(*bucket.slot(A, "k", ())).certain
        assert 1 == bucket.keys
        with pytest.raises(CheckpointError):
            bucket.claim({(B, "k")}, 1, None)


def test_without_old_numbers_feeds_need_no_owner():
    bucket = SeenBucket(4)
    bucket.claim({(A, "k"), (B, "k"), (f"{A}~1", "k")}, 5, None)

    assert NO_FEED == bucket.owner


@given(st.sets(feeds), st.sets(feeds, max_size=1))
def test_without_a_word_of_the_user_old_numbers_are_of_one_feed_only(named, owner):
    """Of the first epoch of it that was read, and no later one's, if nothing is recorded."""
    recorded = next(iter(owner), NO_FEED)
    try:
        found = owner_of(recorded, {*named, *owner}, (), 1, None).owner
    except CheckpointError:
        return
    assert found == recorded or (not recorded and found in named and "~" not in found)
    assert all(each == found or each.startswith(f"{found}~") or recorded for each in named)
    assert len({each.partition("~")[0] for each in (*named, *owner)}) <= 1


def test_any_other_text_is_not_accepted():
    assert Accepted(A, frozenset({B, "c"})) == accepted(f"old numbers are of {A}, not of {B}, c")
    with pytest.raises(OptionError, match="accept='yes'"):
        accepted("yes")


def test_state_of_a_newer_version_is_refused():
    with pytest.raises(CheckpointError, match="format 3"):
        opened(b"\x03", 4)


def test_the_error_of_a_number_used_again_says_all_of_it():
    said = str(used_again(A, "4 load12", Reuse(7, 2000, 9, 1000)))

    for fact in (A, "'load'", "'12'", "number 7", "2000", "number 9", "1000", "new-history"):
        assert fact in said
    assert ("a 1", "2") == producer_of("3 a 12")
