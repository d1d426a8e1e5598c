"""Sessions whose events come from several feeds (003, 1.1 and 1.3.1), on Spark."""

import time

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from pyspark.sql import functions as F

from tests.fix_sessions import AT, needs_batches
from tests.fix_spark import in_batches
from tests.patience import PATIENCE
from zeh_spark import sessions
from zeh_spark.publish import Producer

NAMES = {"session": "headers['order']", "sequence": "headers['step']", "time": AT}


class Regions:
    """A feed of one partition for each region. `run` reads a chunk of each in a batch."""

    def __init__(self, orders, *regions):
        self.orders = orders
        self.urls = {region: orders.create(region, 1) for region in regions}

    def add(self, region, *steps, at, data=None):
        """(order, step) each, at a second of the region's time."""
        with Producer(self.urls[region], "shop").batch() as batch:
            for order, step in steps:
                headers = {"order": order, "step": f"{step}", "at": f"{at}"}
                batch.add(data or {}, key=order, headers=headers)

    def frame(self, **options):
        given = None
        for region, url in self.urls.items():
            feed = self.orders.spark.readStream.format("zeroeventhub")
            feed = feed.option("maxEventsPerTrigger", "1").load(url)
            named = feed.withColumn("region", F.lit(region))
            given = named if given is None else given.unionByName(named)
        return sessions.in_order(given, **{**NAMES, "source": "region", **options})

    def start(self, *, trigger, **options):
        write = sessions.route(ordered=self.orders._ordered, dead=self.orders._dead)
        writer = self.frame(**options).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(self.orders.checkpoint))
        return writer.trigger(**trigger).start()

    def run(self, **options):
        assert self.start(trigger={"availableNow": True}, **options).awaitTermination(PATIENCE)


@pytest.mark.slow
@needs_batches
def test_a_gap_waits_until_every_feed_was_read_up_to_then(orders):
    """A feed that is behind may still have the event; with one clock for both feeds it would be
    given up. A feed that is gone does not hold the clock. An event of any other or of none is a
    dead letter by name; so is another content with a number that is there (`on_conflict`), while
    the same content is a duplicate.
    """
    regions = Regions(orders, "eu", "us")
    options = {"on_conflict": "dead-letter"}
    regions.add("eu", ("a", 0), ("a", 2), ("b", 1), at=7_200)
    regions.add("eu", ("same", 0), ("other", 0), at=8_900, data={"paid": 1})
    regions.add("eu", ("y", 0), ("c", 1), at=9_000)  # half an hour later, and its clock
    regions.add("us", ("x", 0), at=3_600)
    regions.add("us", ("same", 0), at=3_610, data={"paid": 1})
    regions.add("us", ("other", 0), at=3_620, data={"paid": 2})
    regions.add("us", ("x", 1), at=3_630)
    regions.add("us", ("a", 1), at=3_700)
    regions.add("us", ("x", 2), at=9_000)  # at the end both have been read up to 9,000
    regions.run(sources=("eu", "us"), **options)

    assert [0, 1, 2] == orders.steps("a")
    assert ("same", 0) in orders.ordered and ("other", 0) in orders.ordered
    conflict, *gaps = orders.dead
    assert ("conflict", "other") == (conflict.dead.reason, conflict.dead.session)
    assert '{"paid":2}' == conflict.data
    assert [("gap", "b", 1)] == [
        (each.dead.reason, each.dead.session, each.dead.received) for each in gaps
    ]
    orders.dead.clear()
    orders.forget(2)  # a crash: Spark repeats the last batch, and the one that judges after it
    regions.run(sources=("eu", "us"), **options)
    assert gaps == orders.dead

    orders.dead.clear()
    regions.add("us", ("gone", 0), ("none", 0), at=9_001)
    regions.add("eu", ("y", 1), at=9_601)
    source = "if(headers['order'] = 'none', NULL, region)"
    regions.run(sources=("eu",), source=source, **options)

    assert [("gap", 1)] == orders.reasons("c")
    assert {
        "gone": ("invalid", "source is 'us', and has to be one of eu"),
        "none": ("invalid", "source is NULL, and has to be one of eu"),
    } == {
        each.dead.session: (each.dead.reason, each.dead.detail)
        for each in orders.dead
        if each.dead.session != "c"
    }


@pytest.mark.slow
@needs_batches
def test_a_dead_feed_holds_the_clock_for_idle_source_timeout_only(orders):
    """Its own time stands still; the query's batches tell how long it has been silent. Two that
    are further apart than the timeout look like a query that was stopped, hence 20 seconds.
    """
    regions, begun = Regions(orders, "eu", "us"), time.monotonic()
    regions.add("us", ("x", 0), at=1_000)
    regions.add("eu", ("a", 1), at=1_000)
    options = {"sources": ("eu", "us"), "idle_source_timeout": "20 seconds"}
    query = regions.start(trigger={"processingTime": "5 seconds"}, **options)
    try:
        for step in range(1, 1_000):
            regions.add("eu", ("x", step), at=9_000 + step)  # us may still have what is missing
            query.processAllAvailable()
            if orders.reasons():
                break
        silent = time.monotonic() - begun
    finally:
        query.stop()

    assert [("gap", 1)] == orders.reasons()
    assert silent > 20


@needs_batches
def test_the_source_is_the_feeds_identity_unless_it_is_named(orders):
    """`zeh-feed` without its epoch."""
    names = {**NAMES, "sources": (orders.store.identity("orders").id, "another"), "first": "seen"}
    orders.add(("a", 6), ("a", 5), ("a", 7))
    write = sessions.route(ordered=orders._ordered, dead=orders._dead)
    ordered = sessions.in_order(orders.feed(headers="_all"), **names)
    query = in_batches(ordered, write, orders.checkpoint)
    assert query.awaitTermination(PATIENCE)

    assert ([("a", 5), ("a", 6), ("a", 7)], []) == (orders.ordered, orders.dead)
