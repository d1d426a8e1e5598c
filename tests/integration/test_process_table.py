"""What `sessions.process` reads from its table, on batch frames of Spark."""

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from zeh_spark.errors import LakehouseError, OptionError
from zeh_spark.spark.sessions import verdicts
from zeh_spark.spark.sessions.processing import _kind

VERDICT = "'orders' processor, 'a' session, timestamp_millis(0) begun, {} number"


def table(spark, *rows):
    """Rows as (number, status, attempt, held, columns of the event)."""
    union = " UNION ALL ".join(
        f"SELECT {VERDICT.format(number)}, '{status}' status, {attempt} attempt, {held} held, "
        f"'k{number}' event_key, {columns}"
        for number, status, attempt, held, columns in rows
    )
    return spark.sql(union)


def test_kept_events_get_their_columns_by_name(spark):
    """Members of a STRUCT may stand in another order in the table, and columns may be missing."""
    kept = table(
        spark,
        (1, "failed", 1, True, "named_struct('b', 2, 'a', 1) pair, array(named_struct('y', 1)) l"),
        (2, "ok", 1, False, "named_struct('b', 4, 'a', 3) pair, array(named_struct('y', 2)) l"),
    )
    columns = StructType.fromDDL(
        "pair STRUCT<a: BIGINT NOT NULL, b: INT> NOT NULL, extra STRING, "
        "l ARRAY<STRUCT<x: INT, y: INT>>"
    )

    (row,) = verdicts.kept_events(kept, columns).collect()

    assert ((1, 2), None, [(None, 1)]) == (tuple(row.pair), row.extra, [tuple(e) for e in row.l])
    assert ("failed", "a", 1, 1, "k1") == tuple(
        row[verdicts.VERDICT][name]
        for name in ("status", "session", "number", "attempt", "event_key")
    )


def test_kept_events_of_another_type_are_refused(spark):
    """Before a handler is called for one of them."""
    kept = table(spark, (1, "failed", 1, True, "'text' pair"))

    with pytest.raises(LakehouseError, match='`pair` is of type "STRING" while'):
        verdicts.kept_events(kept, StructType.fromDDL("pair INT"))


def test_results_of_another_type_than_the_tables_are_refused(spark):
    """Delta would refuse them only after all handlers were called."""
    frame = table(spark, (1, "ok", 1, "NULL", "'text' result"))

    verdicts.check_result(frame, StringType())
    with pytest.raises(LakehouseError, match="result='bigint', and the table's column 'result'"):
        verdicts.check_result(frame, LongType())


def test_the_kind_of_an_event_is_said_by_its_own_columns(spark):
    """The table has others under these names, so a held event would get another kind."""
    frame = spark.sql("SELECT 'ordered' status, 'x' data")

    assert "x" == frame.select(_kind(frame, "data").alias("kind")).head().kind
    with pytest.raises(OptionError, match="activity='status' is no expression"):
        _kind(frame, "status")


def test_the_newest_verdict_on_a_replayed_event_has_its_key(spark):
    frame = table(
        spark,
        (1, "failed", 2, "NULL", "'x' data"),
        (1, "ok", 3, "NULL", "'x' data"),
        (2, "failed", 1, "NULL", "'x' data"),
        (3, "ok", 1, "NULL", "'x' data"),
    )

    found = verdicts.past_verdicts(frame, [("a", 1), ("a", 2), ("a", 4)])

    expected = {1: {0: ("ok", 3, "k1")}, 2: {0: ("failed", 1, "k2")}, 4: {}}
    assert {("a", number): said for number, said in expected.items()} == found
