"""Plans that bring their chunks, and the reader that gives their rows to Spark (`inline`)."""

import json
import pickle
import re

import msgspec
import pyspark
import pytest
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.types import StructType

from tests.cases import each_case
from tests.fix_direct import END, LINE, Sent, chunks_of, end_of, group, planned
from tests.fix_metrics import Scrape
from tests.fix_raw_server import ok
from zeh_spark.errors import OptionError, PublisherError
from zeh_spark.spark.source.stream import StreamReader, check_inline
from zeh_spark.wire import direct_reads as wire

USUAL = (Sent(5), Sent(7))
CHUNKS = wire.BEGINNING + group(*USUAL) + end_of(*USUAL)
PREFERRED = {"Prefer": wire.WITH_CHUNKS}


@pytest.fixture
def query(publisher, start):
    return lambda **given: start(**{"url": publisher.url, "inline": "true", **given})


def inlined(run):
    """The rows that Spark gets with the next batch's only partition; None if a task reads them."""
    end = run.reader.latestOffset(run.offset, run.limit)
    tasks = run.reader.partitions(run.offset, end)
    begin, run.start, run.offset = run.offset, run.offset, end
    if not isinstance(run.reader, _SimpleStreamReaderWrapper):
        return None
    assert 1 == len(tasks)
    rows = [row for batch in run.reader.getCache(begin, end) for row in batch.to_pylist()]
    (task,) = pickle.loads(pickle.dumps(tasks))
    again = pickle.loads(pickle.dumps(run.reader)).read(task)
    assert rows == [row for batch in again for row in batch.to_pylist()]
    return rows


@pytest.mark.parametrize("fetch", ["executors", "driver"])
def test_a_small_batch_of_all_partitions_goes_with_the_plan(publisher, query, fetch):
    """Its partition is complete, too. The reader is of Spark's simple kind only in between."""
    publisher.publish(*range(3), partition=0)
    publisher.publish(*range(3, 5), partition=1)
    run = query(fetch=fetch)
    assert [StreamReader, False] == [
        run.reader.__class__, isinstance(run.reader, _SimpleStreamReaderWrapper)
    ]  # fmt: skip

    assert list("01234") == [row["data"] for row in inlined(run)]

    assert not isinstance(run.reader, _SimpleStreamReaderWrapper)
    assert 0 == run.reader.reportLatestOffset()["eventsBehind"]["total"]
    assert [] == run.reader.partitions(run.offset, run.offset)
    assert not isinstance(run.reader, _SimpleStreamReaderWrapper)


def test_a_batch_may_be_asked_for_again(publisher, query):
    """Whatever Spark keeps of it: each time the same rows, and the same after a restart."""
    publisher.publish(*range(5))
    run = query()
    begin, first = run.offset, inlined(run)
    run.reader.partitions(begin, run.offset)
    rows = run.reader.getCache(begin, run.offset)
    assert first == [row for batch in rows for row in batch.to_pylist()]
    again = query(offset=begin)
    assert again.rows(begin, json.loads(json.dumps(run.offset))) == run.rows(begin, run.offset)


def test_a_large_batch_is_read_by_tasks(publisher, query):
    """The limit is for all partitions together."""
    for partition in (0, 1):
        publisher.publish(wire.INLINE_BYTES // 2 * ".", partition=partition)
    assert inlined(query()) is None


def test_a_stream_that_does_not_ask_gets_no_chunks(publisher, query):
    publisher.publish(1)
    run = query(inline="false")
    assert inlined(run) is None
    assert 1 == sum(map(len, run.rows(run.start, run.offset).values()))


def test_events_that_come_with_a_plan_are_counted_as_served(publisher, query):
    """So are those of other answers, and each once."""
    publisher.publish(*range(5))
    run = query()
    run.reader.partitions(run.offset, run.reader.latestOffset(run.offset, run.limit))
    assert 5 == Scrape(publisher.base)("zeh_served_events_total")


def scripted(start, direct_feed, chunks):
    """A run whose first plan brings these bytes."""
    plan = wire.Plan({"0": END}, False, END, 10, 0, [planned(*USUAL)], chunks=chunks)
    direct_feed.script(ok(msgspec.json.encode(plan), content_type="application/json"))
    direct_feed.chunks = lambda asked: chunks_of(*USUAL)
    url = direct_feed.server.url
    return start(url=url, partitionCount="1", fetch="executors", inline="true")


def test_a_publisher_that_knows_no_such_plans_is_read_as_before(start, direct_feed):
    """An older one ignores what the request prefers."""
    run = scripted(start, direct_feed, None)
    assert {0: [1, 1]} == run.next()
    (request,) = [each for each in direct_feed.server.requests if each.path.endswith("/plan")]
    assert wire.WITH_CHUNKS == request.headers["prefer"]
    assert 1 == len(direct_feed.asked("/chunks"))


@each_case("at", range(0, len(CHUNKS), 5))
def test_a_changed_byte_never_becomes_a_row(start, direct_feed, at):
    """What comes with a plan is checked like what a task fetches, before Spark has a row."""
    run = scripted(start, direct_feed, CHUNKS[:at] + bytes([CHUNKS[at] ^ 1]) + CHUNKS[at + 1 :])
    try:
        rows = inlined(run)
    except PublisherError:
        return
    assert 2 * ["1"] == [row["data"] for row in rows]


@each_case(
    "chunks",
    [
        b"",
        CHUNKS[:-1],
        wire.BEGINNING + group(*USUAL),
        wire.BEGINNING + group(USUAL[0]) + end_of(USUAL[0]),
        wire.BEGINNING + group(USUAL[0], Sent(7, LINE + LINE)) + end_of(*USUAL),
    ],
)
def test_other_chunks_than_were_planned_are_refused(start, direct_feed, chunks):
    """Too few, too many, or without their end."""
    run = scripted(start, direct_feed, chunks)
    with pytest.raises(PublisherError, match="did not send the chunks that were planned"):
        inlined(run)


@each_case("version", ["4.4.0", "4.2.0.dev0", "5.0.0"])
def test_another_spark_is_refused_by_name(monkeypatch, version):
    """What `inline` uses is documented nowhere, so it is tested with each version."""
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(OptionError, match=f"this is Spark {re.escape(version)}"):
        check_inline(StructType())


def test_databricks_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    with pytest.raises(OptionError, match=r"this is Databricks 17\.3\. Set inline=false"):
        check_inline(StructType())
