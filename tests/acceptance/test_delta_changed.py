"""A feed kept in a Delta table that others change: restored, cleaned, copied, compacted."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.fix_lake import DATA, said, why_absent
from tests.fix_stream import wait_for
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())

from zeh_spark import lakehouse
from zeh_spark.errors import LakehouseError
from zeh_spark.lakehouse.delta_table import LakeTable


@pytest.mark.slow
def test_a_restored_table_is_refused_and_continues_from_its_own_cursors(lake):
    """DL-03: what the restore took back comes again, with a new checkpoint."""
    lake.grow(range(50), range(50, 80), range(80, 90))
    lake.restore(0)
    lake.add(range(90, 100))

    told = lake.fail()

    assert "was taken back, and lacks batches 1 to 2" in told
    assert lake.numbers() == Counter(range(50))
    lake.run(checkpoint="new")
    lake.add(range(100, 110))
    lake.run(checkpoint="new")
    assert lake.numbers() == Counter(range(110))


@pytest.mark.slow
def test_a_batch_is_written_again_when_the_restore_took_it_back(lake):
    """DL-03, A12: Delta would leave it out in silence, as its transactions are not restored."""
    lake.grow(range(50), range(50, 80))
    lake.forget(1)
    lake.restore(0)

    lake.run()

    assert lake.numbers() == Counter(range(80))


@pytest.mark.slow
def test_a_table_restored_to_before_its_first_batch_begins_anew(lake):
    """Also under its old name."""
    lake.sql(f"CREATE TABLE {{}} (partition INT, headers MAP<STRING, STRING>, {DATA}) USING delta")
    lake.add(range(50))
    lake.run()
    lake.sql("RESTORE TABLE {} TO VERSION AS OF 0")

    lake.run(checkpoint="new")

    assert lake.numbers() == Counter(range(50))


@pytest.mark.slow
def test_a_restore_to_a_time_has_to_be_named(lake):
    """The log does not keep its time zone."""
    lake.grow(range(50), range(50, 80))
    lake.sql(f"RESTORE TABLE {{}} TO TIMESTAMP AS OF '{lake.history()[1].timestamp}'")

    with pytest.raises(LakehouseError, match="TO VERSION AS OF"):
        lakehouse.cursors(lake.spark, lake.at("orders"), name="orders")

    lake.restore(0)
    lake.run(checkpoint="new")
    assert lake.numbers() == Counter(range(80))


@pytest.mark.slow
def test_a_restore_while_a_batch_is_written_is_noticed(lake, gate):
    """Delta 4.0 refuses the batch. Later ones put it on a table that lacks the one before; nobody
    continues from there.
    """
    lake.grow(range(50), range(50, 80))
    lake.add(range(80, 90))
    query = lake.start(change=gate)
    wait_for(gate.come.exists)
    lake.restore(0)
    gate.open()
    with pytest.raises(Exception) as raised:
        query.awaitTermination(PATIENCE)

    noticed = "was taken back while the latter was written|holds all up to batch 0 "
    assert re.search(noticed, said(raised.value))
    assert re.search(noticed, lake.fail())
    lake.restore(1)
    lake.run(checkpoint="new")
    assert lake.numbers() == Counter(range(90))


@pytest.mark.slow
def test_another_writer_and_optimize_change_nothing(lake):
    """The table is an ordinary one; the record is searched for as far back as it is."""
    lake.add(range(50))
    lake.run()
    for number in range(-4, 0):
        lake.sql(f"INSERT INTO {{}} (i) VALUES ({number})")
    lake.sql("OPTIMIZE {}")
    page_by_page = LakeTable(lake.spark, lake.at("orders"), page=1).standing("orders")
    assert page_by_page == LakeTable(lake.spark, lake.at("orders")).standing("orders")
    assert page_by_page.record.batch == 0
    lake.vacuum()
    lake.add(range(50, 80))
    lake.drop("checkpoint")

    lake.run()

    assert lake.numbers() == Counter(range(-4, 80))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"merge_keys": ["i"]}], ids=["append", "merge"])
def test_optimize_while_a_batch_is_written_changes_nothing(lake, gate, options):
    """The batch is tried again where Delta cannot bring the two together."""
    lake.grow(range(25), range(25, 50), **options)
    lake.add(range(40, 60))
    query = lake.start(change=gate, **options)
    wait_for(gate.come.exists)
    lake.sql("OPTIMIZE {}")
    gate.open()
    assert query.awaitTermination(PATIENCE)

    doubled = range(40, 50) if not options else ()
    assert lake.numbers() == Counter([*range(60), *doubled])


@pytest.mark.slow
def test_a_cleaned_log_is_noticed(lake):
    """Where neither the log nor the rows tell, nobody guesses."""
    lake.add(range(50))
    lake.run()
    place = lakehouse.cursors(lake.spark, lake.at("orders"), name="orders")
    lake.clean_log()
    lake.add(range(50, 60))

    with pytest.raises(LakehouseError, match="zeh-spark:orders:0@0"):
        lakehouse.cursors(lake.spark, lake.at("orders"), name="orders")
    told = lake.fail(checkpoint="from the beginning", source={})
    assert "{_first}" in told
    told = lake.fail(checkpoint="new", source={"startingCursors": place}, accept=to_accept(told))

    lake.run(checkpoint="new", source={"startingCursors": place}, accept=to_accept(told))
    lake.add(range(60, 70))
    lake.run(checkpoint="new", accept=to_accept(told))
    assert lake.numbers() == Counter([-1, *range(70)])


def to_accept(told):
    return re.search("say accept='(.*?)'", told)[1]


@pytest.mark.slow
def test_another_name_on_a_table_with_a_cleaned_log_has_to_be_meant(lake):
    """It could be the one whose record is gone, mistyped."""
    lake.add(range(5))
    lake.run()
    lake.clean_log()

    told = lake.fail(name="order", checkpoint="new")

    assert "commits before version" in told
    assert lake.numbers() == Counter([-1, *range(5)])


@pytest.mark.slow
def test_a_column_keeps_the_cursors_where_the_log_is_cleaned(lake):
    """The rows know it themselves."""
    kept = {"cursorColumn": "_cursors"}
    lake.add(range(50))
    lake.run(**kept)
    lake.clean_log()
    lake.add(range(50, 60))
    lake.run(**kept)
    lake.clean_log()
    lake.add(range(60, 70))
    lake.drop("checkpoint")

    lake.run(**kept)

    assert lake.numbers() == Counter([-1, -1, *range(70)])


@pytest.mark.slow
def test_a_clone_is_noticed(lake):
    """It has the rows, and not the log."""
    lake.add(range(50))
    lake.run()
    lake.sql(f"CREATE TABLE delta.`{lake.at('copy')}` SHALLOW CLONE {{}}")
    place = lakehouse.cursors(lake.spark, lake.at("orders"), name="orders")
    lake.add(range(50, 60))

    told = lake.fail("copy", checkpoint="from the beginning", source={})
    assert "clone of" in told and "{_first}" in told
    told = lake.fail("copy", checkpoint="new", source={"startingCursors": place})

    lake.run("copy", checkpoint="new", source={}, accept=to_accept(told))
    lake.run("copy", checkpoint="new")
    assert lake.numbers("copy") == Counter(range(60))


@pytest.mark.slow
def test_a_table_that_was_replaced_begins_anew(lake):
    """The old checkpoint does not continue as if nothing had happened."""
    lake.add(range(50))
    lake.run()
    lake.sql(
        "CREATE OR REPLACE TABLE {} USING delta AS SELECT * FROM {} WHERE false".replace(
            "FROM {}", f"FROM delta.`{lake.at('orders')}`"
        )
    )
    lake.add(range(50, 60))

    assert "was emptied or replaced" in lake.fail()
    lake.run(checkpoint="new")
    assert lake.numbers() == Counter(range(60))


@pytest.mark.slow
def test_a_table_that_was_rewritten_is_noticed(lake):
    """It has the rows, and its own log says that nothing came before."""
    lake.add(range(50))
    lake.run()
    here = f"delta.`{lake.at('orders')}`"
    lake.spark.sql(f"CREATE OR REPLACE TABLE {here} USING delta AS SELECT * FROM {here}")
    lake.add(range(50, 60))

    told = lake.fail(checkpoint="new", source={})

    assert "say accept='zeh-spark:orders:0@0 from" in told
    assert lake.numbers() == Counter(range(50))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"merge_keys": ["i"]}], ids=["append", "merge"])
def test_a_table_that_compacts_itself_changes_nothing(lake, options):
    """As tables on Databricks often do."""
    lake.spark.conf.set("spark.databricks.delta.autoCompact.enabled", "true")
    lake.spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    try:
        lake.grow(range(10), range(10, 20), range(20, 30), range(30, 40), **options)
    finally:
        lake.spark.conf.unset("spark.databricks.delta.autoCompact.enabled")
        lake.spark.conf.unset("spark.databricks.delta.autoCompact.minNumFiles")

    assert lake.numbers() == Counter(range(40))
    assert "OPTIMIZE" in {row.operation for row in lake.history()}
