"""Feeds as tables of a Unity Catalog connection: what Databricks' community connectors ask for.

The options are those that their pipeline gives, and that a connection injects, as far as public
code shows them. It has never run on Databricks.
"""

from __future__ import annotations

import pytest

from zeh_spark.errors import OptionError
from zeh_spark.spark.lakeflow import LakeflowDataSource

EVENTS = ['{"i": 0}', '{"i": 1}']


@pytest.fixture
def connection(spark, publisher):
    """What each read has from the connection: the publisher's address, and what is not ours."""
    publisher.publish({"i": 0}, {"i": 1})
    spark.dataSource.register(LakeflowDataSource)
    return {
        "url": publisher.base,
        "sourceName": "zeroeventhub",
        "externalOptionsAllowList": "tableName,tableNameList,tableConfigs,isDeleteFlow,wait",
        "databricks.connection": "feeds",
    }


@pytest.mark.parametrize(
    ("table", "names"),
    [("_lakeflow_metadata", "orders, a-b"), ("_community_table_metadata", '["orders", "a-b"]')],
)
def test_the_metadata_table_says_to_append(spark, connection, table, names):
    """In both spellings: the one until May 2026, and the one after."""
    asked = {"tableName": table, "tableNameList": names, "tableConfigs": '{"orders": {}}'}

    rows = spark.read.format("lakeflow_connect").options(**connection, **asked).load().collect()

    assert [("orders", None, None, "append"), ("a-b", None, None, "append")] == [*map(tuple, rows)]


def test_each_table_is_read_and_streamed_once(spark, connection, collected):
    asked = {"tableName": "orders", "wait": "1s"}

    batch = spark.read.format("lakeflow_connect").options(**connection, tableName="orders").load()
    collected.run(spark.readStream.format("lakeflow_connect").options(**connection, **asked).load())

    assert EVENTS == sorted(row.data for row in batch.collect())
    assert EVENTS == sorted(row["data"] for row in collected.rows)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({}, "tableName='' has to be a feed"),
        ({"tableName": "_community_tables"}, "tableName='_community_tables' has to be a feed"),
        (
            {"tableName": "orders", "isDeleteFlow": "true"},
            "'orders' has to be a feed, which has no table of deletes",
        ),
    ],
)
def test_what_feeds_do_not_have_is_refused(asked, complaint):
    with pytest.raises(OptionError, match=complaint):
        LakeflowDataSource({"url": "http://127.0.0.1:1", **asked})
