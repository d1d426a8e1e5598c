"""What a bucket keeps between batches: segments, times, closed sessions, and whose it is."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tests.cases import each_case
from tests.unit.sessions.buckets import DAY, Memory, Told, row, rows, told, went
from zeh_spark.errors import CheckpointError
from zeh_spark.spark.sessions import state
from zeh_spark.spark.sessions.bucket import BucketBatch
from zeh_spark.spark.sessions.inspecting import _sessions, _whole
from zeh_spark.spark.sessions.model import Policy
from zeh_spark.spark.sessions.state import SPILL, Settings

# Sessions that hold many


def test_a_session_that_holds_many_or_large_events_keeps_them_outside():
    """And the bucket's state stays small."""
    few, it, large = told(), told(), told()
    large.take(*(row("a", number, event="x" * 40_000) for number in (1, 2)))
    assert (1, True) == (len(large.segments), large.size < 1000)
    few.take(*rows("a", *range(1, SPILL + 1)))
    it.take(*rows("a", *range(1, SPILL + 51)))
    assert ({}, SPILL + 50, True) == (few.segments, len(it.segments.events()), it.size < 200)

    it.take(row("a", 0))

    assert ([f"a {n}" for n in range(SPILL + 51)], {}) == (it.ordered, it.segments)


def test_a_session_that_is_closed_leaves_no_segment():
    """And another one leaves its segments alone."""
    it = told()
    it.take(*rows("a", *range(1, 200)))
    before = dict(it.segments)
    it.take(row("b", 0))
    assert before == it.segments

    it.take(row("a", control="close"))

    assert ([("closed", f"a {n}") for n in range(1, 200)], {}) == (it.dead, it.segments)


# Time


def test_a_bucket_says_how_much_waits():
    it = told(gap_timeout=10, on_gap="hold")
    it.take(*rows("a", 1, 3, clock=9), row("b", 5, clock=4), row("c", 0))
    it.judge(14)

    gauges = ("held", "open_sessions", "stale_sessions", "oldest_hold")
    assert [3, 3, 1, 4] == [it.counts[-1][name] for name in gauges]


ENDS = [row("a", 0, clock=1000, last=0)]


@each_case(
    ("policy", "batches", "expected"),
    [
        # a closed session is remembered for a time, up to an eighth longer than was asked for
        ({}, [(ENDS, 0), ([row("a", 0)], 1799)], {"ordered": ["a 0"], "duplicates": 1}),
        ({}, [(ENDS, 0), ([row("a", 0)], 1799), ([row("a", 0)], 1900)],
         {"ordered": ["a 0", "a 0"], "duplicates": 1}),
        # one that time has closed is remembered from then on, however long it was idle before
        ({"idle_timeout": 5000},
         [([row("a", 0, clock=1000)], 0), (None, 6000), ([row("a", 0), row("a", 1)], 6001)],
         {"duplicates": 1, "dead": [("closed", "a 1")]}),
        # also one that a gap has closed
        ({"gap_timeout": 5000, "on_gap": "skip"},
         [([row("a", 1, clock=1000, last=1)], 0), (None, 6000), ([row("a", 1)], 6001)],
         {"ordered": ["a 1"], "duplicates": 1}),
        # and one that is closed by hand: also in the first batch of a query, in which no clock has
        # moved yet
        ({}, [([row("a", control="close", clock=10_000)], 0),
              ([row("a", 0, clock=10_001)], 10_000)],
         {"dead": [("closed", "a 0")]}),
    ],
)  # fmt: skip
def test_what_a_bucket_remembers(policy, batches, expected):
    """`batches` are rows, or None where only time passes; and the time."""
    it = went(told(keep_closed=800, **policy), batches)

    assert expected == {name: getattr(it, name) for name in expected}


def test_closed_sessions_that_are_forgotten_take_no_room():
    it = told(keep_closed=800)
    it.take(row("b", 0), *(row(f"a{n}", 0, last=0) for n in range(100)))
    before = it.size

    it.take(row("b", 1), now=900)

    assert (True, 1) == (it.size < before / 10, it.counts[-1]["open_sessions"])


# State of others

STEPS = {"order": ["placed", "paid"]}


def of_steps(steps: dict[str, list[str]]) -> Settings:
    return Settings(Policy(), 4, DAY, steps)


def refused(blob: bytes | None, settings: Settings) -> str:
    with pytest.raises(CheckpointError) as caught:
        BucketBatch(blob, settings, Memory(), Memory())
    return str(caught.value)


SETTINGS, MADE = Settings(Policy(first=1), 4, DAY), ", and the checkpoint's state was made with "


@each_case(
    ("before", "settings", "what"),
    [
        (SETTINGS, Settings(Policy(first=1), 8, DAY), f"buckets=8{MADE}buckets=4"),
        (SETTINGS, Settings(Policy(first=0), 4, DAY), f"first=0{MADE}first=1"),
        (SETTINGS, Settings(Policy(first="seen"), 4, DAY), f"first='seen'{MADE}first=1"),
        # each bucket gets its state in the first batch: this one is of a larger number
        (None, SETTINGS, "fewer buckets than buckets=4"),
        # other steps would give other numbers to what waits
        *(
            (of_steps(before), of_steps(steps), what)
            for before, steps, what in [
                (STEPS, {"order": ["paid", "placed"]}, "steps['order']=['paid', 'placed']"),
                (
                    STEPS,
                    {"order": ["placed", "paid", "shipped"]},
                    "made with steps['order']=['placed', 'p",
                ),
                (STEPS, {}, f"steps=None{MADE}steps={{'order'"),
                ({}, STEPS, f"{MADE}steps=None"),
                ({"": ["a"]}, {"": ["b"]}, f"steps=['b']{MADE}steps"),
                ({"": ["a"]}, STEPS, f"{MADE}steps={{'': ['a']}}"),
            ]
        ),
    ],
)
def test_other_settings_are_refused(before, settings, what):
    assert what in refused(before and state.empty(before), settings)


@each_case("version", [1, 2, 3, 4, 5, 7])
def test_another_version_is_refused(version):
    blob = bytes([version]) + state.empty(SETTINGS)[1:]

    assert f"has format {version}, of another version of zeh_spark" in refused(blob, SETTINGS)


def test_kinds_may_come_and_go():
    """A kind that comes back has the steps that it had."""
    both = {**STEPS, "return": ["sent", "checked"]}
    blob = state.empty(of_steps(STEPS))
    for steps in (both, STEPS, {"return": both["return"]}):
        later = Told(of_steps(steps), blob=blob)
        later.take(row("a", 0))
        blob = later.blob
    assert "steps['order']=['paid']" in refused(blob, of_steps({"order": ["paid"]}))


# Policies that change


def test_another_timeout_is_for_those_who_wait_already():
    """With one from now on, gaps are judged, also untouched; no other option changes the state."""
    it = told(gap_timeout=None)
    it.take(*rows("a", 0, 2))
    settings = Settings(Policy(gap_timeout=60, max_events=1), 4, 2 * DAY)
    changed = it.again(settings)
    changed.take(row("b", 0), now=10)

    assert 60 == changed.timer
    changed.judge(60)
    assert [("gap", "a 2")] == changed.dead


def test_sessions_that_were_stale_are_judged_by_another_policy():
    it = told(gap_timeout=60, on_gap="hold")
    it.take(*rows("a", 0, 2))
    it.judge(60)
    changed = it.again(Settings(Policy(gap_timeout=60, on_gap="skip"), 4, DAY))
    changed.take(row("b", 0), now=70)
    changed.judge(70)

    assert ["b 0", "a 2"] == changed.ordered


def test_idle_sessions_are_closed_once_somebody_says_so():
    it = told()
    it.take(row("a", 0, clock=5))
    changed = it.again(Settings(Policy(idle_timeout=100), 4, DAY))
    changed.take(row("b", 0, clock=50), now=50)
    changed.judge(105)

    assert 1 == changed.counts[-1]["open_sessions"]


# Number of sessions


def test_a_bucket_refuses_to_begin_more_sessions_than_its_share():
    """With max_sessions=9, each of 4 buckets may have 3 open sessions. A bucket that has more since
    the number was lowered keeps them, so that the query continues.
    """
    limited = Settings(Policy(), 4, DAY, max_sessions=9)
    it = Told(limited)
    it.take(*(row(name, 0) for name in "abc"), row("d", 0, last=0))
    before = it.blob
    with pytest.raises(CheckpointError) as refused:
        it.take(row("e", 0), row("a", 1))
    assert "would have 4 open sessions, and max_sessions=9 allows 3 for each of the 4" in str(
        refused.value
    )
    assert (before, 4, 3) == (it.blob, refused.value.got, refused.value.expected)

    it.take(row("e", 0), row("a", 1), row("b", control="close"))

    gauges = ("open_sessions", "closed_sessions")
    assert [(3, 1), (3, 2)] == [tuple(each[name] for name in gauges) for each in it.counts]
    smaller = it.again(Settings(Policy(), 4, DAY, max_sessions=1))
    smaller.take(row("a", 2), row("e", control="close"), row("f", 0))
    assert 3 == smaller.counts[-1]["open_sessions"]
    with pytest.raises(CheckpointError, match="would have 4 open sessions, and max_sessions=1"):
        smaller.take(row("g", 0))


# Counts of a batch that goes through a bucket twice


def test_gauges_of_a_bucket_add_up_where_time_is_judged_in_the_same_batch():
    """Its rows, then its timer: the second time it says what has changed."""
    it = told(gap_timeout=60)
    it.take(*rows("a", 0, 2), *rows("b", 0))
    batch = BucketBatch(it.blob, it.settings, it.parts, it.segments)
    list(batch.judge(60))
    counts = json.loads(batch.save(again=True)[1].counts)

    assert (1, 2, 1) == tuple(it.counts[-1][n] for n in ("held", "open_sessions", "buckets"))
    assert (-1, 0, 0) == tuple(counts[n] for n in ("held", "open_sessions", "buckets"))


# What `inspect` shows of a session is what the gauges count

HOLD = {"gap_timeout": 10, "on_gap": "hold"}


def shown(it: Told) -> dict[str, str]:
    """The status of each session by its name."""
    part = state.FORMAT.read(it.blob).layout.whole
    (found,) = _whole([pa.RecordBatch.from_pydict({"bucket": [it.blob]})])
    assert [found] == [*_sessions([pa.RecordBatch.from_pydict({"part": [part]})])]
    return {each["session"]: each["status"] for each in found.to_pylist()}


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        ({"stale_timeout": 10}, {"a": "stale", "b": "stale", "c": "closed"}),
        (HOLD, {"a": "open", "b": "stale", "c": "closed"}),
        ({**HOLD, "stale_timeout": 10}, {"a": "stale", "b": "stale", "c": "closed"}),
        ({"gap_timeout": None}, {"a": "open", "b": "waiting", "c": "closed"}),
    ],
)
def test_a_session_that_was_reported_is_stale(policy, status):
    """Whether a gap or its silence was reported; as many as `stale_sessions` counts."""
    it = told(**policy)
    it.take(row("a", 0, clock=5), *rows("b", 0, 2, clock=5), row("c", 0, clock=5, last=0), now=5)

    it.judge(15)

    assert status == shown(it)
    assert list(status.values()).count("stale") == it.counts[-1]["stale_sessions"]


def test_a_session_that_advances_again_is_open():
    """It is no longer stale for the gauge either."""
    it = told(stale_timeout=10)
    it.take(row("a", 0, clock=5), now=5)
    it.judge(15)
    it.take(row("a", 1, clock=20), now=20)

    assert ({"a": "open"}, 0) == (shown(it), it.counts[-1]["stale_sessions"])
