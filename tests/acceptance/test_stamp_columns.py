"""Stamps as typed columns: time, producer, sequence number, as with Kafka's columns."""

import json
from collections import Counter
from datetime import datetime, timezone

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from pyspark.sql import functions as F

from tests.fix_datasource import read_plainly, write_plainly
from tests.fix_lake import why_absent
from tests.fix_raw_server import NO_IDENTITY, ok
from tests.patience import PATIENCE
from zeh_spark import dedup, lakehouse, parsed, sessions, stamped
from zeh_spark.errors import OptionError
from zeh_spark.wire import wire

COLUMNS = ["partition", "timestamp", "feed", "producer", "storedPartition", "sequence", "batch"]
COLUMNS += ["headers", "data"]
IDENTITY = "timestamp TIMESTAMP, producer STRING, storedPartition INT, sequence BIGINT"


@pytest.fixture
def read(spark, publisher):
    """`read(…)`: the feed as a batch frame, with options."""

    def frame(schema=None, **options):
        reader = spark.read.format("zeroeventhub").options(**options)
        return (reader.schema(schema) if schema else reader).load(publisher.url)

    return frame


def rows(frame):
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["data"])


WAYS = ["driver", "executors"]


def test_stamps_are_headers_unless_i_ask_for_columns(publisher):
    """A field `timestamp` of my own data is free, and frames have one form for any publisher."""
    publisher.publish({"i": 1})
    (row,) = read_plainly(publisher.url)
    assert ["partition", "headers", "data"] == [*row]
    assert {"zeh-producer", "zeh-time", "zeh-sequence", "zeh-feed"} < {*row["headers"]}
    assert [["partition", "headers", "data"]] == [
        [*row] for row in read_plainly(publisher.url, stamps="none")
    ]


def test_columns_hold_what_the_headers_hold(publisher, read):
    """I get time, producer and number with their types, and the map has my own headers."""
    publisher.publish({"i": 1}, {"i": 2}, partition=0)
    publisher.publish({"i": 3}, partition=1)
    for way in WAYS:
        found = read_plainly(publisher.url, stamps="columns", fetch=way)
        assert found == [
            {
                "partition": int(headers["zeh-partition"]),
                "timestamp": datetime.fromtimestamp(int(headers["zeh-time"]) / 1000, timezone.utc),
                "feed": headers["zeh-feed"],
                "producer": headers["zeh-producer"],
                "storedPartition": int(headers["zeh-partition"]),
                "sequence": int(headers["zeh-sequence"]),
                "batch": int(headers["zeh-batch"]),
                "headers": {},
                "data": row["data"],
            }
            for row in read_plainly(publisher.url, fetch=way)
            for headers in [row["headers"]]
        ]
    frame = read(stamps="columns")
    assert COLUMNS == frame.columns == [*found[0]]
    times = frame.selectExpr("unix_millis(timestamp) AS time", "data")
    assert [row["time"] for row in rows(times)] == [
        round(row["timestamp"].timestamp() * 1000) for row in found
    ]


def test_stamped_does_the_same_for_a_frame_that_exists(publisher, read):
    """I make the columns where I need them."""
    publisher.publish(*({"i": i} for i in range(5)))
    frame = stamped(read())
    assert {*COLUMNS} == {*frame.columns}
    assert rows(read(stamps="columns")) == rows(frame.select(*COLUMNS))


def test_the_position_of_a_chunk_needs_direct_reads(publisher):
    """It orders events over all partitions; only a plan knows it."""
    publisher.publish({"i": 1})
    publisher.publish({"i": 2})
    found = read_plainly(publisher.url, "position, data")
    assert [1, 2] == [row["position"] for row in found]
    with pytest.raises(Exception, match="names the column 'position', which only executors"):
        read_plainly(publisher.url, "position, data", fetch="driver")


def test_a_watermark_takes_the_time_of_an_event(publisher, spark, stream, tmp_path):
    """As with Kafka: withWatermark("timestamp", …)."""
    publisher.publish({"i": 1}, {"i": 2}, partition=0)
    frame = stream(url=publisher.url, stamps="columns").load()
    late = frame.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["sequence"])
    # Before Spark 4.2 a foreachBatch tells no event time of the only batch of a run.
    writer = late.writeStream.format("memory").queryName("late")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    assert ['{"i": 1}', '{"i": 2}'] == [row["data"] for row in rows(spark.table("late"))]
    assert any("watermark" in each.eventTime for each in query.recentProgress)


def test_operators_take_the_columns(publisher, stream, collected):
    """drop_seen and in_order know events by typed columns as by headers."""
    publisher.publish(*({"i": i, "order": "a", "step": i} for i in range(4)))
    feed = stream(url=publisher.url, stamps="columns").load()
    once = dedup.drop_seen(feed.union(stream(url=publisher.url, stamps="columns").load()))
    session = "get_json_object(data, '$.order')"
    step = "get_json_object(data, '$.step')"
    ordered = sessions.in_order(once, session=session, sequence=step, gap_timeout=None)

    collected.run(ordered)

    assert [0, 1, 2, 3] == [json.loads(row["data"])["i"] for row in collected.rows]
    assert {"new"} == {row["dedup"] for row in collected.rows}


@pytest.mark.parametrize(
    ("stamps", "columns", "schema", "found"),
    [
        ("columns", None, "id STRING, v INT", {"new": 1, "conflict": 1}),
        ("none", f"{IDENTITY}, data STRING", "id STRING", {"new": 1}),
        ("none", f"{IDENTITY}, data STRING", "id STRING, batch BIGINT", {"new": 1, "conflict": 1}),
        ("headers", None, "id STRING, batch BIGINT, sequence BIGINT", {"new": 1, "conflict": 2}),
    ],
)
def test_stamps_are_no_content(publisher, stream, collected, stamps, columns, schema, found):
    """A copy has stamps of its own, and is the same event. Fields of my own with names of stamps
    are compared.
    """
    event = {"id": "a", "v": 1, "batch": 1, "sequence": 7}
    for each in (event, event, {**event, "v": 2, "batch": 2}, {**event, "sequence": 8}):
        publisher.publish(each)
    reader = stream(url=publisher.url, stamps=stamps)
    feed = parsed((reader.schema(columns) if columns else reader).load(), schema)

    collected.run(dedup.drop_seen(feed, id="id"))

    assert found == Counter(row["dedup"] for row in collected.rows)


@pytest.mark.skipif(why_absent() is not None, reason=str(why_absent()))
def test_merged_tables_take_the_columns(publisher, read, lake):
    """The newest event of a key wins, by its number, wherever it stands in the batch."""
    publisher.publish({"id": 1, "v": "b"}, {"id": 1, "v": "a"}, {"id": 2, "v": "c"}, partition=0)
    newest_first = read(stamps="columns").orderBy(F.desc("sequence")).coalesce(1)
    lakehouse.merge(parsed(newest_first, "id INT, v STRING"), lake.at("orders"), ["id"])
    assert {(1, "a"), (2, "c")} == {(row.id, row.v) for row in lake.table().collect()}


# Refusals


def test_a_frame_that_has_such_a_column_is_refused(publisher, read):
    """My own `timestamp` is not replaced."""
    publisher.publish({"timestamp": "x"})
    frame = parsed(read(), "timestamp STRING")
    with pytest.raises(OptionError, match="has a column 'timestamp' already"):
        stamped(frame)
    with pytest.raises(OptionError, match="has no column 'headers'"):
        stamped(frame.drop("headers"))


def test_a_relay_is_told_to_drop_the_columns(publisher):
    """The events get stamps of their own."""
    with pytest.raises(OptionError, match="is a stamp of the feed that was read"):
        write_plainly(
            publisher.url, [{"sequence": 1, "data": "1"}], producerId="relay", batchId="1"
        )


@pytest.fixture
def other(raw_server):
    """`other(headers, …)`: another publisher's feed, whose events have these headers."""

    def serve(*headers):
        lines = b"".join(
            wire.event_line(0, each, b'{"i":%d}' % number) + b"\n"
            for number, each in enumerate(headers)
        )
        end = wire.checkpoint_line(0, "end")
        raw_server.discovery = NO_IDENTITY
        raw_server.respond = lambda request: ok(
            lines * (request.query["cursor0"] == "_first") + end
        )
        return raw_server.url

    return serve


GOOD = {"zeh-time": "1764000000000", "zeh-sequence": "7", "own": "x"}
BAD = ["x", "-1", "1.5", "9" * 19, "", "\u0661"]


def test_a_stamp_that_is_no_number_is_a_malformed_line(spark, other):
    """It stops the query, or comes as a bad line; it never becomes NULL in silence."""
    columns, one = "timestamp, sequence, headers, data, _corrupt_record", {"partitionCount": "1"}
    bad = [(name, value) for name in ("zeh-time", "zeh-sequence") for value in BAD]
    for name, value in bad:
        with pytest.raises(Exception, match=f"header '{name}' is .*no number that fits"):
            read_plainly(other({**GOOD, name: value}), "timestamp, sequence, data", **one)
    url = other(GOOD, *({**GOOD, name: value} for name, value in bad))
    found = read_plainly(url, columns, mode="PERMISSIVE", **one)
    plain = spark.read.format("zeroeventhub").options(**one)
    with pytest.raises(Exception, match="no number that fits the column"):
        stamped(plain.load(url)).collect()
    (good,) = (row for row in found if row["data"])
    assert (7, "x") == (good["sequence"], good["headers"]["own"])
    refused = [row for row in found if not row["data"]]
    assert [(None, None)] * len(bad) == [(row["sequence"], row["timestamp"]) for row in refused]
    for (name, value), row in zip(bad, refused, strict=True):
        assert f'"{name}":"{value}"' in row["_corrupt_record"]


def test_events_without_stamps_have_null(other):
    """Other publishers tell none."""
    url = other({"own": "x"})
    (row,) = read_plainly(url, stamps="columns", partitionCount="1")
    assert {"timestamp", "producer", "storedPartition", "sequence", "batch"} == {
        name for name, value in row.items() if value is None
    }
    assert ({"own": "x"}, url) == (row["headers"], row["feed"])
