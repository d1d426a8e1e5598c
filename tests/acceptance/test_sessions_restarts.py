"""Sessions across restarts, crashes, idle times and clocks that go back."""

import json
import random
import time

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_sessions import needs_batches
from tests.fix_spark import in_batches, to_the_end
from tests.patience import eventually
from tests.unit.sessions.buckets import row, told


@pytest.mark.slow
@needs_batches
def test_spark_gives_what_the_bare_logic_gives(orders):
    """Also when it repeats a batch: the rows, the dead letters, and what time has judged. Each run
    is a batch with what came, and one in which only time passes. [SB-03, R1, R6]
    """
    chance, clock = random.Random(11), 0
    bare = told(gap_timeout=300_000, on_gap="skip", max_events=4)
    for at, on_gap in (100, "skip"), (500, "skip"), (900, "dead-letter"):
        policy = {"on_gap": on_gap, "max_events": 4}
        steps = [(f"s{chance.randrange(4)}", chance.randrange(9)) for _ in range(24)]
        orders.add(*steps, at=at)
        before = len(orders.ordered), len(orders.dead)
        orders.run(gap_timeout="300 seconds", **policy)
        bare.settings = told(gap_timeout=300_000, **policy).settings
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

    last = orders.ordered[before[0] :], orders.dead[before[1] :]
    assert all(last)
    orders.ordered, orders.dead = [], []
    orders.forget(2)
    orders.run(gap_timeout="300 seconds", **policy)
    assert last == (orders.ordered, orders.dead)


@pytest.mark.slow
def test_columns_may_be_added_and_moved_while_events_wait(orders):
    """What waits could not be restored if they were left out, or had another type."""
    order, step = "headers['order'] AS order", "int(headers['step']) AS step"

    def run(*columns):
        def keep(batch, _):
            rows = batch.where("status = 'ordered'").sort("step")
            found.extend(
                tuple(row)
                for row in rows.drop("partition", "headers", "data", "status", "dead").collect()
            )

        found = []
        frame = orders.frame(columns=["partition", "headers", "data", *columns])
        to_the_end(lambda: in_batches(frame, keep, orders.checkpoint))
        return found

    def refused(*columns):
        with pytest.raises(Exception) as raised:
            run(*columns)
        return str(raised.value)

    orders.add(("x", 0), ("x", 2))
    assert [("x", 0)] == run(order, step)
    orders.add(("x", 1), ("x", 4))
    assert [(1, "x"), (2, "x")] == run(step, order)
    orders.add(("x", 3))
    assert [("n", "x", 3), (None, "x", 4)] == run("'n' AS n", order, step)
    orders.add(("x", 6))
    assert [] == run(order, step)
    orders.add(("x", 5))
    assert "the column 'step' has the type bigint, and events wait" in refused(
        order, "bigint(headers['step']) AS step"
    )
    assert "the column 'order' is missing, and events wait" in refused(step)
    assert [("x", 5), ("x", 6)] == run(order, step)
    orders.add(("x", 7))
    assert [("x", 7)] == run(order, "bigint(headers['step']) AS step")


HOUR, DAY = 3_600, 86_400


@pytest.mark.slow
@needs_batches
def test_the_clock_is_what_was_read(line):
    """Over batches and a stop: each batch is judged by what was read before it."""
    month_ago = int(time.time()) - 30 * DAY

    def add(*steps, at):
        line.add(*steps, at=month_ago + at)

    def run():
        last = "if(headers['order'] = 'ends', 1, NULL)"
        line.run(limit="1", delay="1 day", last=last, idle_timeout="40 hours")

    add(("ends", 0), ("ends", 1), ("idle", 0), at=0)
    add(("ahead", 0), ("ahead", 2), ("fills", 0), ("fills", 2), ("late", 0), ("late", 2), at=1)
    # one clock that is wrong makes nothing old: no gap ends, no session is closed or forgotten
    add(("future", 0), at=10 * 365 * DAY)
    add(("x", 0), at=14 * HOUR)  # read ahead of what is missing, which the delay allows for
    run()
    add(("ends", 0), ("ends", 1), ("idle", 1), ("idle", 2), at=2)
    add(("ahead", 1), at=3)
    add(("x", 1), ("back", 0), at=50 * HOUR)  # now the clock is at 26 hours
    add(("fills", 1), at=4)  # from the next batch of a run
    add(("late", 1), at=5)
    add(("back", 2), at=20 * HOUR)  # a clock that goes back drops nothing
    add(("back", 1), at=20 * HOUR + 1)
    run()

    assert [0, 1] == line.steps("ends") == line.steps("x")
    assert [[0, 1, 2]] * 4 == [line.steps(each) for each in ("idle", "ahead", "fills", "back")]
    assert ([0], [("gap", 2), ("late", 1)]) == (line.steps("late"), line.reasons())
    assert (1, 2) == (line.count("future"), line.count("duplicates"))
    assert 10 < len(set(line.batches))


@pytest.mark.slow
def test_a_heartbeat_judges_gaps_on_an_idle_feed(orders):
    """With the batch's clock; by itself it comes to an end, too. Each batch tells the gauges of all
    sessions. A session that does not advance is reported, with the step that does not come.
    [SB-08, SB-12]
    """
    orders.add(("a", 0), ("a", 2), *((f"b{n}", 0) for n in range(5)))
    query = orders.start(
        time="batch",
        heartbeat=True,
        gap_timeout="1 second",
        stale_timeout="2 seconds",
        trigger={"processingTime": "1 second"},
    )

    def gauges():
        told = [each.observedMetrics.get("sessions") for each in query.recentProgress]
        names = ("held", "open_sessions", "stale_sessions", "buckets")
        return {tuple(each[name] for name in names) for each in told if each}

    try:
        eventually(lambda: (0, 6, 6, 16) in gauges() or query.exception())
    finally:
        query.stop()

    assert [0] == orders.steps("a")
    assert [("gap", 2), ("stale", None)] == orders.reasons("a")
    stale = next(each for each in orders.dead if each.dead.session == "b3")
    assert ("stale", 1, None, None) == (
        stale.dead.reason, stale.dead.expected, stale.dead.missing, stale.data
    )  # fmt: skip
    assert {(1, 0, 16), (0, 6, 16)} <= {(held, stale, all_) for held, _, stale, all_ in gauges()}
