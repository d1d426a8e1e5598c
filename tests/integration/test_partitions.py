"""Queries that share the partitions of a feed, whoever fetches: each event comes to one of them."""

from __future__ import annotations

import json
import threading

import pytest
import requests

from tests.fix_batch import batch_reader, rows_of
from tests.fix_direct import BEGIN, END, DirectFeed, Sent, plan_of, planned
from tests.fix_raw_server import NO_IDENTITY, refused
from tests.fix_stream import Feed, Log
from tests.patience import PATIENCE, eventually
from tests.scratch_store import ScratchStore
from zeh_spark import last_cursors, reading
from zeh_spark.client.polling import position_reporter
from zeh_spark.errors import CheckpointError, OptionError, ReplayError
from zeh_spark.publisher import Problem
from zeh_spark.service.reads import direct_plans
from zeh_spark.service.reads.direct_plans import check_plan
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire.direct_reads import PlanRequest

HALVES = {"0-1": (0, 1), "2-3": (2, 3)}
both = pytest.mark.parametrize("fetch", ["executors", "driver"])


class Watched(ScratchStore):
    """A store that notes the partitions of which cursors are kept, by request."""

    def save_cursors(self, feed, name, n, cursors, *more):
        self.kept.append({*cursors})
        return super().save_cursors(feed, name, n, cursors, *more)


@pytest.fixture
def store():
    store = Watched(orders=4)
    store.kept = []
    return store


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

    given = {"fetch": fetch, "partitions": "1,3"}
    assert of((1, 3), range(24)) == numbers(batch_reader(url, **given))
    assert of((1, 3), range(24)) == numbers(batch_reader(url, startingTimestamp="1", **given))
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
    since = reading.reader(url, starting_timestamp=1, partitions="0,2")

    assert of((0, 2), range(40)) == sorted(seen)
    assert seen and {0, 2} == {
        each for events, _ in since for each in events["partition"].to_pylist()
    }
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


def test_a_batch_that_is_gone_is_refused_with_its_partition(raw_server, start):
    """Also if the publisher does not tell which partition lost events."""
    feed = DirectFeed(raw_server, partitions=4)
    begin = json.dumps({"3": BEGIN})
    run = start(url=raw_server.url, partitions="3", startingCursors=begin, fetch="executors")
    feed.script(plan_of(planned(Sent(8, partition=3), partition=3), ends={"3": END}))
    end = run.reader.latestOffset(run.offset, run.limit)
    feed.plan = lambda asked: refused(410, "gone")
    again = start(url=raw_server.url, partitions="3", startingCursors=begin, fetch="executors")

    with pytest.raises(ReplayError, match=f"partition 3: .* from cursor '{BEGIN}' to '{END}'"):
        again.reader.partitions(run.offset, end)


@pytest.fixture
def in_packs(store, monkeypatch):
    """A feed of two packs: of partition 1, and of partition 0."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 4)
    for partition in (1, 1, 1, 1, 0, 0, 0, 0, 2):
        publish(store, "orders", [partition], partition=partition)
    for _ in range(2):
        assert store.seal("orders", 1 << 62) == 4
    return store


def planned_for(store, **cursors):
    request = PlanRequest(4, {each[1:]: cursor for each, cursor in cursors.items()})
    return direct_plans.plan(store, "orders", request)[1]


def test_a_plan_of_partitions_at_rest_reads_no_packs(in_packs):
    """They are planned again whenever there are events of others."""
    end = planned_for(in_packs, p1="_first").ends["1"]
    before = in_packs.reads["packs", "orders"]

    assert (1, []) == (before, planned_for(in_packs, p1=end).ranges)
    assert before == in_packs.reads["packs", "orders"]


def test_a_plan_passes_over_packs_of_others(in_packs, monkeypatch):
    """However long that takes, a plan that says that there is more has something."""
    monkeypatch.setattr(direct_plans, "_PLAN_SECONDS", -1.0)

    plan = planned_for(in_packs, p0="_first")

    assert ([4], False) == ([each.events for each in plan.ranges], plan.more)


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
def test_retention_waits_for_a_query_in_its_partitions(store, url, start, fetch, monkeypatch):
    """Each query has a name of its own, and retention waits for all that are named, from the first
    request on: it tells all partitions, however many there are.
    """
    monkeypatch.setattr(position_reporter, "_AT_A_TIME", 1)
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
    assert {0, 1} == store.kept[0]
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
