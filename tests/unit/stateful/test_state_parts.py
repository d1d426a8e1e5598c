"""The entries of a bucket are what was put there, however they are spread over parts."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from zeh_spark.spark.stateful.state_parts import FEW, PART, PATIENCE, Layout, Parts

KEYS = [f"key {each}" for each in range(400)]
ENTRIES = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9000), min_size=1, max_size=9)


class State(dict[tuple[int], bytes]):
    """Spark's map state, which counts the bytes that go to and fro."""

    moved = 0

    def get(self, key, default=None):
        value = super().get(key, default)
        self.moved += len(value)
        return value

    def __setitem__(self, key, value):
        self.moved += len(value)
        super().__setitem__(key, value)


class Bucket:
    """A bucket that is given entries, in one of two tables by their size."""

    def __init__(self):
        self.state, self.layout = State(), Layout()
        self.known: dict[str, int] = {}

    def batch(self, sizes):
        """Return the bytes that were read and written."""
        before = self.state.moved - len(self.layout.whole)
        parts = Parts(self.state, self.layout)
        for key, size in sizes.items():
            for table in ("small", "large"):
                parts.of(key).setdefault(table, {}).pop(key, None)
            parts.of(key)["large" if size > 900 else "small"][key] = Raw(packed(size))
        parts.save()
        self.layout = again(self.layout)
        self.known |= sizes
        return self.state.moved + len(self.layout.whole) - before

    def entries(self):
        parts = Parts(self.state, self.layout).open_all()
        tables = [table.items() for part in parts for table in part.values()]
        return {key: bytes(raw) for table in tables for key, raw in table}


def packed(size):
    return msgspec.msgpack.encode("x" * size)


def again(layout):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=Layout)


def sized(count, size=100):
    return dict.fromkeys((f"session {each}" for each in range(count)), size)


@given(st.lists(ENTRIES, max_size=12))
def test_no_entry_is_lost_or_doubled(batches):
    bucket = Bucket()
    for sizes in batches:
        bucket.batch(sizes)

        assert {key: packed(size) for key, size in bucket.known.items()} == bucket.entries()
        layout = bucket.layout
        assert len(layout.whole) + sum(map(len, bucket.state.values())) == layout.size
        assert (layout.count > 1) or not bucket.state
        assert all(number < layout.count for (number,) in bucket.state)


def test_batches_that_touch_few_keys_move_few_bytes():
    """After some of them; until then, and in one that touches many keys, all bytes are moved."""
    bucket = Bucket()
    bucket.batch(sized(10_000))
    assert 1 == bucket.layout.count
    whole = bucket.layout.size

    few = [bucket.batch({f"session {each}": 90}) for each in range(PATIENCE + 5)]

    assert all(each > 1.9 * whole for each in few[:PATIENCE])
    assert all(each < 4 * PART for each in few[PATIENCE:])
    bucket.batch(sized(10_000))
    assert (1, 0) == (bucket.layout.count, len(bucket.state))
    assert bucket.batch({"session 0": 90}) > 1.9 * whole


def test_parts_follow_the_size_of_the_bucket():
    bucket = Bucket()
    for size in (100, 1000, 40):
        for each in range(0, 2000, 2):
            bucket.batch({f"session {each}": size, f"session {each + 1}": size})
        assert PART / 2 < bucket.layout.size / bucket.layout.count < 2 * PART


def test_small_buckets_stay_whole():
    bucket = Bucket()
    for _ in range(2 * PATIENCE):
        bucket.batch(sized(FEW * PART // 200, size=80))
        bucket.batch({"session 0": 80})

    assert (1, 0) == (bucket.layout.count, len(bucket.state))


def test_a_part_that_was_not_changed_is_not_written():
    bucket = Bucket()
    bucket.batch(sized(10_000))
    for each in range(PATIENCE):
        bucket.batch({f"session {each}": 90})
    moved = bucket.state.moved

    parts = Parts(bucket.state, bucket.layout)
    assert "session 3" in parts.of("session 3")["small"]
    parts.save()

    assert PART / 2 < bucket.state.moved - moved < 2 * PART
