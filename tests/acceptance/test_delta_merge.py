"""Events merged into a Delta table: of each key the newest one, whatever order they come in."""

from __future__ import annotations

import random
import re

import pytest
from chispa import assert_df_equality

from tests.fix_lake import why_absent

pytest.importorskip("delta", reason=why_absent())

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from zeh_spark import lakehouse
from zeh_spark.errors import LakehouseError, OptionError

EVENTS = "key INT, value INT, gone BOOLEAN, headers MAP<STRING, STRING>"


def event(key, value, producer=None, sequence=None, partition=0, gone=False):
    stamps = {"zeh-producer": producer, "zeh-sequence": sequence, "zeh-partition": partition}
    headers = {name: str(each) for name, each in stamps.items()} if producer else {}
    return (key, value, gone, headers)


def merging(spark, table):
    """`merge(event(…), …)`: one batch into the table; `merge.shown()`: what is not deleted."""

    def run(*events, schema=EVENTS, **options):
        settings = {"keys": ["key"], "deleted": "gone", **options}
        lakehouse.merge(spark.createDataFrame(list(events), schema), table, **settings)

    run.table = table
    run.frame = lambda: spark.read.format("delta").load(table)
    run.shown = lambda: {
        row.key: row.value for row in run.frame().where("NOT _zeh_deleted").collect()
    }
    return run


@pytest.fixture
def merge(spark, tmp_path):
    return merging(spark, str(tmp_path / "merged"))


@pytest.fixture(scope="module")
def one_row(spark, tmp_path_factory):
    """`merge` for tests in which nothing is merged: they share a table, which shows {5: 50}."""
    merge = merging(spark, str(tmp_path_factory.mktemp("one row") / "merged"))
    merge(event(5, 50))
    return merge


class Model:
    """What a table shows, in plain words: a batch's rows reduced first, then against the table."""

    def __init__(self):
        self.shown = {}

    def take(self, events):
        by_key = {}
        for arrival, each in enumerate(events):
            by_key.setdefault(each[0], []).append((arrival, each))
        for key, arrived in by_key.items():
            newest = {}
            for arrival, each in arrived:
                who, number = stamp(each)
                if who not in newest or number is None or number >= newest[who][0]:
                    newest[who] = (number, arrival, each)
            for _, _, each in sorted(newest.values(), key=lambda found: -found[1]):
                if not self.outranks(key, each):
                    self.shown[key] = each
                    break

    def outranks(self, key, each):
        """Whether what the table shows is of the same producer, and not older."""
        if key not in self.shown or stamp(each)[1] is None:
            return False
        (mine, shown), (theirs, given) = stamp(self.shown[key]), stamp(each)
        return mine == theirs and shown is not None and given <= shown


def stamp(each):
    headers = each[3]
    if not headers:
        return None, None
    return (headers["zeh-producer"], headers["zeh-partition"]), int(headers["zeh-sequence"])


@pytest.mark.slow
def test_the_newest_event_of_each_key_is_shown(merge, spark):
    """Reordered and doubled events, of several producers and partitions and of none, with
    deletions: after each batch the table is as the rule says.
    """
    chance = random.Random(7)
    model = Model()
    for _ in range(3):
        batch = [
            event(
                chance.randrange(150),
                chance.randrange(10**6),
                chance.choice(["a", "b", None]),
                chance.randrange(12),
                chance.randrange(2),
                gone=chance.random() < 0.2,
            )
            for _ in range(600)
        ]
        model.take(batch)
        merge(*batch)

        expected = spark.createDataFrame(list(model.shown.values()), EVENTS)
        columns = ["key", "value", "gone", F.sort_array(F.map_values("headers")).alias("stamps")]
        assert_df_equality(
            merge.frame().select(columns), expected.select(columns), ignore_row_order=True
        )
        assert 0 == merge.frame().where("_zeh_deleted <> gone").count()


def test_a_batch_is_as_good_as_its_events_one_by_one(merge):
    """However a producer's events are cut into batches, and in whatever order they come."""
    events = [event(1, n, "a", n) for n in range(6)]

    merge(*events[3:5])
    merge(events[1], events[5], events[5])
    merge(events[0])

    assert {1: 5} == merge.shown()


@pytest.mark.slow
def test_an_older_event_does_not_hide_a_newer_one_of_another_producer(merge):
    """It is outranked by the table's; the other one is not."""
    merge(event(1, 5, "a", 5))

    merge(event(1, 70, "b", 0), event(1, 3, "a", 3))

    assert {1: 70} == merge.shown()


def test_without_stamps_the_later_event_wins(merge):
    """Within a batch, and from batch to batch."""
    merge(event(1, 10), event(1, 11), event(2, 20))
    merge(event(2, 21))

    assert {1: 11, 2: 21} == merge.shown()


@pytest.mark.slow
def test_a_deleted_key_stays_deleted(merge):
    """A late event from before the deletion does not bring it back; a newer one does."""
    merge(event(1, 10, "a", 0), event(2, 20, "a", 1))
    merge(event(1, 0, "a", 5, gone=True), event(2, 0, "a", 6, gone=True))

    merge(event(1, 11, "a", 3), event(2, 21, "a", 7))

    assert {2: 21} == merge.shown()


def test_deleted_keys_are_purged_by_age(merge, spark):
    """Rows that deletions left go when they are old enough."""
    merge(event(1, 10, "a", 0, gone=True), event(2, 20, "a", 1))

    lakehouse.purge(spark, merge.table, older_than="1 hour")
    kept = merge.frame().count()
    lakehouse.purge(spark, merge.table, older_than="0 seconds")

    assert (2, [2]) == (kept, [row.key for row in merge.frame().collect()])


@pytest.mark.slow
def test_new_columns_are_added_as_deltas_option_says(merge):
    """Beside the rows that are there."""
    wider = EVENTS + ", extra STRING"
    merge(event(1, 10, "a", 0), event(2, 20, "a", 1))
    with pytest.raises((LakehouseError, PySparkException)):
        merge((*event(1, 11, "a", 2), "x"), schema=wider)

    merge((*event(1, 11, "a", 2), "x"), schema=wider, mergeSchema="true")
    merge(event(2, 21, "a", 3))

    rows = {row.key: (row.value, row.extra) for row in merge.frame().collect()}
    assert {1: (11, "x"), 2: (21, None)} == rows


def test_fields_within_a_column_are_added_too(merge):
    """At any depth."""
    merge((1, {"a": 1}, False, {}), schema=NESTED.format("a INT"))

    wider = NESTED.format("a INT, b STRING")
    merge((1, {"a": 2, "b": "x"}, False, {}), schema=wider, mergeSchema=True)

    assert [(2, "x")] == [tuple(row.value) for row in merge.frame().collect()]


NESTED = EVENTS.replace("value INT", "value STRUCT<{}>")


def test_a_users_own_setting_stays(merge, spark):
    """What a session has as metadata of its commits is there afterwards."""
    name = "spark.databricks.delta.commitInfo.userMetadata"
    spark.conf.set(name, "mine")
    try:
        merge(event(1, 1), app_id="silver", version=0)
        assert "mine" == spark.conf.get(name)
    finally:
        spark.conf.unset(name)


@pytest.mark.parametrize("names", [("first", "second"), ("a.b", "by key"), ("x`y", "events")])
def test_columns_may_have_any_name(spark, tmp_path, names):
    """Also those of structs, and of our own."""
    schema = f"`{names[0].replace('`', '``')}` INT, `{names[1]}` INT, headers MAP<STRING, STRING>"
    table = str(tmp_path / "named")
    mapped = {"delta.columnMapping.mode": "name"}
    empty = spark.createDataFrame([], schema)
    lakehouse.stamped(empty).selectExpr(
        "*", "false AS _zeh_deleted", "current_timestamp() AS _zeh_changed"
    ).write.format("delta").options(**mapped).save(table)

    for value in (1, 2):
        lakehouse.merge(spark.createDataFrame([(7, value, {})], schema), table, [names[0]])

    assert [(7, 2)] == [row[:2] for row in spark.read.format("delta").load(table).collect()]


@pytest.mark.slow
def test_a_version_of_an_app_is_merged_once(merge, spark):
    """For the stream of a Delta table; and no setting stays behind."""
    for _ in range(2):
        merge(event(1, 10), event(3, 30), app_id="silver", version=0)
    merge(event(2, 20), app_id="silver", version=1)
    merge(event(3, 30), event(1, 10), app_id="silver", version=0)

    assert {1: 10, 2: 20, 3: 30} == merge.shown()
    assert [] == [name for name in spark.conf.getAll if "txn" in name or "userMetadata" in name]


@pytest.mark.slow
def test_a_version_with_other_rows_is_refused(merge):
    """Delta itself would leave them out without a word. What the error prints keeps the first, and
    is about that version only.
    """
    merge(event(1, 10), app_id="silver", version=7)

    with pytest.raises(LakehouseError, match="Spark gives it again with") as raised:
        merge(event(1, 11), app_id="silver", version=7)
    accept = re.search(r"accept='(.*?)'", str(raised.value))[1]
    merge(event(1, 11), app_id="silver", version=7, accept=accept)
    assert {1: 10} == merge.shown()
    merge(event(2, 20), app_id="silver", version=8, accept=accept)
    with pytest.raises(LakehouseError, match="Spark gives it again with"):
        merge(event(2, 21), app_id="silver", version=8, accept=accept)
    with pytest.raises(LakehouseError, match="up to 8, but not that one"):
        merge(event(1, 11), app_id="silver", version=6)

    assert {1: 10, 2: 20} == merge.shown()


@pytest.mark.slow
def test_a_version_that_a_restore_took_back_is_not_left_out(merge, spark):
    """Delta's transaction stays, and it would leave the batch out; and the next one would follow a
    gap.
    """
    merge(event(1, 10), app_id="silver", version=0)
    version = spark.sql(f"DESCRIBE HISTORY delta.`{merge.table}`").first().version
    merge(event(1, 11), app_id="silver", version=1)
    spark.sql(f"RESTORE TABLE delta.`{merge.table}` TO VERSION AS OF {version}")

    for number in (1, 2):
        with pytest.raises(LakehouseError, match="which took back the versions 1 of silver"):
            merge(event(1, 11), app_id="silver", version=number)

    assert {1: 10} == merge.shown()


@pytest.mark.parametrize(
    ("events", "options", "told"),
    [
        ([event(None, 1)], {}, "NULL in the merge key 'key'"),
        ([event(1, 1)], {"keys": ["id"]}, "have to be columns of the frame"),
        ([event(1, 1)], {"keys": []}, "have to be columns of the frame"),
        ([event(1, 1)], {"version": 3}, "need each other"),
        ([event(1, 1)], {"deleted": "gon"}, "deleted='gon' is no condition"),
    ],
    ids=["null key", "no such column", "no keys", "half a transaction", "no condition"],
)
def test_what_cannot_be_merged_is_refused(one_row, events, options, told):
    """By name; the table stays as it is."""
    with pytest.raises((LakehouseError, PySparkException)) as raised:
        one_row(*events, **options)

    assert told in str(raised.value)
    assert {5: 50} == one_row.shown()


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("key STRING, value INT, gone BOOLEAN, headers MAP<STRING, STRING>", "CAST(key AS int)"),
        ("key INT, _ZEH_deleted INT, gone BOOLEAN, headers MAP<STRING, STRING>", "_ZEH_deleted"),
    ],
    ids=["another type", "a column of ours"],
)
def test_a_frame_that_would_not_fit_is_refused(one_row, schema, told):
    """A key that is cast is another key, and our columns are ours."""
    row = ("5" if "key STRING" in schema else 5, 1, False, {})

    with pytest.raises(LakehouseError) as raised:
        one_row(row, schema=schema)

    assert told in str(raised.value) and {5: 50} == one_row.shown()


def test_what_cannot_be_purged_is_refused(one_row, spark):
    """By name."""
    spark.range(1).write.format("delta").save(f"{one_row.table}-other")

    with pytest.raises(OptionError, match="'30 days'"):
        lakehouse.purge(spark, one_row.table, older_than="soon")
    with pytest.raises(LakehouseError, match="no merge made it"):
        lakehouse.purge(spark, f"{one_row.table}-other", older_than="1 day")


def test_a_frame_without_stamps_is_refused(merge, spark):
    """They cannot be dropped by accident, only by intention."""
    bare = spark.createDataFrame([(1, 2)], "key INT, value INT")

    with pytest.raises(LakehouseError, match=r"stamped\(df\)"):
        lakehouse.merge(bare, merge.table, ["key"])

    early = lakehouse.stamped(spark.createDataFrame([event(1, 2, "a", 3, 4)], EVENTS))
    lakehouse.merge(early.drop("headers"), merge.table, ["key"])
    row = merge.frame().collect()[0]
    assert ("a", 4, 3) == (row._zeh_producer, row._zeh_partition, row._zeh_sequence)


def test_a_table_that_no_merge_has_made_is_refused(merge, spark):
    """Its rows have no stamps; with mergeSchema they get some."""
    spark.createDataFrame([event(1, 1)], EVENTS).write.format("delta").save(merge.table)

    with pytest.raises(LakehouseError, match="_zeh_sequence"):
        merge(event(1, 2, "a", 0))

    merge(event(1, 2, "a", 0), mergeSchema="true")
    assert [2] == [row.value for row in merge.frame().collect()]
