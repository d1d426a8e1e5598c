"""What a user reads when a batch is refused, and that what it advises works: once, and never again.

The letters and numbers are those of the failure modes, see tests/README.md.
"""

import re
import shutil
import uuid

import pytest

from tests.fix_datasource import PlainQuery, write_plainly
from tests.fix_sink import remedy
from zeh_spark.errors import OptionError, PublishError
from zeh_spark.spark.sink.row_layout import layout

# On Spark


def test_a_new_checkpoint_continues_as_the_error_says(sink, inbox, spark):
    """F12, A2: batch 0 of a new checkpoint is not taken for the old one, and both sides are named.
    replaceIncarnation, left switched on, does not let a third checkpoint in.
    """
    inbox.add(range(300), range(300, 600))
    sink.run(inbox.rows(spark))
    new_start(sink, inbox, range(600, 900))

    said = sink.fail(inbox.rows(spark))
    option = remedy(said)
    sink.run(inbox.rows(spark), **option)
    inbox.add(range(900, 1000))
    sink.run(inbox.rows(spark), **option)
    new_start(sink, inbox, range(1000, 1100))
    again = remedy(sink.fail(inbox.rows(spark), **option))

    assert re.search(
        r"'spark' is used by incarnation '[\w-]{36}' \(a Spark checkpoint\), which has published "
        r"up to batch 1, .* this call comes from incarnation '[\w-]{36}': a new or lost checkpoint",
        said,
    )
    assert option.keys() == again.keys() == {"replaceIncarnation"}
    assert option != again
    sink.target.check_once(range(1000))


def new_start(sink, inbox, numbers):
    shutil.rmtree(sink.checkpoint)
    inbox.clear()
    inbox.add(numbers)


def test_a_query_that_gives_other_rows_is_refused(sink, inbox, spark, spark_log):
    """F9, A2: rand() in the plan, and Spark repeats a batch: both contents are named. keepFirst,
    left switched on, keeps no other batch. The log says what was dropped.
    """
    inbox.add(range(300), range(300, 600))
    sink.run(with_chance(inbox, spark))
    sink.forget(1)
    said = sink.fail(with_chance(inbox, spark))
    option = remedy(said)
    inbox.add(range(600, 900))

    sink.run(with_chance(inbox, spark), **option)
    assert "keepFirst keeps the 300 events published under this name at" in spark_log()
    sink.forget(2)
    again = remedy(sink.fail(with_chance(inbox, spark), **option))

    assert re.search(
        r"batch 1 of producer 'spark' was published at .* with other rows: 300 events, content "
        r"[0-9a-f]{32}; now it has 300 events, content [0-9a-f]{32}; .*look for what",
        said,
    )
    assert option.keys() == again.keys() == {"keepFirst"}
    assert option != again
    sink.target.check_once(range(900))


AT = "timestamp'2026-03-01 10:00:00.000001Z' AS at, CAST(NULL AS STRING) AS note"


@pytest.mark.parametrize(
    ("columns", "rest"),
    [
        (f"'1' AS data, {AT}", {"data": "1"}),
        (f"'1' AS data, 'p' AS producer, {AT}", {"data": "1", "producer": "p"}),
        (f"0 AS partition, {AT}", {}),
        (f"'1' AS DATA, {AT}", {"DATA": "1"}),
        ("timestamp'2026-03-01 10:00:00.000001Z' AS data", None),
    ],
)
def test_columns_go_into_the_event_as_the_error_says(spark, write, target, columns, rest):
    """With the microseconds of times, and with fields that are NULL."""
    frame = spark.sql(f"SELECT {columns}")
    with pytest.raises(OptionError) as refused:
        layout(frame.schema).check_case("true")
    (advised,) = re.findall(r"\S*struct\(\S+\) AS data", str(refused.value))

    write(frame.selectExpr(advised.replace("…", "at, note")), batchId="a")

    at = "2026-03-01T10:00:00.000001Z"
    event = {"data": at} if rest is None else {**rest, "at": at, "note": None}
    assert [event] == [each.data for each in target.events()]


def with_chance(inbox, spark):
    number = "INT(get_json_object(data, '$.i'))"
    return inbox.rows(spark).selectExpr(f"to_json(struct({number} AS i, rand() AS r)) AS data")


# Without Spark


@pytest.fixture
def query(target):
    return PlainQuery(target.url)


def rows(begin, end):
    return [{"i": i} for i in range(begin, end)]


def refused(publish, *given, **options):
    with pytest.raises(PublishError) as raised:
        publish(*given, **options)
    return str(raised.value).partition("\n")[0]


def test_other_rows_of_a_streams_batch_are_refused(target, query):
    """F13: a rolled-back checkpoint cuts otherwise, so that batch 2 has the rows of 2 and 3. Or two
    writes within foreachBatch are both the stream's batch: the second needs another producer.
    """
    for number in range(4):
        query.publish(number, rows(number * 100, number * 100 + 100))

    said = refused(query.publish, 2, rows(200, 400))
    query.publish(0, rows(400, 410), producerId="few")

    assert "batch 2 of producer 'spark' was published at" in said
    assert "with other rows: 100 events" in said
    assert "now it has 200 events" in said
    assert "a second write in the same foreachBatch" in said
    target.check_once(range(410))


def test_a_sink_that_is_new_on_an_old_checkpoint_joins_as_the_error_says(target, query):
    """F18, A1: acceptGap lets batch 2 be the first one, and is inert afterwards."""
    said = refused(query.publish, 2, rows(600, 900))
    query.publish(2, rows(600, 900), **remedy(said))
    for _ in range(2):
        query.publish(3, rows(900, 1000), **remedy(said))

    assert "batch 2 of producer 'spark' is the first that this feed sees" in said
    assert remedy(said)["acceptGap"].endswith("-1:2")
    target.check_once(range(600, 1000))


def test_a_driver_that_was_overtaken_is_told_so(target, query):
    """F7: it sleeps in a commit, while another run publishes that batch and the next one."""
    query.publish(0, rows(0, 300), run=(first := str(uuid.uuid4())))
    commit = query.stage(1, rows(300, 600), run=first)
    for number in (1, 2):
        query.publish(number, rows(number * 300, number * 300 + 300), run=str(uuid.uuid4()))

    said = refused(commit)

    assert f"run '{first}' of producer 'spark' was overtaken" in said
    assert "two drivers run on one checkpoint; stop one of them" in said
    target.check_once(range(900))


def test_other_rows_under_a_batchs_name_are_refused(target):
    """Nothing is added, and keepFirst, as printed, keeps what is there."""
    options = {"producerId": "spark", "batchId": "2026-11-20"}
    write_plainly(target.url, rows(0, 100), **options)

    said = refused(write_plainly, target.url, rows(0, 90), **options)
    write_plainly(target.url, rows(0, 90), **options, **remedy(said))

    assert "batch 0 of producer 'spark#2026-11-20' was published" in said
    assert "100 events" in said
    assert "now it has 90 events" in said
    target.check_once(range(100))
