"""Each number of a producer once, whatever comes twice."""

from __future__ import annotations

import json
from collections import Counter

import pytest

pytest.importorskip("google.protobuf")

from zeh_spark import dedup

CHECK = "timestamp_seconds(0)"


@pytest.fixture
def run(stream, collected):
    def go(url, **options):
        collected.rows.clear()
        collected.run(dedup.drop_seen(stream(url=url).load(), **options))
        return Counter((row["dedup"], json.loads(row["data"])["i"]) for row in collected.rows)

    return go


def test_each_number_comes_once_by_the_stamps_of_the_publisher(publisher, run, stream):
    """Two queries' worth of one producer: what was there is dropped, also from a batch before."""
    publisher.publish(*({"i": i} for i in range(100)))
    first = run(publisher.url)
    publisher.publish(*({"i": i} for i in range(100, 150)))

    second = run(publisher.url)

    assert Counter(("new", i) for i in range(100)) == first
    assert Counter(("new", i) for i in range(100, 150)) == second


def test_a_producers_own_number_is_enough(publisher, run):
    """Feeds of others have numbers of their own; each is there once, in any order."""
    options = {
        "producer": "get_json_object(data, '$.d')",
        "sequence": "get_json_object(data, '$.i')",
    }
    publisher.publish(*({"i": i, "d": "a"} for i in (5, 3, 3, 9)))
    first = run(publisher.url, **options)
    publisher.publish(*({"i": i, "d": "a"} for i in (4, 3, 9, 10)), {"i": -1, "d": "a"})

    second = run(publisher.url, **options)

    assert Counter([("new", 3), ("new", 5), ("new", 9)]) == first
    assert Counter([("new", 4), ("new", 10), ("unstamped", -1)]) == second
