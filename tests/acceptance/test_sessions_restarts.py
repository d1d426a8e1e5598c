"""Sessions across restarts, crashes, idle times and clocks that go back."""

from __future__ import annotations

import json
import random
import time
from collections import Counter

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_sessions import Job, needs_batches
from tests.fix_stream import wait_for
from tests.unit.sessions.buckets import row, told
from zeh_spark.publish import Producer


@pytest.mark.slow
@needs_batches
def test_any_arrival_gives_the_same_order(orders):
    """A query that is stopped and started, whose batches cut the arrivals anywhere. [SB-03, R1]"""
    chance = random.Random(7)
    steps = [(f"s{session}", step) for session in range(20) for step in range(15)]
    arrivals = steps + chance.sample(steps, 30)
    chance.shuffle(arrivals)

    for begin in range(0, len(arrivals), 110):
        for at in range(begin, min(begin + 110, len(arrivals)), 40):
            orders.add(*arrivals[at : min(at + 40, begin + 110)])
        orders.run(limit="1", gap_timeout=None)

    assert {name: list(range(15)) for name, _ in steps} == {
        name: orders.steps(name) for name, _ in steps
    }
    assert (30, []) == (orders.count("duplicates"), orders.dead)
    assert len(set(orders.batches)) > 6


@pytest.mark.slow
@pytest.mark.kill
@needs_batches
@pytest.mark.parametrize(
    "crashes",
    [
        pytest.param([(0, "ordered")], id="once"),
        pytest.param(
            [(0, "ordered"), (0, "dead"), (2, "ordered")], id="more", marks=pytest.mark.campaign
        ),
    ],
)
def test_nothing_is_lost_or_doubled_when_the_driver_is_killed(orders, tmp_path, crashes):
    """After the first writer, and after both before Spark has noted the batch down. The feed has
    one partition: with two, the end could be read before what is missing elsewhere.
    """
    url = orders.create("line", 1)
    orders.producer = Producer(url, "shop")
    chance = random.Random(3)
    steps = [(f"s{session}", step) for session in range(6) for step in range(10)]
    missing = {("s2", 4), ("s5", 0)}
    chance.shuffle(steps)
    present = [each for each in steps if each not in missing]
    for begin in range(0, len(present), 20):
        orders.add(*present[begin : begin + 20], at=begin)
    orders.add(("end", 0), at=10_000)
    orders.add(("end", 1), at=10_001)

    job = Job(url, tmp_path)
    for crash in crashes:
        job.run(crash)
    job.run()

    ordered, dead = job.rows("ordered"), job.rows("dead")
    assert Counter(present) == Counter(
        (name, step) for name, step in ordered + dead if name != "end"
    )
    for session in range(6):
        found = [step for name, step in ordered if name == f"s{session}"]
        whole = {2: [0, 1, 2, 3], 5: []}.get(session, list(range(10)))
        assert whole == found


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
def test_a_clock_that_goes_back_drops_nothing(orders):
    """An hour, then two batches."""
    orders.add(("a", 0), at=10_000)
    orders.run()
    orders.add(("a", 2), ("b", 0), at=6_400)
    orders.run()
    orders.add(("a", 1), ("b", 1), at=6_401)
    orders.run()

    assert [0, 1, 2] == orders.steps("a")
    assert [0, 1] == orders.steps("b")
    assert [] == orders.dead


@pytest.mark.slow
@needs_batches
@pytest.mark.parametrize("on_gap", ["skip", "dead-letter"])
def test_spark_gives_what_the_bare_logic_gives(orders, on_gap):
    """Each run is a batch with what came, and one in which only time passes."""
    chance, clock = random.Random(11), 0
    bare = told(gap_timeout=300_000, on_gap=on_gap, max_events=4)
    for at in (100, 300, 500, 900):
        steps = [(f"s{chance.randrange(4)}", chance.randrange(9)) for _ in range(18)]
        orders.add(*steps, at=at)
        orders.run(on_gap=on_gap, gap_timeout="300 seconds", max_events=4)
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


@pytest.mark.slow
@needs_batches
@pytest.mark.parametrize(
    ("between", "ordered", "dead"), [(0, [0, 1, 2], []), (1, [0], [("gap", 2), ("late", 1)])]
)
def test_what_is_missing_fills_its_gap_from_the_next_batch_of_a_run(orders, between, ordered, dead):
    """The clock has run ahead in the first; without a delay, a batch later is too late."""
    orders.producer = Producer(orders.create("line", 1), "shop")
    orders.url = f"{orders.url.rpartition('/')[0]}/line"
    orders.add(("a", 0), ("a", 2), ("b", 0), at=100)
    orders.add(("b", 1), at=50_000)
    for step in range(between):
        orders.add(("b", 2 + step), at=50_000)
    orders.add(("a", 1), at=200)

    orders.run(limit="1")

    assert ordered == orders.steps("a")
    assert dead == orders.reasons("a")


@pytest.mark.slow
@needs_batches
def test_a_delay_allows_for_a_partition_that_is_read_ahead(orders):
    """The newest event is far ahead, and the one that is missing comes later."""
    for steps, at in ([("a", 0), ("a", 2)], 100), ([("b", 0)], 50_000), ([("a", 1)], 200):
        orders.add(*steps, at=at)
        orders.run(delay="1 day")

    assert [0, 1, 2] == orders.steps("a")
    assert [] == orders.dead


@pytest.mark.slow
def test_an_event_from_the_future_makes_nothing_old(orders):
    """One clock that is wrong ends no other session, and no closed one is forgotten."""
    now = int(time.time())
    orders.add(("a", 0), ("b", 1), at=now - 20)
    orders.add(("a", 1), at=now - 20, last="true")
    orders.run(last="headers['last']")
    orders.add(("evil", 0), at=now + 10**9)
    orders.run(last="headers['last']")
    orders.add(("a", 1), ("a", 0), ("b", 0), at=now)
    orders.run(last="headers['last']")

    assert [0, 1] == orders.steps("a")
    assert [0, 1] == orders.steps("b")
    assert (2, []) == (orders.count("duplicates"), orders.dead)


@pytest.mark.slow
@needs_batches
@pytest.mark.parametrize(
    ("steps", "ordered", "options"),
    [
        pytest.param(
            [("a", 0, 0), ("a", 1, 1), None, ("x", 0, 3), ("a", 0, 4), ("a", 1, 5)],
            [0, 1],
            {"last": "if(headers['order'] = 'a', 1, NULL)"},
            id="closed",
        ),
        pytest.param(
            [("a", 0, 0), ("a", 2, 10), None, ("x", 0, 11), ("a", 1, 12), ("y", 0, 20)],
            [0, 1, 2],
            {},
            id="gap",
        ),
        pytest.param(
            [("a", 0, 0), None, ("x", 0, 1), ("a", 1, 2), ("a", 2, 3)],
            [0, 1, 2],
            {"idle_timeout": "1 hour"},
            id="idle",
        ),
    ],
)
def test_a_history_continues_after_an_event_from_the_future(orders, steps, ordered, options):
    """A month old, by the events' own time. One of them is ten years ahead."""
    month_ago = int(time.time()) - 30 * 86_400
    orders.producer = Producer(orders.create("line", 1), "shop")
    orders.url = f"{orders.url.rpartition('/')[0]}/line"
    for each in steps:
        order, step, at = each or ("evil", 0, 10 * 365 * 86_400)
        orders.add((order, step), at=month_ago + at)

    orders.run(limit="1", **options)

    assert ordered == orders.steps("a")
    assert ([], 1) == (orders.dead, orders.count("future"))


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
