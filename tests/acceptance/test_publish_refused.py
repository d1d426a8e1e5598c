"""What the sink refuses to publish, or to be used for, and the words in which it does."""

import pytest
import requests

from tests.fix_raw_server import ok, refused
from tests.fix_sink import ours
from tests.patience import PATIENCE

HUSH = "hush-secret-token"


def numbers(spark, count):
    return spark.range(count).selectExpr("id AS i")


# What cannot be published


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("IF(id = 7, 'x{', '1') AS data", "data: not JSON: "),
        ("IF(id = 7, 'null', '1') AS data", "data: the JSON null"),
        ("IF(id = 7, NULL, '1') AS data", "data is NULL"),
        ("id AS i, repeat('x', IF(id = 7, 70000, 1)) AS x", "the event takes 70,0"),
        ("'1' AS data, IF(id = 7, 3, 0) AS partition", "the partition is not in 0 to 2: '3'"),
        ("IF(id = 7, double('NaN'), 1.5D) AS x", "x: JSON has no NaN"),
        ("'1' AS data, map('a', IF(id = 7, NULL, 'b')) AS headers", "headers: the value of a"),
    ],
)
def test_a_bad_row_fails_its_batch(rows, reason, target, spark, fail_write):
    """F23: row and reason are named; nothing of the batch is published, other rows neither."""
    frame = spark.sql(f"SELECT {rows} FROM range(0, 100, 1, 1)")

    said = fail_write(frame, batchId="bad")

    where = "RowError: Spark partition 0: row 7 of this task cannot be published"
    assert said.startswith(f"{where}: {reason}")
    assert target.events() == []


def test_a_task_that_meets_a_bad_row_takes_back_what_it_sent(target, spark, fail_write):
    """However often such a write is tried, it fills no disk."""
    text = "CASE WHEN id = 49999 THEN '{' ELSE concat('\"', uuid(), repeat('x', 100), '\"') END"
    frame = spark.sql(f"SELECT {text} AS data FROM range(0, 50000, 1, 1)")

    said = fail_write(frame, batchId="bad", uploadBytes="64k")

    (release,) = target.gateway.asked("DELETE ")
    left = requests.delete(f"{target.publisher}{release.target.partition('&')[0]}", timeout=10)
    assert "row 49999 of this task" in said
    assert target.gateway.count("PUT ") > 1
    assert {"released": 0} == left.json()


def test_a_stream_continues_when_its_bad_row_is_filtered(sink, inbox, spark):
    """F23: the batch fails, and comes again without the row."""
    inbox.add(range(300), range(300, 600))
    broken = "IF(data LIKE '%450}', concat(data, '}'), data) AS data"

    said = sink.fail(inbox.rows(spark).selectExpr(broken))
    sink.run(inbox.rows(spark).where("data NOT LIKE '%450}'"))

    assert "cannot be published: data: not JSON" in said
    sink.target.check_once([*range(450), *range(451, 600)])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("'1' AS data, 2 AS amount", "the column 'amount' has no meaning beside 'data'"),
        ("'1' AS data, 2 AS key, 1 AS partition", "the column 'key' contradicts 'partition'"),
        ("1 AS data", "the column 'data' is INT, which is no event"),
        ("1 AS i, 2 AS partition", "the column 'partition' has a meaning only beside 'data'"),
    ],
)
def test_a_column_without_a_meaning_is_refused(rows, said, target, spark, fail_write):
    """By its name, before a task runs."""
    assert said in fail_write(spark.sql(f"SELECT {rows}"), batchId="bad")
    assert target.gateway.requests == []


# Modes and triggers


def test_overwriting_is_refused(spark, fail_write):
    """Events that are published stay."""
    assert fail_write(numbers(spark, 1), batchId="a", mode="overwrite").startswith(
        "OptionError: mode('overwrite') is refused"
    )


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("complete", r"OptionError: \[ZEH_OPTION\] outputMode\('complete'\) is refused"),
        ("update", "does not support Update mode"),
    ],
)
def test_other_output_modes_are_refused(mode, said, sink, inbox, spark):
    """Results that change cannot be taken back; update is refused by Spark."""
    inbox.add(range(10))
    counted = inbox.rows(spark).groupBy("data").count()

    with pytest.raises(Exception, match=said):
        sink.run(counted, mode=mode)


def test_asynchronous_progress_is_refused(sink, inbox, spark):
    """By Spark: its batches could be cut otherwise when they come again."""
    inbox.add(range(10))

    with pytest.raises(Exception, match="does not support async progress tracking"):
        sink.run(inbox.rows(spark), asyncProgressTrackingEnabled="true")


def test_a_continuous_trigger_acknowledges_nothing(sink, spark):
    """Spark would give it no rows, and take its commits: they fail, and no offset is passed."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", 100).load()

    query = sink.start(rate.selectExpr("value AS i"), trigger={"continuous": "200 milliseconds"})
    while not (sink.checkpoint / "offsets" / "4").exists():
        assert not query.awaitTermination(0.1)
    query.stop()

    assert list((sink.checkpoint / "commits").glob("[0-9]*")) == []
    assert sink.target.events() == []


# Options


def test_a_producer_is_needed(sink, inbox, spark):
    """Who publishes has a name for life."""
    inbox.add(range(10))

    assert sink.fail(inbox.rows(spark), producerId=None).startswith(
        "OptionError: option 'producerId' is missing"
    )


def test_a_querys_name_is_its_producer(sink, inbox, spark):
    """Where none is given."""
    inbox.add(range(10))

    sink.run(inbox.rows(spark), producerId=None, name="named")

    assert sink.target.batches("named") == [0]


def test_a_write_needs_a_name(target, spark, fail_write):
    """Else the same rows, written again, would be there twice. The driver tells it: each task would
    fail otherwise.
    """
    rows = spark.range(10).selectExpr("IF(id >= 0, raise_error('computed'), '') AS data")

    said = fail_write(rows)

    assert said.startswith("OptionError: option 'batchId' is missing: df.write needs a name")
    assert target.gateway.requests == []


def test_a_write_that_takes_the_streams_name_needs_a_stream(target, spark, fail_write):
    """batchId=stream means nothing outside of a foreachBatch."""
    said = fail_write(numbers(spark, 10), batchId="stream")

    assert said.startswith("OptionError: option 'batchId' is 'stream', and this write is not in a")
    assert target.events() == []


def test_a_streams_batches_have_no_other_names(sink, inbox, spark):
    """batchId is for df.write."""
    inbox.add(range(10))

    assert sink.fail(inbox.rows(spark), batchId="x").startswith(
        "OptionError: option 'batchId' is for df.write"
    )


def test_another_partition_count_is_refused(target, spark, fail_write):
    """A user who counts on four partitions is told that there are three."""
    said = fail_write(numbers(spark, 10), batchId="a", partitionCount="4")

    assert said.startswith("OptionError: option 'partitionCount' is 4, but the feed")
    assert "has 3 partitions" in said
    assert target.events() == []


def test_an_unknown_feed_is_named(target, spark, fail_write):
    """And how to make one."""
    said = fail_write(numbers(spark, 10), batchId="a", url=target.feed("nope"))

    assert "there is no feed 'nope'" in said
    assert "make the feed: zeh-spark create" in said


def test_rows_that_are_too_long_are_shown_as_they_are(spark, fail_write):
    """Not as a line of the feed."""
    said = fail_write(spark.sql("SELECT 7 AS id, repeat('x', 70000) AS text"), batchId="a")

    assert "the event takes 70,0" in said
    assert """: '{"id":7,"text":"xxx""" in said
    assert '"headers"' not in said


@pytest.mark.parametrize(
    "answer", [refused(404, "no such page"), ok(b"{}"), ok(b'{"cursor":"1","partition":0}\n')]
)
def test_a_server_that_takes_no_batches_is_named(answer, raw_server, spark, fail_write):
    """A feed of another publisher has no way to publish."""
    raw_server.script(answer)

    said = fail_write(numbers(spark, 10), batchId="a", url=raw_server.url)

    assert said.startswith("PublisherError: ")
    assert "zeh_spark" in said


# Secrets


def test_a_token_is_sent_and_never_shown(sink, inbox, raw_server, spark, spark_log, capfd):
    """Neither plan nor error, log or checkpoint has it, though the publisher repeats it."""
    inbox.add(range(10))
    raw_server.script(refused(401, f"what is {HUSH}?"))
    secrets = {"token": HUSH, "http.secret.header.X-Key": HUSH}
    query = sink.start(inbox.rows(spark), url=f"{raw_server.url}?key={HUSH}", **secrets)

    with pytest.raises(Exception) as raised:
        query.awaitTermination(PATIENCE)
    query.explain(True)

    sent = raw_server.requests[0].headers
    assert (f"Bearer {HUSH}", HUSH) == (sent["authorization"], sent["x-key"])
    assert "AccessError: " in ours(raised.value)
    files = (each.read_text("latin-1") for each in sink.checkpoint.rglob("*") if each.is_file())
    log = spark_log()
    assert "MicroBatchExecution" in log
    shown = (str(raised.value), log, *capfd.readouterr(), *files)
    assert not [each for each in shown if HUSH in each]
