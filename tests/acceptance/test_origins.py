"""Relays: a feed into other feeds, whose consumers know each event by where it was first published.

(002: publishers that forward; Pulsar's PU-12: relayed data is known by its origin.)
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_datasource import read_plainly, write_plainly
from zeh_spark import dedup
from zeh_spark.errors import OptionError
from zeh_spark.protocol.event_origin import HEADER


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
    """And the same event without a relay; a relay may leave events out (PU-12)."""
    publisher.publish(*({"i": i} for i in range(50)))
    feeds.create("north", "south", "far")
    feeds.relay(feeds.read("orders"), "north")
    some = [row for row in feeds.read("orders") if json.loads(row["data"])["i"] % 5 == 0]
    feeds.relay(some, "south")
    feeds.relay(feeds.read("south"), "far")
    read = [stream(url=feeds.url(n), headers="_all").load() for n in ("orders", "north", "far")]
    united = read[0].unionByName(read[1]).unionByName(read[2])

    collected.run(dedup.drop_seen(united, origin=True))

    assert {("new", i): 1 for i in range(50)} == Counter(
        (row["dedup"], json.loads(row["data"])["i"]) for row in collected.rows
    )
    first, last = feeds.origins("south"), feeds.origins("far")
    assert set(range(0, 50, 5)) == set(last)
    assert first == last  # the first relay's stays
    (feed,) = {text.split("/")[0] for text in last.values()}
    assert publisher.store.identity("orders").id == feed


@pytest.mark.slow
def test_parts_of_an_event_are_events_of_their_own(feeds, publisher, stream, collected):
    """A relay that makes several events of one numbers them; without that it is refused."""
    publisher.publish({"i": 0}, {"i": 1})
    feeds.create("parts")
    parts = [
        {"headers": row["headers"], "data": f'{{"part":{part}}}', "origin_part": part}
        for row in feeds.read("orders")
        for part in (0, 1)
    ]
    with pytest.raises(Exception, match="number them from 0 in a column origin_part"):
        feeds.relay([{**part, "origin_part": None} for part in parts], "parts")
    feeds.relay(parts, "parts")
    again = stream(url=feeds.url("parts"), headers="_all").load()

    collected.run(dedup.drop_seen(again.unionByName(again), origin=True))

    assert {"new": 4} == Counter(row["dedup"] for row in collected.rows)
    assert 2 == sum(row["headers"][HEADER].endswith("/1") for row in collected.rows)


def test_an_origin_is_written_by_the_option_alone(feeds, publisher):
    """An application that makes one up publishes none."""
    feeds.create("plain")
    publisher.publish({"i": 0})
    rows = [
        {"headers": {**row["headers"], HEADER: "x"}, "data": row["data"]}
        for row in feeds.read("orders")
    ]

    feeds.relay(rows, "plain", keepOrigin="false")
    assert {0: None} == feeds.origins("plain")
    with pytest.raises(Exception, match="no zeh-origin of the form"):
        feeds.relay(rows, "plain", batchId="2")


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
