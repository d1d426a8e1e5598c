"""Keys of events, as users of Kafka expect them: what is published with a key is read with it."""

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from pyspark.sql import DataFrame

from tests.fix_datasource import read_plainly, write_plainly
from zeh_spark import stamped

KEYS = ["c-4", "", "ø\U0001f600", 'say "x"', "two\nlines", "back\\slash", "ä" * 512, None]
WAYS = ["driver", "executors"]


@pytest.fixture
def write(publisher):
    """`write(keys, …)`: publish an event for each key, with its number, and keep the keys."""

    def publish(keys, batch="1", url=publisher.url, **options):
        rows = [{"key": key, "data": str(number)} for number, key in enumerate(keys)]
        given = {"producerId": "orders-job", "batchId": batch, "keepKey": "true", **options}
        write_plainly(url, rows, **given)

    return publish


def keyed(rows):
    return [row["key"] for row in sorted(rows, key=lambda row: int(row["data"]))]


def test_i_read_the_keys_that_i_published_with(spark, publisher):
    """As with Kafka: key and value go in, key and value come out, whoever fetches."""
    rows = [(key, str(number)) for number, key in enumerate(KEYS)]
    writer = spark.createDataFrame(rows, "key STRING, data STRING").write.format("zeroeventhub")
    options = {"producerId": "orders-job", "batchId": "1", "keepKey": "true"}
    writer.mode("append").options(**options).save(publisher.url)

    reader = spark.read.format("zeroeventhub").schema("key STRING, data STRING")
    assert KEYS == keyed(reader.load(publisher.url).collect())
    for way in WAYS:
        for headers in ("none", "_all", "color"):
            found = read_plainly(publisher.url, "key, data", fetch=way, headers=headers)
            assert KEYS == keyed(found)


@pytest.mark.slow
def test_a_stream_has_the_keys(spark, publisher, stream, collected, tmp_path):
    """Published by a stream, and read by one, whoever fetches."""
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

    readers = (stream(url=publisher.url, fetch=way).schema(schema).load() for way in WAYS)
    collected.run(DataFrame.union(*readers))

    expected = [None if line == "7" else f"c-{line}" for line in lines for _ in WAYS]
    assert expected == keyed(collected.rows)


def test_the_header_is_in_the_map_only_with_the_stamps(publisher, write):
    """It is no header of my event's own. Without a schema, frames have the columns they had."""
    write(["a"])
    for way in WAYS:
        shown = {
            how: read_plainly(publisher.url, fetch=way, stamps=how)[0]
            for how in ("headers", "columns", "none")
        }
        assert "a" == shown["headers"]["headers"]["zeh-key"]
        assert {} == shown["columns"]["headers"] == shown["none"]["headers"]
        assert all("key" not in row for row in shown.values())


def test_stamped_adds_the_key_on_request(spark, publisher, write):
    """By default it does what stamps=columns does, and a field `key` of mine is free."""
    write(["a", None])
    frame = spark.read.format("zeroeventhub").load(publisher.url)
    assert "key" not in stamped(frame).columns
    rows = stamped(frame, key=True).collect()
    assert ["a", None] == keyed(rows)
    assert [{}, {}] == [row.headers for row in rows]
    with pytest.raises(Exception, match="has a column 'key' already"):
        stamped(frame.withColumnRenamed("partition", "KEY"), key=True)


# What is refused


def test_the_same_batch_with_another_key_is_refused(write, publisher):
    """A key is content: the difference is told, and the first batch stays."""
    write(["a", "b"], "2026-11-24")
    write(["a", "b"], "2026-11-24")  # the same adds nothing
    for others in (["a", "x"], ["a", None]):
        with pytest.raises(Exception, match="batch-conflict"):
            write(others, "2026-11-24")
    with pytest.raises(Exception, match="batch-conflict"):
        write(["a", "b"], "2026-11-24", keepKey="false")
    assert ["a", "b"] == keyed(read_plainly(publisher.url, "key, data"))
