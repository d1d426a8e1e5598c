"""Batch reads in which tasks fetch what the publisher has planned."""

import pytest

from tests.fix_batch import batch_reader, rows_of
from zeh_spark import last_cursors
from zeh_spark.errors import CursorGoneError, PublisherError
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention
from zeh_spark.spark.source.planned_batch import DirectPartition


def read(publisher, **given):
    reader = batch_reader(publisher.url, **{"fetch": "executors", **given})
    return list(rows_of(reader, reader.partitions()))


@pytest.mark.parametrize("way", ["driver", "executors", "auto"])
def test_all_that_the_feed_holds_is_read_once(publisher, way):
    """All ways give the same rows. Tasks fetch by themselves, if I set nothing."""
    for number in range(20):
        publisher.publish(number, partition=number % 2)
    expected = [(part, number) for part in (0, 1) for number in range(part, 20, 2)]
    reader = batch_reader(publisher.url, fetch=way)
    partitions = reader.partitions()
    assert {way != "driver"} == {isinstance(each, DirectPartition) for each in partitions}
    assert expected == list(rows_of(reader, partitions))


@pytest.mark.parametrize("headers", ["_all", "none"])
@pytest.mark.parametrize("way", ["driver", "executors"])
def test_a_read_ends_where_another_one_begins(publisher, way, headers):
    """`last_cursors` divides the feed for two readers; the end may name an empty partition."""
    assert [] == read(publisher, fetch=way)
    publisher.publish(1, partition=0)
    first = last_cursors(publisher.url)
    publisher.publish(*range(2, 10))
    second = last_cursors(publisher.url)
    publisher.publish(*range(10, 20))

    found = [
        sorted(number for _, number in read(publisher, fetch=way, headers=headers, **ends))
        for ends in (
            {"endingCursors": first},
            {"startingCursors": first, "endingCursors": second},
            {"startingCursors": second},
            {"startingCursors": "last"},
        )
    ]
    assert [[1], [*range(2, 10)], [*range(10, 20)], []] == found
    if way == "executors":
        with pytest.raises(PublisherError, match="before it begins"):  # I mixed them up
            read(publisher, startingCursors=second, endingCursors=first)


@pytest.mark.parametrize("way", ["driver", "executors"])
def test_events_of_an_empty_partition_that_are_gone_are_noticed(publisher, way):
    """They came after `last_cursors`, and were removed before the stream that begins there."""
    publisher.publish(1, partition=0)
    seam = last_cursors(publisher.url)
    publisher.publish(2, partition=1)
    prune(publisher.store, "orders", Retention(bytes=1))
    publisher.publish(3, partition=1)
    with pytest.raises(CursorGoneError, match="partition 1"):
        read(publisher, fetch=way, startingCursors=seam)


def test_a_start_whose_events_are_gone_is_refused(publisher):
    """I am not given less than I asked for."""
    for _ in range(2):
        publisher.publish(*range(500), partition=0)
    cursors = last_cursors(publisher.url)
    for _ in range(2):
        publisher.publish(*range(500), partition=0)
    prune(publisher.store, "orders", Retention(bytes=1))
    with pytest.raises(CursorGoneError, match="partition 0"):
        read(publisher, startingCursors=cursors)
