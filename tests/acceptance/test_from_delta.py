"""A Delta table as a feed: each row once, each change in its order, and nothing left out unsaid."""

import re
from collections import Counter

import pytest

from tests.fix_from_delta import CHANGES
from tests.fix_lake import why_absent
from tests.fix_sink import CALLS, remedy

pytest.importorskip("delta", reason=why_absent())

from chispa.schema_comparer import assert_schema_equality
from pyspark.sql import functions as F

from zeh_spark.lakehouse import from_delta

# Each row once


def test_a_named_table_is_a_feed(spark, sink):
    """By a name of two parts; a path may be told in its longer form, too."""
    spark.sql("CREATE TABLE default.from_delta_named USING delta AS SELECT id AS i FROM range(9)")
    try:
        frame = from_delta(spark, "default.from_delta_named", key="i")
        sink.run(frame)
        location = spark.sql("DESCRIBE DETAIL default.from_delta_named").first()["location"]
        path = from_delta(spark, f"delta.`{location}`", key="i")
        assert_schema_equality(frame.schema, path.schema)
    finally:
        spark.sql("DROP TABLE default.from_delta_named")

    sink.target.check_once(range(9))


# What housekeeping does


@pytest.mark.slow
def test_each_row_of_a_table_is_published_once(source, sink):
    """What it has, then what is appended; OPTIMIZE and VACUUM between change nothing."""
    source.add(*(range(i, i + 10) for i in range(0, 30, 10)))
    sink.target.gateway.once(CALLS["commit"], before=source.compact)
    sink.run(source.feed_by_file())
    source.vacuum()
    source.add(range(30, 40))

    sink.run(source.feed_by_file())

    sink.target.check_once(range(40))
    assert sink.target.batches() == [0, 1, 2, 3]


@pytest.mark.slow
def test_files_that_are_gone_before_they_are_read_stop_the_query(source, sink):
    """VACUUM with too short a retention: an error, and never fewer rows."""
    source.add(*(range(i, i + 10) for i in range(0, 30, 10)))
    sink.target.gateway.once(CALLS["commit"], before=lambda: (source.compact(), source.vacuum()))

    for _ in range(2):
        with pytest.raises(Exception, match=r"FAILED_READ_FILE.*FILE_NOT_EXIST"):
            sink.run(source.feed_by_file())

    sink.target.check_stamps(sink.target.events())
    assert sink.target.batches() == [0, 1]


@pytest.mark.slow
def test_versions_that_a_restored_backup_uses_again_need_a_new_checkpoint(source, sink):
    """Delta's error stops the query only until the table has the version again. Then its rows are
    left out without an error; the page of errors says what to do.
    """
    source.add(range(10), range(10, 20), range(20, 30))
    sink.run(source.feed())
    source.lose_newest_commit()
    with pytest.raises(Exception, match="non-existent version 2"):
        sink.run(source.feed())
    source.add(range(30, 40), range(40, 50))

    sink.run(source.feed())
    sink.target.check_once([*range(30), *range(40, 50)])

    new = {"checkpoint": sink.folder / "new"}
    option = remedy(sink.fail(source.feed(startingVersion=2), **new))
    sink.run(source.feed(startingVersion=2), **new, **option)
    sink.target.check_once([*range(50), *range(40, 50)])


# Updates and deletions


@pytest.mark.slow
def test_an_update_or_deletion_stops_the_query_and_its_changes_continue(source, sink):
    """Spark's error names the table; the same checkpoint continues with change_feed=True. The frame
    is Spark's: changes can be filtered and columns left out, for `data` is a struct until the sink
    renders it.
    """
    source.keyed("INSERT INTO {} VALUES ('a', 1), ('b', 1)")
    sink.run(source.feed(key="k"))
    source.sql("UPDATE {} SET n = 9 WHERE k = 'a'", "DELETE FROM {} WHERE k = 'a'")

    with pytest.raises(Exception, match="DELTA_SOURCE_TABLE_IGNORE_CHANGES") as raised:
        sink.run(source.feed(key="k"))
    assert f"The source table can be found at path file:{source.path}" in str(raised.value)
    sink.run(source.feed(**CHANGES))

    events = sink.target.events()
    assert Counter(change(each) for each in events if "_change_type" in each.headers) == Counter(
        [("update_preimage", "a", 1), ("update_postimage", "a", 9), ("delete", "a", 9)]
    )
    assert len(events) == 2 + 3

    source.sql("UPDATE {} SET n = 7", "DELETE FROM {}")
    with pytest.raises(Exception, match="DELTA_SOURCE_IGNORE_DELETE"):
        sink.run(source.feed(key="k", startingVersion=5), sink.folder / "late", producerId="late")
    wanted = source.feed(**CHANGES).where("headers['_change_type'] = 'update_postimage'")
    sink.run(wanted.withColumn("data", F.col("data").dropFields("k")))
    assert [each.data for each in sink.target.events() if "k" not in each.data] == [{"n": 7}]


def change(event):
    return event.headers["_change_type"], event.data["k"], event.data["n"]


@pytest.mark.slow
def test_a_keys_changes_come_in_their_order(source, sink):
    """Many commits in one batch: each update shows what was before it, then what is. Of an
    overwrite Delta has no changes recorded, and would give its files one by one, the new ones
    first: what is replaced comes before what replaces it.
    """
    keys = "abcd"
    source.keyed(
        f"INSERT INTO {{}} VALUES {', '.join(f'({key!r}, 0)' for key in keys)}",
        *(f"UPDATE {{}} SET n = n + 1 WHERE k >= '{key}'" for key in keys),
        "DELETE FROM {} WHERE k < 'c'",
        "INSERT INTO {} VALUES ('a', 100)",
        "INSERT OVERWRITE {0} SELECT /*+ REPARTITION(6) */ k, n + 1000 FROM {0}",
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
    last = updates
    if key < "c":
        told.append(("delete", key, last))
    if key == "a":
        last = 100
        told.append(("insert", key, last))
    return told if key == "b" else [*told, ("delete", key, last), ("insert", key, last + 1000)]


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
