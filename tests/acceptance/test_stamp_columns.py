"""Stamps as typed columns: time, producer, sequence number, as with Kafka's columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from pyspark.sql import functions as F

from tests.fix_lake import why_absent
from zeh_spark import dedup, lakehouse, parsed, sessions, stamped
from zeh_spark.errors import OptionError
from zeh_spark.protocol import wire
from zeh_spark.protocol.served_lines import Block
from zeh_spark.store.feed import Feed
from zeh_spark.testing import running_publisher

COLUMNS = ["partition", "timestamp", "feed", "producer", "storedPartition", "sequence", "batch"]
COLUMNS += ["headers", "data"]


@pytest.fixture
def read(spark, publisher):
    """`read(…)`: the feed as a batch frame, with options."""

    def frame(schema=None, **options):
        reader = spark.read.format("zeroeventhub").options(**options)
        return (reader.schema(schema) if schema else reader).load(publisher.url)

    return frame


def rows(frame):
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["data"])


@pytest.fixture(params=["driver", "executors"])
def way(request):
    return request.param


def test_stamps_are_headers_unless_i_ask_for_columns(publisher, read):
    """A field `timestamp` of my own data is free, and frames have one form for any publisher."""
    publisher.publish({"i": 1})
    frame = read()
    assert ["partition", "headers", "data"] == frame.columns
    assert {"zeh-producer", "zeh-time", "zeh-sequence", "zeh-feed"} < {*frame.head().headers}
    assert ["partition", "headers", "data"] == read(stamps="none").columns


def test_columns_hold_what_the_headers_hold(publisher, read, way):
    """I get time, producer and number with their types, and the map has my own headers."""
    publisher.publish({"i": 1}, {"i": 2}, partition=0)
    publisher.publish({"i": 3}, partition=1)
    frame = read(stamps="columns", fetch=way)
    assert COLUMNS == frame.columns
    assert rows(frame) == [
        {
            "partition": int(headers["zeh-partition"]),
            "timestamp": row["timestamp"],
            "feed": headers["zeh-feed"],
            "producer": headers["zeh-producer"],
            "storedPartition": int(headers["zeh-partition"]),
            "sequence": int(headers["zeh-sequence"]),
            "batch": int(headers["zeh-batch"]),
            "headers": {},
            "data": row["data"],
        }
        for row, headers in zip(
            rows(frame), [row["headers"] for row in rows(read(fetch=way))], strict=True
        )
    ]
    times = read(fetch=way).selectExpr(
        "timestamp_millis(BIGINT(headers['zeh-time'])) AS timestamp", "data"
    )
    assert [row["timestamp"] for row in rows(times)] == [row["timestamp"] for row in rows(frame)]


def test_stamped_does_the_same_for_a_frame_that_exists(publisher, read):
    """I make the columns where I need them."""
    publisher.publish(*({"i": i} for i in range(5)))
    frame = stamped(read())
    assert {*COLUMNS} == {*frame.columns}
    assert rows(read(stamps="columns")) == rows(frame.select(*COLUMNS))


def test_a_schema_may_name_any_column(publisher, read, way):
    """I get what I name, whatever the options say of headers."""
    publisher.publish({"i": 1}, {"i": 2}, partition=0)
    schema = "data STRING, sequence BIGINT, timestamp TIMESTAMP, headers MAP<STRING, STRING>"
    for headers in ("none", "_all", "color"):
        found = rows(read(schema, headers=headers, fetch=way))
        assert [["data", "sequence", "timestamp", "headers"]] * 2 == [[*row] for row in found]
        assert [0, 1] == [row["sequence"] for row in found]
        assert all(("zeh-time" in row["headers"]) == (headers == "_all") for row in found)


def test_the_position_of_a_chunk_needs_direct_reads(publisher, read):
    """It orders events over all partitions; only a plan knows it."""
    publisher.publish({"i": 1})
    publisher.publish({"i": 2})
    found = rows(read("position BIGINT, data STRING"))
    assert [1, 2] == [row["position"] for row in found]
    with pytest.raises(Exception, match="names the column 'position', which only executors"):
        read("position BIGINT, data STRING", fetch="driver").collect()


def test_events_of_an_older_epoch_keep_its_id(publisher, read, way):
    """After a restore the same numbers are other events."""
    publisher.publish({"i": 1})
    epoch = publisher.store.begin_epoch("orders")
    publisher.publish({"i": 2})
    found = rows(read("feed STRING, data STRING", headers="none", fetch=way))
    assert [epoch.epochs[0].id, epoch.epochs[1].id] == [row["feed"] for row in found]


def test_a_watermark_takes_the_time_of_an_event(publisher, stream, collected, way, tmp_path):
    """As with Kafka: withWatermark("timestamp", …)."""
    publisher.publish({"i": 1}, {"i": 2}, partition=0)
    frame = stream(url=publisher.url, stamps="columns", fetch=way).load()
    late = frame.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["sequence"])
    collected.run(late)
    assert {1: 1, 2: 1} == collected.numbers()
    # Before Spark 4.2 a foreachBatch tells no event time of the only batch of a run.
    where = str(tmp_path / "noop")
    query = late.writeStream.format("noop").option("checkpointLocation", where)
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    assert any("watermark" in each.eventTime for each in query.recentProgress)


def test_operators_take_the_columns(publisher, stream, collected):
    """drop_seen and in_order know events by typed columns as by headers."""
    publisher.publish(*({"i": i, "order": "a", "step": i} for i in range(4)))
    feed = stream(url=publisher.url, stamps="columns").load()
    once = dedup.drop_seen(feed.union(stream(url=publisher.url, stamps="columns").load()))
    session = "get_json_object(data, '$.order')"
    ordered = sessions.in_order(
        feed, session=session, sequence="get_json_object(data, '$.step')", gap_timeout=None
    )
    collected.run(once)
    assert {0: 1, 1: 1, 2: 1, 3: 1} == collected.numbers()
    assert {"new"} == {row["dedup"] for row in collected.rows}
    collected.rows.clear()
    collected.folder /= "sessions"
    collected.run(ordered)
    assert [0, 1, 2, 3] == [json.loads(row["data"])["i"] for row in collected.rows]


@pytest.mark.skipif(why_absent() is not None, reason=str(why_absent()))
def test_merged_tables_take_the_columns(publisher, read, lake):
    """The newest event of a key wins, by its number, wherever it stands in the batch."""
    publisher.publish({"id": 1, "v": "b"}, {"id": 1, "v": "a"}, {"id": 2, "v": "c"}, partition=0)
    newest_first = read(stamps="columns").orderBy(F.desc("sequence")).coalesce(1)
    lakehouse.merge(parsed(newest_first, "id INT, v STRING"), lake.at("orders"), ["id"])
    assert {(1, "a"), (2, "c")} == {(row.id, row.v) for row in lake.table().collect()}


# Refusals


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stamps": "columns", "headers": "zeh-time"}, "which stamps=columns leaves out"),
        ({"stamps": "fields"}, "must be one of headers, columns, none"),
    ],
)
def test_contradictions_are_refused(read, options, said):
    """Nothing of what I set is ignored."""
    with pytest.raises(Exception, match=said):
        read(**options)


def test_a_frame_that_has_such_a_column_is_refused(publisher, read):
    """My own `timestamp` is not replaced."""
    publisher.publish({"timestamp": "x"})
    frame = parsed(read(), "timestamp STRING")
    with pytest.raises(OptionError, match="has a column 'timestamp' already"):
        stamped(frame)
    with pytest.raises(OptionError, match="has no column 'headers'"):
        stamped(frame.drop("headers"))


def test_columns_of_mine_are_no_stamps(publisher, stream, collected):
    """A field `producer` of my data does not decide what comes twice."""
    publisher.publish({"i": 1, "producer": "x"}, {"i": 2, "producer": "x"})
    mine = stream(url=publisher.url).load().withColumn("producer", F.lit("x"))
    collected.run(dedup.drop_seen(mine))
    assert {1: 1, 2: 1} == collected.numbers()


def test_a_relay_is_told_to_drop_the_columns(publisher, read):
    """The events get stamps of their own."""
    publisher.publish({"i": 1})
    writer = read("timestamp TIMESTAMP, data STRING").write.format("zeroeventhub").mode("append")
    with pytest.raises(Exception, match="is a stamp of the feed that was read"):
        writer.options(producerId="relay", batchId="1").save(publisher.url)


class Stamped(Feed):
    """A feed of another publisher, whose events have headers like those of our publisher."""

    partitions = 1

    def __init__(self, *headers: dict[str, str]) -> None:
        self._headers = headers

    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str]
    ) -> Iterator[Block]:
        if asked[0] == "_first":
            for number, each in enumerate(self._headers):
                line = wire.event_line(0, each, b'{"i":%d}' % number)
                yield Block(0, line + b"\n", str(number))

    def version(self) -> object:
        return 0


GOOD = {"zeh-time": "1764000000000", "zeh-sequence": "7", "own": "x"}
BAD = ["x", "-1", "1.5", "9" * 19, "", "\u0661"]


@pytest.mark.parametrize("name", ["zeh-time", "zeh-sequence"])
@pytest.mark.parametrize("value", BAD)
def test_a_stamp_that_is_no_number_is_a_malformed_line(spark, name, value):
    """It stops the query, or comes as a bad line; it never becomes NULL in silence."""
    schema = "timestamp TIMESTAMP, sequence BIGINT, headers MAP<STRING, STRING>, data STRING"
    with running_publisher({"other": Stamped(GOOD, {**GOOD, name: value})}) as base:
        reader = spark.read.format("zeroeventhub").option("partitionCount", "1")
        with pytest.raises(Exception, match=f"header '{name}' is .*no number that fits"):
            reader.schema(schema).load(f"{base}/other").collect()
        reader = reader.option("mode", "PERMISSIVE")
        frame = reader.schema(f"{schema}, _corrupt_record STRING").load(f"{base}/other")
        good, bad = frame.orderBy(F.col("data").isNull()).collect()
        plain = spark.read.format("zeroeventhub").option("partitionCount", "1")
        with pytest.raises(Exception, match="no number that fits the column"):
            stamped(plain.load(f"{base}/other")).collect()
    assert (7, "x") == (good.sequence, good.headers["own"])
    assert (None, None, True) == (bad.sequence, bad.timestamp, name in bad._corrupt_record)


def test_events_without_stamps_have_null(spark):
    """Other publishers tell none."""
    with running_publisher({"other": Stamped({"own": "x"})}) as base:
        reader = spark.read.format("zeroeventhub").option("partitionCount", "1")
        (row,) = reader.option("stamps", "columns").load(f"{base}/other").collect()
    assert {"timestamp", "producer", "storedPartition", "sequence", "batch"} == {
        name for name, value in row.asDict().items() if value is None
    }
    assert ({"own": "x"}, f"{base}/other") == (row.headers, row.feed)
