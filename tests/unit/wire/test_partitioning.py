"""Which partition an event goes to: the same with every version of every writer."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from tests.cases import each_case
from zeh_spark.wire.partitioning import Spread, partition_for, partition_of


class Kind(str, enum.Enum):
    A = "a"


@each_case(
    ("key", "of_4", "of_1000"),
    [("", 2, 138), ("a", 3, 719), ("customer-17", 0, 452), ("42", 1, 473), ("Ålesund", 3, 263)],
)
def test_a_key_goes_to_the_same_partition_for_ever(key, of_4, of_1000):
    """A key's events stay in their partition with every version of every writer."""
    assert (of_4, of_1000) == (
        partition_of(key, 4),
        partition_of(key, 1000),
    )


@given(strategies.text, st.integers(), st.integers(1, 1000))
def test_a_key_goes_where_every_writer_puts_it(text: str, number: int, count: int) -> None:
    """From Spark, a file or a service; a member of an enumeration goes where its text goes."""
    assert partition_of(text, count) == partition_for(text, None, count) < count
    assert partition_for(f"{number}", None, count) == partition_for(number, None, count) >= 0
    assert partition_of("a", count) == partition_for(Kind.A, None, count)


def test_partition_is_taken_as_given_and_nothing_means_anywhere() -> None:
    """I may place events myself, or not care."""
    assert (1, 0, None) == (
        partition_for(None, 1, 2),
        partition_for(None, 0, 2),
        partition_for(None, None, 2),
    )


@each_case(
    ("key", "partition", "reason"),
    [
        ("a", 1, "'partition' and 'key' exclude each other"),
        (None, 2, "there is no partition 2: the feed has 0 to 1"),
        (None, -1, "there is no partition -1"),
        (None, True, "there is no partition True"),
        (None, "1", "there is no partition '1'"),
        (1.5, None, "the key is 1.5; a key is text or an integer"),
        (True, None, "the key is True"),
        ("\ud800", None, "surrogates not allowed"),
    ],
)
def test_bad_places_are_refused(key: Any, partition: Any, reason: str) -> None:
    """A mistake in a key does not send an event where nobody expects it."""
    with pytest.raises(ValueError, match=reason):
        partition_for(key, partition, 2)


# Events that may go anywhere


def placed(spread: Spread, partitions: np.ndarray | None, count: int) -> list[tuple[int, int]]:
    rests = [b"%d" % each for each in range(count)]
    return [(partition, len(rows)) for partition, rows in spread.parts(rests, partitions)]


def test_free_rows_fill_one_chunk_after_the_other() -> None:
    """A thousand to a partition, then the next one; it goes on with the next rows. Tasks and
    batches begin elsewhere, else small batches would all go to partition 0.
    """
    spread = Spread(3, begin=1)

    assert [(1, 1000), (2, 1000), (0, 500)] == placed(spread, None, 2500)
    assert [(0, 500), (1, 100)] == placed(spread, None, 600)
    assert [0, 1, 2, 0] == [placed(Spread(3, begin), None, 1)[0][0] for begin in range(4)]
    assert [] == placed(spread, None, 0) == placed(spread, np.array([], np.int32), 0)


def test_rows_with_a_place_go_there_in_order() -> None:
    """Those without one fill up."""
    partitions = np.array([2, 0, -1, 2, 0], np.int32)

    parts = Spread(3, 1).parts([b"a", b"b", b"c", b"d", b"e"], partitions)

    found = {partition: list(rows) for partition, rows in parts}
    assert {0: [b"b", b"e"], 1: [b"c"], 2: [b"a", b"d"]} == found
    assert [2, 0, -1, 2, 0] == partitions.tolist()


@given(st.lists(st.integers(0, 2500), max_size=4), st.integers(1, 5), st.integers(0, 9))
def test_free_rows_go_to_the_same_places_one_by_one_and_together(
    cuts: list[int], count: int, begin: int
) -> None:
    """The same rows have the same places, whatever Spark's Arrow batches are."""
    one, other = Spread(count, begin), Spread(count, begin)
    for rows in cuts:
        free = np.full(rows, -1, np.int32)
        by_column = sorted(placed(one, free, rows))
        sums: dict[int, int] = {}
        for partition, number in placed(other, None, rows):
            sums[partition] = sums.get(partition, 0) + number
        assert by_column == sorted(sums.items())
