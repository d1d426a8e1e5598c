"""A bucket does for each of its sessions what the decision says, whatever else it holds."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.cases import each_case
from tests.unit.sessions.buckets import DAY, Told, reason, row, rows, told, went
from zeh_spark.spark.sessions import state
from zeh_spark.spark.sessions.bucket import Given
from zeh_spark.spark.sessions.model import (
    Arrival,
    Dead,
    Deliver,
    Policy,
    SessionEvent,
    SessionRecord,
)
from zeh_spark.spark.sessions.session_decision import SessionLogic
from zeh_spark.spark.sessions.state import Settings
from zeh_spark.spark.stateful import state_parts

# Sessions beside each other


@each_case(
    ("batches", "expected"),
    [
        # of two events with a number the earlier one is taken: by its clock, so that no order in
        # which Spark reads them matters
        ([([row("a", 0, clock=2, event="second"), row("a", 0, clock=1, event="first")], 0),
          ([row("a", 2, event="held")], 0),
          ([row("a", 2, event="comes again"), row("a", 1)], 0)],
         {"ordered": ["first", "a 1", "held"]}),
        # both are kept where the first of them is invalid
        ([([row("a", 0, last=9)], 0),
          ([row("a", 1, event="wrong", last=3), row("a", 1, clock=1, event="right")], 0)],
         {"dead": [("invalid", "wrong")], "ordered": ["a 0", "right"]}),
    ],
)  # fmt: skip
def test_what_a_bucket_delivers(batches, expected):
    it = went(told(), batches)

    assert expected == {name: getattr(it, name) for name in expected}


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


# Laws

numbers = st.integers(0, 8)
few = st.one_of(st.just(-1), st.just(-1), st.just(-1), numbers)
words = st.sampled_from(["", "", "", "", "replay", "close", "release"])
names = st.sampled_from(["a", "b", "ü"])


@st.composite
def some_rows(draw: st.DrawFn) -> SessionEvent:
    name, number, word = draw(names), draw(st.just(-1) | numbers), draw(words)
    last = -1 if number < 0 else draw(few)
    return row(name, number, draw(st.integers(0, 60)), last=last, control=word)


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[list[SessionEvent] | None, int]]:
    """Rows, or None where only time passes; and the time."""
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


class Bare:
    """Each session by itself, without a bucket."""

    def __init__(self, policy: Policy) -> None:
        self.logic = SessionLogic(policy)
        self.sessions: dict[str, Any] = {}

    def go(
        self, name: str, batch: list[SessionEvent] | None, now: int
    ) -> list[tuple[str | None, str]]:
        session = self.sessions.get(name)
        if batch is None:
            _, outcomes = self.logic.judge(session, now) if session else (None, [])
        else:
            mine = [each for each in batch if each.session == name]
            mine.sort(key=lambda each: (each.number, each.control == "replay", each))
            arrivals = [self._arrival(each) for each in mine if each.number >= 0]
            told = [each.control for each in mine]
            if not arrivals and not {"close", "release"} & set(told):
                return []
            session, outcomes = self.logic.take(session, arrivals, told, now)
            self.sessions[name] = session
        return [each for outcome in outcomes for each in self._given(name, outcome)]

    def _arrival(self, of: SessionEvent) -> Arrival:
        last = of.last if of.last >= 0 else None
        return Arrival(of.number, of.clock, len(of.event.encode()), last, of.control == "replay")

    def _given(self, name: str, outcome: object) -> list[tuple[str | None, str]]:
        if isinstance(outcome, SessionRecord):
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
    assert (one.blob, one.parts) == (other.blob, other.parts)


@given(all_settings, batches(), st.data())
def test_it_does_not_matter_how_sessions_are_spread(settings, several, data):
    """Law: to many parts or to one, differently after each batch: the bucket gives the same."""
    it, whole = Told(settings), went(Told(settings), several)
    counts = set()
    for batch, now in several:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state_parts, "PART", data.draw(st.sampled_from([1, 9, 40, 1000])))
            patch.setattr(state_parts, "FEW", data.draw(st.sampled_from([1, 4])))
            patch.setattr(state_parts, "PATIENCE", 1)
            it._go(batch, now)
        counts.add(state.FORMAT.read(it.blob).layout.count)
        assert len(it.parts) <= state.FORMAT.read(it.blob).layout.count
    event(f"{min(len(counts), 3)} layouts")

    assert (whole.given, whole.counts, whole.timer) == (it.given, it.counts, it.timer)
    assert (whole.stored, whole.segments) == (it.stored, it.segments)


@given(all_settings, batches())
def test_the_counts_of_a_bucket_add_up(settings, several):
    """Law: what came in went out, was dropped, or is held. Spark gives them as metrics."""
    it = went(Told(settings), several)

    came = sum(each.number >= 0 for batch, _ in several for each in batch or [])
    told_of = Counter(reason(each) for each in it.given if each.dead)
    assert {name: it.count(name) for name in told_of} == dict(told_of)
    assert len(it.ordered) == it.count("ordered")
    letters = sum(each.event is not None for each in it.given if each.dead)
    assert came == it.count("ordered") + it.duplicates + letters + it.counts[-1]["held"]
    words = [r.control for batch, _ in several for r in batch or []]
    assert sum(each in ("close", "release") for each in words) == it.count("controls")


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
        patch.setattr(state, "SPILL", 1)
        patch.setattr(state, "SEGMENT", 3)
        spilled = Told(settings)
        for batch, now in several:
            spilled._go(batch, now)
            assert sorted(events_of(spilled)) == sorted({*events_of(spilled)})
            assert spilled.counts[-1]["held"] == len(events_of(spilled))

    expected = whole.given, whole.counts, whole.timer, {}
    assert expected == (spilled.given, spilled.counts, spilled.timer, whole.segments)


def events_of(it: Told) -> list[str]:
    """All that are held, inside and outside."""
    inside = [event for stored in it.stored.values() for event in stored.events.values()]
    return [*inside, *it.segments.events()]
