"""Queries as users write them, in a real Spark session, on a real publisher."""

import json
import re
import threading
from collections import Counter

import pytest
from chispa import assert_df_equality

import zeh_spark
from tests.fix_spark import in_batches
from tests.patience import PATIENCE, eventually
from tests.scratch_store import ScratchStore
from zeh_spark.progress import feed_progress
from zeh_spark.spark.datasource import environment_of_workers
from zeh_spark.spark.frames.compat import HAS_ADMISSION_CONTROL
from zeh_spark.testing import publish, running_publisher

PARTITIONS = 4


@pytest.fixture
def store():
    """Feed `orders`: 400 events in 20 chunks."""
    store = ScratchStore(orders=PARTITIONS)
    for begin in range(0, 400, 80):
        publish(store, "orders", [{"i": i} for i in range(begin, begin + 80)])
    return store


@pytest.fixture
def url(store):
    with running_publisher(store) as base:
        yield f"{base}/orders"


def more(store, numbers):
    publish(store, "orders", [{"i": i} for i in numbers])


def test_a_feed_is_read_by_its_address_alone(spark, url):
    """Format and URL are enough: no registration, and the publisher tells its partition count."""
    rows = spark.read.format("zeroeventhub").load(url).collect()

    assert Counter(row.data for row in rows) == Counter(f'{{"i": {i}}}' for i in range(400))
    assert {row.partition for row in rows} == set(range(PARTITIONS))


def test_a_stream_that_starts_leaves_what_it_shares_as_it_was(spark, url, tmp_path):
    """Streams may start at once after `register`: none adds to the map that goes into all tasks.
    A batch may be computed again and again in foreachBatch, and has the same events.
    """
    session, counts = spark.newSession(), []
    zeh_spark.register(session)

    def thrice(frame, _batch):
        counts.append((frame.count(), frame.select("data").distinct().count(), frame.count()))

    try:
        before = set(environment_of_workers(session))
        feed = session.readStream.format("zeroeventhub").load(url)

        assert in_batches(feed, thrice, tmp_path).awaitTermination(PATIENCE)

        assert set(environment_of_workers(session)) == before
    finally:
        zeh_spark.register(spark)  # the active one again
    assert {len(set(each)) for each in counts} == {1}
    assert sum(each[0] for each in counts) == 400


def test_a_second_run_brings_only_what_is_new(spark, stream, collected, store, url, spark_log):
    """Cursors in the checkpoint say where to continue. AvailableNow delivers everything, no batch
    above its limit by more than an interval. What a run with a single batch leaves is never left in
    silence: it is in the progress and in a warning. ProgressListener tells events, bytes and pages
    of each batch.
    """
    frame, seen = stream(url=url, maxEventsPerTrigger="100").load(), []
    listener = zeh_spark.ProgressListener(report=seen.append)
    spark.streams.addListener(listener)
    try:
        query = collected(frame, availableNow=True)
        assert query.awaitTermination(PATIENCE)
        left = 400 - len(collected.rows)
        (last,) = feed_progress(json.loads(query.recentProgress[-1].json))
        assert (left == 0) == HAS_ADMISSION_CONTROL
        assert (left, None if HAS_ADMISSION_CONTROL else True) == (
            last.events_behind,
            last.has_more,
        )
        assert (f"leaves {left} events of {url} unread" in spark_log()) == (left > 0)
        more(store, range(400, 450))

        batches = collected.run(frame)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)

    assert collected.numbers() == Counter(range(450))
    assert max(batches) <= 120
    assert sum(each.events for each in seen) == 450
    assert listener.total_events.keys() == {(each.run_id, url) for each in seen}
    assert sum(listener.total_events.values()) == 450


def test_an_idle_query_gets_new_events_by_itself(stream, collected, store, url):
    """processAllAvailable ends with what was there; new events come; stop() ends a long wait."""
    query = collected(stream(url=url, wait="45s").load())
    query.processAllAvailable()
    assert collected.numbers() == Counter(range(400))

    more(store, range(400, 410))
    eventually(lambda: len(collected.rows) >= 410 or query.exception())
    stopping = threading.Thread(target=query.stop, daemon=True)
    stopping.start()
    stopping.join(30)

    assert collected.numbers() == Counter(range(410))
    assert (False, False) == (stopping.is_alive(), query.isActive)


def test_a_join_with_itself_meets_each_event_once(stream, collected, url):
    """Both sides of a stream-stream join see the whole feed."""
    left = stream(url=url).load().selectExpr("data", "partition AS left")
    right = stream(url=url).load().selectExpr("data AS other", "partition AS right")

    collected.run(left.join(right, left.data == right.other))

    assert collected.numbers() == Counter(range(400))


def test_a_union_gets_all_of_its_sources(spark, stream, collected, url):
    """A frame twice in one query, and a feed beside another source; each goes at its own pace."""
    feed = stream(url=url, maxEventsPerTrigger="150").load()
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    others = rate.selectExpr("-1 AS partition", "map() AS headers", "'{\"i\":-1}' AS data")
    schema = spark.read.format("zeroeventhub").load(url).schema

    query = collected(feed.union(feed).union(others.to(schema)))
    twice = Counter({i: 2 for i in range(400)})
    eventually(lambda: twice <= collected.numbers() or query.exception())

    numbers = collected.numbers()
    assert numbers.pop(-1) > 0
    assert numbers == twice


def test_events_are_typed_by_spark(spark, url):
    """parsed() puts the fields of the event in the place of `data`. VARIANT is for events without a
    fixed schema; with a corrupt-record column the text of what does not fit is kept.
    """
    frame = spark.read.format("zeroeventhub").load(url)

    numbers = zeh_spark.parsed(frame, "i INT").select("i")
    whole = zeh_spark.parsed(frame, "VARIANT").selectExpr("variant_get(data, '$.i', 'int') AS i")
    bad = zeh_spark.parsed(frame, "i DATE", corrupt="bad")

    expected = spark.range(400).selectExpr("INT(id) AS i")
    assert_df_equality(numbers.orderBy("i"), expected, ignore_nullable=True)
    assert 79800 == whole.agg({"i": "sum"}).first()[0]
    assert 400 == bad.where("bad IS NOT NULL AND i IS NULL").count()


def test_an_event_that_does_not_fit_its_type_stops_the_query(spark, url):
    """An error, not a NULL: it names the event and corrupt=; mode=PERMISSIVE is something else."""
    frame = zeh_spark.parsed(spark.read.format("zeroeventhub").load(url), "i DATE, j INT")

    with pytest.raises(Exception) as raised:
        frame.collect()

    said = str(raised.value)
    assert re.search(
        r"an event does not fit the schema of zeh_spark\.parsed, in partition \d: "
        r'\{"i": \d+\} \(not read: i date\)\. Correct the schema, or keep such events in a column '
        r"of their own: parsed\(df, schema, corrupt='bad'\)\. "
        r"See zeh-spark explain an-event-does-not-fit-the-schema",
        said,
    )
    assert "PERMISSIVE" not in said and "MALFORMED" not in said


@pytest.mark.parametrize(
    ("schema", "data", "said"),
    [
        ("ARRAY<INT>", '[1,"x"]', '[1,"x"] (it is no array<int>)'),
        ("a STRUCT<b: INT>, c INT", '{"a":{"b":"x"},"c":1}', "(not read: a value inside a field)"),
        ("a INT, b INT, c INT", '{"a":1,"b":"x","c":[]}', "(not read: b int, c int)"),
        ("a INT", "[", "[ (not read: a value inside a field)"),
        ("VARIANT", '{"a":1,"a":2}', '{"a":1,"a":2} (it is no VARIANT: an object may have a key'),
    ],
)
def test_what_does_not_fit_is_named(spark, schema, data, said):
    """The field with its type, or the type."""
    frame = spark.createDataFrame([(data,)], "data STRING")

    with pytest.raises(Exception) as raised:
        zeh_spark.parsed(frame, schema).collect()

    assert said in str(raised.value)


def test_values_that_are_no_objects_are_parsed(spark):
    """Arrays and bare numbers; NULL without data, as fields of tombstones, which stop nothing."""
    frame = spark.createDataFrame([("[1,2]",), (None,), ("null",)], "data STRING")
    parsed = zeh_spark.parsed(frame, "ARRAY<INT>")
    fields = spark.createDataFrame([("null",), (None,), ('{"i":1}',)], "data STRING")

    assert [[1, 2], None, None] == [row.data for row in parsed.collect()]
    assert frame.columns == parsed.columns
    assert [None, None, 1] == [row.i for row in zeh_spark.parsed(fields, "i INT").collect()]


def test_events_get_the_columns_of_the_feeds_schema(spark, store, url):
    """I write no types: the feed has them. What is newer than the version that I name is kept
    (CN-05).
    """
    schema = {"type": "object", "properties": {"i": {"type": "integer"}}}
    store.set_schema("orders", json.dumps(schema).encode())
    newer = {"type": "object", "properties": {"i": {"type": "integer"}, "note": {"type": "string"}}}
    store.set_schema("orders", json.dumps(newer).encode(), compatible=False)
    publish(store, "orders", [{"i": 400, "note": "new"}])
    orders = spark.read.format("zeroeventhub").load(url)

    old = zeh_spark.parsed(orders, zeh_spark.feed_schema(url, version=1), rescued="_rescued_data")
    latest = zeh_spark.parsed(orders, zeh_spark.feed_schema(url))

    expected = spark.createDataFrame([(400, '{"note":"new"}')], "i BIGINT, _rescued_data STRING")
    assert_df_equality(expected, old.where("i = 400").select("i", "_rescued_data"))
    expected = spark.createDataFrame([(400, "new")], "i BIGINT, note STRING")
    assert_df_equality(expected, latest.where("i = 400").select("i", "note"))
    assert 401 == latest.count()
