"""Feeds as tables of a Unity Catalog connection: what Databricks' community connectors ask for.

The options are those that their pipeline gives, and that a connection injects, as far as public
code shows them. It has never run on Databricks.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.fix_batch import Feed
from tests.fix_raw_server import NO_IDENTITY
from zeh_spark import register, register_auth
from zeh_spark.client.http.tokens import ClientCredentials
from zeh_spark.client.options.auth import REGISTERED
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import OptionError
from zeh_spark.spark.lakeflow import LakeflowDataSource

EVENTS = ['{"i": 0}', '{"i": 1}']


@pytest.fixture
def connection(spark, publisher):
    """What each read has from the connection: the publisher's address, and what is not ours."""
    publisher.publish({"i": 0}, {"i": 1})
    register(spark, LakeflowDataSource)
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


def test_a_registered_source_gives_tokens_for_the_tables(spark, token_server, guarded):
    """Spark's processes get the factory together with the format."""
    if spark.version.startswith("4.0"):
        pytest.skip("Spark 4.0 does not take a data source in place of one that it has found")
    token = ClientCredentials(options_of(guarded, token_server)).get_token().token
    register_auth("login", lambda: SimpleNamespace(get_token=lambda *scopes: token))
    register(spark, LakeflowDataSource)
    given = {"url": guarded, "tableName": "orders", "auth": "login"}

    assert [] == spark.read.format("lakeflow_connect").options(**given).load().collect()

    REGISTERED.clear()
    register(spark, LakeflowDataSource)


def options_of(url, token_server):
    return parse(ClientOptions, {"url": url, **token_server.options})


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({}, "tableName='' has to be a feed"),
        ({"tableName": "_community_tables"}, "tableName='_community_tables' has to be a feed"),
        (
            {"tableName": "orders", "isDeleteFlow": "true"},
            "'orders' has to be a feed, which has no table of deletes",
        ),
        ({"tableName": ".."}, "tableName='..' has to be a feed"),
        ({"tableName": "orders", "url": "http://127.0.0.1:1/feeds?k=1"}, "without a query"),
        ({"tableName": "_lakeflow_metadata", "tableNameList": '["a", 1'}, "'tableNameList' must"),
        ({"tableName": "_lakeflow_metadata", "tableNameList": "[1]"}, "'tableNameList' must"),
    ],
)
def test_what_feeds_do_not_have_is_refused(asked, complaint):
    with pytest.raises(OptionError, match=complaint):
        LakeflowDataSource({"url": "http://127.0.0.1:1", **asked})


def test_a_table_stays_below_the_address_of_the_connection(raw_server):
    """A name of a table reaches no other address, whatever is in it."""
    raw_server.respond, raw_server.discovery = Feed([]), NO_IDENTITY
    given = {"url": f"{raw_server.url}/feeds/", "tableName": "a/../../x", "partitionCount": "1"}
    source = LakeflowDataSource(given)
    source.reader(source.schema()).partitions()

    paths = {each.path for each in raw_server.requests}
    assert {path.partition("?")[0] for path in paths} == {"/feed/v1/feeds/a%2F..%2F..%2Fx"}
