"""What holds for sessions whatever comes, and a slow model that they are compared with.

The model is written from the rules, not from the code: it keeps each number by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.sessions.logic import (
    Arrival,
    Dead,
    Deliver,
    Duplicate,
    Outcome,
    Policy,
    Record,
    Session,
    SessionLogic,
)

# What is drawn


class Step(NamedTuple):
    """A batch, or with `judged` only time that goes on. `now` is the time at it."""

    arrivals: list[Arrival]
    words: list[str]
    now: int
    judged: bool


times = st.none() | st.integers(0, 20)
policies = st.builds(
    Policy,
    gap_timeout=times,
    on_gap=st.sampled_from(["hold", "skip", "dead-letter"]),
    first=st.sampled_from([0, 1, "seen"]),
    max_events=st.integers(1, 5) | st.just(10_000),
    max_bytes=st.integers(1, 12) | st.just(10_000),
    idle_timeout=st.none() | st.integers(0, 40),
)
numbers = st.integers(0, 12)
lasts = st.one_of(st.none(), st.none(), st.none(), numbers)
some_arrivals = st.builds(
    Arrival, numbers, st.integers(0, 60), st.integers(0, 4), lasts, st.sampled_from([False, True])
)


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    now = 0
    found = []
    for _ in range(draw(st.integers(1, 10))):
        now += draw(st.integers(0, 12))
        judged = draw(st.booleans())
        words = st.lists(st.sampled_from(["close", "release"]), max_size=1)
        few_words = draw(st.one_of(st.just([]), st.just([]), st.just([]), words))
        arrivals = [] if judged else draw(st.lists(some_arrivals, max_size=6))
        arrivals.sort(key=lambda each: each.number)
        found.append(Step(arrivals, few_words, now, judged))
    return found


def went(
    logic: SessionLogic, session: Session | None, step: Step
) -> tuple[Session | None, list[Outcome]]:
    """A step from state in bytes, as it is between batches."""
    raw = msgspec.msgpack.encode(session)
    session = msgspec.msgpack.decode(raw, type=Session | None)
    if not step.judged:
        return logic.take(session, step.arrivals, step.words, step.now)
    return logic.judge(session, step.now) if session else (None, [])


def spread(outcomes: Iterable[Outcome], kind: Any) -> list[tuple[int, Any]]:
    """Each number of those outcomes that are of a kind."""
    found = [each for each in outcomes if isinstance(each, kind)]
    return [(number, each) for each in found for number in range(each.first, each.last + 1)]


def held_by(session: Session | None) -> set[int]:
    runs = session.held if session else []
    return {number for run in runs for number in range(run.first, run.last + 1)}


# Laws


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[int, int, list[list[int]]]:
    """A session's first number, how many it has, and batches of them: any order, any cut, some of
    them several times.
    """
    first, count = draw(st.sampled_from([0, 1])), draw(st.integers(1, 25))
    all_numbers = st.integers(first, first + count - 1)
    twice = draw(st.lists(all_numbers, max_size=8))
    order = draw(st.permutations([*range(first, first + count), *twice]))
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=8)))
    pieces = zip([0, *cuts], [*cuts, len(order)], strict=True)
    return first, count, [order[begin:end] for begin, end in pieces]


@given(shuffled(), st.sampled_from([None, "on its last", "on all"]))
def test_sessions_do_not_depend_on_the_order_in_which_events_come(events, declared):
    """Law: any order, any cut into batches, any duplicates give the same deliveries."""
    first, count, batches = events
    end = first + count - 1
    logic, session, outcomes = SessionLogic(Policy(first=first)), None, []

    for batch in batches:
        says = {n for n in batch if declared == "on all" or (declared and n == end)}
        arrivals = [Arrival(n, 0, 1, end if n in says else None) for n in sorted(batch)]
        session, more = went(logic, session, Step(arrivals, [], 0, judged=False))
        outcomes += more

    assert list(range(first, end + 1)) == [number for number, _ in spread(outcomes, Deliver)]
    duplicates = [each for each in outcomes if isinstance(each, Duplicate)]
    assert sum(map(len, batches)) - count == len(duplicates)
    assert [] == spread(outcomes, Dead)
    assert session and bool(declared) == session.closed


@given(policies, steps())
def test_every_event_is_delivered_or_dead_or_a_duplicate_or_held(policy, several):
    """Law: whatever the policy and the input, nothing is lost, and nothing is given twice."""
    logic, session = SessionLogic(policy), None
    arrived, ended, delivered = Counter[int](), Counter[int](), Counter[int]()
    for step in several:
        arrived.update(each.number for each in step.arrivals)
        session, outcomes = went(logic, session, step)

        now_delivered = [number for number, _ in spread(outcomes, Deliver)]
        delivered.update(now_delivered)
        ended.update(now_delivered)
        ended.update(number for number, _ in spread(outcomes, Dead))
        ended.update(each.number for each in outcomes if isinstance(each, Duplicate))
        assert arrived == ended + Counter(held_by(session))
        assert all(times == 1 for times in delivered.values())


@given(policies, steps())
def test_only_what_is_sent_again_on_purpose_is_delivered_out_of_order(policy, several):
    logic, session = SessionLogic(policy), None
    newest = -1
    for step in several:
        session, outcomes = went(logic, session, step)

        replayed = {each.number for each in step.arrivals if each.replay}
        for number, _ in spread(outcomes, Deliver):
            assert number > newest or number in replayed
            newest = max(newest, number)


@given(policies, steps())
def test_what_is_said_to_be_missing_was_neither_delivered_nor_held(policy, several):
    logic, session = SessionLogic(policy), None
    delivered: set[int] = set()
    for step in several:
        held = held_by(session)
        session, outcomes = went(logic, session, step)

        delivered |= {number for number, _ in spread(outcomes, Deliver)}
        told = [each for each in outcomes if isinstance(each, Dead | Record) and each.missing]
        missing = {n for each in told for n in range(each.missing.first, each.missing.last + 1)}
        assert set() == missing & (delivered | held | held_by(session))
        assert all(each.missing.first <= each.missing.last for each in told)


@given(policies, steps())
def test_what_is_held_keeps_within_the_caps(policy, several):
    logic, session = SessionLogic(policy), None
    for step in several:
        session, _ = went(logic, session, step)

        assert not session or session.held_count <= policy.max_events
        assert not session or session.held_size <= policy.max_bytes


@given(policies, steps())
def test_what_is_due_is_judged_once(policy, several):
    """Or a timer would fire for ever; and before its time nothing happens."""
    logic, session = SessionLogic(policy), None
    for step in several:
        due = logic.due(session) if session else None
        session, outcomes = went(logic, session, step)

        if step.judged and session:
            assert (due is not None and due <= step.now) == bool(outcomes or _ended(session, due))
            assert (logic.due(session) or step.now + 1) > step.now
            assert [] == logic.judge(session, step.now)[1]


def _ended(session: Session, due: int | None) -> bool:
    return session.closed and due is not None


# The model


class Said(NamedTuple):
    """What came of a step. Order tells only among deliveries and records."""

    delivered: list[int]
    dead: Counter[tuple[int, str]]
    records: list[tuple[str, int | None, int, int]]
    duplicates: Counter[int]

    def but_for_caps(self, closed: bool) -> Said:
        """An event over the cap that comes with the end of its session is dead for two reasons."""
        dead = Counter[tuple[int, str]]()
        for (number, reason), times in self.dead.items():
            dead[number, "closed" if closed and reason == "overflow" else reason] += times
        return self._replace(dead=dead)


class Model:
    """A session as the rules have it: every number by itself, nothing as runs."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.next: int | None = None
        self.last: int | None = None
        self.delivered: set[int] = set()
        self.given_up: set[int] = set()
        self.held: dict[int, tuple[int, int]] = {}  # number -> (since, size)
        self.seen = 0
        self.stale = self.closed = False
        self.said = Said([], Counter(), [], Counter())

    def take(self, step: Step) -> None:
        if self.next is None:
            if not step.arrivals and "close" not in step.words:
                return
            self._begin(step.arrivals)
        fresh = self._fresh(step.arrivals)
        for number, each in sorted(fresh.items()):
            self._place(number, each, step.now)
        self._close_if_complete()
        self.seen = max([self.seen, step.now, *(each.clock for each in step.arrivals)])
        while "release" in step.words and self.held and not self.closed:
            self._pass("skip")
        if "close" in step.words:
            self._close()

    def judge(self, now: int) -> None:
        timeout, idle = self.policy.gap_timeout, self.policy.idle_timeout
        while timeout is not None and self.held and not self.stale:
            if min(since for since, _ in self.held.values()) + timeout > now:
                break
            self._pass(self.policy.on_gap)
        if idle is not None and self.next is not None and now >= self.seen + idle:
            self._end()

    def due(self) -> int | None:
        found = []
        if self.policy.gap_timeout is not None and self.held and not self.stale:
            found.append(min(since for since, _ in self.held.values()) + self.policy.gap_timeout)
        if self.policy.idle_timeout is not None and not self.closed:
            found.append(self.seen + self.policy.idle_timeout)
        return min(found, default=None)

    def _begin(self, arrivals: list[Arrival]) -> None:
        first = self.policy.first
        lowest = arrivals[0].number if arrivals else 0
        self.next = lowest if first == "seen" else first
        self.given_up = set(range(self.next)) if first == "seen" else set()

    def _fresh(self, arrivals: list[Arrival]) -> dict[int, Arrival]:
        found: dict[int, Arrival] = {}
        for each in arrivals:
            number = each.number
            if number in self.held or number in found or number in self.delivered:
                self.said.duplicates[number] += 1
            elif number == 0 and self.policy.first == 1:
                self._dead(number, "invalid")
            elif (self.closed or number in self.given_up) and each.replay:
                self.given_up.discard(number)
                self._deliver(number)
            elif self.closed or number in self.given_up:
                self._dead(number, "closed" if self.closed else "late")
            elif each.last is not None and (
                each.last < number or self.last not in (None, each.last)
            ):
                self._dead(number, "invalid")
            else:
                self.last = self.last if each.last is None else each.last
                found[number] = each
        return found

    def _place(self, number: int, each: Arrival, now: int) -> None:
        size = sum(size for _, size in self.held.values())
        if number == self.next and not self._complete():
            self._go_on(each.number)
        elif len(self.held) < self.policy.max_events and size + each.size <= self.policy.max_bytes:
            self.held[number] = max(each.clock, now), each.size
        else:
            self._dead(number, "overflow")

    def _go_on(self, number: int) -> None:
        """Deliver this one, and those that follow it."""
        self._deliver(number)
        self.next = number + 1
        self.stale = False
        if self.next in self.held and not self._complete():
            del self.held[self.next]
            self._go_on(self.next)

    def _pass(self, on_gap: str) -> None:
        behind = min(self.held)
        if on_gap == "hold":
            self.stale = True
            end = behind - 1 if self.last is None else min(behind - 1, self.last)
            self.said.records.append(("stale", behind, self.next, end))
            return
        if self.last is not None and behind > self.last:
            self._end()
            return
        missing = range(self.next, behind)
        self.given_up |= set(missing)
        if on_gap == "skip":
            self.said.records.append(("skipped", behind, self.next, behind - 1))
            del self.held[behind]
            self._go_on(behind)
        else:
            self.next = behind
            while self.next in self.held and not self._complete():
                del self.held[self.next]
                self.given_up.add(self.next)
                self._dead(self.next, "gap")
                self.next += 1
        self._close_if_complete()

    def _complete(self) -> bool:
        return self.last is not None and self.next > self.last

    def _close_if_complete(self) -> None:
        if self._complete():
            self._close()

    def _close(self) -> None:
        for number in self.held:
            self._dead(number, "closed")
        self.held = {}
        self.closed, self.stale = True, False

    def _end(self) -> None:
        if self.closed:
            return
        if self.last is not None:
            missing = range(self.next, min([self.last, *(n - 1 for n in self.held)]) + 1)
            self.said.records.append(("unfinished", None, missing[0], missing[-1]))
        self._close()

    def _deliver(self, number: int) -> None:
        self.delivered.add(number)
        self.said.delivered.append(number)

    def _dead(self, number: int, reason: str) -> None:
        self.said.dead[number, reason] += 1


def said(outcomes: list[Outcome]) -> Said:
    records = [each for each in outcomes if isinstance(each, Record)]
    return Said(
        [number for number, _ in spread(outcomes, Deliver)],
        Counter((number, each.reason) for number, each in spread(outcomes, Dead)),
        [(each.reason, each.received, *each.missing) for each in records],
        Counter(each.number for each in outcomes if isinstance(each, Duplicate)),
    )


@given(policies, steps())
def test_sessions_do_what_the_model_does(policy, several):
    """Step by step, under every policy."""
    logic, session, model = SessionLogic(policy), None, Model(policy)
    for step in several:
        model.said = Said([], Counter(), [], Counter())
        if step.judged:
            model.judge(step.now)
        else:
            model.take(step)
        session, outcomes = went(logic, session, step)

        assert model.said.but_for_caps(model.closed) == said(outcomes).but_for_caps(model.closed)
        if session:
            assert set(model.held) == held_by(session)
            assert (model.closed, model.stale) == (session.closed, session.stale)
            assert model.due() == logic.due(session)


@given(policies, steps())
def test_dead_letters_behind_a_gap_name_what_is_missing(policy, several):
    """All that lies between what was expected and them."""
    logic, session = SessionLogic(policy), None
    for step in several:
        session, outcomes = went(logic, session, step)

        gaps = [each for each in outcomes if isinstance(each, Dead) and each.reason == "gap"]
        for each in gaps:
            assert (each.expected, each.first - 1) == each.missing
            assert each.since is not None
