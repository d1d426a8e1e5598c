"""What a user reads when a batch is refused, and that what it advises works: once, and never again.

The letters and numbers are those of the failure modes, see tests/README.md.
"""

import json
import re
import shutil

import pyarrow as pa
import pytest

from tests.fix_sink import ours, remedy
from tests.patience import PATIENCE
from zeh_spark.client.publish_client import BatchCall, TaskDone
from zeh_spark.sink.options import sink_options
from zeh_spark.sink.row_layout import RowLayout
from zeh_spark.sink.writer import StreamWriter, stage

# Batches that do not fit what was published


def test_a_lost_checkpoint_is_refused(sink, inbox, spark):
    """F12: batch 0 of a new checkpoint is not taken for the old one; both sides are named."""
    inbox.add(range(300), range(300, 600))
    sink.run(inbox.rows(spark))
    shutil.rmtree(sink.checkpoint)

    said = sink.fail(inbox.rows(spark))

    assert re.search(
        r"'spark' is used by incarnation '[\w-]{36}' \(a Spark checkpoint\), which has published "
        r"up to batch 1, .* this call comes from incarnation '[\w-]{36}': a new or lost checkpoint",
        said,
    )
    sink.target.check_once(range(600))


def test_a_new_checkpoint_continues_as_the_error_says(sink, inbox, spark):
    """F12, A2: replaceIncarnation, left switched on, does not let a third checkpoint in."""
    inbox.add(range(300), range(300, 600))
    sink.run(inbox.rows(spark))
    new_start(sink, inbox, range(600, 900))

    option = remedy(sink.fail(inbox.rows(spark)))
    sink.run(inbox.rows(spark), **option)
    inbox.add(range(900, 1000))
    sink.run(inbox.rows(spark), **option)
    new_start(sink, inbox, range(1000, 1100))
    again = remedy(sink.fail(inbox.rows(spark), **option))

    assert option.keys() == again.keys() == {"replaceIncarnation"}
    assert option != again
    sink.target.check_once(range(1000))


def new_start(sink, inbox, numbers):
    shutil.rmtree(sink.checkpoint)
    inbox.clear()
    inbox.add(numbers)


def test_a_query_that_gives_other_rows_is_refused(sink, inbox, spark):
    """F9: rand() in the plan, and Spark repeats a batch: both contents are named."""
    inbox.add(range(300), range(300, 600))
    sink.run(with_chance(inbox, spark))
    sink.forget(1)

    said = sink.fail(with_chance(inbox, spark))

    assert re.search(
        r"batch 1 of producer 'spark' was published at .* with other rows: 300 events, content "
        r"[0-9a-f]{32}; now it has 300 events, content [0-9a-f]{32}; .*look for what",
        said,
    )
    sink.target.check_once(range(600))


def test_a_first_batch_is_kept_as_the_error_says(sink, inbox, spark, spark_log):
    """F9, A2: keepFirst, left switched on, keeps no other batch. The log says what was dropped."""
    inbox.add(range(300), range(300, 600))
    sink.run(with_chance(inbox, spark))
    sink.forget(1)
    option = remedy(sink.fail(with_chance(inbox, spark)))
    inbox.add(range(600, 900))

    sink.run(with_chance(inbox, spark), **option)
    assert "keepFirst keeps the 300 events published under this name at" in spark_log()
    sink.forget(2)
    again = remedy(sink.fail(with_chance(inbox, spark), **option))

    assert option.keys() == again.keys() == {"keepFirst"}
    assert option != again
    sink.target.check_once(range(900))


def with_chance(inbox, spark):
    number = "INT(get_json_object(data, '$.i'))"
    return inbox.rows(spark).selectExpr(f"to_json(struct({number} AS i, rand() AS r)) AS data")


def test_a_rolled_back_checkpoint_that_cuts_otherwise_is_refused(sink, inbox, spark):
    """F13: what was batch 2 alone is now the rows of 2 and 3."""
    inbox.add(range(300), range(300, 600))
    sink.run(inbox.rows(spark))
    backup = shutil.copytree(sink.checkpoint, sink.folder / "backup")
    inbox.add(range(600, 700), range(700, 800))
    sink.run(inbox.rows(spark))

    said = sink.fail(inbox.rows(spark, at_once=2), backup)

    assert "batch 2 of producer 'spark' was published at" in said
    assert "with other rows: 100 events" in said
    assert "now it has 200 events" in said
    sink.target.check_once(range(800))


def test_a_sink_that_is_new_on_an_old_checkpoint_joins_as_the_error_says(sink, inbox, spark):
    """F18, A1: acceptGap lets batch 2 be the first one, and is inert afterwards."""
    inbox.add(range(300), range(300, 600))
    sink.run(inbox.rows(spark), url=sink.target.feed("copy"))
    inbox.add(range(600, 900), range(900, 1000))

    said = sink.fail(inbox.rows(spark))
    sink.run(inbox.rows(spark), **remedy(said))
    sink.forget(3)
    sink.run(inbox.rows(spark), **remedy(said))

    assert "batch 2 of producer 'spark' is the first that this feed sees" in said
    assert remedy(said)["acceptGap"].endswith("-1:2")
    sink.target.check_once(range(600, 1000))


def test_a_driver_that_was_overtaken_is_told_so(sink, inbox, spark):
    """F7: it sleeps in a commit, while another run on its checkpoint publishes that batch and the
    next one.
    """
    inbox.add(range(300), range(300, 600), range(600, 900))
    come, go = sink.target.gateway.hold("POST .*/batches/1/commit")
    query = sink.start(inbox.rows(spark))
    assert come.wait(PATIENCE)
    publish_as_another_run(sink.target.url, query.id, 1, range(300, 600))
    publish_as_another_run(sink.target.url, query.id, 2, range(600, 900))

    go.set()
    with pytest.raises(Exception) as raised:
        query.awaitTermination(PATIENCE)

    assert re.search("run '[0-9a-f-]{36}' of producer 'spark' was overtaken", ours(raised.value))
    assert "two drivers run on one checkpoint; stop one of them" in ours(raised.value)
    sink.target.check_once(range(900))


def publish_as_another_run(url, query, number, rows):
    """What the sink does in tasks and in the driver."""
    options = sink_options({"url": url, "producerId": "spark"}, streaming=True)
    batch = BatchCall("spark", query, "another-run", number)
    frame = pa.RecordBatch.from_pydict({"data": [json.dumps({"i": i}) for i in rows]})
    text = RowLayout(("data",), text=True)
    staged = stage(options, text, batch, TaskDone(0, 0), iter([frame]))
    StreamWriter(options, text).commit([staged], number)


def test_other_rows_under_a_batchs_name_are_refused(target, spark, write, fail_write):
    """Nothing is added, and keepFirst, as printed, keeps what is there."""
    write(numbers(spark, 100), batchId="2026-11-20")

    said = fail_write(numbers(spark, 90), batchId="2026-11-20")
    write(numbers(spark, 90), batchId="2026-11-20", **remedy(said))

    assert "batch 0 of producer 'spark#2026-11-20' was published" in said
    assert "100 events" in said
    assert "now it has 90 events" in said
    target.check_once(range(100))


def test_two_writes_in_a_streams_batch_need_two_producers(sink, inbox, spark, write):
    """Within foreachBatch both would be the stream's batch 0."""
    inbox.add(range(100))

    def publish(frame, batch):
        write(frame.where("data NOT LIKE '%5}'"), producerId="most", batchId="stream")
        write(frame.where("data LIKE '%5}'"), producerId=others, batchId="stream")

    def run():
        writer = inbox.rows(spark).writeStream.foreachBatch(publish).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(sink.checkpoint)).start()
        sink.queries.append(query)
        query.awaitTermination(PATIENCE)

    others = "most"
    with pytest.raises(Exception) as raised:
        run()
    others = "few"
    run()

    assert "other rows: 90 events" in str(raised.value)
    assert "a second write in the same foreachBatch" in str(raised.value)
    sink.target.check_once(range(100))


def numbers(spark, count):
    return spark.range(count).selectExpr("id AS i")
