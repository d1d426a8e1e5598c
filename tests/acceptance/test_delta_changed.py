"""A feed kept in a Delta table that others change: restored, cleaned, copied, compacted.

No query runs: the batches are written as it would write them.
"""

import re
from collections import Counter

import pytest

from tests.fix_lake import why_absent

pytest.importorskip("delta", reason=why_absent())

from zeh_spark.errors import LakehouseError
from zeh_spark.spark.delta.delta_table import LakeTable


@pytest.mark.slow
def test_a_restored_table_is_refused_and_continues_from_its_own_cursors(lake, gate):
    """DL-03, A12: the batches that a restore removed are written again, with a new checkpoint or as
    the same batches. Delta would skip the same batches silently, because a restore does
    not take back its transaction numbers.
    """
    columns = "i INT, value STRING, headers MAP<STRING, STRING>"
    lake.sql(f"CREATE TABLE {{}} ({columns}) USING delta")
    lake.batches(range(50), range(50, 80))

    # While a batch is written. Delta 4.0 refuses the batch. Later ones put it on a table that lacks
    # the one before; nobody continues from there.
    with gate.during(lake.refused, 2, range(80, 90)) as writing:
        lake.restore(0)
    noticed = "was taken back while the latter was written|holds all up to batch 0 "
    assert re.search(noticed, writing.result())
    assert re.search(noticed, lake.refused(2, range(80, 90)))

    # To a time, whose zone the log does not keep
    lake.sql(f"RESTORE TABLE {{}} TO TIMESTAMP AS OF '{lake.commit_of(0).timestamp}'")
    with pytest.raises(LakehouseError, match="TO VERSION AS OF"):
        lake.place()

    lake.restore(0)
    assert lake.place() == 50
    assert "was taken back, and lacks batches 1 to 1" in lake.refused(2, range(80, 90))
    lake.batch(1, range(50, 80))
    assert lake.numbers() == Counter(range(80))

    # To before the first batch
    lake.sql("RESTORE TABLE {} TO VERSION AS OF 0")
    assert lake.place() == 0
    lake.batch(0, range(60), query="new")
    assert lake.numbers() == Counter(range(60))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [{}, {"merge_keys": ["i"]}], ids=["append", "merge"])
def test_a_table_that_is_compacted_is_an_ordinary_one(lake, gate, mode):
    """By itself, as tables on Databricks often are, or by OPTIMIZE while a batch is written, which
    is tried again where Delta cannot bring the two together. The record is searched for as far
    back as it is, and VACUUM keeps what there is.
    """
    compact_itself = {
        "spark.databricks.delta.autoCompact.enabled": "true",
        "spark.databricks.delta.autoCompact.minNumFiles": "2",
    }
    for name, value in compact_itself.items():
        lake.spark.conf.set(name, value)
    try:
        lake.batches(range(10), range(10, 20), **mode)
    finally:
        for name in compact_itself:
            lake.spark.conf.unset(name)
    assert [row.operation for row in lake.history()].count("OPTIMIZE") == 1
    lake.batch(2, range(20, 25), **mode)
    with gate.during(lake.batch, 3, range(25, 30), **mode):
        # in a session of its own: that of a batch has the batch's transaction as a setting
        lake.spark.newSession().sql(f"OPTIMIZE delta.`{lake.at('orders')}`")
    assert [row.operation for row in lake.history()].count("OPTIMIZE") == 2

    table = LakeTable(lake.spark, lake.at("orders"))
    table.set_properties({"by": "another"})
    page_by_page = LakeTable(lake.spark, lake.at("orders"), page=1).standing("orders")
    assert page_by_page == table.standing("orders")
    assert page_by_page.record.batch == 3
    lake.vacuum()
    lake.batch(0, range(30, 40), query="new", **mode)
    assert lake.numbers() == Counter(range(40))


# Rows without their log


def to_accept(told):
    return re.search("say accept='(.*?)'", told)[1]


@pytest.mark.slow
def test_a_cleaned_log_is_noticed(lake):
    """Where neither the log nor a column of the rows tells, nobody guesses. Another name has to be
    meant: it could be the one whose record is gone, mistyped.
    """
    kept = {"cursorColumn": "_cursors"}
    lake.batch(0, range(50), **kept)
    lake.clean_log()
    with pytest.raises(LakehouseError, match="zeh-spark:orders:0@0"):
        lake.place()
    assert "{_first}" in lake.refused(0, range(60), query="from the beginning")
    assert "commits before version" in lake.refused(0, range(50), query="new", name="order")

    lake.batch(1, range(50, 60), **kept)
    lake.clean_log()
    assert lake.place(**kept) == 60
    lake.batch(0, range(60, 70), query="new", **kept)

    lake.clean_log()
    told = lake.refused(0, range(70, 80), query="newer")
    lake.batch(0, range(70, 80), query="newer", accept=to_accept(told))
    lake.batch(1, range(80, 90), query="newer", accept=to_accept(told))
    assert lake.numbers() == Counter([*[-1] * 3, *range(90)])


@pytest.mark.slow
def test_the_column_tells_the_newest_place_after_accept_and_in_a_copy(lake):
    """Nothing else does if Delta forgets transactions."""
    kept = {"cursorColumn": "_cursors"}
    lake.batches(range(10), range(10, 20), **kept)
    lake.batch(2, range(20, 30))
    lake.clean_log()
    told = lake.refused(0, range(30, 40), query="new", **kept)
    lake.batch(0, range(30, 40), query="new", accept=to_accept(told), **kept)
    expiry = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    LakeTable(lake.spark, lake.at("orders")).set_properties(expiry)
    lake.clean_log()

    assert lake.place(**kept) == 40
    copied = f"CREATE TABLE delta.`{lake.at('copy')}` USING delta AS SELECT * FROM {{}}"
    lake.sql(copied)
    lake.batch(1, range(40, 50), query="new", table="copy", **kept)
    LakeTable(lake.spark, lake.at("copy")).set_properties(expiry)
    lake.clean_log("copy")
    assert lake.place("copy", **kept) == 50


@pytest.mark.slow
def test_rows_whose_log_is_another_are_noticed(lake):
    """A clone or another copy has the rows, and not the log. The old checkpoint does not continue
    in a table that was replaced as if nothing had happened: an empty one begins anew; one with rows
    may have them, though its own log says that nothing came before.
    """
    lake.batch(0, range(50))
    lake.sql(f"CREATE TABLE delta.`{lake.at('copy')}` SHALLOW CLONE {{}}")
    told = lake.refused(0, range(60), query="from the beginning", table="copy")
    assert "clone of" in told and "{_first}" in told
    told = lake.refused(0, range(50, 60), query="new", table="copy")
    lake.batch(0, range(50, 60), query="new", table="copy", accept=to_accept(told))
    assert lake.place("copy") == 60
    assert lake.numbers("copy") == Counter(range(60))

    lake.batch(0, range(5), table="kept", cursorColumn="_cursors")
    lake.table("kept").write.format("delta").save(lake.at("moved"))
    assert "rows of WRITE in version 0" in lake.refused(0, range(9), query="new", table="moved")
    assert lake.place("moved", cursorColumn="_cursors") == 5

    here = f"delta.`{lake.at('orders')}`"
    replaced = f"CREATE OR REPLACE TABLE {here} USING delta AS SELECT * FROM {here}"
    lake.spark.sql(f"{replaced} WHERE false")
    assert "was emptied or replaced" in lake.refused(1, range(50, 60))
    lake.batch(0, range(60), query="new")
    lake.spark.sql(replaced)
    assert "say accept='zeh-spark:orders:" in lake.refused(0, range(70), query="newer")
    assert lake.numbers() == Counter(range(60))
