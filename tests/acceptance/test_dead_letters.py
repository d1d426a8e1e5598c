"""Rows that cannot be published, in Spark: they go to a feed of their own, each once.

The letters and numbers are those of the failure modes, see tests/README.md.
"""

import base64
import json

import pytest
import requests

from tests.fix_sink import CALLS, lost, remedy
from tests.patience import PATIENCE
from zeh_spark.protocol.dead_letters import letters

ODD = base64.b64encode(b'"\xe9"').decode()


def rows_of(target, feed="dead"):
    return [each["row"] for each in letters_of(target, feed)]


def letters_of(target, feed="dead"):
    """What the dead-letter feed holds, with parts put together."""
    cursors = "&".join(f"cursor{each}=_first" for each in range(3))
    answer = requests.get(
        f"{target.publisher}/{feed}?n=3&{cursors}&headers=_all&pagesizehint=9999999", timeout=60
    )
    lines = [each for each in answer.content.splitlines() if b'"data"' in each]
    return [json.loads(each.whole)["data"] for each in letters(lines)]


def numbers(target):
    """Those of the broken lines of an inbox, as they arrived as dead letters."""
    return sorted(int(each["data"].partition(":")[2]) for each in rows_of(target))


@pytest.fixture
def dead(target):
    """The option."""
    return {"deadLetterUrl": target.feed("dead")}


# Which rows


@pytest.mark.parametrize(
    ("columns", "reason", "row"),
    [
        ("IF(id = 7, 'x{', '1') AS data", "data: not JSON", {"data": "x{"}),
        ("IF(id = 7, 'null', '1') AS data", "data: the JSON null", {"data": "null"}),
        ("IF(id = 7, NULL, '1') AS data", "data is NULL", {"data": None}),
        (
            "IF(id = 7, concat(repeat('[', 501), repeat(']', 501)), '1') AS data, 'k' AS key",
            "data: it is nested 501 deep",
            {"data": "[" * 501 + "]" * 501, "key": "k"},
        ),
        (
            "IF(id = 7, CAST(X'22E922' AS STRING), '1') AS data",
            "data: not UTF-8",
            {"base64": ODD},
        ),
        (
            "concat('\"', repeat('x', IF(id = 7, 70000, 1)), '\"') AS data",
            "the event takes 70,0",
            {"data": '"' + "x" * 70_000 + '"'},
        ),
        (
            "'1' AS data, IF(id = 7, 3, 0) AS partition",
            "the partition is not in 0 to 2",
            {"data": "1", "partition": 3},
        ),
        (
            "'1' AS data, map('a', IF(id = 7, NULL, 'b')) AS headers",
            "headers: the value of a header is NULL",
            {"data": "1", "headers": {"a": None}},
        ),
        (
            "id AS i, IF(id = 7, double('NaN'), 1.5D) AS x, string(id) AS key",
            "x: JSON has no NaN",
            {"unfit": '{"i":7,"x":"NaN","key":"7"}', "key": "7"},
        ),
        (
            "struct(IF(id = 7, DATE'10183-09-21', DATE'2026-11-20') AS d) AS data",
            "data: d: its year is not in 1 to 9999",
            {"unfit": '{"d":"10183-09-21"}'},
        ),
    ],
)
def test_a_bad_row_becomes_a_dead_letter(columns, reason, row, target, spark, write, dead):
    """F23: the others are published; it is on the other feed with its reason, as it was."""
    frame = spark.sql(f"SELECT {columns} FROM range(0, 100, 1, 1)")

    write(frame, batchId="bad", **dead)

    (letter,) = letters_of(target)
    assert letter["reason"].startswith(reason)
    assert ("spark#bad", 0, row) == (letter["producer"], letter["batch"], letter["row"])
    assert 99 == len(target.events())


def test_a_row_of_several_megabytes_becomes_dead_letters(target, spark, write, dead):
    """In parts; nothing of it is lost."""
    text = "concat('\"', repeat(concat(char(233), '\\\\n'), 1000000), '\"')"
    frame = spark.sql(f"SELECT IF(id = 7, {text}, '1') AS data FROM range(0, 10, 1, 1)")

    write(frame, batchId="long", **dead)

    assert [{"data": '"' + "é\\n" * 1_000_000 + '"'}] == rows_of(target)
    assert 9 == len(target.events())


def test_without_the_option_a_bad_row_fails_its_batch(target, spark, fail_write):
    """As ever."""
    frame = spark.sql("SELECT IF(id = 7, 'x{', '1') AS data FROM range(0, 100, 1, 1)")

    assert fail_write(frame, batchId="bad").startswith("RowError: ")


# Each once


@pytest.mark.parametrize(("first", "again"), [(1, 3), (3, 1)])
def test_dead_letters_of_a_repeated_batch_are_not_added(first, again, sink, inbox, spark, dead):
    """F4, F10: in other tasks, where other rows stand beside them."""
    inbox.add(range(300), range(300, 600), broken=range(0, 600, 7))
    sink.run(inbox.rows(spark).repartition(first), **dead)
    sink.forget(1)
    inbox.add(range(600, 900))

    sink.run(inbox.rows(spark).repartition(again), **dead)

    broken = set(range(0, 600, 7))
    sink.target.check_once(set(range(900)) - broken)
    assert sorted(broken) == numbers(sink.target)
    receipts = sink.target.receipts("spark", "dead")
    assert [0, 1, 2] == [each["batch"] for each in receipts]
    assert 0 == receipts[2]["events"]


@pytest.mark.parametrize("feed", ["orders", "dead"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_commit_is_repeated_on_both_feeds(feed, moment, sink, inbox, spark, dead):
    """F5, F6: whichever of the two it is; the query fails, and is started again."""
    inbox.add(range(300), range(300, 600), broken=range(0, 600, 7))
    commit = f"POST /{feed}/.*/batches/1/commit"
    sink.target.gateway.once(commit, **{moment: lost})

    said = sink.fail(inbox.rows(spark), retryTimeout="0s", **dead)
    sink.run(inbox.rows(spark), **dead)

    assert said.startswith(f"UnavailableError: the publisher of {sink.target.feed(feed)} does not")
    sink.target.check_once(set(range(600)) - set(range(0, 600, 7)))
    assert list(range(0, 600, 7)) == numbers(sink.target)


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize(
    ("feed", "moment"),
    [("dead", "before"), ("dead", "after"), ("orders", "before"), ("orders", "after")],
    ids=["before both commits", "behind the first", "before the second", "behind both"],
)
def test_rows_and_dead_letters_are_there_once_when_the_driver_is_killed(
    feed, moment, sink, inbox, spark, program, dead
):
    """F3, F4: SIGKILL around the two commits, then the query continues from the checkpoint."""
    inbox.add(range(300), range(300, 600), range(600, 900), broken=range(0, 900, 7))
    driver = program(sink.target.url, options=dead)
    commit = f"POST /{feed}/.*/batches/1/commit"
    sink.target.gateway.once(commit, **{moment: lambda: (driver.kill(), lost())})

    driver.start()
    driver.wait(-9)
    sink.run(inbox.rows(spark).repartition(3), **dead)

    sink.target.check_once(set(range(900)) - set(range(0, 900, 7)))
    assert list(range(0, 900, 7)) == numbers(sink.target)
    assert [0, 1, 2] == [each["batch"] for each in sink.target.receipts("spark", "dead")]


def test_dead_letters_of_a_write_with_a_name_are_not_added(target, spark, write, dead):
    """The same rows again under their batchId, in other tasks."""
    rows = "SELECT IF(id % 7 = 0, concat('{\"i\":', id), concat('{\"i\":', id, '}')) AS data"
    frame = spark.sql(f"{rows} FROM range(100)")

    for tasks in (3, 1):
        write(frame.repartition(tasks), batchId="day", **dead)

    target.check_once(set(range(100)) - set(range(0, 100, 7)))
    assert list(range(0, 100, 7)) == numbers(target)


def test_dead_letters_of_a_write_without_a_name_are_added_each_time(target, spark, write, dead):
    """batchId=none: as its rows."""
    for _ in range(2):
        write(spark.sql("SELECT '{' AS data"), batchId="none", **dead)

    assert [{"data": "{"}] * 2 == rows_of(target)


def test_dead_letters_of_a_write_within_foreachbatch_are_there_once(
    sink, inbox, spark, write, dead
):
    """They take the stream's own batch, as the rows do."""
    inbox.add(range(300), range(300, 600), broken=range(0, 600, 7))
    sink.repeat_a_batch(inbox.rows(spark), lambda frame: write(frame, batchId="stream", **dead))

    sink.target.check_once(set(range(600)) - set(range(0, 600, 7)))
    assert list(range(0, 600, 7)) == numbers(sink.target)


# Mistakes


def test_a_query_that_gets_the_option_later_continues_as_the_error_says(sink, inbox, spark, dead):
    """The dead-letter feed lacks the batches before; that is told, and lets pass once."""
    inbox.add(range(300), range(300, 600))
    sink.run(inbox.rows(spark))
    inbox.add(range(600, 900), range(900, 1000), broken=[610, 950])

    said = sink.fail(inbox.rows(spark), **dead)
    sink.run(inbox.rows(spark), **dead, **remedy(said))

    assert "the dead-letter feed, which has nothing of this producer yet" in said
    assert dead["deadLetterUrl"] in said
    assert remedy(said)["deadLetterAcceptGap"].endswith("@-1:2")
    sink.target.check_once(set(range(1000)) - {610, 950})
    assert [610, 950] == numbers(sink.target)


def test_a_feed_is_not_its_own_dead_letter_feed(target, spark, fail_write):
    """Readers of the feed would get the dead letters."""
    said = fail_write(spark.sql("SELECT '{' AS data"), batchId="a", deadLetterUrl=target.url)

    assert said.startswith("OptionError: option 'deadLetterUrl', ")
    assert "leads to the feed of 'url'" in said
    assert target.gateway.requests == []


def test_a_dead_letter_feed_that_is_not_there_fails_the_batch(target, spark, fail_write):
    """Also while there are no dead letters: it shows at the first batch."""
    said = fail_write(
        spark.sql("SELECT '1' AS data"), batchId="a", deadLetterUrl=target.feed("nope")
    )

    assert "the dead-letter feed: " in said and "make the feed: zeh-spark create" in said
    assert target.events() == []


def test_the_token_of_dead_letters_is_not_shown(sink, inbox, spark, spark_log, raw_server, capfd):
    """Neither plan nor error, log or checkpoint has it."""
    from tests.fix_raw_server import refused

    inbox.add(range(10))
    raw_server.script(refused(401, "what is letters-secret?"))
    dead = {"deadLetterUrl": raw_server.url, "deadLetterToken": "letters-secret"}
    query = sink.start(inbox.rows(spark), token="rows-secret", **dead)

    with pytest.raises(Exception) as raised:
        query.awaitTermination(PATIENCE)
    query.explain(True)

    assert "Bearer letters-secret" == raw_server.requests[0].headers["authorization"]
    files = (each.read_text("latin-1") for each in sink.checkpoint.rglob("*") if each.is_file())
    log = spark_log()
    assert "MicroBatchExecution" in log
    shown = [str(raised.value), log, *capfd.readouterr(), *files]
    assert not [each for each in shown if "letters-secret" in each or "rows-secret" in each]


def test_calls_for_both_feeds_are_made_for_each_batch(sink, inbox, spark, dead):
    """A commit on each, the dead letters' first."""
    inbox.add(range(10), range(10, 20))

    sink.run(inbox.rows(spark), **dead)

    commits = [each.target.split("/")[1] for each in sink.target.gateway.asked("POST .*/commit")]
    assert ["dead", "orders"] * 2 == commits
    assert sink.target.gateway.count(CALLS["commit"]) == 2
