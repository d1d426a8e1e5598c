"""A bucket does for each of its sessions what the decision says, whatever else it holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.errors import CheckpointError
from zeh_spark.sessions import bucket
from zeh_spark.sessions.bucket import SPILL, Batch, Given, Row, Settings
from zeh_spark.sessions.logic import Arrival, Dead, Deliver, Policy, Record, SessionLogic

DAY = 86_400_000


class Memory(dict[tuple[str, int], bytes]):
    """Segments, as Spark's state keeps them."""

    def get(self, session: str, segment: int) -> bytes | None:  # type: ignore[override] # by two keys
        return super().get((session, segment))

    def put(self, session: str, segment: int, value: bytes) -> None:
        self[session, segment] = value

    def remove(self, session: str, segment: int) -> None:
        self.pop((session, segment), None)

    def events(self) -> list[str]:
        parts = (msgspec.msgpack.decode(each, type=dict[int, str]) for each in self.values())
        return sorted(event for part in parts for event in part.values())


@dataclass
class Told:
    """A bucket that is told its batches, and what it gave. Its state is bytes between them."""

    settings: Settings
    segments: Memory = field(default_factory=Memory)
    given: list[Given] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    blob: bytes = b""
    timer: int | None = None

    def __post_init__(self) -> None:
        self.blob = self.blob or bucket.empty(self.settings)

    def take(self, *rows: Row, now: int = 0) -> list[Given]:
        return self._go(list(rows), now)

    def judge(self, now: int) -> list[Given]:
        return self._go(None, now)

    def _go(self, rows: list[Row] | None, now: int) -> list[Given]:
        batch = Batch(self.blob, self.settings, self.segments)
        gave = list(batch.judge(now) if rows is None else batch.take(rows, now))
        self.blob, counts = batch.save()
        self.timer = batch.timer
        self.counts.append(json.loads(counts.counts or ""))
        self.given += gave
        return gave

    @property
    def ordered(self) -> list[str | None]:
        return [each.event for each in self.given if each.dead is None]

    @property
    def dead(self) -> list[tuple[str, str | None]]:
        return [(reason(each), each.event) for each in self.given if each.dead]

    def count(self, name: str) -> int:
        return sum(each.get(name, 0) for each in self.counts)


def told(buckets: int = 4, keep_closed: int = DAY, **policy: Any) -> Told:
    return Told(Settings(Policy(**policy), buckets, keep_closed))


def row(session: str, number: int = -1, clock: int = 0, **more: Any) -> Row:
    """Its event is "session number"; a word without a number is one for the session."""
    event = more.pop("event", f"{session} {number}")
    return Row(session, number, clock, event, **{"last": -1, "control": "", "problem": "", **more})


def rows(session: str, *numbers: int, **more: Any) -> list[Row]:
    return [row(session, number, **more) for number in numbers]


def reason(given: Given) -> str:
    return str(json.loads(given.dead or "{}")["reason"])


# Sessions beside each other


def test_a_stalled_session_delays_no_other():
    it = told()

    it.take(*rows("a", 1, 2), *rows("b", 0, 1), row("c", 3))

    assert ["b 0", "b 1"] == it.ordered


def test_a_dead_letter_says_why():
    """Reason, session, what was expected and received, what is missing, and since when."""
    it = told(gap_timeout=10)
    it.take(row("a", 2, clock=7))

    (given_up,) = it.judge(17)

    assert "a 2" == given_up.event
    expected = {"reason": "gap", "session": "a", "expected": 0, "received": 2, "held_since": 7}
    expected |= {"missing": {"first": 0, "last": 1}, "detail": None}
    assert expected == json.loads(given_up.dead or "")


def test_a_record_has_no_event():
    it = told(gap_timeout=10, on_gap="skip")
    it.take(row("a", 2))

    record, delivered = it.judge(10)

    assert (None, "skipped", "a 2") == (record.event, reason(record), delivered.event)


def test_invalid_rows_are_dead_and_touch_no_session():
    it = told()

    it.take(row("", 0, problem="no session"), row("a", -1, problem="sequence is 'x'"), row("a", 0))

    assert ([("invalid", " 0"), ("invalid", "a -1")], ["a 0"]) == (it.dead, it.ordered)
    assert "sequence is 'x'" == json.loads(it.given[1].dead or "")["detail"]


@pytest.mark.parametrize(("word", "expected"), [("close", []), ("release", ["a 1", "a 3"])])
def test_words_tell_a_session_what_to_do(word, expected):
    """A row with such a word and without a number is no event."""
    it = told()
    it.take(*rows("a", 1, 3))

    it.take(row("a", control=word))

    assert (expected, 1) == (it.ordered, it.counts[-1]["controls"])


def test_an_event_that_is_sent_again_on_purpose_is_delivered():
    it = told(gap_timeout=10, on_gap="skip")
    it.take(row("a", 1))
    it.judge(10)

    it.take(row("a", 0, control="replay"))

    assert ["a 1", "a 0"] == it.ordered


def test_of_two_events_with_a_number_the_earlier_one_is_taken():
    """By its clock, so that no order in which Spark reads them matters."""
    it = told()

    it.take(row("a", 0, clock=2, event="second"), row("a", 0, clock=1, event="first"))
    it.take(row("a", 2, event="held"))
    it.take(row("a", 2, event="comes again"), row("a", 1))

    assert ["first", "a 1", "held"] == it.ordered


def test_both_events_are_kept_where_the_first_with_its_number_is_invalid():
    it = told()
    it.take(row("a", 0, last=9))

    it.take(row("a", 1, event="wrong", last=3), row("a", 1, clock=1, event="right"))

    assert ([("invalid", "wrong")], ["a 0", "right"]) == (it.dead, it.ordered)


# Laws

numbers = st.integers(0, 8)
few = st.one_of(st.just(-1), st.just(-1), st.just(-1), numbers)
words = st.sampled_from(["", "", "", "", "replay", "close", "release"])
names = st.sampled_from(["a", "b", "ü"])


@st.composite
def some_rows(draw: st.DrawFn) -> Row:
    name, number, word = draw(names), draw(st.just(-1) | numbers), draw(words)
    last = -1 if number < 0 else draw(few)
    return row(name, number, draw(st.integers(0, 60)), last=last, control=word)


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[list[Row] | None, int]]:
    """Rows, or None where only time goes on; and the time."""
    now, found = 0, []
    for _ in range(draw(st.integers(1, 8))):
        now += draw(st.integers(0, 12))
        found.append((draw(st.none() | st.lists(some_rows(), max_size=8)), now))
    return found


all_settings = st.builds(
    Settings,
    st.builds(
        Policy,
        gap_timeout=st.none() | st.integers(0, 20),
        on_gap=st.sampled_from(["hold", "skip", "dead-letter"]),
        first=st.sampled_from([0, 1, "seen"]),
        max_events=st.integers(1, 4) | st.just(10_000),
        idle_timeout=st.none() | st.integers(0, 40),
    ),
    st.just(4),
    st.just(DAY),
)


def went(it: Told, batches: Iterable[tuple[list[Row] | None, int]]) -> Told:
    for batch, now in batches:
        it._go(batch, now)
    return it


class Bare:
    """Each session by itself, without a bucket."""

    def __init__(self, policy: Policy) -> None:
        self.logic = SessionLogic(policy)
        self.sessions: dict[str, Any] = {}

    def go(self, name: str, batch: list[Row] | None, now: int) -> list[tuple[str | None, str]]:
        session = self.sessions.get(name)
        if batch is None:
            _, outcomes = self.logic.judge(session, now) if session else (None, [])
        else:
            mine = sorted(each for each in batch if each.session == name)
            arrivals = [self._arrival(each) for each in mine if each.number >= 0]
            told = [each.control for each in mine]
            if not arrivals and not {"close", "release"} & set(told):
                return []
            session, outcomes = self.logic.take(session, arrivals, told, now)
            self.sessions[name] = session
        return [each for outcome in outcomes for each in self._given(name, outcome)]

    def _arrival(self, of: Row) -> Arrival:
        last = of.last if of.last >= 0 else None
        return Arrival(of.number, of.clock, len(of.event.encode()), last, of.control == "replay")

    def _given(self, name: str, outcome: object) -> list[tuple[str | None, str]]:
        if isinstance(outcome, Record):
            return [(None, outcome.reason)]
        if isinstance(outcome, Deliver | Dead):
            said = outcome.reason if isinstance(outcome, Dead) else "ordered"
            return [(f"{name} {n}", said) for n in range(outcome.first, outcome.last + 1)]
        return []


def plain(each: Given) -> tuple[str | None, str]:
    return each.event, reason(each) if each.dead else "ordered"


@given(all_settings, batches())
def test_a_bucket_gives_what_its_sessions_would_give_alone(settings, several):
    it, bare = Told(settings), Bare(settings.policy)
    for batch, now in several:
        gave = [plain(each) for each in it._go(batch, now)]

        assert [each for name in ("a", "b", "ü") for each in bare.go(name, batch, now)] == gave
    due = (bare.logic.due(each) for each in bare.sessions.values() if each)
    assert min((each for each in due if each is not None), default=None) == it.timer


@given(all_settings, batches(), st.data())
def test_rows_may_come_in_any_order(settings, several, data):
    """Law: as Spark repeats a batch, it may read it in another order. The bytes are the same."""
    again = [(b if b is None else data.draw(st.permutations(b)), now) for b, now in several]

    one, other = went(Told(settings), several), went(Told(settings), again)

    assert (one.given, one.counts, one.segments) == (other.given, other.counts, other.segments)
    assert one.blob == other.blob


@given(all_settings, batches())
def test_a_restart_changes_nothing(settings, several):
    """Law: to go on from the bytes after each batch is as good as never to have stopped."""
    batch = Batch(bucket.empty(settings), settings, Memory())
    never = [g for rows, now in several for g in (
        batch.judge(now) if rows is None else batch.take(rows, now)
    )]  # fmt: skip

    assert never == went(Told(settings), several).given


@given(st.permutations([*rows("a", *range(9), last=8), *rows("b", *range(7))] * 2), st.data())
def test_sessions_do_not_depend_on_how_a_feed_is_cut(all_rows, data):
    """Law: any order and any cut into batches give each session the same, to the byte."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(all_rows)), max_size=6)))
    pieces = zip([0, *cuts], [*cuts, len(all_rows)], strict=True)

    it = went(told(), [(all_rows[begin:end], 0) for begin, end in pieces])

    assert [f"a {n}" for n in range(9)] == [each for each in it.ordered if each and each[0] == "a"]
    assert [f"b {n}" for n in range(7)] == [each for each in it.ordered if each and each[0] == "b"]
    assert ([], 16) == (it.dead, it.count("duplicates"))


@given(all_settings, batches())
def test_what_is_spilled_comes_out_as_what_is_not(settings, several):
    """Law: and no segment has anything else than what is held."""
    whole = went(Told(settings), several)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket, "SPILL", 1)
        patch.setattr(bucket, "SEGMENT", 3)
        spilled = Told(settings)
        for batch, now in several:
            spilled._go(batch, now)
            assert sorted(events_of(spilled)) == sorted({*events_of(spilled)})
            assert spilled.counts[-1]["held"] == len(events_of(spilled))

    assert (whole.given, whole.counts, whole.timer) == (
        spilled.given,
        spilled.counts,
        spilled.timer,
    )
    assert {} == whole.segments


def events_of(it: Told) -> list[str]:
    """All that are held, inside and outside."""
    inside = (
        msgspec.msgpack.decode(each, type=bucket.Stored).events.values()
        for each in bucket.decoded(it.blob).sessions.values()
    )
    return [*(event for events in inside for event in events), *it.segments.events()]


@given(all_settings, batches())
def test_the_counts_add_up(settings, several):
    """Law: what came in went out, was dropped, or is held. Spark gives them as metrics."""
    it = went(Told(settings), several)

    came = sum(each.number >= 0 for batch, _ in several for each in batch or [])
    told_of = Counter(reason(each) for each in it.given if each.dead)
    assert {name: it.count(name) for name in told_of} == dict(told_of)
    assert len(it.ordered) == it.count("ordered")
    letters = sum(each.event is not None for each in it.given if each.dead)
    assert came == it.count("ordered") + it.count("duplicates") + letters + it.counts[-1]["held"]
    words = [r.control for batch, _ in several for r in batch or []]
    assert sum(each in ("close", "release") for each in words) == it.count("controls")


# Sessions that hold many


def test_a_session_that_holds_many_keeps_them_outside():
    """And the bucket's state stays small."""
    it = told()
    it.take(*rows("a", *range(1, SPILL + 51)))
    assert (SPILL + 50, True) == (len(it.segments.events()), len(it.blob) < 100)

    it.take(row("a", 0))

    assert ([f"a {n}" for n in range(SPILL + 51)], {}) == (it.ordered, it.segments)


def test_a_session_that_holds_few_keeps_them_with_it():
    it = told()

    it.take(*rows("a", *range(1, SPILL + 1)))

    assert {} == it.segments


def test_events_come_out_of_segments_bit_by_bit():
    it = told()
    it.take(*rows("a", *range(1, 300, 2)))

    for number in range(0, 300, 2):
        it.take(row("a", number))

    assert ([f"a {n}" for n in range(300)], {}) == (it.ordered, it.segments)


def test_a_session_that_is_closed_leaves_no_segment():
    it = told()
    it.take(*rows("a", *range(1, 200)))

    it.take(row("a", control="close"))

    assert ([("closed", f"a {n}") for n in range(1, 200)], {}) == (it.dead, it.segments)


def test_other_sessions_leave_segments_alone():
    it = told()
    it.take(*rows("a", *range(1, 200)))
    before = dict(it.segments)

    it.take(row("b", 0))

    assert before == it.segments


# Time


def test_the_timer_is_for_the_session_that_is_due_first():
    it = told(gap_timeout=10)
    it.take(row("a", 1, clock=7), row("b", 1, clock=5))
    assert 15 == it.timer

    it.judge(15)
    assert (17, [("gap", "b 1")]) == (it.timer, it.dead)

    it.judge(17)
    assert None is it.timer


def test_a_timer_goes_when_what_it_was_for_was_delivered():
    it = told(gap_timeout=10)
    it.take(row("a", 1))

    it.take(row("a", 0))

    assert None is it.timer


def test_a_bucket_says_how_much_waits():
    it = told(gap_timeout=10, on_gap="hold")
    it.take(*rows("a", 1, 3, clock=9), row("b", 5, clock=4), row("c", 0))
    it.judge(14)

    gauges = ("held", "open_sessions", "stale_sessions", "oldest_hold")
    assert [3, 3, 1, 4] == [it.counts[-1][name] for name in gauges]


# Closed sessions


def test_a_closed_session_is_remembered_for_a_time():
    """Up to an eighth longer than was asked for."""
    it = told(keep_closed=800)
    it.take(row("a", 0, clock=1000, last=0))

    it.take(row("a", 0), now=1799)
    assert (["a 0"], 1) == (it.ordered, it.count("duplicates"))

    it.take(row("a", 0), now=1900)
    assert ["a 0", "a 0"] == it.ordered


def test_closed_sessions_that_are_forgotten_take_no_room():
    it = told(keep_closed=800)
    it.take(row("b", 0), *(row(f"a{n}", 0, last=0) for n in range(100)))
    before = len(it.blob)

    it.take(row("b", 1), now=900)

    assert (True, 1) == (len(it.blob) < before / 10, it.counts[-1]["open_sessions"])


def test_a_session_that_time_has_closed_is_remembered_from_then_on():
    """However long it was idle before."""
    it = told(idle_timeout=5000, keep_closed=800)
    it.take(row("a", 0, clock=1000))
    it.judge(6000)

    it.take(row("a", 0), row("a", 1), now=6001)

    assert (1, [("closed", "a 1")]) == (it.count("duplicates"), it.dead)


def test_a_session_that_a_gap_has_closed_is_remembered_from_then_on():
    it = told(gap_timeout=5000, keep_closed=800, on_gap="skip")
    it.take(row("a", 1, clock=1000, last=1))
    it.judge(6000)

    it.take(row("a", 1), now=6001)

    assert (["a 1"], 1) == (it.ordered, it.count("duplicates"))


def test_a_session_that_is_closed_by_hand_is_remembered_from_then_on():
    """In the first batch of a query too, in which no clock has gone on yet."""
    it = told(keep_closed=800)
    it.take(row("a", control="close", clock=10_000), now=0)

    it.take(row("a", 0, clock=10_001), now=10_000)

    assert [("closed", "a 0")] == it.dead


# State of others


def refused(blob: bytes | None, settings: Settings) -> str:
    with pytest.raises(CheckpointError) as caught:
        Batch(blob, settings, Memory())
    return str(caught.value)


SETTINGS = Settings(Policy(first=1), 4, DAY)


def test_another_number_of_buckets_is_refused():
    said = refused(bucket.empty(SETTINGS), Settings(Policy(first=1), 8, DAY))

    assert "buckets=8, and the checkpoint's state was made with buckets=4" in said


@pytest.mark.parametrize("first", [0, "seen"])
def test_another_first_number_is_refused(first):
    said = refused(bucket.empty(SETTINGS), Settings(Policy(first=first), 4, DAY))

    assert f"first={first!r}, and the checkpoint's state was made with first=1" in said


def test_a_bucket_without_state_is_refused():
    """Each gets its state in the first batch: this one is of a larger number."""
    assert "fewer buckets than buckets=4" in refused(None, SETTINGS)


def test_another_version_is_refused():
    blob = bytes([bucket.VERSION + 1]) + bucket.empty(SETTINGS)[1:]

    assert "another version" in refused(blob, SETTINGS)


def test_other_options_may_change():
    """What a checkpoint holds does not depend on them."""
    it = told(gap_timeout=10)
    it.take(row("a", 1))
    other = Settings(Policy(gap_timeout=5, on_gap="skip", max_events=1), 4, 2 * DAY)

    later = Told(other, blob=it.blob)
    later.take(row("a", 0))

    assert ["a 0", "a 1"] == later.ordered
