"""Intervals joined to pieces of about 1 MiB."""

import tracemalloc

import pytest

from zeh_spark.client.polling.finite_read import joined
from zeh_spark.errors import PublisherError
from zeh_spark.wire.wire import Interval


def test_pieces_end_after_a_megabyte_with_all_that_was_joined():
    line = b"x" * 400_000
    pieces = list(joined(Interval(line, 1, f"c{number}") for number in range(4)))

    assert [Interval(3 * line, 3, "c2"), Interval(line, 1, "c3")] == pieces
    assert [] == list(joined([]))


def test_what_was_joined_comes_before_the_error_after_it():
    """Events whose checkpoint came are delivered, also if the next line is always wrong."""

    def intervals():
        yield Interval(b"x", 1, "c1")
        yield Interval(b"", 0, "c2")
        raise PublisherError("a wrong line")

    pieces = joined(intervals())

    assert Interval(b"x", 1, "c2") == next(pieces)
    with pytest.raises(PublisherError, match="a wrong line"):
        next(pieces)


def test_cursors_without_events_take_no_memory():
    """A publisher may send them for ever."""
    tracemalloc.start()
    try:
        (last,) = joined(Interval(b"", 0, f"c{number}") for number in range(100_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert Interval(b"", 0, "c99999") == last
    assert peak < 1_000_000
