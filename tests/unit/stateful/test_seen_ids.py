"""Which ids were seen, against a dictionary of all of them."""

from __future__ import annotations

import gc
import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.errors import CheckpointError
from zeh_spark.spark.stateful import seen_ids
from zeh_spark.spark.stateful.seen_ids import (
    CONFLICT,
    FEEDS,
    GIVEN,
    NEW,
    NOTHING,
    SEEN,
    UNKNOWN,
    IdBucket,
    Ids,
)

WINDOW = 80
EVENTS = st.tuples(st.integers(0, 12), st.integers(0, 400), st.integers(0, 1))
BATCHES = st.lists(st.lists(EVENTS, min_size=1, max_size=8), max_size=10)


class Bucket:
    """A bucket that goes through bytes between batches, and its slices."""

    def __init__(self, most: int = 1000) -> None:
        self.slices: dict[tuple[int], bytes] = {}
        self.most, self.floor = most, 0
        self.blob = seen_ids.FORMAT.write(IdBucket(4))

    def take(self, *events: tuple[int, int, int]) -> list[tuple[tuple[int, int, int], int]]:
        """(id, time, content) each; returns them, sorted, with what is known of them."""
        rows = sorted(
            (digits(name, 32), time, digits(text, 16), name) for name, time, text in events
        )
        bucket = seen_ids.FORMAT.open(self.blob, 4)
        self.floor = bucket.floor
        ids = Ids.of_hex([row[0] for row in rows], [row[2] for row in rows])
        times = np.array([row[1] for row in rows], np.int64)
        found = seen_ids.judge(bucket, self.slices, ids, times, WINDOW, self.most).tolist()
        assert {(each.begin,) for each in bucket.slices} == self.slices.keys()
        assert all(len(self.slices[e.begin,]) == e.count * seen_ids.BYTES for e in bucket.slices)
        self.blob = seen_ids.FORMAT.write(bucket)
        content = {digits(text, 16): text for text in (0, 1)}
        return [
            ((row[3], row[1], content[row[2]]), told) for row, told in zip(rows, found, strict=True)
        ]


def digits(value: int, count: int) -> str:
    return hashlib.sha256(str(value).encode()).hexdigest()[:count]


@given(BATCHES)
def test_an_id_is_new_once_within_the_window(batches):
    """What is dropped was there with this content; what is new was not there within the window."""
    bucket, first, clock = Bucket(), {}, 0
    for batch in batches:
        before = dict(first)
        clock_before = clock
        clock = max([clock, *(time for _, time, _ in batch)])
        for (name, time, text), told in bucket.take(*batch):
            known = first.get(name)
            if told in (SEEN, CONFLICT):
                assert known is not None
                assert (known[1] == text) == (told == SEEN)
            else:
                assert name not in before or before[name][0] + WINDOW <= clock_before
                assert told == (UNKNOWN if time < bucket.floor else NEW)
                first[name] = (clock, text)


@pytest.mark.parametrize("late", [False, True])
def test_an_event_older_than_what_is_remembered_is_unknown(late):
    bucket = Bucket()
    bucket.take((1, 0, 0))
    bucket.take((2, 500, 0))  # what was seen at 0 is forgotten

    ((_, told),) = bucket.take((1, 5 if late else 501, 0))

    assert told == (UNKNOWN if late else NEW)


def test_ids_beyond_the_cap_are_refused_by_name():
    """Nothing of the batch is kept, so that the query continues with a larger cap."""
    bucket = Bucket(most=3)
    bucket.take((1, 0, 0), (2, 0, 0), (3, 0, 0))
    before = bucket.blob

    with pytest.raises(CheckpointError, match="would have 4 ids, and max_ids allows 3 for each"):
        bucket.take((4, 0, 0))

    assert before == bucket.blob


def test_ids_of_two_scopes_are_refused():
    """What was seen of one could come again as an event of the other."""
    for before, now in (("", {FEEDS, NOTHING}), (NOTHING, {FEEDS}), (FEEDS, {GIVEN})):
        bucket = IdBucket(4, scope=before)
        with pytest.raises(CheckpointError, match="some ids belong to"):
            bucket.belong(now)
        assert before == bucket.scope


def test_ids_that_end_with_zero_bytes_differ():
    """numpy leaves zeros at the end of bytes out when it shows them, not when it compares."""
    bucket, slices = IdBucket(4), dict[tuple[int], bytes]()
    names = ["ab" + "00" * 15, "ab00" + "01" * 14, "00" * 16, "ab" + "00" * 14 + "01"]
    ids = Ids.of_hex(sorted(names), ["00" * 8] * 4)

    for expected in (NEW, SEEN):
        found = seen_ids.judge(bucket, slices, ids, np.zeros(4, np.int64), WINDOW, 10)
        assert [expected] * 4 == found.tolist()


def test_a_task_searches_for_cycles_rarely():
    """Python does, while it takes a batch; the worker, which others use later, stays as it was."""
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    from zeh_spark.spark.stateful.dedup_ids import IdProcessor

    of_tests, before = gc.get_threshold(), (700, 10, 10)
    gc.set_threshold(*before)  # those of a worker: tests have larger ones
    processor = IdProcessor(1, 1, 1)

    processor.init(SimpleNamespace(getValueState=lambda *_: None, getMapState=lambda *_: None))
    during = gc.get_threshold()
    processor.close()

    after = gc.get_threshold()
    gc.set_threshold(*of_tests)
    assert during[0] > 10 * before[0]
    assert before == after
