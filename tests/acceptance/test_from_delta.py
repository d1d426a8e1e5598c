"""A Delta table as a feed: each row once, each change in its order, and nothing left out unsaid."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.fix_from_delta import CHANGES
from tests.fix_lake import why_absent
from tests.fix_sink import CALLS

pytest.importorskip("delta", reason=why_absent())

from zeh_spark.lakehouse import from_delta

# Each row once


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


# What housekeeping does


@pytest.mark.slow
def test_each_row_of_a_table_is_published_once(source, sink):
    """What it has, then what is appended, though OPTIMIZE and VACUUM come between: they change
    nothing, also while the table's first rows are published.
    """
    source.add(*(range(i, i + 10) for i in range(0, 40, 10)))
    sink.target.gateway.once(CALLS["commit"], before=source.compact)
    sink.run(source.feed_by_file())
    source.vacuum()
    source.add(range(40, 50))

    sink.run(source.feed_by_file())

    sink.target.check_once(range(50))
    assert sink.target.batches() == [0, 1, 2, 3, 4]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statements", "changes"),
    [
        (
            ["UPDATE {} SET n = 9 WHERE k = 'a'", "DELETE FROM {} WHERE k = 'a'"],
            [("update_preimage", "a", 1), ("update_postimage", "a", 9), ("delete", "a", 9)],
        ),
        (["DELETE FROM {}"], [("delete", "a", 1), ("delete", "b", 1)]),
    ],
)
def test_an_update_or_deletion_stops_the_query_and_its_changes_continue(
    statements, changes, source, sink
):
    """Spark's error names the table; the same checkpoint continues with change_feed=True."""
    source.keyed("INSERT INTO {} VALUES ('a', 1), ('b', 1)")
    sink.run(source.feed(key="k"))
    source.sql(*statements)

    with pytest.raises(Exception, match=r"DELTA_SOURCE_(TABLE_IGNORE_CHANGES|IGNORE_DELETE)") as it:
        sink.run(source.feed(key="k"))
    sink.run(source.feed(**CHANGES))

    assert f"The source table can be found at path file:{source.path}" in str(it.value)
    events = [each for each in sink.target.events() if "_change_type" in each.headers]
    assert Counter(map(change, events)) == Counter(changes)
    assert len(sink.target.events()) == 2 + len(changes)


def change(event):
    return event.headers["_change_type"], event.data["k"], event.data["n"]


@pytest.mark.slow
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
    first. What is replaced comes before what replaces it.
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


def test_changes_can_be_filtered_and_columns_left_out(source, sink):
    """The frame is Spark's: `data` is a struct, until the sink renders it."""
    source.keyed("INSERT INTO {} VALUES ('a', 1)", "UPDATE {} SET n = 2")
    changes = source.feed(**CHANGES, startingVersion=0)
    wanted = changes.where("headers['_change_type'] <> 'update_preimage'")

    from pyspark.sql import functions as F

    sink.run(wanted.withColumn("data", F.col("data").dropFields("k")))

    assert [each.data for each in sink.target.events()] == [{"n": 1}, {"n": 2}]


# Another schema


@pytest.mark.slow
def test_a_query_that_stopped_for_a_new_column_continues(source, sink):
    """Delta stops it; from_delta, called again, takes the new schema. A batch that is published
    already and comes again with a new column is refused; the one that is there stays, if the user
    says so.
    """
    source.add(range(10))
    old = source.feed()
    sink.run(old)
    source.sql("ALTER TABLE {} ADD COLUMN more STRING", "INSERT INTO {} VALUES (10, 'x')")

    with pytest.raises(Exception, match=r"STREAM_FAILED"):
        sink.run(old)
    sink.run(source.feed())
    assert {each.data.get("more", "absent") for each in sink.target.events()} == {"absent", "x"}

    source.sql("ALTER TABLE {} ADD COLUMN most STRING")
    sink.forget(max(int(each.name) for each in (sink.checkpoint / "commits").glob("[0-9]*")))
    said = sink.fail(source.feed())
    once = re.findall(r"keepFirst=(\S+)", said)[0].rstrip(".,;")
    sink.run(source.feed(), keepFirst=once)
    sink.target.check_once(range(11))
