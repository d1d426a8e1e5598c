"""Feeds as tables and views in SQL."""

import re

import orjson
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row

import zeh_spark
from tests.fix_datasource import read_plainly
from tests.fix_spark import in_batches, without_code
from tests.scratch_store import ScratchStore
from zeh_spark.testing import publish, running_publisher

DATA = [{"i": i} for i in range(6)]


@pytest.fixture
def sql(spark):
    """A session with Spark's own catalog: Delta's does not find tables of Python data sources."""
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.spark_catalog", "builtin")
    zeh_spark.register(session)
    yield session
    zeh_spark.register(spark)  # the active one again


@pytest.fixture
def base():
    store = ScratchStore(orders=2, copies=2)
    publish(store, "orders", DATA)
    with running_publisher(store) as base:
        yield base


@pytest.fixture
def table(sql, base):
    """Create a table of a feed; gives its name. It is dropped after the test."""
    made = []

    def create(feed="orders", columns="", name=None, after="", **options):
        name = name or f"{feed}_table"
        given = ", ".join(
            f"`{key}` '{value}'" for key, value in {"url": f"{base}/{feed}", **options}.items()
        )
        made.append(name)
        sql.sql(f"CREATE TABLE {name} {columns} USING zeroeventhub OPTIONS ({given}) {after}")
        return name

    yield create
    for name in made:
        sql.sql(f"DROP TABLE IF EXISTS {name}")


def numbers(rows):
    return sorted(orjson.loads(row.data)["i"] for row in rows)


def published(base, feed):
    return [orjson.loads(row["data"])["i"] for row in read_plainly(f"{base}/{feed}", "data")]


def last_line(error):
    """Our part of an error: the line that names it."""
    return without_code(re.findall(r"zeh_spark\.errors\.(.*)", str(error.value))[0])


def test_a_table_is_selected_from(sql, table, base):
    """The options of CREATE TABLE hold for each query, and a query has the last word: its options
    replace those of the table; another feed replaces them all, also with the table's schema. A
    location may be the feed, as in `.load(url)`; a comment and properties are the user's own.
    """
    name, late, stamped = table(), table(name="late", startingCursors="last"), "stamped"
    table(name=stamped, stamps="columns")
    table(name="properties", after="COMMENT 'all orders' TBLPROPERTIES ('headers' = 'none')")
    sql.sql(f"CREATE TABLE location USING zeroeventhub LOCATION '{base}/orders'")
    schema = sql.table(late).schema
    try:
        for frame in (
            sql.sql(f"SELECT * FROM {name}"),
            sql.table(name).select("data"),
            sql.read.option("startingCursors", "first").table(late),
            sql.sql(f"SELECT * FROM {late} WITH (`startingCursors` = 'first')"),
            sql.read.format("zeroeventhub").schema(schema).load(f"{base}/orders"),
            sql.table("location"),
            sql.table("properties"),
        ):
            assert list(range(6)) == numbers(frame.collect())
    finally:
        sql.sql("DROP TABLE location")
    assert [] == sql.table(late).collect()
    assert [Row(n=3)] == sql.sql(
        f"SELECT count(*) AS n FROM {name} WHERE get_json_object(data, '$.i') < 3"
    ).collect()
    row = sql.sql(f"SELECT timestamp, feed, sequence FROM {stamped} LIMIT 1").collect()[0]
    assert row.timestamp is not None


def test_a_table_is_read_as_a_stream(sql, table, tmp_path):
    """Cursors are in the checkpoint. A query passes over options for the other kind alone."""
    name = table(maxEventsPerTrigger="2", endingCursors="quiet")
    found = []

    assert list(range(6)) == numbers(sql.table(name).collect())

    def keep(frame, _):
        found.extend(numbers(frame.collect()))

    for _ in range(2):
        zeh_spark.drain(
            lambda: in_batches(sql.readStream.table(name), keep, tmp_path / "checkpoint")
        )
    with pytest.raises(Exception) as error:
        sql.sql(f"SELECT * FROM {name} WITH (`maxEventsPerTrigger` = '2')").collect()

    assert list(range(6)) == sorted(found)
    assert "option 'maxEventsPerTrigger' is for spark.readStream only" in last_line(error)


def test_a_view_is_read_and_inserted_into(sql, base):
    """One set of options for both directions."""
    sql.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders_view USING zeroeventhub OPTIONS ("
        f"url '{base}/copies', producerId 'sql', batchId 'one', startingCursors 'first')"
    )

    for _ in range(2):  # a batch with a name is published once
        sql.sql("INSERT INTO orders_view SELECT 0, map(), '{\"i\":7}'")

    assert [7] == numbers(sql.sql("SELECT data FROM orders_view").collect())


def test_rows_are_inserted_where_the_statement_says(sql, table, base):
    """Also if all columns come from another feed's table. A frame is appended, too."""
    orders, copies = table(), table("copies")
    to = f"WITH (url = '{base}/copies', `producerId` = 'sql', `batchId` = 'one')"

    sql.sql(f"INSERT INTO {copies} {to} SELECT * FROM {orders}")
    assert list(range(6)) == published(base, "copies")

    writer = sql.table(orders).writeTo(copies)
    writer.options(url=f"{base}/copies", producerId="sql", batchId="two").append()
    assert sorted([*range(6)] * 2) == sorted(published(base, "copies"))
    assert list(range(6)) == published(base, "orders")


def test_a_stream_is_published_through_a_table(sql, table, base, tmp_path):
    copies = table("copies")

    sql.readStream.table(table()).writeStream.options(
        url=f"{base}/copies", producerId="sql", checkpointLocation=str(tmp_path / "checkpoint")
    ).trigger(availableNow=True).toTable(copies).awaitTermination()

    assert list(range(6)) == published(base, "copies")


def test_a_statement_without_a_feed_is_refused(sql, table, base):
    """Spark tells a writer no table: rows must not go to the feed that they came from. With a list
    of columns, or if the table is made from a query, Spark asks for no schema, and the options are
    nowhere; columns of a query would lead to the feed of the query.
    """
    table()
    table("copies", producerId="sql", batchId="one")
    table(name="typed", columns="(data STRING)")
    missing = "option 'url' is missing"
    insert = f"{missing}.*INSERT INTO f WITH \\(url = 'https://…'"

    for statement, said in (
        ("INSERT INTO copies_table SELECT * FROM orders_table", insert),
        ("INSERT INTO copies_table VALUES (0, map(), '{}')", insert),
        (
            "INSERT INTO copies_table BY NAME SELECT data, headers, partition FROM orders_table",
            insert,
        ),
        ("SELECT * FROM typed", missing),
        (
            f"CREATE TABLE made USING zeroeventhub OPTIONS (url '{base}/copies', producerId 'p', "
            f"batchId 'b') AS TABLE orders_table",
            missing,
        ),
    ):
        with pytest.raises(Exception) as error:
            sql.sql(statement).collect()

        assert re.search(said, last_line(error)), statement
    assert not sql.catalog.tableExists("made")
    assert [] == published(base, "copies")
    assert list(range(6)) == published(base, "orders")


def test_published_events_are_not_overwritten(sql, table, base):
    """Spark drops a table before it asks the format, which says so; the feed keeps its events."""
    name = table()

    for overwrite in ("INSERT OVERWRITE TABLE", "INSERT OVERWRITE"):
        with pytest.raises(Exception) as error:
            sql.sql(f"{overwrite} {name} WITH (url = '{base}/orders') SELECT 0, map(), '{{}}'")

        assert "mode('overwrite') is refused" in str(error.value)
    assert sql.catalog.tableExists(name)
    writer = sql.sql("SELECT '{}' AS data").write.format("zeroeventhub").mode("overwrite")
    with pytest.raises(Exception, match="Spark has already dropped the table of that name"):
        writer.option("url", f"{base}/orders").saveAsTable(name)

    assert not sql.catalog.tableExists(name)
    assert list(range(6)) == published(base, "orders")


def test_typing_errors_and_secrets_are_refused_when_the_table_is_created(sql, table):
    """Spark's catalog would show secrets to whoever may describe the table."""
    kept = "because Spark keeps a table's options as they are, in its catalog and in files"
    for name, said in (
        ("startingCursor", "unknown option 'startingcursor'; did you mean 'startingCursors'"),
        ("token", kept),
        ("deadLetterToken", kept),
        ("http.secret.header.Authorization", kept),
    ):
        with pytest.raises(AnalysisException) as error:
            table(**{name: "hush-hush"})

        assert said in last_line(error)
        assert "hush-hush" not in last_line(error)
    assert not sql.catalog.tableExists("orders_table")


@pytest.mark.parametrize(
    "statement",
    [
        "OPTIONS (url '{0}')",
        "OPTIONS (path '{0}')",
        "LOCATION '{0}'",
        "OPTIONS (url 'http://localhost/f', producerId 'p', deadLetterUrl '{0}')",
    ],
)
def test_an_address_with_a_key_is_refused_when_the_table_is_created(sql, base, statement):
    """Files and Delta tables that are made from the table would hold it."""
    with pytest.raises(AnalysisException) as error:
        sql.sql(
            f"CREATE TABLE keyed USING zeroeventhub {statement}".format(
                f"{base}/orders?key=hush-hush"
            )
        )
    assert "is refused for a table with its query (?…)" in last_line(error)
    assert "hush-hush" not in last_line(error)
    assert not sql.catalog.tableExists("keyed")


def test_with_deltas_catalog_a_feed_is_a_view(lake, base):
    """`configure` sets that catalog if Delta is installed, and so does Databricks."""
    session = lake.spark.newSession()
    zeh_spark.register(session)
    options = f"USING zeroeventhub OPTIONS (url '{base}/orders')"
    session.sql(f"CREATE TEMPORARY VIEW seen {options}")
    assert list(range(6)) == numbers(session.table("seen").collect())
    session.sql(f"CREATE TABLE kept {options}")
    try:
        with pytest.raises(AnalysisException, match="is not a valid Spark SQL Data Source"):
            session.table("kept").collect()
    finally:
        session.sql("DROP TABLE kept")
        zeh_spark.register(lake.spark)  # the active one again
