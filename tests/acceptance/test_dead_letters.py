"""Rows that cannot be published, in Spark: they go to a feed of their own, each once.

The letters and numbers are those of the failure modes, see tests/README.md.
"""

import base64
import json
from contextlib import closing
from functools import partial

import pytest

from tests.fix_dead_letters import letters_of
from tests.fix_publisher import store_url
from zeh_spark.publisher import open_store

ODD = base64.b64encode(b'"\xe9"').decode()


def rows_of(target):
    return [each["row"] for each in letters_of(f"{target.publisher}/dead")]


def numbers(target):
    """Those of the broken lines of an inbox, as they arrived as dead letters."""
    return sorted(int(each["data"].rstrip("}").partition(":")[2]) for each in rows_of(target))


@pytest.fixture
def dead(target):
    """The option."""
    return {"deadLetterUrl": target.feed("dead")}


@pytest.fixture
def set_schema(tmp_path):
    """Of the feed `orders`, while it is served."""
    with closing(open_store(store_url(tmp_path / "store"))) as store:
        yield partial(store.set_schema, "orders", compatible=False)


# Which rows


TEXTS = """
CASE id
    WHEN 1 THEN 'x{'
    WHEN 3 THEN NULL
    WHEN 5 THEN CAST(X'22E922' AS STRING)
    ELSE '1'
END AS data, IF(id = 7, 3, 0) AS partition, map('a', IF(id = 8, NULL, 'b')) AS headers
"""
BAD_TEXTS = {
    "data: not JSON": {"data": "x{"},
    "data is NULL": {"data": None},
    "data: not UTF-8": {"base64": ODD},
    "the partition is not in 0 to 2": {"data": "1", "partition": 3},
    "headers: the value of a header is NULL": {"data": "1", "headers": {"a": None}},
}
FIELDS = """
id AS i, IF(id = 7, double('NaN'), 1.5D) AS x,
IF(id = 8, DATE'10183-09-21', DATE'2026-11-20') AS d, string(id) AS key
"""
BAD_FIELDS = {
    "x: JSON has no NaN": {"unfit": '{"i":7,"x":"NaN","d":"2026-11-20","key":"7"}', "key": "7"},
    "d: its year is not in 1 to 9999": {
        "unfit": '{"i":8,"x":1.5,"d":"10183-09-21","key":"8"}',
        "key": "8",
    },
}


@pytest.mark.parametrize(
    ("columns", "usual", "bad"),
    [(TEXTS, {"partition": 0, "headers": {"a": "b"}}, BAD_TEXTS), (FIELDS, {}, BAD_FIELDS)],
    ids=["texts", "fields"],
)
def test_a_bad_row_becomes_a_dead_letter(columns, usual, bad, target, spark, write, dead):
    """F23: the others are published; it is on the other feed with its reason, as it was."""
    write(spark.sql(f"SELECT {columns} FROM range(0, 100, 1, 1)"), batchId="bad", **dead)

    found = letters_of(f"{target.publisher}/dead")
    assert {("spark#bad", 0)} == {(each["producer"], each["batch"]) for each in found}
    assert {reason: usual | row for reason, row in bad.items()} == {
        reason: each["row"] for each in found for reason in bad if each["reason"].startswith(reason)
    }
    assert (len(bad), 100 - len(bad)) == (len(found), len(target.events()))


def test_rows_that_break_the_schema_of_the_feed_become_dead_letters(
    target, spark, write, dead, set_schema
):
    """I say what an order is, and where the others go. Right ones are published; each wrong one is
    there with its key and the place at fault, whichever task had it (CN-07)."""
    set_schema(b'{"properties": {"id": {"type": "integer"}, "amount": {"minimum": 0}}}')
    row = "concat('c-', id % 9) AS key, IF(id % 10 = 0, NULL, id) AS id, id - 50 AS amount"
    rows = spark.sql(f"SELECT {row} FROM range(0, 1000, 1, 4)")
    frame = rows.selectExpr("key", "struct(id, amount) AS data")

    write(frame, batchId="day", **dead)
    write(frame.repartition(3), batchId="day", **dead)

    wrong = {n for n in range(1000) if n % 10 == 0 or n < 50}
    assert sorted(set(range(1000)) - wrong) == sorted(each.data["id"] for each in target.events())
    found = letters_of(f"{target.publisher}/dead")
    data = [json.loads(each["row"]["data"]) for each in found]
    assert sorted(wrong) == sorted(each["amount"] + 50 for each in data)
    for letter, event in zip(found, data, strict=True):
        assert letter["row"]["key"] == f"c-{(event['amount'] + 50) % 9}"
        assert ("/amount: " if event["id"] is not None else "/id: ") in letter["reason"] or (
            event["id"] is None and event["amount"] < 0
        )


# Each once


@pytest.mark.slow
@pytest.mark.parametrize("then", [450, 300, 900], ids=["same", "narrower", "wider"])
def test_a_repeated_batch_is_split_as_before_whatever_the_schema_is_since(
    then, sink, inbox, spark, dead, set_schema
):
    """The driver died before Spark noted batch 1; I changed the schema, and started it again, in
    other tasks. Nothing is there twice, nothing is missing, and batch 2 has the new schema (CN-07).
    """
    set_schema(b'{"properties": {"i": {"maximum": 450}}}')
    inbox.add(range(300), range(300, 600), broken=range(0, 600, 7))
    sink.run(inbox.rows(spark).repartition(3), **dead)
    sink.forget(1)
    set_schema(b'{"properties": {"i": {"maximum": %d}}}' % then)
    inbox.add(range(600, 1000))

    sink.run(inbox.rows(spark).repartition(2), **dead)

    broken = set(range(0, 600, 7))
    good = (set(range(451)) - broken) | set(range(600, then + 1))
    sink.target.check_once(good)
    assert sorted(set(range(1000)) - good) == numbers(sink.target)
    versions = [each["schemaVersion"] for each in sink.target.receipts("spark", "dead")]
    assert versions == ([1, 1, 1] if then == 450 else [1, 1, 2])


@pytest.mark.slow
def test_dead_letters_of_a_repeated_batch_are_not_added(sink, inbox, spark, dead):
    """F4, F10: in other tasks, where other rows stand beside them."""
    inbox.add(range(300), range(300, 600), broken=range(0, 600, 7))
    for tasks in (1, 3, 1):
        sink.run(inbox.rows(spark).repartition(tasks), **dead)
        sink.forget(1)
    inbox.add(range(600, 900))

    sink.run(inbox.rows(spark), **dead)

    broken = set(range(0, 600, 7))
    sink.target.check_once(set(range(900)) - broken)
    assert sorted(broken) == numbers(sink.target)
    receipts = sink.target.receipts("spark", "dead")
    assert [0, 1, 2] == [each["batch"] for each in receipts]
    assert 0 == receipts[2]["events"]


def test_dead_letters_of_a_write_with_a_name_are_not_added(target, spark, write, dead):
    """The same rows again under their batchId, in other tasks; with batchId=none each time."""
    rows = "SELECT IF(id % 7 = 0, concat('{\"i\":', id), concat('{\"i\":', id, '}')) AS data"
    frame = spark.sql(f"{rows} FROM range(100)")

    for tasks in (3, 1):
        write(frame.repartition(tasks), batchId="day", **dead)

    broken = list(range(0, 100, 7))
    target.check_once(set(range(100)) - set(broken))
    assert broken == numbers(target)
    for _ in range(2):
        write(spark.sql("SELECT '{\"i\":-1' AS data"), batchId="none", **dead)
    assert [-1, -1, *broken] == numbers(target)


def test_dead_letters_of_a_write_within_foreachbatch_are_there_once(
    sink, inbox, spark, write, dead
):
    """They take the stream's own batch, as rows do: one that comes again adds nothing."""
    inbox.add(range(300), range(300, 600), broken=range(0, 600, 7))
    sink.repeat_a_batch(inbox.rows(spark), lambda frame: write(frame, batchId="stream", **dead))

    sink.target.check_once(set(range(600)) - set(range(0, 600, 7)))
    assert list(range(0, 600, 7)) == numbers(sink.target)
    assert [0, 1] == sink.target.batches()
