"""A Delta table as a feed: each row once, each change in its order, and nothing left out unsaid."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import requests
from chispa import assert_df_equality

from tests.fix_lake import why_absent
from tests.fix_sink import CALLS
from tests.fix_spark import ENVIRONMENT

pytest.importorskip("delta", reason=why_absent())

import zeh_spark
from zeh_spark.errors import LakehouseError, OptionError
from zeh_spark.lakehouse import from_delta

PROGRAM = Path(__file__).parents[1] / "programs" / "delta_to_feed.py"
CHANGES = {"key": "k", "change_feed": True}


class Source:
    """A Delta table in a folder, of rows (i BIGINT) unless it is made otherwise."""

    def __init__(self, spark, folder):
        self.spark = spark
        self.path = str(folder)

    def add(self, *commits):
        """A commit, and a file, for each range of numbers."""
        for each in commits:
            frame = self.spark.range(each.start, each.stop, each.step, 1).selectExpr("id AS i")
            frame.write.format("delta").mode("append").save(self.path)

    def sql(self, *statements):
        """`{}` stands for the table."""
        for each in statements:
            self.spark.sql(each.format(f"delta.`{self.path}`"))

    def keyed(self, *statements):
        """As a table (k, n) whose changes are recorded."""
        recorded = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        self.sql(f"CREATE TABLE {{}} (k STRING, n INT) USING delta {recorded}", *statements)

    def save(self, query):
        """As a table of a query's rows, whose columns may have any name."""
        mapped = {"delta.columnMapping.mode": "name"}
        self.spark.sql(query).write.format("delta").options(**mapped).save(self.path)

    def compact(self):
        self.sql("OPTIMIZE {}")

    def vacuum(self):
        """Of all that the newest version does not need, in few tasks."""
        settings = {
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        }
        for name, value in settings.items():
            self.spark.conf.set(name, value)
        self.sql("VACUUM {} RETAIN 0 HOURS")
        for name in settings:
            self.spark.conf.unset(name)

    def feed(self, **how):
        return from_delta(self.spark, self.path, **how)

    def feed_by_file(self):
        return self.feed(maxFilesPerTrigger=1)


@pytest.fixture
def source(spark, tmp_path):
    return Source(spark, tmp_path / "source")


# Each row once


def test_each_row_of_a_table_is_published_once(source, sink):
    """What it has, then what is appended, through restarts."""
    for begin in (0, 200, 400):
        source.add(range(begin, begin + 100), range(begin + 100, begin + 200))
        sink.run(source.feed(key="i"))

    sink.target.check_once(range(600))
    assert sink.target.batches() == [0, 1, 2]


def test_a_named_table_is_a_feed(spark, sink):
    """By a name of two parts, or the longer form of the path."""
    spark.sql("CREATE TABLE default.from_delta_named USING delta AS SELECT id AS i FROM range(9)")
    try:
        sink.run(from_delta(spark, "default.from_delta_named", key="i"))
        location = spark.sql("DESCRIBE DETAIL default.from_delta_named").first()["location"]
        by_path = from_delta(spark, f"delta.`{location}`")
        sink.run(by_path, sink.folder / "2", url=sink.target.feed("copy"))
    finally:
        spark.sql("DROP TABLE default.from_delta_named")

    sink.target.check_once(range(9))
    sink.target.check_once(range(9), "copy")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("call", ["upload", "commit"])
def test_each_row_is_published_once_when_the_driver_of_a_table_is_killed(
    call, source, sink, tmp_path
):
    """Before a batch is staged, or before it is committed."""
    source.add(*(range(i, i + 100) for i in range(0, 500, 100)))
    how = {"key": "i", "maxFilesPerTrigger": "1"}
    driver = started(source, sink, tmp_path, how)
    sink.target.gateway.once(CALLS[call], before=lambda: kill(driver))

    assert driver.wait(170) == -signal.SIGKILL
    source.compact()
    assert started(source, sink, tmp_path, how).wait(170) == 0

    sink.target.check_once(range(500))
    assert sink.target.batches() == [0, 1, 2, 3, 4]


def started(source, sink, tmp_path, how, delta=True):
    job = {
        "table": source.path,
        "how": how,
        "delta": delta,
        "checkpoint": str(tmp_path / "checkpoint"),
        "options": {"url": sink.target.url, "producerId": "spark"},
    }
    with (tmp_path / "log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", str(PROGRAM), json.dumps(job)],
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def kill(driver):
    """The JVM, too."""
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)


# What housekeeping does


def test_compaction_between_batches_changes_nothing(source, sink):
    """OPTIMIZE, and VACUUM of what was read, while the table's first rows are published."""
    source.add(*(range(i, i + 10) for i in range(0, 40, 10)))
    sink.target.gateway.once(CALLS["commit"], before=source.compact)
    sink.run(source.feed_by_file())
    source.vacuum()
    source.add(range(40, 50))

    sink.run(source.feed_by_file())

    sink.target.check_once(range(50))
    assert sink.target.batches() == [0, 1, 2, 3, 4]


def test_files_that_are_gone_before_they_are_read_stop_the_query(source, sink):
    """VACUUM with too short a retention: an error, and never fewer rows."""
    source.add(*(range(i, i + 10) for i in range(0, 40, 10)))
    sink.target.gateway.once(CALLS["commit"], before=lambda: (source.compact(), source.vacuum()))

    for _ in range(2):
        with pytest.raises(Exception, match=r"FAILED_READ_FILE.*FILE_NOT_EXIST"):
            sink.run(source.feed_by_file())

    sink.target.check_stamps(sink.target.events())
    assert sink.target.batches() == [0, 1]


# Updates and deletions


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        (
            "UPDATE {} SET n = 9 WHERE k = 'a'",
            [("update_preimage", "a", 1), ("update_postimage", "a", 9)],
        ),
        ("DELETE FROM {} WHERE k = 'a'", [("delete", "a", 1)]),
        ("DELETE FROM {}", [("delete", "a", 1), ("delete", "b", 1)]),
    ],
)
def test_an_update_or_deletion_stops_the_query_and_its_changes_go_on(
    statement, changes, source, sink
):
    """Spark's error names the table; the same checkpoint goes on with change_feed=True."""
    source.keyed("INSERT INTO {} VALUES ('a', 1), ('b', 1)")
    sink.run(source.feed(key="k"))
    source.sql(statement)

    with pytest.raises(Exception, match=r"DELTA_SOURCE_(TABLE_IGNORE_CHANGES|IGNORE_DELETE)") as it:
        sink.run(source.feed(key="k"))
    sink.run(source.feed(**CHANGES))

    assert f"The source table can be found at path file:{source.path}" in str(it.value)
    events = [each for each in sink.target.events() if "_change_type" in each.headers]
    assert Counter(map(change, events)) == Counter(changes)
    assert len(sink.target.events()) == 2 + len(changes)


def change(event):
    return event.headers["_change_type"], event.data["k"], event.data["n"]


def test_a_keys_changes_come_in_their_order(source, sink):
    """Many commits in one batch: each update shows what was before it, then what is."""
    keys = "abcdefgh"
    steps = [f"UPDATE {{}} SET n = n + 1 WHERE k >= '{key}'" for key in keys]
    source.keyed(
        f"INSERT INTO {{}} VALUES {', '.join(f'({key!r}, 0)' for key in keys)}",
        *steps,
        "DELETE FROM {} WHERE k < 'c'",
        "INSERT INTO {} VALUES ('a', 100)",
    )

    sink.run(source.feed(**CHANGES, startingVersion=0))

    assert len(sink.target.receipts("spark")) == 1
    events = sink.target.events()
    for place, key in enumerate(keys):
        of_key = [each for each in events if each.data["k"] == key]
        assert [change(each) for each in of_key] == history(key, updates=place + 1)
        versions = [int(each.headers["_commit_version"]) for each in of_key]
        assert versions == sorted(versions) and versions[0] == 1
        assert len({each.partition for each in of_key}) == 1


def history(key, updates):
    """What happened to a key."""
    told = [("insert", key, 0)]
    for n in range(updates):
        told += [("update_preimage", key, n), ("update_postimage", key, n + 1)]
    if key < "c":
        told.append(("delete", key, updates))
    if key == "a":
        told.append(("insert", key, 100))
    return told


def test_an_overwrite_of_many_files_is_one_batch(source, sink):
    """Delta has no changes recorded for it, and would give its files one by one, the new ones
    first.
    """
    rows = ", ".join(f"('{number}', 0)" for number in range(6))
    source.keyed(f"INSERT INTO {{}} SELECT /*+ REPARTITION(6) */ * FROM VALUES {rows}")
    sink.run(source.feed(**CHANGES))
    source.sql(
        f"INSERT OVERWRITE {{}} SELECT /*+ REPARTITION(6) */ col1, col2 + 1 FROM VALUES {rows}"
    )
    sink.run(source.feed(**CHANGES))

    assert sink.target.batches() == [0, 1]
    for number in "012345":
        told = [change(each) for each in sink.target.events() if each.data["k"] == number]
        assert told == [("insert", number, 0), ("delete", number, 0), ("insert", number, 1)]


def test_what_is_replaced_in_one_commit_comes_before_what_replaces_it(source, sink):
    """An overwrite deletes and inserts a key in one version."""
    source.keyed("INSERT INTO {} SELECT string(id), 0 FROM range(20)")
    source.sql("INSERT OVERWRITE {} SELECT string(id), 1 FROM range(20)")

    sink.run(source.feed(**CHANGES, startingVersion=2))

    events = sink.target.events()
    for key in map(str, range(20)):
        told = [change(each) for each in events if each.data["k"] == key]
        assert told == [("delete", key, 0), ("insert", key, 1)]


def test_changes_can_be_filtered_and_columns_left_out(source, sink):
    """The frame is Spark's: `data` is a struct, until the sink renders it."""
    source.keyed("INSERT INTO {} VALUES ('a', 1)", "UPDATE {} SET n = 2")
    changes = source.feed(**CHANGES, startingVersion=0)
    wanted = changes.where("headers['_change_type'] <> 'update_preimage'")

    from pyspark.sql import functions as F

    sink.run(wanted.withColumn("data", F.col("data").dropFields("k")))

    assert [each.data for each in sink.target.events()] == [{"n": 1}, {"n": 2}]


# What an event holds

ALL_KINDS = """
    named_struct('x', id, 'y', array(id, NULL)) AS nested, CAST(NULL AS STRING) AS nothing,
    CAST(id AS DECIMAL(38, 18)) / 3 AS price, timestamp_micros(1700000000000001 + id) AS at,
    timestamp_ntz'2026-11-22 01:02:03.000004' AS clock, date'2026-11-22' AS day, X'00FF' AS bytes,
    map(string(id), 'é"\\n') AS texts, id % 2 = 0 AS even, id / 7 AS share,
    'd' AS data, 'h' AS headers, 'p' AS partition, 'k' AS `key`, id AS `a.b c`
"""


def test_the_feed_holds_all_that_the_table_has(source, sink, spark):
    """Every column and digit, NULL too, and names that mean something elsewhere."""
    source.save(f"SELECT id AS i, {ALL_KINDS} FROM range(50)")

    sink.run(source.feed(key="a.b c"))

    table = spark.read.format("delta").load(source.path)
    url = f"{sink.target.publisher}/orders?n=3&cursor0=_first&cursor1=_first&cursor2=_first"
    texts = re.findall(r'"data":(.*)\}', requests.get(url, timeout=30).text)
    events = spark.createDataFrame([(each,) for each in texts], "data STRING")
    parsed = zeh_spark.parsed(events, table.schema)
    assert_df_equality(parsed.sort("i"), table.sort("i"), ignore_nullable=True)
    assert {*table.columns} == {*sink.target.events()[0].data}


def test_a_batch_that_is_repeated_in_another_time_zone_is_the_same(source, sink, spark):
    """The sink would refuse other bytes under the same number."""
    source.save(f"SELECT id AS i, {ALL_KINDS} FROM range(50)")
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        for each in ("Asia/Kolkata", "America/St_Johns"):
            spark.conf.set("spark.sql.session.timeZone", each)
            sink.run(source.feed())
            sink.forget(0)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)

    assert len(sink.target.events()) == 50
    assert {each.data["at"][-8:] for each in sink.target.events()} >= {".000001Z", ".000050Z"}


def test_deleted_rows_and_renamed_columns_are_as_in_the_table(source, sink):
    """Deletion vectors and column mapping, from before the query."""
    source.add(range(10))
    features = "'delta.enableDeletionVectors' = true, 'delta.columnMapping.mode' = 'name'"
    source.sql(
        f"ALTER TABLE {{}} SET TBLPROPERTIES ({features})",
        "DELETE FROM {} WHERE i % 2 = 0",
        "ALTER TABLE {} RENAME COLUMN i TO j",
    )

    sink.run(source.feed())

    assert sorted(each.data["j"] for each in sink.target.events()) == [1, 3, 5, 7, 9]


def test_integer_and_text_keys_of_the_same_digits_go_to_one_partition(source, sink):
    """A nested field or an expression is a key, too."""
    source.add(range(30))
    keys = ["i", "CAST(i AS STRING)", "named_struct('i', i).i"]
    for number, key in enumerate(keys):
        sink.run(source.feed(key=key), sink.folder / str(number), producerId=f"p{number}")

    places = {(each.data["i"], each.partition) for each in sink.target.events()}
    assert len(places) == 30


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("double('NaN')", "price: JSON has no NaN and no Infinity: 'nan'"),
        ("CAST(X'FF' AS STRING)", "price: not UTF-8"),
    ],
)
def test_a_value_that_json_has_not_is_refused_with_its_column(column, reason, source, sink):
    """Nothing is altered in silence."""
    source.save(f"SELECT {column} AS price")

    said = sink.fail(source.feed())

    assert said.startswith("RowError: ") and reason in said
    assert sink.target.events() == []


def test_a_column_that_json_has_not_is_refused_by_name(source, sink):
    """VARIANT: the frame goes without it, or with what the user makes of it."""
    source.save("SELECT 1 AS i, parse_json('[1]') AS v")

    said = sink.fail(source.feed())
    from pyspark.sql import functions as F

    text = F.to_json(F.col("data.v"))
    sink.run(source.feed().withColumn("data", F.col("data").withField("v", text)))

    assert "the column 'data' cannot be rendered: data.v is VARIANT" in said
    assert [each.data for each in sink.target.events()] == [{"i": 1, "v": "[1]"}]


# Another schema


def test_a_query_that_stopped_for_a_new_column_goes_on(source, sink):
    """Delta stops it; from_delta, called again, takes the new schema."""
    source.add(range(10))
    old = source.feed()
    sink.run(old)
    source.sql("ALTER TABLE {} ADD COLUMN more STRING", "INSERT INTO {} VALUES (10, 'x')")

    with pytest.raises(Exception, match=r"STREAM_FAILED"):
        sink.run(old)
    sink.run(source.feed())

    sink.target.check_once(range(11))
    assert {each.data.get("more", "absent") for each in sink.target.events()} == {"absent", "x"}


def test_a_published_batch_that_comes_again_with_a_new_column_is_refused(source, sink):
    """The one that is there stays, if the user says so."""
    source.add(range(10))
    sink.run(source.feed())
    source.sql("ALTER TABLE {} ADD COLUMN more STRING")
    sink.forget(0)

    said = sink.fail(source.feed())
    once = re.findall(r"keepFirst=(\S+)", said)[0].rstrip(".,;")
    sink.run(source.feed(), keepFirst=once)

    sink.target.check_once(range(10))


# Mistakes


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"key": "nope"}, "key 'nope' is neither a column nor an expression of columns: "),
        ({"key": "i +"}, "key 'i +' is neither a column nor an expression of columns: "),
        ({"key": "d"}, "key 'd' is DOUBLE, and keys are STRING or integers: make a text of it"),
        ({"ignoreDeletes": True}, "option 'ignoreDeletes' is refused: it hides deletions"),
        ({"failOnDataLoss": False}, "option 'failOnDataLoss' is refused: commits whose log"),
        ({"startingVersoin": 3}, "option 'startingVersoin' is unknown; did you mean"),
    ],
)
def test_a_mistake_in_a_call_is_told_before_anything_is_read(how, problem, source):
    """The option's name, the table's, and what there is instead."""
    source.save("SELECT 1 AS i, 1D AS d")

    with pytest.raises(OptionError, match=re.escape(problem)) as raised:
        source.feed(**how)

    assert raised.value.option == next(iter(how))


def test_changes_need_a_key_and_a_table_that_records_them(source):
    """Each error says what to do."""
    source.add(range(3))

    with pytest.raises(
        LakehouseError, match=r"SET TBLPROPERTIES \(delta.enableChangeDataFeed = "
    ) as it:
        source.feed(**{**CHANGES, "key": "i"})
    assert it.value.table == source.path
    source.sql("ALTER TABLE {} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    with pytest.raises(OptionError, match="change_feed=True needs a key"):
        source.feed(change_feed=True)


@pytest.mark.parametrize("setting", ["ignoreMissingFiles", "ignoreCorruptFiles"])
def test_a_session_that_leaves_files_out_is_refused(setting, source, spark):
    """Delta would give batches without their rows."""
    source.add(range(3))
    spark.conf.set(f"spark.sql.files.{setting}", "true")
    try:
        with pytest.raises(OptionError, match=f"{setting}=true is refused: rows of ") as raised:
            source.feed()
    finally:
        spark.conf.unset(f"spark.sql.files.{setting}")

    assert raised.value.option == f"spark.sql.files.{setting}"


def test_what_is_no_delta_table_is_refused(source, spark, tmp_path):
    """Nothing at the path, no such name, other files, a table without columns."""
    other = str(tmp_path / "parquet")
    spark.range(3).write.parquet(other)
    spark.sql("CREATE TABLE from_delta_empty USING delta")
    try:
        for table, problem in [
            (source.path, "there is none: give the path or the name of a Delta table"),
            ("from_delta_nowhere", "there is none: give the path or the name of a Delta table"),
            (other, "they are no Delta table"),
            ("from_delta_empty", "it has no columns yet"),
        ]:
            with pytest.raises(LakehouseError, match=problem) as raised:
                from_delta(spark, table)
            assert raised.value.table == table
    finally:
        spark.sql("DROP TABLE from_delta_empty")


def test_a_session_without_delta_is_told_how_to_get_it(source, sink, tmp_path):
    """The extra to install, and the call that sets the session up."""
    source.add(range(3))

    assert started(source, sink, tmp_path, {}, delta=False).wait(170) == 1

    said = (tmp_path / "log").read_text().strip().splitlines()[-1]
    assert said.startswith(f"zeh_spark.errors.LakehouseError: table {source.path}: ")
    assert "pip install 'zeh-spark[delta]'" in said and "zeh_spark.configure(" in said
