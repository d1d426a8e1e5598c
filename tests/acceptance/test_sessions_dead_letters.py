"""Dead letters of sessions: on a feed, in a table, and back in their session."""

import json
import re
import shutil
from itertools import count

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_cli import succeed
from tests.fix_lake import why_absent
from tests.fix_sessions import AT, needs_batches
from zeh_spark import sessions

NAMES = {"session": "headers['order']", "sequence": "headers['step']"}


@pytest.mark.slow
@needs_batches
def test_dead_letters_are_explained_and_go_back_into_their_session(orders, spark):
    """From a feed, where they have the form of the sink's and are there once after a crash, by the
    command; from a table by the function. What is missing is read from the feed as it is now.
    Replayed they are in order, each once.
    """
    kept, dead_feed = [], orders.create("orders-dead")
    to_feed = sessions.to_feed(dead_feed, producerId="orders-sessions")

    def write(frame, number):
        to_feed(frame, number)
        kept.extend(frame.collect())

    orders.dead_writer = write
    orders.add(("a", 0), ("a", 2), ("a", 3), ("b", None), ("c", 1), ("c", 4), at=100)
    orders.add(("d", 0), at=800)
    orders.run()
    orders.forget(1)
    kept.clear()
    orders.run()

    letters = succeed("dead-letters", dead_feed)
    told = "gap: session '{}', number {}, expected {}, missing {} to {}, held since "
    told += "1970-01-01T00:01:40Z"
    assert [
        told.format("a", 2, 1, 1, 1),
        told.format("a", 3, 1, 1, 1),
        told.format("c", 1, 0, 0, 0),
        told.format("c", 4, 2, 2, 3),
        "invalid: session 'b': sequence is NULL, and has to be a whole number from 0 to "
        "9223372036854775806",
    ] == sorted(json.loads(line)["data"]["reason"] for line in letters.splitlines())

    orders.add(("c", 2), at=801)
    schema = sessions.in_order(orders.feed(), **NAMES).drop("status").schema
    dead = spark.createDataFrame([each for each in kept if each.dead.session == "c"], schema)
    found = sessions.explain(dead, orders.url, **NAMES).collect()
    (there,) = (row for row in found if row.position is not None)
    absent = [row for row in found if row.position is None]
    (partition,) = {row.partition for row in found} - {None}
    assert ("c", 2, 2) == (there.session, there.first, there.last)
    assert f"is at position {there.position} of partition {partition}" == there.explanation
    assert [("c", 0, 0), ("c", 3, 3)] == [(row.session, row.first, row.last) for row in absent]
    head = absent[0].explanation.partition("up to head ")[2]
    assert {"0", "1"} == json.loads(head).keys()

    repaired = [json.loads(line) for line in letters.splitlines()]
    repaired = [each for each in repaired if "session 'c'" not in each["data"]["reason"]]
    for each in repaired:
        each["data"]["row"]["headers"].setdefault("step", "0")
    text = "\n".join(map(json.dumps, repaired))
    assert "Published 3 dead letters.\n" == succeed("replay-dead", orders.url, stdin=text)
    assert "published before" in succeed("replay-dead", orders.url, stdin=text)
    for _ in range(2):
        sessions.replay(dead, orders.url, producerId="repair", batchId="1")
    orders.run()

    assert [[0, 2, 3], [0]] == [orders.steps(each) for each in "ab"]
    assert {1, 4} <= {*orders.steps("c")} and len(orders.steps("c")) <= 3


def test_positions_are_those_in_a_partition(orders, spark):
    """Counted from the oldest event of the partition, though a task may fetch several of them."""
    orders.add(*((name, step) for step in range(2) for name in "abcdef"))
    gaps = "dead STRUCT<session: STRING, missing: STRUCT<first: BIGINT, last: BIGINT>>"
    dead = spark.createDataFrame([((name, (0, 1)),) for name in "abcdef"], gaps)

    found = sessions.explain(dead, orders.url, **NAMES).collect()

    feed = spark.read.format("zeroeventhub").load(orders.url)
    at = {0: count(), 1: count()}
    events = feed.select("partition", "headers.order", "headers.step").collect()
    expected = {(e.order, int(e.step)): (e.partition, next(at[e.partition])) for e in events}
    assert expected == {(e.session, e.first): (e.partition, e.position) for e in found}
    assert {0, 1} == {partition for partition, _ in expected.values()}


@pytest.mark.slow
def test_sessions_in_two_tables_are_not_continued_without_their_state(orders, spark, tmp_path):
    """A lost checkpoint would lose what waited: refused, with the ways on."""
    pytest.importorskip("delta", reason=why_absent())
    from zeh_spark import lakehouse

    names = [str(tmp_path / name) for name in ("ordered", "dead")]
    place = {"name": "shop", "checkpointLocation": str(orders.checkpoint)}

    def run(**options):
        start = lakehouse.cursors(spark, names, name="shop")
        ordered, dead = (lakehouse.DeltaFeedWriter(each, **place, **options) for each in names)
        out = sessions.in_order(orders.feed(startingCursors=start), **NAMES, time=AT)
        write = sessions.route(ordered=ordered, dead=dead)
        writer = out.writeStream.foreachBatch(write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", place["checkpointLocation"]).start()
        query.awaitTermination()

    orders.add(("a", 0), ("a", 2), ("b", None))
    run()
    shutil.rmtree(orders.checkpoint)
    orders.add(("a", 1))
    with pytest.raises(Exception, match="the query has state") as refused:
        run()
    (accept,) = re.findall(r"say accept='([^']+)'", str(refused.value))[:1]
    shutil.rmtree(orders.checkpoint)
    run(accept=accept)

    rows = spark.read.format("delta").load(names[0]).selectExpr("headers['step']").collect()
    assert ["0"] == [row[0] for row in rows]
    dead = spark.read.format("delta").load(names[1])
    assert ["invalid"] == [row.reason for row in dead.select("dead.reason").collect()]


def test_sessions_in_a_checkpoint_can_be_inspected(orders, spark):
    """Which wait, for what, and since when; which are closed. [SB-12, R7, R9]"""
    orders.add(("open", 0), ("waits", 0), ("waits", 3), ("waits", 4), at=100)
    orders.add(("closed", 0), last="0", at=101)
    orders.run(last="headers['last']", gap_timeout=None)

    rows = {row.session: row for row in sessions.inspect(spark, str(orders.checkpoint)).collect()}

    assert {"open": "open", "waits": "waiting", "closed": "closed"} == {
        name: row.status for name, row in rows.items()
    }
    waits = rows["waits"]
    assert (1, 2, (1, 2)) == (waits.expected, waits.held, tuple(waits.missing))
    assert (100, 101) == (waits.held_since.timestamp(), rows["closed"].newest.timestamp())
    assert waits.held_bytes > 100
    assert (2, 3) == (orders.progress[0]["held"], orders.count("ordered"))
    assert 1 <= orders.progress[0]["buckets"] <= 3


@pytest.mark.slow
@needs_batches
def test_gauges_with_sources_are_those_of_all_sessions(line):
    """In each batch with events, also of sessions that have none in it. [SB-12]"""
    waits = [(f"waits {n}", 2) for n in range(9)]
    line.add(*((f"open {n}", 0) for n in range(20)), *waits, at=50)
    line.add(("open 3", 1), ("late", 1), at=60)
    line.add(("open 3", 2), at=61)  # by now the clock is at 60
    options = {"gap_timeout": None, "sources": ["orders"], "source": "'orders'"}
    line.run(limit="1", stale_timeout="5 seconds", **options)

    names = ("held", "open_sessions", "stale_sessions", "buckets")
    gauges = [each for each in line.progress if each["ordered"]]
    assert [(9, 29, 0, 16), (10, 30, 0, 16), (10, 30, 19 + 9, 16)] == [
        tuple(each[name] for name in names) for each in gauges
    ]
    assert "1970-01-01 00:00:50" in gauges[1]["oldest_hold"]
