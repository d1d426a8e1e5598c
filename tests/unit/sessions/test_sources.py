"""Sessions over several sources: their clock is that of the slowest."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from tests.unit.sessions.buckets import DAY, Memory, reason, row
from zeh_spark.errors import CheckpointError
from zeh_spark.spark.sessions import state
from zeh_spark.spark.sessions.bucket import BucketBatch
from zeh_spark.spark.sessions.model import Policy, SessionEvent
from zeh_spark.spark.sessions.sources import Mark, SourceClock, _marks
from zeh_spark.spark.sessions.state import Settings

SOURCES = ("eu", "us")


class Bucket:
    """A bucket with a timer, in batches as Spark makes them: rows, then the timer if it is due."""

    def __init__(self, **options):
        self.parts, self.segments = Memory(), Memory()
        self.watermark = self.batch_time = 0
        self.blob = state.empty(self.restart(**options).settings)

    def restart(self, sources=SOURCES, idle_source=None, delay=0):
        policy = Policy(gap_timeout=10)
        self.settings = Settings(policy, 4, DAY, {}, sources, idle_source, delay)
        return self

    def batch(self, *rows, at=None, **reached):
        """Rows, and how far sources are; then the batch without rows that follows."""
        self.batch_time = at or self.batch_time + 1
        marks = [Mark(name, time, self.batch_time) for name, time in reached.items()]
        texts = [SessionEvent.parted(mark.text()) for mark in marks]
        given = self._run([*rows, *texts])
        self.watermark = self.batch_time
        return given + self._run(None)

    def _run(self, rows):
        given, first = [], True
        timer = BucketBatch(self.blob, self.settings, self.parts, self.segments).timer
        due = timer is not None and timer <= self.watermark
        for step in ([] if rows is None else ["rows"]) + (["timer"] if due else []):
            batch = BucketBatch(self.blob, self.settings, self.parts, self.segments)
            now = batch.now(self.watermark, first=first)
            given += batch.take(rows, now) if step == "rows" else batch.judge(now)
            self.blob, _ = batch.save(soon=self.watermark + 1, fired=step == "timer")
            first = False
        return given


def events(given):
    return [(each.event, reason(each) if each.dead else None) for each in given]


WAITS = row("a", 1, 100)
GAP = [("a 1", "gap")]


@each_case(
    ("options", "steps"),
    [
        # a gap waits for the slowest source: the other makes no gap old, and that one may fill it
        ({}, [([WAITS], {"eu": 100, "us": 0}, []), ([row("b", 0, 500)], {"eu": 500}, ["b 0"]),
              ([], {"us": 109}, []), ([], {"us": 110}, GAP)]),
        ({}, [([WAITS], {"eu": 500, "us": 0}, []),
              ([row("a", 0, 90)], {"us": 90}, ["a 0", "a 1"])]),
        # a batch is read before its own time judges: an event that fills a gap is not too late in
        # the batch that makes the gap old, or in the one after it
        ({}, [([WAITS, row("b", 1, 100)], {"eu": 100, "us": 100}, []),
              ([row("a", 0, 90)], {"eu": 200, "us": 200}, ["a 0", "a 1", ("b 1", "gap")])]),
        # a source that was never seen holds the clock
        ({}, [([WAITS], {"eu": 100}, []), ([], {"eu": 9_000}, []), ([], {"us": 9_000}, GAP)]),
        # an idle one does not, whether it was seen or not. It is idle by the times of batches: it
        # was not heard of for so long, whatever its own times say
        *(({"idle_source": 60_000},
           [([WAITS], {"at": 1_000, "eu": 100, **seen}, []), ([], {"at": 31_000, "eu": 400}, []),
            ([], {"at": 60_999, "eu": 500}, []), ([], {"at": 61_000, "eu": 500}, GAP)])
          for seen in ({"us": 5}, {})),
        # an idle source that returns does not turn the clock back
        ({"idle_source": 1_000},
         [([], {"at": 1_000, "eu": 500, "us": 5}, []), ([], {"at": 1_999, "eu": 550}, []),
          ([], {"at": 2_900, "eu": 600}, []), ([row("a", 1, 20)], {"at": 3_001, "us": 20}, []),
          ([], {"at": 3_002, "us": 50}, []), ([], {"at": 3_003, "eu": 900, "us": 900}, GAP)]),
        # no source is idle because the query was stopped: the first batch after a stop may have
        # events of one source alone
        ({"idle_source": 1_000},
         [([WAITS], {"at": 1_000, "eu": 100, "us": 5}, []), ([], {"at": 1_900, "eu": 400}, []),
          ([], {"at": 90_000, "eu": 900}, []), ([], {"at": 90_999, "eu": 900}, []),
          ([], {"at": 91_000, "eu": 900}, GAP)]),
        # the delay is that of all sources
        ({"delay": 50}, [([WAITS], {"eu": 100, "us": 100}, []), ([], {"eu": 159, "us": 159}, []),
                         ([], {"eu": 160, "us": 160}, GAP)]),
    ],
)  # fmt: skip
def test_the_clock_is_that_of_the_slowest_source(options, steps):
    """Each step has rows, how far sources are, and what comes of it."""
    it = Bucket(**options)
    for rows, reached, expected in steps:
        found = events(it.batch(*rows, **reached))
        assert [(each, None) if isinstance(each, str) else each for each in expected] == found


def test_a_source_that_joins_holds_the_clock_from_then_on():
    """And one that goes leaves it."""
    joined, left = Bucket(), Bucket()
    joined.batch(WAITS, eu=100, us=100)
    joined.restart((*SOURCES, "asia"))
    left.batch(WAITS, eu=100, us=5)
    left.batch(eu=900)

    assert [] == events(joined.batch(eu=900, us=900))
    assert GAP == events(joined.batch(asia=900))
    assert GAP == events(left.restart(("eu",)).batch(eu=901))


@pytest.mark.parametrize("sources", [(), ("eu",)])
def test_a_checkpoint_has_one_kind_of_clock(sources):
    """Without sources, time is Spark's watermark; with them, that is the batch's time."""
    it = Bucket(sources=sources)
    it.restart(() if sources else ("eu",))

    with pytest.raises(CheckpointError, match="sources="):
        BucketBatch(it.blob, it.settings, Memory(), Memory())


steps = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.dictionaries(st.sampled_from(["eu", "us", "gone"]), st.integers(-1, 100)),
        st.sampled_from([SOURCES, ("eu",), ("us", "asia")]),
    )
)


@given(steps, st.none() | st.integers(1, 60))
def test_the_clock_never_goes_back_nor_ahead_of_an_active_source(several, idle):
    """Law: whatever joins, goes, idles or goes back."""
    clock, now, reached = SourceClock(), 0, {}
    for passed, marks, names in several:
        now += passed + 1
        before = clock.time
        clock.declare(names)
        clock.time = clock.next(idle)
        assert clock.time >= before
        if clock.time > before and idle is None:
            assert clock.time == min(reached.get(name, -1) for name in names)
        for name, time in marks.items():
            clock.note(Mark(name, time, now), idle)
        reached = {name: time for name, time in reached.items() if name in names}
        for name in marks.keys() & set(names):
            reached[name] = max(reached.get(name, -1), marks[name])


@given(steps, st.integers(1, 60))
def test_a_clock_that_runs_ahead_of_a_source_has_not_heard_of_it_for_long(several, idle):
    """Law: what holds the clock is every source that had events within the time."""
    clock, now, heard = SourceClock(), 0, {}
    for passed, marks, names in several:
        now += passed + 1
        clock.declare(names)
        before, clock.time = clock.time, clock.next(idle)
        for name, each in clock.sources.items():
            if before < clock.time > each.reached:
                assert clock.batch - heard.get(name, 0) >= idle
        for name, time in marks.items():
            clock.note(Mark(name, time, now), idle)
        heard = {name: time for name, time in heard.items() if name in names}
        heard |= dict.fromkeys(marks.keys() & set(names), now)


def test_a_task_tells_each_bucket_what_its_sources_have_reached():
    """Rows pass; rows without a source, and times that do not count, move nothing."""
    schema = pa.schema(
        {"bucket": pa.int32(), "row": pa.string(), "source": pa.string()}
        | {"reached": pa.int64(), "now": pa.int64()}
    )
    columns = {"bucket": [0, 1, 1], "row": ["x", "y", "z"], "now": [9, 9, 9]}
    first = pa.RecordBatch.from_pydict(
        {**columns, "source": ["eu", "us", None], "reached": [5, None, 99]}, schema
    )
    second = pa.RecordBatch.from_pydict(
        {**columns, "source": ["eu", "eu", "us"], "reached": [4, 7, None]}, schema
    )

    *passed, marks = _marks(2)([first, second])

    assert ["x", "y", "z"] * 2 == [text for out in passed for text in out["row"].to_pylist()]
    found = [(b, SessionEvent.parted(t)) for b, t in zip(*marks.to_pydict().values(), strict=True)]
    assert [("eu", 7, 9), ("us", -1, 9)] * 2 == [(e.event, e.clock, e.last) for _, e in found]
    assert [0, 0, 1, 1] == [bucket for bucket, _ in found]
    assert [] == list(_marks(2)([]))
