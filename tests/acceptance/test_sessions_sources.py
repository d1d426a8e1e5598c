"""Sessions whose events come from several feeds (003, 1.1 and 1.3.1), on Spark."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from pyspark.sql import functions as F

from tests.fix_sessions import AT, needs_batches
from zeh_spark import sessions
from zeh_spark.publish import Producer

NAMES = {"session": "headers['order']", "sequence": "headers['step']", "time": AT}


class Regions:
    """A feed for each region; `run` reads what is there of all, and puts it in order."""

    def __init__(self, orders, *regions):
        self.orders = orders
        self.urls = {region: orders.create(region) for region in regions}

    def add(self, region, *steps, at, data=None):
        """(order, step) each, at a second of the region's time."""
        with Producer(self.urls[region], "shop").batch() as batch:
            for order, step in steps:
                headers = {"order": order, "step": f"{step}", "at": f"{at}"}
                batch.add(data or {}, key=order, headers=headers)

    def frame(self, **options):
        given = None
        for region, url in self.urls.items():
            feed = self.orders.spark.readStream.format("zeroeventhub").load(url)
            named = feed.withColumn("region", F.lit(region))
            given = named if given is None else given.unionByName(named)
        return sessions.in_order(given, **{**NAMES, "source": "region", **options})

    def start(self, *, trigger, **options):
        write = sessions.route(ordered=self.orders._ordered, dead=self.orders._dead)
        writer = self.frame(**options).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(self.orders.checkpoint))
        return writer.trigger(**trigger).start()

    def run(self, **options):
        assert self.start(trigger={"availableNow": True}, **options).awaitTermination(120)


@pytest.mark.slow
@needs_batches
def test_a_gap_waits_until_every_feed_was_read_up_to_then(orders):
    """A feed that is an hour behind may still have the event; with one clock for both feeds it
    would be given up.
    """
    regions = Regions(orders, "eu", "us")
    both = {"sources": ("eu", "us")}
    regions.add("eu", ("a", 0), ("a", 2), ("b", 1), at=7_200)
    regions.add("us", ("x", 0), at=3_600)
    regions.run(**both)
    regions.add("eu", ("y", 0), at=9_000)  # half an hour later in one feed, and its clock
    regions.run(**both)
    assert [] == orders.reasons()

    regions.add("us", ("a", 1), at=3_700)
    regions.run(**both)
    assert [0, 1, 2] == orders.steps("a")
    assert [] == orders.reasons()

    regions.add("us", ("z", 0), at=9_000)
    regions.run(**both)  # at its end both have been read up to 9,000

    assert [("gap", 1)] == orders.reasons("b")
    orders.dead.clear()
    orders.forget(2)  # a crash: Spark repeats the batch of us, and the one that judges after it
    regions.run(**both)
    assert [("gap", 1)] == orders.reasons("b")


@pytest.mark.slow
@needs_batches
def test_events_of_several_feeds_are_one_session_or_dead_letters(orders):
    """A feed that is gone does not hold the clock. An event of any other or of none is a dead
    letter by name; so is another content with a number that is there (`on_conflict`), while the
    same content is a duplicate.
    """
    regions = Regions(orders, "eu", "us", "asia")
    options = {"on_conflict": "dead-letter"}
    regions.add("eu", ("a", 1), at=1_000)
    regions.add("us", ("x", 0), at=1_000)
    regions.add("eu", ("same", 0), ("other", 0), at=1_000, data={"paid": 1})
    regions.run(sources=("eu", "us", "asia"), **options)
    regions.add("us", ("same", 0), at=1_000, data={"paid": 1})
    regions.add("us", ("other", 0), at=1_000, data={"paid": 2})
    regions.run(sources=("eu", "us", "asia"), **options)
    assert ("same", 0) in orders.ordered and ("other", 0) in orders.ordered
    (dead,) = orders.dead
    assert ("conflict", "other", '{"paid":2}') == (dead.dead.reason, dead.dead.session, dead.data)

    regions.add("asia", ("gone", 0), at=9_000)
    regions.add("us", ("none", 0), at=9_000)
    regions.add("eu", ("x", 1), at=9_001)
    regions.run(sources=("eu",), source="nullif(region, 'us')", **options)

    assert [("gap", 1)] == orders.reasons("a")
    assert {
        "gone": ("invalid", "source is 'asia', and has to be one of eu"),
        "none": ("invalid", "source is NULL, and has to be one of eu"),
    } == {
        each.dead.session: (each.dead.reason, each.dead.detail)
        for each in orders.dead
        if each.dead.session in ("gone", "none")
    }


@pytest.mark.slow
@needs_batches
def test_a_dead_feed_holds_the_clock_for_idle_source_timeout_only(orders):
    """Its own time stands still; the query's batches tell how long it has been silent."""
    regions, begun = Regions(orders, "eu", "us"), time.monotonic()
    regions.add("us", ("x", 0), at=1_000)
    regions.add("eu", ("a", 1), at=1_000)
    options = {"sources": ("eu", "us"), "idle_source_timeout": "2 seconds"}
    query = regions.start(trigger={"processingTime": "200 milliseconds"}, **options)
    try:
        for step in range(1, 1_000):
            regions.add("eu", ("x", step), at=9_000 + step)  # us may still have what is missing
            if orders.reasons() or query.exception():
                break
            time.sleep(0.5)
        silent = time.monotonic() - begun
    finally:
        query.stop()

    assert [("gap", 1)] == orders.reasons()
    assert silent > 2


@needs_batches
def test_the_source_is_the_feeds_identity_unless_it_is_named(orders):
    """`zeh-feed` without its epoch."""
    feed = orders.feed(headers="_all")
    names = {**NAMES, "sources": (orders.store.identity("orders").id, "another")}
    orders.add(("a", 0))
    write = sessions.route(ordered=orders._ordered, dead=orders._dead)
    query = sessions.in_order(feed, **names).writeStream.foreachBatch(write)
    query = query.option("checkpointLocation", str(orders.checkpoint)).trigger(availableNow=True)
    assert query.start().awaitTermination(120)

    assert ([("a", 0)], []) == (orders.ordered, orders.dead)
