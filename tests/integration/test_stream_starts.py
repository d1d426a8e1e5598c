"""A new query starts at a time, and waits for enough events, as with Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyspark.sql.types import StructType

from tests.fix_batch import batch_reader, rows_of
from tests.fix_raw_server import refused
from tests.fix_stream import Log, Run
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.errors import OptionError
from zeh_spark.spark.datasource import ZeroEventHubDataSource
from zeh_spark.testing import publish, running_publisher

WITH_POSITION = StructType().add("data", "string").add("position", "long")
WAYS = ["driver", "executors"]


@dataclass
class Timed:
    """A feed of 2 partitions with the events 10, 20 and 30, committed at these times."""

    store: ScratchStore
    clock: list[int]
    url: str

    def publish(self, time: int, *events: int) -> None:
        self.clock[0] = time
        publish(self.store, "orders", events, partition=time // 10 % 2)


@pytest.fixture
def timed() -> Iterator[Timed]:
    clock = [0]
    store = ScratchStore(clock=lambda: clock[0], orders=2)
    with running_publisher(store) as base:
        feed = Timed(store, clock, f"{base}/orders")
        for time in (10, 20, 30):
            feed.publish(time, time)
        yield feed


@pytest.fixture(params=WAYS)
def query(request, timed, start):
    """`query(…)`: a run with these options, whoever fetches."""
    return lambda **given: start(url=timed.url, fetch=request.param, **given)


@pytest.mark.parametrize(
    ("time", "rows"), [("0", [10, 20, 30]), ("20", [20, 30]), ("21", [30]), ("30", [30])]
)
def test_a_stream_starts_at_the_first_event_of_a_time(query, time, rows):
    """I get what was committed at that time or later, whoever fetches, in the first batch."""
    run = query(startingTimestamp=time, finite=True)

    assert rows == sorted(v for part in run.next().values() for v in part)
    assert run.next() is None


def test_the_first_batch_keeps_where_the_query_started(query):
    """A restart does not choose again, also if the options name another time then."""
    run = query(startingTimestamp="20")
    first = run.next()

    again = query(startingTimestamp="30")

    assert first == again.rows(again.reader.initialOffset(), run.offset)
    assert run.offset["startingCursors"].keys() == {"0", "1"}
    assert "startingTimestamp" not in run.offset


def test_nothing_since_that_time_is_the_end_of_the_feed(timed, query):
    """Batch 0 has positions and no events, and what comes later is read."""
    timed.clock[0] = 50
    run = query(startingTimestamp="40")
    assert {} == run.next()
    timed.publish(50, 50, 51)

    later = query(startingTimestamp="40", offset=run.offset)

    assert [50, 51] == later.until(2)


@pytest.mark.parametrize(
    "given", [{"startingCursors": "last"}, {"startingTimestamp": "40"}], ids=str
)
def test_a_schema_with_the_position_starts_where_nothing_is_newer(timed, given):
    """Batch 0 has only positions; the events after it have a position."""
    timed.clock[0] = 50

    def begun(offset=None):
        source = ZeroEventHubDataSource({"url": timed.url, "wait": "0", **given})
        return Run(source.streamReader(WITH_POSITION), offset)

    run = begun()
    begin = run.offset
    assert {} == run.next()
    assert {} == begun().rows(begin, run.offset)
    timed.publish(50, 50, 51)

    end = begun(run.offset).reader.latestOffset(run.offset, None)
    (task,) = begun().reader.partitions(run.offset, end)
    rows = [row for batch in begun().reader.read(task) for row in batch.to_pylist()]
    assert [("50", 4), ("51", 4)] == [(row["data"], row["position"]) for row in rows]


def test_a_schema_with_the_position_is_refused_before_a_query_begins(feed):
    """A publisher that cannot tell it is named at once, and the checkpoint has nothing of it."""
    options = {"url": feed(Log(3)).server.url, "partitionCount": "1", "startingCursors": "last"}
    source = ZeroEventHubDataSource(options)
    run = Run(source.streamReader(WITH_POSITION))

    with pytest.raises(OptionError, match="'position', which only executors can fill"):
        run.next()


@pytest.mark.parametrize("fetch", WAYS)
def test_a_read_starts_at_a_time(timed, fetch):
    """`spark.read` takes the option, too."""
    reader = batch_reader(timed.url, fetch=fetch, startingTimestamp="20")

    assert [20, 30] == sorted(number for _, number in rows_of(reader, reader.partitions()))


def test_a_time_ahead_is_refused(timed, start):
    """The error tells both clocks, and what to set."""
    run = start(url=timed.url, startingTimestamp="31")

    with pytest.raises(OptionError, match=r"31, ahead of the publisher's clock, 30.*startingCurs"):
        run.next()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (refused(404, "?"), "it answers 404"),
        (refused(405, "?"), "it answers 405"),
        (refused(501, "?"), "it answers 501"),
        (Log(5).body("_first", 5), "its answer is none"),
    ],
    ids=["404", "405", "501", "a page"],
)
def test_another_publisher_is_refused_by_name(feed, start, answer, why):
    """It has no such call: the error names startingCursors, and I am not sent to a wrong place."""
    other = feed(Log(5))
    other.server.respond = lambda request: answer
    run = start(other, startingTimestamp="2026-11-22T08:00:00Z")

    with pytest.raises(
        OptionError, match=rf"'startingTimestamp' is 1795334400000.*{why}.*startingCursors"
    ):
        run.next()


def test_a_batch_waits_for_enough_events(timed, query):
    """The first batch of a run does not wait, the next one does."""
    run = query(minEventsPerTrigger="3", maxTriggerDelay="1h")
    assert [10, 20, 30] == sorted(run.until(3))
    timed.publish(40, 40, 41)
    assert [None] * 20 == [run.next() for _ in range(20)]

    timed.publish(50, 50)

    eventually(lambda: run.next() is not None)
    assert [40, 41, 50] == sorted(v for part in run.batches[-1].values() for v in part)


def test_a_batch_waits_no_longer_than_the_delay(timed, query):
    """Few events come, too; maxBytesPerTrigger may never let in as many as it should wait for."""
    run = query(minEventsPerTrigger="3", maxTriggerDelay="200ms")
    run.until(3)
    timed.publish(40, 40)
    assert [10, 20, 30, 40] == sorted(run.until(4))

    full = query(minEventsPerTrigger="1000", maxTriggerDelay="1h", maxBytesPerTrigger="30")
    assert [10, 20, 30, 40] == sorted(full.until(4))


def test_a_finite_run_does_not_wait(timed, query):
    """`availableNow` reads what is there."""
    waits = {"minEventsPerTrigger": "1000", "maxTriggerDelay": "1h", "maxEventsPerTrigger": "1000"}
    run = query(finite=True, **waits)
    assert run.next()
    timed.publish(40, 40)

    again = query(finite=True, minEventsPerTrigger="1000", offset=run.offset)

    assert [40] == again.to_the_end()
