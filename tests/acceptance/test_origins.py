"""Relays: a feed into other feeds, whose consumers know each event by where it was first published.

(002: publishers that forward; Pulsar's PU-12: relayed data is known by its origin.)
"""

import json
from collections import Counter
from functools import reduce

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from pyspark.sql import DataFrame

from tests.fix_datasource import read_plainly, write_plainly
from zeh_spark import dedup
from zeh_spark.errors import OptionError
from zeh_spark.wire.event_origin import HEADER


@pytest.fixture
def feeds(publisher):
    """Feeds of a publisher, and relays from one into another."""

    class Feeds:
        def url(self, name):
            return f"{publisher.base}/{name}"

        def create(self, *names):
            for name in names:
                publisher.store.create(name, 2)

        def read(self, name):
            return read_plainly(self.url(name), "headers, data", headers="_all")

        def origins(self, name):
            rows = self.read(name)
            return {json.loads(row["data"])["i"]: row["headers"].get(HEADER) for row in rows}

        def relay(self, rows, to, **options):
            given = {"producerId": "relay", "batchId": "1", "keepOrigin": "true", **options}
            write_plainly(self.url(to), rows, **given)

    return Feeds()


@pytest.mark.slow
def test_an_event_that_comes_over_two_relays_passes_once(feeds, publisher, stream, collected):
    """And the same event without a relay; a relay may leave events out (PU-12). A relay that makes
    several events of one numbers them, and each is an event of its own; without that it is refused.
    """
    publisher.publish(*({"i": i} for i in range(50)))
    feeds.create("north", "south", "far", "parts")
    rows = feeds.read("orders")
    feeds.relay(rows, "north")
    feeds.relay([row for row in rows if json.loads(row["data"])["i"] % 5 == 0], "south")
    feeds.relay(feeds.read("south"), "far")
    parts = [
        {"headers": row["headers"], "data": f'{{"i":{100 + part}}}', "origin_part": part}
        for row in rows[:2]
        for part in (0, 1)
    ]
    with pytest.raises(Exception, match="number them from 0 in a column origin_part"):
        feeds.relay([{**part, "origin_part": None} for part in parts], "parts")
    feeds.relay(parts, "parts")
    names = ("orders", "north", "far", "parts", "parts")
    read = [stream(url=feeds.url(name), headers="_all").load() for name in names]

    collected.run(dedup.drop_seen(reduce(DataFrame.unionByName, read), origin=True))

    once = {("new", i): 1 for i in range(50)}
    assert {**once, ("new", 100): 2, ("new", 101): 2} == Counter(
        (row["dedup"], json.loads(row["data"])["i"]) for row in collected.rows
    )
    of_parts = [row["headers"][HEADER] for row in collected.rows if '"i":10' in row["data"]]
    assert 2 == sum(each.endswith("/1") for each in of_parts)
    first, last = feeds.origins("south"), feeds.origins("far")
    assert set(range(0, 50, 5)) == set(last)
    assert first == last  # the first relay's stays
    (feed,) = {text.split("/")[0] for text in last.values()}
    assert publisher.store.identity("orders").id == feed


def test_mistakes_with_origins_are_named(feeds, publisher, stream):
    feed = stream(url=publisher.url, headers="_all").load()
    for options, told in [
        ({"producer": "data", "sequence": "data"}, "origin= is another way to know it"),
        ({"feed": "data"}, "origin= is another way to know it"),
        ({"id": "data"}, "id= is another way to know it"),
    ]:
        with pytest.raises(OptionError, match=told):
            dedup.drop_seen(feed, origin=True, **options)
    with pytest.raises(OptionError, match="no column 'headers', which has the origin"):
        dedup.drop_seen(feed.drop("headers"), origin=True)
