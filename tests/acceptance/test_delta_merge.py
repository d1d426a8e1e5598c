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


def own(number, **more):
    """Of producer `a`; its value is its number."""
    return {"value": number, "producer": "a", "sequence": number, **more}


CASES = {
    "however a producer's events are cut into batches": ([own(1), own(5)], [own(3)], 5),
    "whatever order they come in, and however often": ([own(3)], [own(1), own(5), own(5)], 5),
    "an older one does not hide a newer one of another producer": (
        [own(5)],
        [{"value": 70, "producer": "b", "sequence": 0}, own(3)],
        70,
    ),
    "without stamps the later one of a batch": ([{"value": 10}, {"value": 11}], [], 11),
    "without stamps that of the later batch": ([{"value": 20}], [{"value": 21}], 21),
    "a late one does not bring a deleted key back": ([own(1), own(5, gone=True)], [own(3)], None),
    "a newer one does": ([own(1), own(6, gone=True)], [own(7)], 7),
    "a deletion": ([own(1)], [own(2, gone=True)], None),
}


def test_of_each_key_the_newest_event_is_shown(merge):
    """Two batches, in which each case has a key of its own."""
    for batch in (0, 1):
        merge(*(event(k, **each) for k, case in enumerate(CASES.values()) for each in case[batch]))

    shown = merge.shown()
    assert {name: case[2] for name, case in CASES.items()} == {
        name: shown.get(key) for key, name in enumerate(CASES)
    }


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


@pytest.mark.slow
def test_columns_may_have_any_name(spark, tmp_path):
    """Also those of structs, and of our own."""
    keys, values = ["first", "a.b", "x`y"], ["second", "by key", "events"]
    names = ", ".join(f"`{name.replace('`', '``')}` INT" for name in (*keys, *values))
    schema = f"{names}, headers MAP<STRING, STRING>"
    table = str(tmp_path / "named")
    mapped = {"delta.columnMapping.mode": "name"}
    empty = spark.createDataFrame([], schema)
    lakehouse.stamped(empty).selectExpr(
        "*", "false AS _zeh_deleted", "current_timestamp() AS _zeh_changed"
    ).write.format("delta").options(**mapped).save(table)

    for value in (1, 2):
        frame = spark.createDataFrame([(7, 8, 9, value, value, value, {})], schema)
        lakehouse.merge(frame, table, keys)

    rows = spark.read.format("delta").load(table).collect()
    assert [(7, 8, 9, 2, 2, 2)] == [row[:6] for row in rows]


@pytest.mark.slow
def test_a_version_with_other_rows_is_refused(merge, spark):
    """For the stream of a Delta table: the same rows are merged once, in whatever order. Delta
    itself would leave others out without a word. What the error prints keeps the first, and is
    about that version only. Settings of the session stay as they are.
    """
    metadata = "spark.databricks.delta.commitInfo.userMetadata"
    spark.conf.set(metadata, "mine")
    try:
        merge(event(1, 10), event(3, 30), app_id="silver", version=7)
        merge(event(3, 30), event(1, 10), app_id="silver", version=7)
        with pytest.raises(LakehouseError, match="Spark gives it again with") as raised:
            merge(event(1, 11), app_id="silver", version=7)
        accept = re.search(r"accept='(.*?)'", str(raised.value))[1]
        merge(event(1, 11), app_id="silver", version=7, accept=accept)
        assert {1: 10, 3: 30} == merge.shown()
        merge(event(2, 20), app_id="silver", version=8, accept=accept)
        with pytest.raises(LakehouseError, match="Spark gives it again with"):
            merge(event(2, 21), app_id="silver", version=8, accept=accept)
        with pytest.raises(LakehouseError, match="up to 8, but not that one"):
            merge(event(1, 11), app_id="silver", version=6)
        assert "mine" == spark.conf.get(metadata)
    finally:
        spark.conf.unset(metadata)

    assert {1: 10, 2: 20, 3: 30} == merge.shown()
    assert [] == [name for name in spark.conf.getAll if "txn" in name or "userMetadata" in name]


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


REFUSED = [
    ([event(None, 1)], {}, "NULL in the merge key 'key'"),
    ([event(1, 1)], {"keys": ["id"]}, "have to be columns of the frame"),
    ([event(1, 1)], {"keys": []}, "have to be columns of the frame"),
    ([event(1, 1)], {"version": 3}, "need each other"),
    ([event(1, 1)], {"deleted": "gon"}, "deleted='gon' is no condition"),
    # a key that is cast is another key, and our columns are ours
    ([("5", 1, False, {})], {"schema": EVENTS.replace("key INT", "key STRING")}, "CAST(key AS int"),
    ([event(5, 1)], {"schema": EVENTS.replace("value", "_ZEH_deleted")}, "_ZEH_deleted"),
]


def test_what_cannot_be_merged_is_refused(one_row):
    """By name; the table stays as it is."""
    for events, options, told in REFUSED:
        with pytest.raises((LakehouseError, PySparkException), match=re.escape(told)):
            one_row(*events, **options)

    assert {5: 50} == one_row.shown()


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
