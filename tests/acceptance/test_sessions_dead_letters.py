"""Dead letters of sessions: on a feed, in a table, and back in their session."""

from __future__ import annotations

import json
import re
import shutil

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_cli import call
from tests.fix_lake import why_absent
from tests.fix_sessions import AT, needs_batches
from zeh_spark import dedup, sessions

NAMES = {"session": "headers['order']", "sequence": "headers['step']"}


def command(*words, given=""):
    done = call(*words, stdin=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@needs_batches
def test_dead_letters_on_a_feed_go_back_into_their_session(orders):
    """They have the form of the sink's; replayed they are in order, each once."""
    dead_feed = orders.create("orders-dead")
    orders.dead_writer = sessions.to_feed(dead_feed, producerId="orders-sessions")
    orders.add(("a", 0), ("a", 2), ("a", 3), ("b", None), at=100)
    orders.add(("c", 0), at=800)
    orders.run()
    orders.forget(1)
    orders.run()

    letters = command("dead-letters", dead_feed)
    reasons = [json.loads(line)["data"]["reason"] for line in letters.splitlines()]
    assert [
        "gap: session 'a', number 2, expected 1, missing 1 to 1, held since 1970-01-01T00:01:40Z",
        "gap: session 'a', number 3, expected 1, missing 1 to 1, held since 1970-01-01T00:01:40Z",
        "invalid: session 'b': sequence is NULL, and has to be a whole number from 0 to "
        "9223372036854775806",
    ] == sorted(reasons)
    repaired = [json.loads(line) for line in letters.splitlines()]
    for each in repaired:
        each["data"]["row"]["headers"].setdefault("step", "0")
    text = "\n".join(map(json.dumps, repaired))
    assert "Published 3 dead letters.\n" == command("replay-dead", orders.url, given=text)
    assert "published before" in command("replay-dead", orders.url, given=text)
    orders.run()

    assert [0, 2, 3] == orders.steps("a")
    assert [0] == orders.steps("b")


@pytest.mark.slow
@needs_batches
def test_dead_letters_of_a_table_go_back_and_are_explained(orders, spark):
    """What is missing is read from the feed as it is now."""
    kept = []
    orders.dead_writer = lambda frame, number: kept.extend(frame.collect())
    orders.add(("a", 0), ("a", 4), ("b", 2), at=100)
    orders.add(("c", 0), at=800)
    orders.run(on_gap="skip")
    orders.add(("a", 2), at=801)
    orders.run(on_gap="skip")
    dead = spark.createDataFrame(
        kept, sessions.in_order(orders.feed(), **NAMES).drop("status").schema
    )

    found = sessions.explain(dead, orders.url, **NAMES).drop("position").collect()
    head = found[0].explanation.partition("up to head ")[2]

    partition = {row.session: row.partition for row in found if row.partition is not None}["a"]
    position = sessions.explain(dead, orders.url, **NAMES).where("position IS NOT NULL").first()
    assert ("a", 2, 2) == (position.session, position.first, position.last)
    assert f"is at position {position.position} of partition {partition}" == position.explanation
    assert [("a", 1, 1), ("a", 3, 3), ("b", 0, 1)] == [
        (row.session, row.first, row.last) for row in found if row.partition is None
    ]
    assert {"0", "1"} == json.loads(head).keys()

    sessions.replay(dead, orders.url, producerId="repair", batchId="1")
    sessions.replay(dead, orders.url, producerId="repair", batchId="1")
    orders.run(on_gap="skip")

    assert [0, 4, 2] == orders.steps("a")


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
        frame = dedup.drop_seen(orders.feed(startingCursors=start)).drop("dedup")
        out = sessions.in_order(frame, **NAMES, time=AT)
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
def test_gauges_with_sources_are_those_of_all_sessions(orders):
    """In each batch with events, also of sessions that have none in it. [SB-12]"""
    options = {"gap_timeout": None, "sources": ["orders"], "source": "'orders'"}
    options["stale_timeout"] = "5 seconds"
    orders.add(
        *((f"open {n}", 0) for n in range(20)), *((f"waits {n}", 2) for n in range(9)), at=50
    )
    orders.run(**options)
    orders.add(("open 3", 1), ("late", 1), at=60)
    orders.run(**options)

    (gauges,) = [each for each in orders.progress[1:] if each["ordered"]]
    assert (10, 30, 0, 16) == tuple(
        gauges[name] for name in ("held", "open_sessions", "stale_sessions", "buckets")
    )
    assert "1970-01-01 00:00:50" in gauges["oldest_hold"]

    orders.progress.clear()
    orders.add(("open 3", 2), at=61)  # by now the clock is at 60
    orders.run(**options)

    (gauges,) = [each for each in orders.progress if each["ordered"]]
    assert (10, 30, 19 + 9, 16) == tuple(
        gauges[name] for name in ("held", "open_sessions", "stale_sessions", "buckets")
    )
