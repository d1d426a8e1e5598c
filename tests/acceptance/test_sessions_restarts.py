"""Sessions across restarts, crashes, idle times and clocks that go back."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_sessions import needs_batches
from tests.fix_stream import wait_for
from tests.unit.sessions.buckets import row, told
from zeh_spark.publish import Producer


@pytest.fixture
def line(orders):
    """Orders on a feed of one partition: with `limit="1"` each that are added are a batch."""
    url = orders.create("line", 1)
    return replace(orders, url=url, producer=Producer(url, "shop"))


@pytest.mark.slow
@needs_batches
def test_any_arrival_gives_the_same_order(orders):
    """A query that is stopped and started, whose batches cut the arrivals anywhere. [SB-03, R1]"""
    chance = random.Random(7)
    steps = [(f"s{session}", step) for session in range(20) for step in range(15)]
    arrivals = steps + chance.sample(steps, 30)
    chance.shuffle(arrivals)

    for begin in range(0, len(arrivals), 165):
        for at in range(begin, min(begin + 165, len(arrivals)), 40):
            orders.add(*arrivals[at : min(at + 40, begin + 165)])
        orders.run(limit="1", gap_timeout=None)

    assert {name: list(range(15)) for name, _ in steps} == {
        name: orders.steps(name) for name, _ in steps
    }
    assert (30, []) == (orders.count("duplicates"), orders.dead)
    assert len(set(orders.batches)) > 6


@pytest.mark.slow
@needs_batches
def test_a_stop_longer_than_the_timeout_kills_no_session(orders):
    """The missing event is in the last batch of the backlog: the clock is what was read."""
    orders.add(("a", 0), ("a", 2), at=100)
    orders.run(limit="1")
    for at in range(3000, 3300, 100):
        orders.add(("b", (at - 3000) // 100), at=at - 2800)
    orders.add(("a", 1), at=3400 - 2800)

    orders.run(limit="1")

    assert [0, 1, 2] == orders.steps("a")
    assert [] == orders.dead


@pytest.mark.slow
@needs_batches
def test_spark_gives_what_the_bare_logic_gives(orders):
    """Each run is a batch with what came, and one in which only time passes."""
    chance, clock = random.Random(11), 0
    bare = told(gap_timeout=300_000, on_gap="skip", max_events=4)
    for at, on_gap in (100, "skip"), (300, "skip"), (500, "skip"), (900, "dead-letter"):
        steps = [(f"s{chance.randrange(4)}", chance.randrange(9)) for _ in range(18)]
        orders.add(*steps, at=at)
        orders.run(on_gap=on_gap, gap_timeout="300 seconds", max_events=4)
        bare.settings = told(gap_timeout=300_000, on_gap=on_gap, max_events=4).settings
        bare.take(*(row(name, step, clock=1000 * at) for name, step in steps), now=clock)
        bare.judge(clock)
        clock = 1000 * at
        bare.judge(clock)

    for name in ("s0", "s1", "s2", "s3"):
        ordered = [event.split()[1] for event in bare.ordered if event.startswith(name)]
        assert list(map(int, ordered)) == orders.steps(name)
        dead = [
            (each["reason"], each.get("received"))
            for each in (json.loads(given.dead) for given in bare.given if given.dead)
            if each["session"] == name
        ]
        assert dead == orders.reasons(name)
    assert bare.count("duplicates") == orders.count("duplicates")
    assert {"skipped", "gap"} <= {reason for reason, _ in orders.reasons()}


# Batch by batch of one run, from a feed of one partition


@pytest.mark.slow
@needs_batches
def test_what_is_missing_fills_its_gap_from_the_next_batch_of_a_run(line):
    """The clock has run ahead in the first; without a delay, a batch later is too late. A clock
    that goes back drops nothing: an hour, then two batches.
    """
    line.add(("a", 0), ("a", 2), ("late", 0), ("late", 2), ("b", 0), at=100)
    line.add(("b", 1), at=50_000)
    line.add(("a", 1), at=200)
    line.add(("late", 1), ("back", 0), at=50_000)
    line.add(("back", 2), ("b", 2), at=46_400)
    line.add(("back", 1), ("b", 3), at=46_401)

    line.run(limit="1")

    assert [0, 1, 2] == line.steps("a")
    assert [0] == line.steps("late")
    assert [0, 1, 2] == line.steps("back")
    assert [0, 1, 2, 3] == line.steps("b")
    assert [("gap", 2), ("late", 1)] == line.reasons()


@pytest.mark.slow
@needs_batches
def test_a_delay_allows_for_a_partition_that_is_read_ahead(line):
    """The newest event is far ahead, and the one that is missing comes later."""
    for steps, at in (
        ([("a", 0), ("a", 2)], 100),
        ([("b", 0)], 50_000),
        ([("b", 1)], 50_000),
        ([("a", 1)], 200),
    ):
        line.add(*steps, at=at)

    line.run(limit="1", delay="1 day")

    assert [0, 1, 2] == line.steps("a")
    assert [] == line.dead


@pytest.mark.slow
@needs_batches
def test_a_history_continues_after_an_event_from_the_future(line):
    """One clock that is wrong makes nothing old: no gap ends, no idle session is closed, and no
    closed one is forgotten. The history is a month old, by the events' own time; one of them is ten
    years ahead.
    """
    month_ago = int(time.time()) - 30 * 86_400
    line.add(("ends", 0), ("ends", 1), ("gap", 0), ("idle", 0), at=month_ago)
    line.add(("gap", 2), at=month_ago + 10)
    line.add(("evil", 0), at=month_ago + 10 * 365 * 86_400)
    line.add(("x", 0), at=month_ago + 11)
    line.add(("ends", 0), ("ends", 1), ("gap", 1), ("idle", 1), ("idle", 2), at=month_ago + 12)
    line.add(("x", 1), at=month_ago + 20)

    last = "if(headers['order'] = 'ends', 1, NULL)"
    line.run(limit="1", last=last, idle_timeout="1 hour")

    assert [0, 1] == line.steps("ends")
    assert [0, 1, 2] == line.steps("gap") == line.steps("idle")
    assert ([], 1, 2) == (line.dead, line.count("future"), line.count("duplicates"))


# Batches that come again, and a clock without events


@pytest.mark.slow
@needs_batches
def test_a_repeated_batch_gives_the_same_rows(orders):
    """Also the dead letters, and what time has judged. [R6]"""
    orders.add(("a", 0), ("a", 2), ("a", 9), ("b", 1), at=100)
    orders.run(idle_timeout="1 hour")
    orders.add(("c", 1), ("c", 0), ("a", 3), ("b", 1), at=800)
    orders.ordered.clear()
    orders.run(idle_timeout="1 hour")
    first = orders.ordered, orders.dead
    orders.ordered, orders.dead = [], []
    orders.forget(2)

    orders.run(idle_timeout="1 hour")

    assert first == (orders.ordered, orders.dead)
    assert {("gap", 2), ("gap", 9)} <= set(orders.reasons("a"))


@pytest.mark.slow
def test_a_heartbeat_judges_gaps_on_an_idle_feed(orders):
    """With the batch's clock; by itself it comes to an end, too. Each batch tells the gauges of all
    sessions. [SB-12]
    """
    orders.add(("a", 0), ("a", 2), *((f"b{n}", 0) for n in range(5)))
    query = orders.start(
        time="batch",
        heartbeat=True,
        gap_timeout="1 second",
        stale_timeout="3 seconds",
        trigger={"processingTime": "200 milliseconds"},
    )

    def gauges():
        told = [each.observedMetrics.get("sessions") for each in query.recentProgress]
        names = ("held", "open_sessions", "stale_sessions", "buckets")
        return {tuple(each[name] for name in names) for each in told if each}

    try:
        wait_for(lambda: (0, 6, 6, 16) in gauges() or query.exception())
    finally:
        query.stop()

    assert [0] == orders.steps("a")
    assert [("gap", 2), ("stale", None)] == orders.reasons("a")
    assert {(1, 0, 16), (0, 6, 16)} <= {(held, stale, all_) for held, _, stale, all_ in gauges()}
