"""A feed kept in a Delta table that others change: restored, cleaned, copied, compacted.

No query runs: the batches are written as it would write them.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.fix_lake import why_absent

pytest.importorskip("delta", reason=why_absent())

from zeh_spark.errors import LakehouseError
from zeh_spark.lakehouse.delta_table import LakeTable

MODES = pytest.mark.parametrize("mode", [{}, {"merge_keys": ["i"]}], ids=["append", "merge"])


@pytest.mark.slow
def test_a_restored_table_is_refused_and_continues_from_its_own_cursors(lake):
    """DL-03, A12: the batches that a restore removed are written again, with a new checkpoint or as
    the same batches. Delta would skip the same batches silently, because a restore does
    not take back its transaction numbers.
    """
    lake.batches(range(50), range(50, 80), range(80, 90))
    lake.restore(0)

    assert "was taken back, and lacks batches 1 to 2" in lake.refused(3, range(90, 100))
    lake.batch(1, range(50, 80))
    assert lake.numbers() == Counter(range(80))
    lake.restore(0)
    assert lake.place() == 50
    lake.batch(0, range(50, 100), query="new")
    lake.batch(1, range(100, 110), query="new")
    assert lake.numbers() == Counter(range(110))


@pytest.mark.slow
def test_a_table_restored_to_before_its_first_batch_begins_anew(lake):
    """Also under its old name."""
    columns = "i INT, value STRING, headers MAP<STRING, STRING>"
    lake.sql(f"CREATE TABLE {{}} ({columns}) USING delta")
    lake.batch(0, range(50))
    lake.sql("RESTORE TABLE {} TO VERSION AS OF 0")

    assert lake.place() == 0
    lake.batch(0, range(50), query="new")
    assert lake.numbers() == Counter(range(50))


@pytest.mark.slow
def test_a_restore_to_a_time_has_to_be_named(lake):
    """The log does not keep its time zone."""
    lake.batches(range(50), range(50, 80))
    lake.sql(f"RESTORE TABLE {{}} TO TIMESTAMP AS OF '{lake.history()[1].timestamp}'")

    with pytest.raises(LakehouseError, match="TO VERSION AS OF"):
        lake.place()

    lake.restore(0)
    assert lake.place() == 50


@pytest.mark.slow
def test_a_restore_while_a_batch_is_written_is_noticed(lake, gate):
    """Delta 4.0 refuses the batch. Later ones put it on a table that lacks the one before; nobody
    continues from there.
    """
    lake.batches(range(50), range(50, 80))
    with gate.during(lake.refused, 2, range(80, 90)) as writing:
        lake.restore(0)

    noticed = "was taken back while the latter was written|holds all up to batch 0 "
    assert re.search(noticed, writing.result())
    assert re.search(noticed, lake.refused(2, range(80, 90)))
    lake.restore(1)
    assert lake.place() == 80


@pytest.mark.slow
def test_another_writer_and_optimize_change_nothing(lake):
    """The table is an ordinary one; the record is searched for as far back as it is."""
    lake.batch(0, range(50))
    for number in range(-4, 0):
        lake.sql(f"INSERT INTO {{}} (i) VALUES ({number})")
    lake.sql("OPTIMIZE {}")
    page_by_page = LakeTable(lake.spark, lake.at("orders"), page=1).standing("orders")
    assert page_by_page == LakeTable(lake.spark, lake.at("orders")).standing("orders")
    assert page_by_page.record.batch == 0
    lake.vacuum()

    lake.batch(0, range(50, 80), query="new")

    assert lake.numbers() == Counter(range(-4, 80))


@pytest.mark.slow
@MODES
def test_optimize_while_a_batch_is_written_changes_nothing(lake, gate, mode):
    """The batch is tried again where Delta cannot bring the two together."""
    lake.batches(range(25), range(25, 50), **mode)
    with gate.during(lake.batch, 2, range(50, 60), **mode):
        # in a session of its own: that of a batch has the batch's transaction as a setting
        lake.spark.newSession().sql(f"OPTIMIZE delta.`{lake.at('orders')}`")

    assert lake.numbers() == Counter(range(60))


@pytest.mark.slow
@MODES
def test_a_table_that_compacts_itself_changes_nothing(lake, mode):
    """As tables on Databricks often do."""
    lake.spark.conf.set("spark.databricks.delta.autoCompact.enabled", "true")
    lake.spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    try:
        lake.batches(range(10), range(10, 20), range(20, 30), range(30, 40), **mode)
    finally:
        lake.spark.conf.unset("spark.databricks.delta.autoCompact.enabled")
        lake.spark.conf.unset("spark.databricks.delta.autoCompact.minNumFiles")

    assert lake.numbers() == Counter(range(40))
    assert "OPTIMIZE" in {row.operation for row in lake.history()}


# Rows without their log


def to_accept(told):
    return re.search("say accept='(.*?)'", told)[1]


@pytest.mark.slow
def test_a_cleaned_log_is_noticed(lake):
    """Where neither the log nor the rows tell, nobody guesses. Another name has to be meant: it
    could be the one whose record is gone, mistyped.
    """
    lake.batch(0, range(50))
    lake.clean_log()

    with pytest.raises(LakehouseError, match="zeh-spark:orders:0@0"):
        lake.place()
    assert "{_first}" in lake.refused(0, range(60), query="from the beginning")
    assert "commits before version" in lake.refused(0, range(50), query="new", name="order")
    told = lake.refused(0, range(50, 60), query="new")
    lake.batch(0, range(50, 60), query="new", accept=to_accept(told))
    lake.batch(1, range(60, 70), query="new", accept=to_accept(told))
    assert lake.numbers() == Counter([-1, *range(70)])


@pytest.mark.slow
def test_a_column_keeps_the_cursors_where_the_log_is_cleaned(lake):
    """The rows know it themselves."""
    kept = {"cursorColumn": "_cursors"}
    lake.batch(0, range(50), **kept)
    lake.clean_log()
    lake.batch(1, range(50, 60), **kept)
    lake.clean_log()

    assert lake.place(**kept) == 60
    lake.batch(0, range(60, 70), query="new", **kept)
    assert lake.numbers() == Counter([-1, -1, *range(70)])


@pytest.mark.slow
def test_a_clone_is_noticed(lake):
    """It has the rows, and not the log."""
    lake.batch(0, range(50))
    lake.sql(f"CREATE TABLE delta.`{lake.at('copy')}` SHALLOW CLONE {{}}")

    told = lake.refused(0, range(60), query="from the beginning", table="copy")
    assert "clone of" in told and "{_first}" in told
    told = lake.refused(0, range(50, 60), query="new", table="copy")
    lake.batch(0, range(50, 60), query="new", table="copy", accept=to_accept(told))
    assert lake.place("copy") == 60
    assert lake.numbers("copy") == Counter(range(60))


@pytest.mark.slow
def test_a_table_that_was_replaced_or_rewritten_is_noticed(lake):
    """The old checkpoint does not continue as if nothing had happened. An empty table begins anew;
    one with rows may have them, though its own log says that nothing came before.
    """
    here = f"delta.`{lake.at('orders')}`"
    replaced = f"CREATE OR REPLACE TABLE {here} USING delta AS SELECT * FROM {here}"
    lake.batch(0, range(50))
    lake.spark.sql(f"{replaced} WHERE false")

    assert "was emptied or replaced" in lake.refused(1, range(50, 60))
    lake.batch(0, range(60), query="new")
    lake.spark.sql(replaced)
    assert "say accept='zeh-spark:orders:" in lake.refused(0, range(70), query="newer")
    assert lake.numbers() == Counter(range(60))
