"""A Delta table as a feed: what a user may do wrong, each with an error that helps."""

import re

import pytest

from tests.fix_from_delta import CHANGES, Source
from tests.fix_lake import why_absent

pytest.importorskip("delta", reason=why_absent())

from zeh_spark.errors import LakehouseError, OptionError
from zeh_spark.lakehouse import from_delta

SETTING = "spark.sql.files.ignoreMissingFiles"


@pytest.fixture(scope="module")
def mixed(spark, tmp_path_factory):
    """A table (i INT, d DOUBLE) that no test changes."""
    source = Source(spark, tmp_path_factory.mktemp("mixed") / "source")
    source.save("SELECT 1 AS i, 1D AS d")
    return source


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"key": "nope"}, "key 'nope' is neither a column nor an expression of columns: "),
        ({"key": "i +"}, "key 'i +' is neither a column nor an expression of columns: "),
        ({"key": "d"}, "key 'd' is DOUBLE, and keys are STRING or integers: make a text of it"),
        ({"ignoreDeletes": True}, "option 'ignoreDeletes' is refused: it hides deletions"),
        # a setting of the session: Delta would give batches without the rows of missing files
        ({SETTING: "true"}, f"{SETTING}=true is refused: rows of "),
    ],
)
def test_a_mistake_in_a_call_is_told_before_anything_is_read(how, problem, mixed, spark):
    """The option's name, the table's, and what there is instead."""
    (name,) = how
    try:
        if name == SETTING:
            spark.conf.set(name, "true")
            how = {}
        with pytest.raises(OptionError, match=re.escape(problem)) as raised:
            mixed.feed(**how)
    finally:
        spark.conf.unset(SETTING)

    assert raised.value.option == name


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


def test_what_is_no_delta_table_is_refused(source, spark, tmp_path):
    """Nothing at the path, no such name, other files, a table without columns."""
    other = str(tmp_path / "parquet")
    spark.range(3).write.parquet(other)
    spark.sql("CREATE TABLE from_delta_empty USING delta")
    try:
        for table, problem in [
            (source.path, "there is none: give the path or the name of a Delta table"),
            ("from_delta_nowhere", "there is none: give the path or the name of a Delta table"),
            (other, "which are not a Delta table"),
            ("from_delta_empty", "it has no columns yet"),
        ]:
            with pytest.raises(LakehouseError, match=problem) as raised:
                from_delta(spark, table)
            assert raised.value.table == table
    finally:
        spark.sql("DROP TABLE from_delta_empty")
