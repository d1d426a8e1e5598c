"""A slow model of sessions that they are compared with.

It is written from the rules, not from the code: it keeps each number by itself.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import example, given

from tests.unit.sessions.histories import Step, held_by, policies, spread, steps, went
from zeh_spark.spark.sessions.model import (
    Arrival,
    Dead,
    Deliver,
    Duplicate,
    Outcome,
    Policy,
    SessionRecord,
)
from zeh_spark.spark.sessions.session_decision import SessionLogic

TWO_GAPS = [Step([Arrival(1, 0, 0, 2)], [], 0, False), Step([], [], 0, True)]
"""A session that is closed while numbers before and after a held one are missing."""


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
        self.replayed: set[int] = set()  # before any other event with the number
        self.held: dict[int, tuple[int, int]] = {}  # number -> (since, size)
        self.seen = 0
        self.stale = self.closed = False
        self.said = Said([], Counter(), [], Counter())

    def take(self, step: Step) -> None:
        begins, arrivals = self.next is None, step.arrivals
        if begins:
            if not any(not each.replay and self._valid(each) for each in arrivals):
                self._recall(arrivals)
                if "close" not in step.words:
                    return
                arrivals = []
            self._begin(arrivals)
        fresh = self._fresh(arrivals)
        for number, each in sorted(fresh.items()):
            self._place(number, each, step.now)
        self._close_if_complete()
        self.seen = max([self.seen, step.now, *(each.clock for each in step.arrivals)])
        while "release" in step.words and self.held and not self.closed:
            self._pass("skip")
        if "close" in step.words:
            self._close()
        if begins and not fresh and not self.closed:  # what is only invalid begins nothing
            self.next, self.given_up, self.seen = None, set(), 0

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
        valid = (each for each in arrivals if each.last is None or each.last >= each.number)
        lowest = next((each.number for each in valid), 0)
        self.next = lowest if first == "seen" else first
        self.given_up = set(range(self.next)) if first == "seen" else set()
        before, self.replayed = self.replayed, set()
        end = self.next
        while first != "seen" and end in before:
            end += 1
        if all(each.replay or each.number >= end for each in arrivals):
            self.replayed, self.delivered = (set(range(self.next, end)) for _ in "12")
            self.next = end

    def _valid(self, each: Arrival) -> bool:
        ends_before = each.last is not None and each.last < each.number
        return not ends_before and (each.number, self.policy.first) != (0, 1)

    def _recall(self, replays: list[Arrival]) -> None:
        for each in replays:
            if not self._valid(each):
                self._dead(each.number, "invalid")
            elif each.number in self.replayed:
                self.said.duplicates[each.number] += 1
            else:
                self.replayed.add(each.number)
                self.said.delivered.append(each.number)

    def _fresh(self, arrivals: list[Arrival]) -> dict[int, Arrival]:
        found: dict[int, Arrival] = {}
        for each in arrivals:
            number = each.number
            if number in found:
                self.said.duplicates[number] += 1
            elif not each.replay and number in self.replayed & {*self.held, *self.delivered}:
                self._dead(number, "conflict")
                if number not in self.held:
                    self.given_up.add(number)
                    self.replayed, self.delivered = (
                        numbers - {number} for numbers in (self.replayed, self.delivered)
                    )
            elif number in self.held or number in self.delivered:
                self.said.duplicates[number] += 1
            elif number == 0 and self.policy.first == 1:
                self._dead(number, "invalid")
            elif (self.closed or number in self.given_up) and each.replay:
                self.given_up.discard(number)
                self.replayed.add(number)
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
                self.replayed |= {number} if each.replay else set()
        return found

    def _place(self, number: int, each: Arrival, now: int) -> None:
        size = sum(size for _, size in self.held.values())
        if number == self.next and not self._complete():
            self._go_on(each.number)
        elif len(self.held) < self.policy.max_events and size + each.size <= self.policy.max_bytes:
            self.held[number] = max(each.clock, now), each.size
        else:
            self.replayed -= {number}
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
            before = None
            for number in range(self.next, self.last + 2):
                is_missing = number <= self.last and number not in self.held
                if is_missing and before is None:
                    before = number
                elif not is_missing and before is not None:  # a record for each gap
                    self.said.records.append(("unfinished", None, before, number - 1))
                    before = None
        self._close()

    def _deliver(self, number: int) -> None:
        self.delivered.add(number)
        self.said.delivered.append(number)

    def _dead(self, number: int, reason: str) -> None:
        self.said.dead[number, reason] += 1


def said(outcomes: list[Outcome]) -> Said:
    records = [each for each in outcomes if isinstance(each, SessionRecord)]
    return Said(
        [number for number, _ in spread(outcomes, Deliver)],
        Counter((number, each.reason) for number, each in spread(outcomes, Dead)),
        [(each.reason, each.received, *each.missing) for each in records],
        Counter(each.number for each in outcomes if isinstance(each, Duplicate)),
    )


@given(policies, steps())
@example(Policy(gap_timeout=None, on_gap="hold", idle_timeout=0), TWO_GAPS)
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
        if session and session.begun is not None:
            assert set(model.held) == held_by(session)
            assert (model.closed, model.stale) == (session.closed, session.stale)
            assert model.due() == logic.due(session)
