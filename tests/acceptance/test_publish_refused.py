"""What the sink refuses to publish, or to be used for, and the words in which it does."""

from contextlib import closing

import pytest
import requests

from tests.fix_datasource import write_plainly
from tests.fix_publisher import store_url
from tests.fix_raw_server import ok, refused
from tests.fix_sink import ours
from tests.patience import PATIENCE
from zeh_spark.errors import PublisherError, RowError
from zeh_spark.publisher import open_store

HUSH = "hush-secret-token"


def numbers(spark, count):
    return spark.range(count).selectExpr("id AS i")


# What cannot be published; `tests/unit/sink/test_rows.py` has all of it


def test_a_task_that_meets_a_bad_row_takes_back_what_it_sent(target, spark, fail_write):
    """F23: row and reason are named, nothing is published, and trying again fills no disk."""
    text = "CASE WHEN id = 49999 THEN 'x{' ELSE concat('\"', uuid(), repeat('x', 100), '\"') END"
    frame = spark.sql(f"SELECT {text} AS data FROM range(0, 50000, 1, 1)")

    said = fail_write(frame, batchId="bad", uploadBytes="64k")

    where = "RowError: Spark partition 0: row 49999 of this task cannot be published"
    assert said.startswith(f"{where}: data: not JSON: ")
    assert target.events() == []
    (release,) = target.gateway.asked("DELETE ")
    left = requests.delete(f"{target.publisher}{release.target.partition('&')[0]}", timeout=10)
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


def test_a_stream_continues_when_rows_that_break_the_schema_are_filtered(
    sink, inbox, spark, tmp_path
):
    """The row and the place are named; the batch comes again without it, once (CN-02)."""
    with closing(open_store(store_url(tmp_path / "store"))) as store:
        store.set_schema("orders", b'{"properties": {"i": {"type": "integer", "maximum": 450}}}')
    inbox.add(range(300), range(300, 452))

    said = sink.fail(inbox.rows(spark))
    sink.run(inbox.rows(spark).where("data NOT LIKE '%451%'"))

    assert "wrong-events: 1 event of this upload breaks version 1" in said
    assert """'{"i": 451}': /i: '451 is greater than the maximum of 450'""" in said
    sink.target.check_once(range(451))


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


def test_a_write_needs_a_name(target, spark, fail_write):
    """Else rows written again would be there twice. The driver tells it, before any task fails."""
    rows = spark.range(10).selectExpr("IF(id >= 0, raise_error('computed'), '') AS data")

    said = fail_write(rows)

    assert said.startswith("OptionError: option 'batchId' is missing: df.write needs a name")
    assert target.gateway.requests == []


def test_an_unknown_feed_is_named(target):
    """And how to make one."""
    with pytest.raises(PublisherError, match=r"there is no feed 'nope'.*make the feed: zeh-spark"):
        write_plainly(target.feed("nope"), [{"i": 1}], producerId="p", batchId="a")


def test_rows_that_are_too_long_are_shown_as_they_are(target):
    """Not as a line of the feed."""
    row = {"id": 7, "text": "x" * 70000}

    with pytest.raises(RowError, match="the event takes 70,0") as raised:
        write_plainly(target.url, [row], producerId="p", batchId="a")

    assert """: '{"id":7,"text":"xxx""" in str(raised.value)
    assert '"headers"' not in str(raised.value)


@pytest.mark.parametrize(
    "answer", [refused(404, "no such page"), ok(b"{}"), ok(b'{"cursor":"1","partition":0}\n')]
)
def test_a_server_that_takes_no_batches_is_named(answer, raw_server):
    """A feed of another publisher has no way to publish."""
    raw_server.script(answer)

    with pytest.raises(PublisherError, match="zeh_spark"):
        write_plainly(raw_server.url, [{"i": 1}], producerId="p", batchId="a")


# Secrets


@pytest.mark.parametrize(
    ("where", "secrets", "sent"),
    [
        ("url", {"token": HUSH, "http.secret.header.X-Key": HUSH}, {"x-key": HUSH}),
        ("deadLetterUrl", {"token": f"{HUSH}-of-rows", "deadLetterToken": HUSH}, {}),
    ],
)
def test_a_token_is_sent_and_never_shown(
    where, secrets, sent, sink, inbox, raw_server, spark, spark_log, capfd
):
    """In no plan, error, log or checkpoint, though publishers repeat it; nor that for letters."""
    inbox.add(range(10))
    raw_server.script(refused(401, f"what is {HUSH}?"))
    at = {where: f"{raw_server.url}?key={HUSH}" if where == "url" else raw_server.url}
    query = sink.start(inbox.rows(spark), **at, **secrets)

    with pytest.raises(Exception) as raised:
        query.awaitTermination(PATIENCE)
    query.explain(True)

    sent = {"authorization": f"Bearer {HUSH}", **sent}
    assert sent.items() <= raw_server.requests[0].headers.items()
    assert "AccessError: " in ours(raised.value)
    files = (each.read_text("latin-1") for each in sink.checkpoint.rglob("*") if each.is_file())
    log = spark_log()
    assert "MicroBatchExecution" in log
    shown = (str(raised.value), log, *capfd.readouterr(), *files)
    assert not [each for each in shown if HUSH in each]
