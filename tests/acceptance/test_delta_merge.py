"""Events merged into a Delta table: of each key the newest one, whatever order they come in."""

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
from zeh_spark.spark.delta import merging
from zeh_spark.spark.delta.delta_table import LakeTable
from zeh_spark.spark.delta.precedence import ARRIVAL, newest, wins

EVENTS = "key INT, value INT, gone BOOLEAN, headers MAP<STRING, STRING>"
EU, US = "e" * 16, "a" * 16
"""Feeds."""


def event(key, value, producer=None, sequence=None, partition=0, *, gone=False, **more):
    """`more`: of its headers."""
    stamps = {"producer": producer, "sequence": sequence, "partition": partition, **more}
    stamps = {f"zeh-{name}": str(each) for name, each in stamps.items() if each is not None}
    return key, value, gone, stamps if producer else {}


class Merged:
    """A table in a folder that batches are merged into."""

    def __init__(self, spark, folder):
        self.spark, self.table = spark, str(folder / "merged")

    def __call__(self, *events, schema=EVENTS, **options):
        settings = {"keys": ["key"], "deleted": "gone", **options}
        lakehouse.merge(self.spark.createDataFrame(list(events), schema), self.table, **settings)

    def rows_of_a_feed(self, *events):
        """As `DeltaFeedWriter` merges the rows of a feed, which are in order."""
        frame = self.spark.createDataFrame(list(events), EVENTS)
        table = LakeTable(self.spark, self.table)
        merged = merging.Merge(table, ["key"], "gone", {}, ordered=True)
        merged.prepare(frame)
        merged.run(frame, {})

    def fail(self, *events, **options):
        with pytest.raises((LakehouseError, PySparkException)) as raised:
            self(*events, **options)
        return str(raised.value)

    def frame(self):
        return self.spark.read.format("delta").load(self.table)

    def shown(self):
        """What is not deleted."""
        return {row.key: row.value for row in self.frame().where("NOT _zeh.deleted").collect()}


@pytest.fixture
def merge(spark, tmp_path):
    return Merged(spark, tmp_path)


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
                if stamp(each) == stamp(self.shown[key]):
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


def of(value, number, feed=EU, time=None):
    """An event of a feed; a deletion if it has no value."""
    stamps = {"producer": "a", "sequence": number, "feed": feed, "time": time}
    return {"value": value, "gone": value is None, **stamps}


# One job publishes to two feeds under one name: each feed has numbers of its own. After
# `new-history` a restored feed uses numbers again, and is right.
OF_FEEDS = {  # three batches, and what is shown then
    "a change in another feed": ([of(1, 10)], [of(2, 0, US)], [], 2),
    "a change in another feed, in one batch": ([of(1, 10), of(2, 0, US)], [], [], 2),
    "a deletion in another feed": ([of(1, 10)], [of(None, 0, US)], [], None),
    "a deletion in another feed, in one batch": ([of(1, 10), of(None, 0, US)], [], [], None),
    "an older event of the same feed": ([of(10, 5, time=50)], [of(9, 4, time=40)], [], 10),
    "an older event of the other feed": ([of(20, 7, US, 70)], [of(19, 6, US, 60)], [], 20),
    "a later epoch": ([of(10, 9, time=90)], [of(11, 3, f"{EU}~1", 100)], [of(8, 8, time=80)], 11),
    "an epoch before": (
        [of(20, 8, time=80)],
        [of(21, 4, f"{EU}~10", 101)],
        [of(22, 4, f"{EU}~9", 99)],
        21,
    ),
}


@pytest.mark.slow
def test_the_newest_event_of_each_key_is_shown(merge, spark):
    """Reordered and doubled events, of several producers and partitions and of none, with
    deletions: after each batch the table is as the rule says. A newer event of another feed wins,
    though its number is lower; each of these cases has a key of its own.
    """
    chance = random.Random(7)
    model = Model()
    for number in range(3):
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
        cases = enumerate(OF_FEEDS.values(), 1000)
        of_feeds = (event(key, **each) for key, case in cases for each in case[number])
        merge.rows_of_a_feed(*batch, *of_feeds)

        expected = spark.createDataFrame(list(model.shown.values()), EVENTS)
        columns = ["key", "value", "gone", F.sort_array(F.map_values("headers")).alias("stamps")]
        found = merge.frame().where("key < 1000")
        assert_df_equality(found.select(columns), expected.select(columns), ignore_row_order=True)
        assert 0 == merge.frame().where("_zeh.deleted <> gone").count()

    shown = merge.shown()
    assert {name: case[-1] for name, case in OF_FEEDS.items()} == {
        name: shown.get(key) for key, name in enumerate(OF_FEEDS, 1000)
    }


@pytest.mark.slow
def test_rows_in_no_order_have_times_or_are_refused(merge):
    """The rows of a Delta table, or of a shuffle: the one that comes later need not be the newer
    one. If I say that they are in order, the later one wins.
    """
    merge(
        *(event(1, 12, "b", 0, time=20), event(1, 11, "a", 5, time=10)),
        *((2, 22, False, {"zeh-time": "20"}), (2, 21, False, {"zeh-time": "10"})),
        *(event(3, 32, "a", 7), event(3, 31, "a", 6)),
    )
    assert {1: 12, 2: 22, 3: 32} == merge.shown()

    tied = (4, 42, False, {"zeh-time": "30"}), (4, 41, False, {"zeh-time": "30"})
    for others in (
        [(4, 42, False, {"zeh-time": "30"}), event(4, 41)],
        [event(4, 41), event(4, 42)],
        [event(4, 42), event(4, 41, "a", 8, time=30)],
        tied,
    ):
        told = merge.fail(*others)
        assert 'several events of the key {"key":4}, and which one is the newest is not' in told
    merge(event(4, 41), event(4, 42), order="arrival")
    assert 42 == merge.shown()[4]


@pytest.mark.slow
def test_an_older_event_that_is_merged_again_changes_nothing(merge):
    """With a new checkpoint, or after a crash: of two producers, or two partitions of one. Of one
    feed, an event that is older than the row's loses in any batch, whoever published it.
    """
    batch = (
        *(event(1, 11, "a", 1, time=10, feed=EU), event(1, 12, "b", 1, time=20, feed=EU)),
        *(event(2, 21, "a", 5, 0, time=10, feed=EU), event(2, 22, "a", 3, 1, time=20, feed=EU)),
        event(3, 31, "a", 8, time=10, feed=EU),
        event(3, 32, "b", 2, time=20, feed=EU, gone=True),
    )
    for _ in range(3):
        merge(*batch)
        assert {1: 12, 2: 22} == merge.shown()

    merge(event(1, 13, "c", 0, time=15, feed=EU), event(2, 23, "c", 1, time=25, feed=EU))
    assert {1: 12, 2: 23} == merge.shown()

    tied = event(5, 51, "a", 6, 1, time=9, feed=EU), event(5, 52, "a", 7, 0, time=9, feed=EU)
    for some in (tied, tied[::-1], tied[:1], tied[1:]):
        merge(*some)
        assert 51 == merge.shown()[5]

    without_times = event(4, 41, "a", 20), event(4, 42, "b", 20)
    for _ in range(2):
        merge.rows_of_a_feed(*without_times)
        assert 42 == merge.shown()[4]


@pytest.mark.slow
def test_the_newest_event_by_an_expression_is_shown(merge):
    """Of one batch and of several, with stamps and without; of equal numbers the first."""
    merge(event(1, 11), event(1, 13), event(1, 12, "a", 9), order="value")
    merge(event(1, 12, "a", 10), event(2, 20), order="value")
    assert {1: 13, 2: 20} == merge.shown()

    merge(event(1, 13, gone=True), event(2, 21, gone=True), order="value")
    assert {1: 13} == merge.shown()

    bare = merge.spark.sql("SELECT 3 AS key, 7 AS value UNION ALL SELECT 3, 7").coalesce(1)
    bare = bare.withColumn("gone", F.monotonically_increasing_id() == 1)
    lakehouse.merge(bare, merge.table, ["key"], order="value", deleted="gone")
    assert {1: 13, 3: 7} == merge.shown()


@pytest.mark.slow
def test_rows_that_were_merged_with_another_order_are_not_compared(merge):
    """Whichever is the new one, it could replace a newer row."""
    merge(event(1, 13), order="arrival")
    merge(event(2, 23, "a", 1))
    merge(event(3, 33), order="value")
    for key, number in ((1, 12), (2, 22), (3, 32)):
        told = merge.fail(event(key, number), order="-value")
        assert "an event comes with (order: -value), and the row of its key was merged w" in told
    assert "merged with (order: value)" in merge.fail(event(3, 32, "a", 2))
    assert {1: 13, 2: 23, 3: 33} == merge.shown()


RESTORED = "was restored to an earlier state", "zeh-spark new-history FEED --since 1001 "
UNNAMED = "one of the two does not name its feed", "Keep that header"


@pytest.mark.parametrize(
    ("shown", "given", "told"),
    [
        # numbers that a restored feed uses again: a later time proves it
        (of(10, 10, time=1000), [of(11, 9, time=2000)], RESTORED),
        (of(10, 10, time=1000), [of(11, 10, time=2000)], RESTORED),
        # within a batch, too, whichever of the two events would be merged
        (of(10, 1, time=10), [of(10, 10, time=1000), of(11, 9, time=2000)], RESTORED),
        # a row without its feed is not guessed about
        (of(10, 10, None), [of(11, 9)], (*UNNAMED, EU)),
        (of(10, 10), [of(11, 11, None)], UNNAMED),
    ],
)
def test_events_that_cannot_be_compared_fail(shown, given, told, spark):
    """The errors name the feed and the remedy."""

    def stamped(*events):
        frame = spark.createDataFrame([event(1, **each) for each in events], EVENTS)
        row = F.monotonically_increasing_id()
        place = F.struct(F.lit(0).alias("time"), row.alias("row"))
        return lakehouse.stamped(frame).withColumn(ARRIVAL, place)

    first = newest(stamped(*given), ["key"], "t", ordered=True).select("_zeh_first")
    with pytest.raises(PySparkException) as raised:
        stamped(shown).crossJoin(first).select(wins("_zeh_first", "t")).collect()

    assert [*told] == [each for each in told if each in str(raised.value)]


def test_deleted_keys_are_purged_by_age(merge, spark):
    """Rows that deletions left go when old enough; what cannot be purged is refused by name."""
    merge(event(1, 10, "a", 0, gone=True), event(2, 20, "a", 1))

    lakehouse.purge(spark, merge.table, older_than="1 hour")
    kept = merge.frame().count()
    lakehouse.purge(spark, merge.table, older_than="0 seconds")

    assert (2, [2]) == (kept, [row.key for row in merge.frame().collect()])
    with pytest.raises(OptionError, match="'30 days'"):
        lakehouse.purge(spark, merge.table, older_than="soon")
    spark.range(1).write.format("delta").save(f"{merge.table}-other")
    with pytest.raises(LakehouseError, match="no merge made it"):
        lakehouse.purge(spark, f"{merge.table}-other", older_than="1 day")


@pytest.mark.slow
def test_columns_may_have_any_name_and_new_ones_are_added(spark, tmp_path):
    """Also those of structs, and of our own. Keys and stamps are found in any case. New columns and
    fields within columns, at any depth, are added as Delta's option says, beside the rows that are
    there.
    """
    table, keys = str(tmp_path / "named"), ["first", "a.b", "x`y"]
    names = ("first INT", "`a.b` INT", "`x``y` INT", "second STRUCT<a: INT>", "`by key` INT")
    schema = ", ".join([*names, "events INT", "headers MAP<STRING, STRING>"])
    deeper = schema.replace("a: INT", "a: INT, b: STRING")
    wider = f"{deeper}, extra STRING"
    empty = lakehouse.stamped(spark.createDataFrame([], schema))
    own = F.col("_zeh").withField("deleted", F.lit(False)).withField("changed", F.now())
    named = empty.withColumn("_zeh", own).write.format("delta")
    named.option("delta.columnMapping.mode", "name").save(table)

    def merge(*rows, schema=schema, shout=False, **options):
        frame = spark.createDataFrame(list(rows), schema)
        if shout:
            frame = lakehouse.stamped(frame)
            frame = frame.toDF(*map(str.upper, frame.columns))
        lakehouse.merge(frame, table, keys, **options)

    stamps = [event(0, 0, "a", number)[3] for number in range(5)]
    merge((7, 8, 9, (1,), 1, 1, stamps[2]), (7, 8, 0, (2,), 2, 2, stamps[1]))
    with pytest.raises((LakehouseError, PySparkException)):
        merge((7, 8, 9, (3, "y"), 3, 3, stamps[3], "x"), schema=wider)
    merge((7, 8, 9, (3, "y"), 3, 3, stamps[3], "x"), schema=wider, mergeSchema="true")
    merge(
        (7, 8, 9, (5, "z"), 5, 5, stamps[0]),  # an older one
        (7, 8, 0, (4, "z"), 4, 4, stamps[4]),
        schema=deeper,
        shout=True,
    )

    rows = spark.read.format("delta").load(table).collect()
    assert sorted((*row[:6], row.extra) for row in rows) == [
        (7, 8, 0, (4, "z"), 4, 4, None),
        (7, 8, 9, (3, "y"), 3, 3, "x"),
    ]


@pytest.mark.slow
def test_a_version_with_other_rows_is_refused(merge, spark):
    """For the stream of a Delta table: the same rows are merged once, in whatever order. Delta
    itself would leave others out without a word. What the error prints keeps the first, and is
    about that version only. Settings of the session stay as they are.

    A version that a restore took back is not left out: Delta's transaction stays, and it would
    leave the batch out; and the next one would follow a gap.
    """
    metadata = "spark.databricks.delta.commitInfo.userMetadata"
    spark.conf.set(metadata, "mine")
    try:
        merge(event(1, 10), event(3, 30), app_id="silver", version=7)
        merge(event(3, 30), event(1, 10), app_id="silver", version=7)
        told = merge.fail(event(1, 11), app_id="silver", version=7)
        assert "Spark gives it again with" in told
        accept = re.search(r"accept='(.*?)'", told)[1]
        merge(event(1, 11), app_id="silver", version=7, accept=accept)
        assert {1: 10, 3: 30} == merge.shown()
        before = spark.sql(f"DESCRIBE HISTORY delta.`{merge.table}`").first().version
        merge(event(2, 20), app_id="silver", version=8, accept=accept)
        told = merge.fail(event(2, 21), app_id="silver", version=8, accept=accept)
        assert "Spark gives it again with" in told
        told = merge.fail(event(1, 11), app_id="silver", version=6)
        assert "up to 8, but not that one" in told
        assert "mine" == spark.conf.get(metadata)
    finally:
        spark.conf.unset(metadata)
    assert {1: 10, 2: 20, 3: 30} == merge.shown()
    assert [] == [name for name in spark.conf.getAll if "txn" in name or "userMetadata" in name]

    spark.sql(f"RESTORE TABLE delta.`{merge.table}` TO VERSION AS OF {before}")
    for number in (8, 9):
        told = merge.fail(event(2, 20), app_id="silver", version=number)
        assert "which took back the versions 8 of silver" in told
    assert {1: 10, 3: 30} == merge.shown()


REFUSED = [
    ([event(None, 1)], {}, "NULL in the merge key 'key'"),
    ([event(1, 1)], {"keys": ["id"]}, "have to be columns of the frame"),
    ([event(1, 1)], {"keys": []}, "have to be columns of the frame"),
    ([event(1, 1)], {"version": 3}, "need each other"),
    ([event(1, 1)], {"deleted": "gon"}, "deleted='gon' is no condition"),
    ([event(1, 1)], {"deleted": "value"}, "is no condition on the frame's columns, key, value"),
    ([event(1, 1)], {"deleted": "value ("}, "deleted='value (' is no condition"),
    ([event(1, 1)], {"order": "seqence"}, "'seqence' is neither 'sequence' nor 'arrival', nor a"),
    ([event(1, 1)], {"order": "value / 2"}, "it is double"),
    ([event(1, None)], {"order": "value"}, "order='value' is NULL for an event"),
    # a key that is cast is another key, and our columns are ours
    ([("5", 1, False, {})], {"schema": EVENTS.replace("key INT", "key STRING")}, "CAST(key AS int"),
    ([(5, 1.5, False, {})], {"schema": EVENTS.replace("value INT", "value DOUBLE")}, "AS int)"),
    ([event(5, 2**40)], {"schema": EVENTS.replace("value INT", "value BIGINT")}, "value AS int)"),
    ([event(5, 1)], {"schema": EVENTS.replace("value", "_ZEH")}, "a column _ZEH of the type int"),
]


def test_what_cannot_be_merged_is_refused(merge):
    """By name; the table stays as it is."""
    merge(event(5, 50))
    for events, options, told in REFUSED:
        assert told in merge.fail(*events, **options)

    assert {5: 50} == merge.shown()


FITTING = [  # the table's type, and a value of the frame that stays as it is there
    ("decimal(8,2)", "CAST(99999.25 AS decimal(7,2))"),
    ("decimal(12,2)", "2147483647"),
    ("double", "CAST(1.5 AS float)"),
    ("bigint", "7S"),
    ("string", "NULL"),
    ("struct<a:int,b:string>", "named_struct('b', 'x', 'a', 1S)"),
    ("map<string,struct<a:bigint>>", "map('k', named_struct('a', 1))"),
]
OTHERS = [  # the table's type and the frame's
    ("decimal(8,2)", "decimal(8,3)"),
    ("decimal(11,2)", "int"),
    ("float", "int"),
    ("string", "timestamp"),
    ("date", "timestamp"),
    ("array<struct<a:int>>", "array<struct<a:bigint>>"),
]


@pytest.mark.slow
def test_a_merge_changes_no_value(merge, spark):
    """Delta would cast to the table's types, where it refuses to append."""
    names = [f"v{number}" for number in range(len(FITTING + OTHERS))]
    kinds = [kind for kind, _ in FITTING + OTHERS]

    def take(*columns, **options):
        frame = spark.sql(
            f"SELECT {', '.join(columns)}, 1 AS key, CAST(map() AS map<string, string>) AS headers"
        )
        lakehouse.merge(frame, merge.table, ["key"], **options)

    def null(kind, name):
        return f"CAST(NULL AS {kind}) AS {name}"

    take(*map(null, kinds, names))
    values = [f"{value} AS {name}" for (_, value), name in zip(FITTING, names, strict=False)]
    take(*values, "1 AS added", mergeSchema="true")
    found = merge.frame().select(*names[: len(FITTING)])
    expected = [f"CAST({value} AS {kind})" for kind, value in FITTING]
    expected[-2] = "named_struct('a', 1, 'b', 'x')"
    assert [tuple(row) for row in found.collect()] == [
        tuple(row) for row in spark.sql(f"SELECT {', '.join(expected)}").collect()
    ]

    for (_, kind), name in zip(OTHERS, names[len(FITTING) :], strict=True):
        for more in ({}, {"mergeSchema": "true"}):
            with pytest.raises(LakehouseError, match=f"the column '{name}.* could change values"):
                take(null(kind, name), "1 AS new", **more)


@pytest.mark.slow
def test_times_of_rows_without_numbers_may_go_back(merge):
    """Those of a service's own table are the service's, and rows come as they were committed."""
    merge.rows_of_a_feed((1, 10, False, {"zeh-time": "20"}), (1, 11, False, {"zeh-time": "10"}))
    assert {1: 11} == merge.shown()


def test_a_frame_without_stamps_is_refused(merge, spark):
    """They cannot be dropped by accident, only by intention."""
    bare = spark.createDataFrame([(1, 2)], "key INT, value INT")

    with pytest.raises(LakehouseError, match=r"stamped\(df\)"):
        lakehouse.merge(bare, merge.table, ["key"])

    early = lakehouse.stamped(spark.createDataFrame([event(1, 2, "a", 3, 4)], EVENTS))
    lakehouse.merge(early.drop("headers"), merge.table, ["key"])
    row = merge.frame().collect()[0]
    assert ("a", 4, 3) == (row._zeh.producer, row._zeh.partition, row._zeh.sequence)


def test_a_table_that_no_merge_has_made_is_refused(merge, spark):
    """Its rows have no stamps, or no feed; with mergeSchema they get some."""
    rows = lakehouse.stamped(spark.createDataFrame([event(1, 1, "a", 0)], EVENTS))
    made = rows.withColumn("_zeh", F.col("_zeh").dropFields("feed", "time"))
    made.write.format("delta").save(merge.table)

    told = merge.fail(event(1, 2, "a", 1))
    assert "lacks _zeh.feed, _zeh.time, _zeh.deleted, _zeh.changed, which" in told

    merge(event(1, 2, "a", 1), mergeSchema="true")
    assert [2] == [row.value for row in merge.frame().collect()]


@pytest.mark.slow
def test_a_version_that_another_driver_merges_meanwhile_is_compared(merge, monkeypatch):
    """Delta leaves the second one out: its rows may be others."""
    run = merging.Merge.run

    def late(self, *arguments):
        monkeypatch.setattr(merging.Merge, "run", run)
        merge(event(1, 10), app_id="silver", version=7)
        return run(self, *arguments)

    monkeypatch.setattr(merging.Merge, "run", late)
    told = merge.fail(event(2, 20), app_id="silver", version=7)
    assert "Spark gives it again with" in told
    assert {1: 10} == merge.shown()


@pytest.mark.slow
def test_a_version_that_delta_leaves_out_is_an_error_if_its_record_is_gone(merge, lake):
    """Outside of a query the log alone tells which versions there are. What the error prints leaves
    that version out, and no other one.
    """
    merge.table = lake.at("orders")
    schema = "i INT, value INT, gone BOOLEAN, headers MAP<STRING, STRING>"
    given = {"schema": schema, "keys": ["i"], "app_id": "silver"}
    merge(event(1, 10), version=7, **given)
    lake.clean_log()
    told = merge.fail(event(2, 20), version=6, **given)
    assert "Delta has left out version 6 of silver" in told
    accept = re.search(r"accept='(.*?)'", told)[1]
    merge(event(2, 20), version=6, accept=accept, **given)
    assert accept in merge.fail(event(2, 20), version=6, **given)
    assert accept not in merge.fail(event(2, 20), version=5, accept=accept, **given)
    merge(event(3, 30), version=8, accept=accept, **given)
    assert {-1, 1, 3} == {row.i for row in merge.frame().collect()}
