"""Batch reads in which tasks fetch what the publisher has planned."""

from __future__ import annotations

import json
import pickle

import pytest

from tests.fix_stream import DECODER
from zeh_spark import last_cursors
from zeh_spark.errors import CursorGoneError, PublisherError
from zeh_spark.options.given import parse
from zeh_spark.retention.rules import prune
from zeh_spark.source.batch import BatchReader
from zeh_spark.source.direct_tasks import DirectPartition
from zeh_spark.source.options import SourceOptions
from zeh_spark.store.interface import Retention


def reader(publisher, **given):
    options = {"url": publisher.url, "retryTimeout": "5s", "fetch": "executors", **given}
    return BatchReader(parse(SourceOptions, options), DECODER)


def rows(reading, partitions):
    return [
        (row["partition"], int(row["data"]))
        for partition in pickle.loads(pickle.dumps(partitions))
        for batch in pickle.loads(pickle.dumps(reading)).read(partition)
        for row in batch.to_pylist()
    ]


def read(publisher, **given):
    reading = reader(publisher, **given)
    return rows(reading, reading.partitions())


@pytest.mark.parametrize("way", ["driver", "executors", "auto"])
def test_all_that_the_feed_holds_is_read_once(publisher, way):
    """Both ways give the same rows."""
    for number in range(20):
        publisher.publish(number, partition=number % 2)
    expected = [(part, number) for part in (0, 1) for number in range(part, 20, 2)]
    assert expected == read(publisher, fetch=way)


def test_tasks_fetch_from_our_publisher_by_themselves(publisher):
    """I set nothing for it."""
    publisher.publish(1)
    assert all(isinstance(each, DirectPartition) for each in reader(publisher).partitions())


def test_a_task_that_runs_again_sees_the_same_events(publisher):
    """Nothing that came later is in a second attempt."""
    publisher.publish(*range(10))
    reading = reader(publisher)
    partitions = reading.partitions()
    first = rows(reading, partitions)
    publisher.publish(*range(10, 20))
    assert first == rows(reading, partitions)


def test_a_read_ends_where_another_one_begins(publisher):
    """`last_cursors` divides the feed for a read and a stream, or two reads."""
    publisher.publish(*range(10))
    cursors = last_cursors(publisher.url)
    publisher.publish(*range(10, 20))
    before = read(publisher, endingCursors=cursors)
    after = read(publisher, startingCursors=cursors)
    assert [*range(10)] == sorted(number for _, number in before)
    assert [*range(10, 20)] == sorted(number for _, number in after)


def test_a_partition_without_events_may_be_named_as_the_end(publisher):
    """What `last_cursors` gives for it is taken."""
    publisher.publish(1, partition=0)
    cursors = last_cursors(publisher.url)
    assert "_first" == json.loads(cursors)["1"]
    assert [(0, 1)] == read(publisher, endingCursors=cursors)


def test_a_start_at_the_end_reads_nothing(publisher):
    publisher.publish(1, 2)
    assert [] == read(publisher, startingCursors="last")


def test_an_empty_feed_has_no_rows(publisher):
    assert [] == read(publisher)


def test_an_end_before_the_start_is_refused(publisher):
    """I mixed up two cursors, and learn it at once."""
    publisher.publish(1, partition=0)
    early = last_cursors(publisher.url)
    publisher.publish(2, partition=0)
    late = last_cursors(publisher.url)
    with pytest.raises(PublisherError, match="before it begins"):
        read(publisher, startingCursors=late, endingCursors=early)


def test_a_start_whose_events_are_gone_is_refused(publisher):
    """I am not given less than I asked for."""
    publisher.publish(*range(500), partition=0)
    publisher.publish(*range(500), partition=0)
    cursors = last_cursors(publisher.url)
    publisher.publish(*range(500), partition=0)
    publisher.publish(*range(500), partition=0)
    prune(publisher.store, "orders", Retention(bytes=1))
    with pytest.raises(CursorGoneError, match="partition 0"):
        read(publisher, startingCursors=cursors)
