"""What a job has published, as a DataFrame."""

from datetime import datetime, timedelta

import msgspec
import pytest

import zeh_spark
from tests.patience import PATIENCE
from tests.scratch_store import ScratchStore
from zeh_spark.errors import OptionError, PublishError
from zeh_spark.publish import Producer
from zeh_spark.testing import running_publisher


@pytest.fixture
def url():
    store = ScratchStore(orders=2)
    with running_publisher(store) as base:
        yield f"{base}/orders"


def test_receipts_of_a_producer_are_rows(spark, url):
    """I see which batch holds which sequence numbers, and when it was committed."""
    producer = Producer(url, "till-7")
    began = datetime.now()
    expected = []
    for number in range(230):
        with producer.batch() as batch:
            for event in range(number % 3):
                batch.add(event, partition=event)
        expected.append(batch.receipt)

    found = zeh_spark.receipts(url, "till-7", spark=spark)

    rows = found.orderBy("batch").collect()
    assert [each.batch for each in rows] == list(range(230))
    assert [each.events for each in rows] == [each % 3 for each in range(230)]
    assert {each.run for each in rows} == {producer.run}
    assert [[(r.partition, r.first, r.last, r.cursor) for r in each.ranges] for each in rows] == [
        [(r.partition, r.first, r.last, r.cursor) for r in each.ranges] for each in expected
    ]
    assert rows[0].positions is None
    assert (rows[1].positions.first, rows[1].positions.last) == (1, 1)
    assert all(began - timedelta(seconds=1) <= each.time <= datetime.now() for each in rows)
    assert [each.digest for each in rows] == [each.digest for each in expected]
    total = found.selectExpr("inline(ranges)").groupBy("partition").agg({"last": "max"})
    assert {row[0]: row[1] for row in total.collect()} == {0: 152, 1: 75}


def test_listener_shows_what_queries_have_published(spark, sink, inbox, target, capsys):
    """Each batch of my job: events, numbers, time, and rows not published; no other's."""
    seen, letters = [], {"deadLetterUrl": target.feed("dead")}
    sinks = [(target.url, "spark", {"token": None, **letters}), (target.url, "other")]
    listener = zeh_spark.ProgressListener(sinks=sinks, report_commit=seen.append, live=True)
    spark.streams.addListener(listener)
    try:
        inbox.add(range(30), range(30, 50), broken=range(3))
        sink.run(inbox.rows(spark), name="job", **letters)
        read = spark.readStream.format("zeroeventhub").load(f"{target.publisher}/orders")
        relay = sink.start(read, sink.folder / "relay", url=target.feed("copy"))
        assert relay.awaitTermination(PATIENCE)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)

    told = [(each.query, each.producer, each.batch_id) for each in seen]
    assert [("job", "spark", 0), ("job", "spark", 1)] == told
    assert [(27, 3), (20, 0)] == [(each.events, each.dead_letters) for each in seen]
    assert "3 dead letters" in str(seen[0])
    receipts = sorted(target.receipts("spark"), key=lambda each: each["batch"])
    ranges = [msgspec.to_builtins(each.ranges) for each in seen]
    assert [tuple(each["ranges"]) for each in receipts] == ranges
    assert [each["time"] for each in receipts] == [
        round(each.time.timestamp() * 1000) for each in seen
    ]
    assert {(seen[0].run_id, target.url, "spark"): seen[1]} == listener.commits
    lines = [line for line in capsys.readouterr().err.splitlines() if "committed at" in line]
    said = f"job  batch 1 to {target.url} as 'spark'  20 events committed at "
    assert [True] == [line.startswith(said) for line in lines[1:]]


def test_batches_of_a_frame_have_receipts(spark, url):
    """A stream's batches, and a named write, which is a producer of its own."""
    frame = spark.range(5).selectExpr("id AS key", "id")
    write = frame.write.format("zeroeventhub").options(url=url, producerId="job")
    write.option("batchId", "day").mode("append").save()

    (row,) = zeh_spark.receipts(url, "job#day").collect()

    assert (0, 5) == (row.batch, row.events)
    assert 0 == zeh_spark.receipts(url, "job").count()


def test_what_cannot_be_asked_is_an_error(spark, url):
    with pytest.raises(OptionError, match="did you mean"):
        zeh_spark.receipts(url, "job", spark=spark, tokn="x")
    with pytest.raises(PublishError, match="there is no feed 'none'"):
        zeh_spark.receipts(url.replace("orders", "none"), "job", spark=spark)
