"""Queries that share the partitions of a feed, whoever fetches: each event comes to one of them."""

from __future__ import annotations

import threading

import pytest
import requests

from tests.fix_batch import batch_reader, rows_of
from tests.fix_raw_server import NO_IDENTITY
from tests.fix_stream import Feed, Log
from tests.patience import PATIENCE, eventually
from tests.scratch_store import ScratchStore
from zeh_spark import last_cursors, reading
from zeh_spark.errors import CheckpointError, OptionError
from zeh_spark.publisher import Problem
from zeh_spark.service.reads.direct_plans import check_plan
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire.direct_reads import PlanRequest

HALVES = {"0-1": (0, 1), "2-3": (2, 3)}
both = pytest.mark.parametrize("fetch", ["executors", "driver"])


@pytest.fixture
def store():
    return ScratchStore(orders=4)


@pytest.fixture
def url(store):
    with running_publisher(store) as base:
        yield f"{base}/orders"


def add(store, begin, end):
    """The event `each` goes to partition `each` modulo 4."""
    for each in range(begin, end):
        publish(store, "orders", [each], partition=each % 4)


def numbers(reader):
    return sorted(number for _, number in rows_of(reader, reader.partitions()))


def of(partitions, numbers):
    """What such partitions have of these events."""
    return sorted(each for each in numbers if each % 4 in partitions)


@both
def test_two_queries_share_a_feed(store, url, start, fetch):
    """ZE-10: each event is in one of the two, through restarts, and batches that are repeated."""
    add(store, 0, 40)
    given = {"url": url, "fetch": fetch, "finite": True, "maxEventsPerTrigger": "7"}
    runs = {}
    for half, partitions in HALVES.items():
        runs[half] = run = start(partitions=half, **given)
        rows = run.next()
        assert rows == start(partitions=half, **given).rows(run.start, run.offset)
        assert of(partitions, range(40)) == sorted(run.to_the_end())
        facts = run.offset["version"], run.offset["partitionCount"], [*run.offset["partitions"]]
        assert (4, 4, [*map(str, partitions)]) == facts
    add(store, 40, 60)
    for half, partitions in HALVES.items():
        later = start(offset=runs[half].offset, partitions=half, **given)

        assert of(partitions, range(40, 60)) == sorted(later.to_the_end())
        told = later.reader.reportLatestOffset()
        assert (0, 4) == (told["eventsBehind"]["total"], told["partitionCount"])
        assert [*map(str, partitions)] == [*told["partitions"]]


@both
def test_a_batch_read_of_some_partitions(store, url, fetch):
    """Also between cursors, which name these partitions only."""
    add(store, 0, 12)
    seam = last_cursors(url, partitions="1,3")
    add(store, 12, 24)

    assert of((1, 3), range(24)) == numbers(batch_reader(url, fetch=fetch, partitions="1,3"))
    before = batch_reader(url, fetch=fetch, partitions="1,3", endingCursors=seam)
    after = batch_reader(url, fetch=fetch, partitions="1,3", startingCursors=seam)
    assert of((1, 3), range(12)) == numbers(before)
    assert of((1, 3), range(12, 24)) == numbers(after)


@both
@pytest.mark.parametrize("where", ["last", "time"])
def test_a_query_of_some_partitions_starts_where_it_says(store, url, start, fetch, where):
    add(store, 0, 8)
    begin = {"startingCursors": "last"}
    if where == "time":
        begin = {"startingTimestamp": str(store.feed("orders").time + 1)}
        eventually(lambda: store.now() > store.feed("orders").time)
    run = start(url=url, fetch=fetch, partitions="2-3", **begin)
    assert run.next() == {}
    add(store, 8, 16)

    assert of((2, 3), range(8, 16)) == sorted(run.until(4))
    assert {"2", "3"} == run.offset["partitions"].keys()


def test_another_publishers_feed_is_shared(raw_server, start):
    """The driver asks for the pages of its partitions alone."""
    feed = Feed(raw_server, [Log(30, each=3) for _ in range(4)])
    run = start(feed, partitions="1-2", finite=True)
    run.to_the_end()

    assert {1: 30, 2: 30} == {p: sum(len(rows.get(p, ())) for rows in run.batches) for p in (1, 2)}
    assert ([], []) == (feed.requests(0), feed.requests(3))
    assert {"4"} == {each.query["n"] for each in raw_server.requests if each.query}
    assert raw_server.discovery == NO_IDENTITY


def test_a_reader_without_spark_shares_a_feed(store, url):
    add(store, 0, 20)
    cursors, seen = None, []
    for events, cursors in reading.reader(url, partitions="0,2"):  # noqa: B007
        seen += map(int, events["data"].to_pylist())
    add(store, 20, 40)
    for events, _ in reading.reader(url, cursors, partitions="0,2"):
        seen += map(int, events["data"].to_pylist())

    assert of((0, 2), range(40)) == sorted(seen)
    with pytest.raises(OptionError, match="'cursors' has cursors for 2 partitions"):
        next(reading.reader(url, cursors))


@both
def test_partitions_that_are_not_there_are_refused(url, start, fetch):
    """Less than I think is never read, and the error says what the feed has."""
    said = r"'partitions' is 2-4, but the feed .* has 4 partitions. Name some of 0 to 3"
    with pytest.raises(OptionError, match=said):
        start(url=url, fetch=fetch, partitions="2-4").next()
    with pytest.raises(OptionError, match=said):
        batch_reader(url, fetch=fetch, partitions="2-4").partitions()
    with pytest.raises(OptionError, match=said):
        last_cursors(url, partitions="2-4")


@both
@pytest.mark.parametrize(("before", "after"), [("0-1", None), (None, "0-1"), ("0-1", "0-2")])
def test_another_choice_over_a_checkpoint_is_refused(store, url, start, fetch, before, after):
    """It would skip events, or deliver them twice."""
    add(store, 0, 8)
    first = start(url=url, fetch=fetch, **({"partitions": before} if before else {}))
    first.next()
    changed = {"partitions": after} if after else {}

    with pytest.raises(CheckpointError, match="zeh-spark cursors"):
        start(url=url, fetch=fetch, offset=first.offset, **changed).next()
    with pytest.raises(CheckpointError, match="zeh-spark cursors"):  # its first batch is pending
        start(url=url, fetch=fetch, **changed).rows(first.start, first.offset)


def test_a_plan_waits_for_events_of_its_partitions(store, url):
    """Events of others neither end the wait, nor are planned."""
    add(store, 0, 4)
    ask = {"n": 4, "cursors": {"1": "_last", "2": "_last"}, "wait": 60}
    answers = []

    def wait():
        answers.append(requests.post(f"{url}/plan", json=ask, timeout=PATIENCE).json())

    waiting = threading.Thread(target=wait)
    waiting.start()
    metrics = f"{url.removesuffix('/orders')}/metrics"
    is_waiting = 'zeh_waiting_readers{feed="orders"} 1'
    eventually(lambda: is_waiting in requests.get(metrics, timeout=PATIENCE).text)
    looked = store.reads["unread", "orders"]
    for number in (4, 7, 8, 11):
        publish(store, "orders", [number], partition=number % 4)
    eventually(lambda: store.reads["unread", "orders"] > looked)  # it was planned again
    assert answers == []
    publish(store, "orders", [6], partition=2)
    waiting.join(PATIENCE)

    (plan,) = answers
    assert [(2, 1)] == [(each["partition"], each["events"]) for each in plan["ranges"]]
    assert {"1", "2"} == plan["ends"].keys() == plan["lag"].keys()
    assert plan["more"] is False


@pytest.mark.parametrize(
    ("cursors", "ends"),
    [
        ({}, None),
        ({"4": "_first"}, None),
        ({"00": "_first"}, None),
        ({"0": "_first"}, {"1": "_first"}),
        ({"0": "_first"}, {"0": "_first", "1": "_first"}),
    ],
)
def test_a_plan_of_partitions_that_are_not_there_is_refused(cursors, ends):
    request = PlanRequest(4, cursors, **({} if ends is None else {"ends": ends}))

    with pytest.raises(Problem, match="cursors need some of 0 to 3, and ends"):
        check_plan(request, 100)


@both
def test_retention_waits_for_a_query_in_its_partitions(store, url, start, fetch):
    """Each query has a name of its own, and retention waits for all that are named."""
    add(store, 0, 16)
    for half, name in zip(HALVES, ("low", "high"), strict=True):
        run = start(url=url, fetch=fetch, partitions=half, cursorSet=name, finite=True)
        run.to_the_end()
    eventually(lambda: len(store.cursor_sets("orders")) == 2)
    kept = {each.name: each for each in store.cursor_sets("orders")}
    assert {"high": {4: {2, 3}}, "low": {4: {0, 1}}} == {
        name: {n: {*cursors} for n, cursors in each.cursors.items()} for name, each in kept.items()
    }
    assert all(each.consumer.startswith("subset:spark:") for each in kept.values())
    everything = Retention(bytes=1, readers=("low", "high"))
    add(store, 16, 17)  # of a partition of "low", which has not read it
    assert 16 == prune(store, "orders", everything).events
    add(store, 17, 20)
    for readers, events, held_by in ((("low", "high"), 0, "low"), (("high",), 2, "high")):
        found = prune(store, "orders", Retention(bytes=1, readers=readers))
        assert (events, held_by) == (found.events, found.held_by)


def test_the_second_query_under_a_name_is_refused(store, url, start, caplog):
    """Nothing would tell two queries of one partition apart."""
    add(store, 0, 8)
    for half in HALVES:
        start(url=url, partitions=half, cursorSet="both", finite=True).to_the_end()

    assert "409 cursorset-taken" in caplog.text
    (kept,) = store.cursor_sets("orders")
    assert {0, 1} == kept.cursors[4].keys()


def test_a_batch_is_not_awaited_of_some_partitions(store, url, start):
    """A query that reads half a feed never stands for one that has committed all of it."""
    add(store, 0, 8)
    start(url=url, partitions="0-1", cursorSet="half", finite=True).to_the_end()
    eventually(lambda: len(store.cursor_sets("orders")) == 1)
    state = store.feed("orders")
    query = {"await": f"{state.head}.{state.history[:4].hex()}", "cursorset": "half"}
    found = requests.get(f"{url}/cursors", query, timeout=PATIENCE).json()

    assert (False, None) == (found["committed"], found["lag"])
