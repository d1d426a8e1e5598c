"""Keys of events, as users of Kafka expect them: what is published with a key is read with it."""

from __future__ import annotations

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from zeh_spark import stamped
from zeh_spark.protocol import partitioning
from zeh_spark.publisher import upload_validation

KEYS = ["c-4", "", "ø\U0001f600", 'say "x"', "two\nlines", "back\\slash", "ä" * 512, None]


@pytest.fixture
def write(spark, publisher):
    """`write(keys, …)`: publish an event for each key, with its number, and keep the keys."""

    def publish(keys, batch="1", *, key_type="STRING", **options):
        rows = [(key, str(number)) for number, key in enumerate(keys)]
        frame = spark.createDataFrame(rows, f"key {key_type}, data STRING").coalesce(1)
        given = {"producerId": "orders-job", "batchId": batch, "keepKey": "true", **options}
        frame.write.format("zeroeventhub").mode("append").options(**given).save(publisher.url)

    return publish


@pytest.fixture(params=["driver", "executors"])
def way(request):
    return request.param


@pytest.fixture
def read(spark, publisher):
    def frame(schema=None, **options):
        reader = spark.read.format("zeroeventhub").options(**options)
        return (reader.schema(schema) if schema else reader).load(publisher.url)

    return frame


def keyed(rows):
    return [row["key"] for row in sorted(rows, key=lambda row: int(row["data"]))]


def test_i_read_the_keys_that_i_published_with(write, read, way):
    """As with Kafka: key and value go in, key and value come out."""
    write(KEYS)
    for headers in ("none", "_all", "color"):
        frame = read("key STRING, data STRING", fetch=way, headers=headers)
        assert KEYS == keyed(frame.collect())


@pytest.mark.slow
def test_a_stream_has_the_keys(spark, publisher, read, stream, collected, tmp_path, way):
    """Published by a stream, and read by one."""
    schema = "key STRING, data STRING"
    lines = [f"{number}" for number in range(20)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("".join(line + "\n" for line in lines))
    incoming = spark.readStream.text(str(tmp_path / "in"))
    frame = incoming.selectExpr(
        "IF(value = '7', NULL, concat('c-', value)) AS key", "value AS data"
    )
    query = (
        frame.writeStream.format("zeroeventhub").queryName("orders-job").trigger(availableNow=True)
        .option("url", publisher.url).option("keepKey", "true")
        .option("checkpointLocation", str(tmp_path / "publishing")).start()
    )  # fmt: skip
    query.awaitTermination()

    collected.run(stream(url=publisher.url, fetch=way).schema(schema).load())

    expected = [None if line == "7" else f"c-{line}" for line in lines]
    assert expected == keyed(collected.rows)


def test_integers_are_read_as_their_text(write, read, way):
    """The text that chose the partition, for any type."""
    write([7, -(2**63), None], key_type="BIGINT")
    frame = read("key STRING, storedPartition INT, data STRING", fetch=way)
    rows = frame.collect()
    assert ["7", str(-(2**63)), None] == keyed(rows)
    assert all(
        row["storedPartition"] == partitioning.partition_of(row["key"], 2)
        for row in rows
        if row["key"]
    )


def test_events_without_the_header_have_no_key(publisher, write, read, way):
    """Of a writer that keeps none, and of a feed of before."""
    publisher.publish(7, partition=0)
    write(["a", "b"], keepKey="false")
    frame = read("key STRING, headers MAP<STRING, STRING>, data STRING", fetch=way)
    assert [None] * 3 == keyed(frame.collect())


def test_the_header_is_in_the_map_only_with_the_stamps(write, read, way):
    """It is no header of my event's own. Without a schema, frames have the columns they had."""
    write(["a"])
    shown = {how: read(fetch=way, stamps=how).head() for how in ("headers", "columns", "none")}
    assert "a" == shown["headers"].headers["zeh-key"]
    assert {} == shown["columns"].headers == shown["none"].headers
    assert all("key" not in row for row in shown.values())


def test_stamped_adds_the_key_on_request(write, read):
    """By default it does what stamps=columns does, and a field `key` of mine is free."""
    write(["a", None])
    assert "key" not in stamped(read()).columns
    frame = stamped(read(), key=True)
    assert ["a", None] == keyed(frame.collect())
    assert [{}, {}] == [row.headers for row in frame.collect()]
    with pytest.raises(Exception, match="has a column 'key' already"):
        stamped(read().withColumnRenamed("partition", "KEY"), key=True)


def test_a_whole_row_as_the_event_keeps_its_key(spark, publisher, read):
    frame = spark.sql("SELECT 'c-4' AS key, 5 AS amount")
    options = {"producerId": "p", "batchId": "1", "keepKey": "true"}
    frame.write.format("zeroeventhub").mode("append").options(**options).save(publisher.url)
    (row,) = read("key STRING, data STRING").collect()
    assert ("c-4", '{"key":"c-4","amount":5}') == (row.key, row.data)


@pytest.mark.slow
def test_a_relay_keeps_the_keys_that_it_reads(spark, publisher, write, read):
    """With the column key and the option; without it the copy has no keys."""
    write(["a", "b", None])
    publisher.store.create("copy", 2)
    publisher.store.create("plain", 2)
    frame = read("key STRING, headers MAP<STRING, STRING>, data STRING")
    for feed, keeps in (("copy", "true"), ("plain", "false")):
        options = {"producerId": "relay", "batchId": "1", "keepKey": keeps}
        write = frame.write.format("zeroeventhub").mode("append").options(**options)
        write.save(f"{publisher.base}/{feed}")
    reader = spark.read.format("zeroeventhub").schema("key STRING, data STRING")
    assert ["a", "b", None] == keyed(reader.load(f"{publisher.base}/copy").collect())
    assert [None] * 3 == keyed(reader.load(f"{publisher.base}/plain").collect())


# What is refused


def test_the_same_batch_with_another_key_is_refused(write, read):
    """A key is content: the difference is told, and the first batch stays."""
    write(["a", "b"], "2026-11-24")
    write(["a", "b"], "2026-11-24")  # the same adds nothing
    for others in (["a", "x"], ["a", None]):
        with pytest.raises(Exception, match="batch-conflict"):
            write(others, "2026-11-24")
    with pytest.raises(Exception, match="batch-conflict"):
        write(["a", "b"], "2026-11-24", keepKey="false")
    assert ["a", "b"] == keyed(read("key STRING, data STRING").collect())


def test_a_key_that_is_too_long_is_its_rows_error(spark, publisher, write, read):
    """Named, or a dead letter with the whole key."""
    with pytest.raises(Exception, match=r"row 1 .* key: it takes 1,025 bytes in UTF-8"):
        write(["a", "x" * 1025])
    publisher.store.create("dead", 2)
    write(["a", "x" * 1025, "y" * 1024], deadLetterUrl=f"{publisher.base}/dead")
    assert ["a", "y" * 1024] == keyed(read("key STRING, data STRING").collect())
    (letter,) = spark.read.format("zeroeventhub").load(f"{publisher.base}/dead").collect()
    assert f'"key":"{"x" * 1025}"' in letter.data
    assert "at most 1,024 are kept in zeh-key" in letter.data


def test_a_frame_without_keys_is_refused(spark, publisher):
    write = spark.sql("SELECT '1' AS data").write.format("zeroeventhub").mode("append")
    write = write.options(producerId="p", batchId="1", keepKey="true")
    with pytest.raises(Exception, match=r"keepKey=true needs the column key.* leave out keepKey"):
        write.save(publisher.url)


def test_an_older_publisher_is_named(write, monkeypatch):
    """It does not know the header; the error says what to update, and where the event is."""
    monkeypatch.setattr(upload_validation, "_OF_WRITERS", {})
    said = r"older than the option keepKey.*'zeh-key' \(chunk 0, line 0: .*Update the publisher"
    with pytest.raises(Exception, match=said):
        write(["a"])
