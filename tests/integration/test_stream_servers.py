"""The stream source reads other servers: the reference implementation, and our publisher."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from tests.fix_stream import PATIENCE


@pytest.mark.parametrize("checkpoints", ["event", "page"])
@pytest.mark.parametrize("finite", [True, False])
def test_the_reference_server_is_read(start_reference_server, start, checkpoints, finite):
    """The reference implementation, with a checkpoint for each event or each page."""
    url = start_reference_server(events=300, checkpoints=checkpoints)
    run = start(url=url, partitionCount="2", pageSizeHint="70", finite=finite)
    got = Counter()
    deadline = time.monotonic() + PATIENCE
    while got.total() < 600 and time.monotonic() < deadline:
        end = run.reader.latestOffset(run.offset, run.limit)
        for partition in run.reader.partitions(run.offset, end):
            for batch in run.reader.read(partition):
                got.update(
                    (row["partition"], json.loads(row["data"])["id"]) for row in batch.to_pylist()
                )
        run.offset = end

    assert Counter((p, i) for p in (0, 1) for i in range(300)) == got


def test_the_reference_server_that_breaks_off_is_read(start_reference_server, start):
    """It aborts bodies; each event comes once all the same."""
    url = start_reference_server(events=100, checkpoints="event", fail_after=20, failures=3)
    run = start(url=url, partitionCount="2", pageSizeHint="70", finite=True)
    got = Counter()
    while (end := run.reader.latestOffset(run.offset, run.limit)) is not run.offset:
        for partition in run.reader.partitions(run.offset, end):
            for batch in run.reader.read(partition):
                got.update(
                    (row["partition"], json.loads(row["data"])["id"]) for row in batch.to_pylist()
                )
        run.offset = end

    assert Counter((p, i) for p in (0, 1) for i in range(100)) == got


@pytest.mark.parametrize("finite", [True, False])
def test_our_publisher_is_read(publisher, start, finite):
    """Both halves of the package together; the partition count is learned."""
    for begin in range(0, 300, 60):
        publisher.publish(*range(begin, begin + 60))
    run = start(url=publisher.url, finite=finite, maxEventsPerTrigger="100")

    rows = run.to_the_end() if finite else run.until(300)

    assert list(range(300)) == sorted(rows)


def test_our_publishers_batches_can_be_repeated(publisher, start):
    """Its checkpoints are the same on every request; so are its stamps."""
    publisher.publish(*range(50))
    run = start(url=publisher.url)
    run.until(50)
    publisher.publish(*range(50, 80))

    again = start(url=publisher.url, offset=run.offset)

    assert run.batches[-1] == again.rows(run.start, run.offset)
    assert list(range(50, 80)) == sorted(again.until(30))


def test_our_publishers_last_is_where_new_events_come(publisher, start):
    """`last` on an empty partition, and on one with events."""
    publisher.publish(1, 2, partition=0)
    run = start(url=publisher.url, startingCursors="last")
    assert {} == run.next()

    publisher.publish(3, 4)

    assert [3, 4] == sorted(run.until(2))
