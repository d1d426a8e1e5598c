"""Each number of a producer once, whatever comes twice."""

from __future__ import annotations

import json
from collections import Counter

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from zeh_spark import dedup

OWN = {
    "producer": "get_json_object(data, '$.d')",
    "sequence": "get_json_object(data, '$.i')",
}


@pytest.fixture
def run(collected):
    """Runs a frame to its end: how often each (flag, i) came out of this run."""

    def go(frame):
        collected.rows.clear()
        collected.run(frame)
        return Counter((row["dedup"], json.loads(row["data"])["i"]) for row in collected.rows)

    return go


def test_each_number_passes_once_however_the_feed_is_read(publisher, stream, run):
    """Twice at once, and with another number of partitions: the stamps tell, not the reader."""

    def twice():
        narrow = stream(url=publisher.url, partitionCount="1").load()
        return dedup.drop_seen(stream(url=publisher.url).load().union(narrow))

    publisher.publish(*({"i": i} for i in range(100)))
    first = run(twice())
    publisher.publish(*({"i": i} for i in range(100, 150)))
    second = run(twice())

    assert Counter(("new", i) for i in range(100)) == first
    assert Counter(("new", i) for i in range(100, 150)) == second


def test_only_what_was_seen_is_dropped(publisher, stream, run):
    """Numbers of others, with holes, in any order. What is in a hole that was closed is told."""
    frame = dedup.drop_seen(stream(url=publisher.url).load(), **OWN, window=50)
    publisher.publish(*({"i": i, "d": "a"} for i in (5, 3, 3, 9)), {"i": 3, "d": "b"}, {"i": 7})
    first = run(frame)
    publisher.publish(*({"i": i, "d": "a"} for i in (4, 3, 9, 100)), {"i": -1, "d": "a"})
    second = run(frame)
    publisher.publish(*({"i": i, "d": "a"} for i in (100, 99, 8, 8, 3)))
    third = run(frame)

    assert Counter([("new", 3), ("new", 3), ("new", 5), ("new", 9), ("unstamped", 7)]) == first
    assert Counter([("new", 4), ("new", 100), ("unstamped", -1)]) == second
    assert Counter({("new", 99): 1, ("unknown", 8): 1, ("unknown", 3): 1}) == third


def test_what_is_dropped_is_counted(publisher, stream, collected):
    frame = dedup.drop_seen(stream(url=publisher.url).load(), **OWN)
    publisher.publish(*({"i": i, "d": "a"} for i in (0, 1, 1, 1)), {"i": 0, "d": "b"})

    query = collected(frame, availableNow=True)
    query.awaitTermination()

    (counts,) = [
        each.observedMetrics["dedup"].asDict() for each in query.recentProgress if each.numInputRows
    ]
    assert (3, 2, 0, 2) == tuple(
        counts[name] for name in ("new", "dropped", "unknown", "producers")
    )
