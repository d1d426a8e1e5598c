"""What becomes of the events of a session, case by case."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from zeh_spark.intervals import MAX_NUMBER
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


class Told:
    """A session, told batch by batch, and what came of it.

    It goes through bytes between batches, as it does in a query.
    """

    def __init__(self, **policy: Any) -> None:
        self.logic = SessionLogic(Policy(**policy))
        self.session: Session | None = None
        self.outcomes: list[Outcome] = []

    def take(self, *given: int | Arrival, words: tuple[str, ...] = (), now: int = 0) -> Told:
        arrivals = [each if isinstance(each, Arrival) else event(each) for each in given]
        arrivals.sort(key=lambda each: each.number)
        session, outcomes = self.logic.take(self.session, arrivals, words, now)
        return self._went(session, outcomes)

    def judge(self, now: int) -> Told:
        assert self.session is not None
        return self._went(*self.logic.judge(self.session, now))

    def _went(self, session: Session | None, outcomes: list[Outcome]) -> Told:
        raw = msgspec.msgpack.encode(session)
        self.session = msgspec.msgpack.decode(raw, type=Session | None)
        self.outcomes += outcomes
        return self

    @property
    def delivered(self) -> list[int]:
        runs = [each for each in self.outcomes if isinstance(each, Deliver)]
        return [number for run in runs for number in range(run.first, run.last + 1)]

    @property
    def letters(self) -> list[Dead]:
        return [each for each in self.outcomes if isinstance(each, Dead)]

    @property
    def dead(self) -> list[tuple[str, int]]:
        return [(each.reason, n) for each in self.letters for n in range(each.first, each.last + 1)]

    @property
    def records(self) -> list[tuple[str, tuple[int, int]]]:
        found = [each for each in self.outcomes if isinstance(each, Record)]
        return [(each.reason, tuple(each.missing)) for each in found]

    @property
    def duplicates(self) -> list[int]:
        return [each.number for each in self.outcomes if isinstance(each, Duplicate)]

    @property
    def held(self) -> list[int]:
        runs = self.session.held if self.session else []
        return [number for run in runs for number in range(run.first, run.last + 1)]


def event(number: int, clock: int = 0, size: int = 1, **more: Any) -> Arrival:
    return Arrival(number, clock, size, **more)


def again(number: int) -> Arrival:
    """Somebody sends it on purpose."""
    return event(number, replay=True)


# In order


def test_events_are_delivered_in_the_order_of_their_numbers():
    assert [0, 1, 2, 3] == Told().take(2, 0, 1).take(3).delivered


def test_an_early_event_is_held_until_those_before_it_were_delivered():
    told = Told().take(3, 1)
    assert ([], [1, 3]) == (told.delivered, told.held)

    told.take(0)
    assert ([0, 1], [3]) == (told.delivered, told.held)

    told.take(2)
    assert ([0, 1, 2, 3], []) == (told.delivered, told.held)


@pytest.mark.parametrize(("first", "expected"), [(0, []), (1, []), ("seen", [4, 5])])
def test_a_session_begins_with_its_first_number(first, expected):
    """With "seen", the lowest of its first batch."""
    assert expected == Told(first=first).take(5, 4).delivered


def test_sessions_can_begin_with_one():
    assert [1, 2] == Told(first=1).take(2).take(1).delivered


def test_a_session_that_is_only_told_words_without_effect_does_not_begin():
    told = Told().take(words=("release",))

    assert told.session is None


# Duplicates


@pytest.mark.parametrize("state", ["delivered", "held", "in its batch", "closed"])
def test_the_second_event_with_a_number_is_dropped(state):
    told = Told()
    if state == "delivered":
        told.take(0, 1).take(1)
    elif state == "held":
        told.take(1).take(1).take(0)
    elif state == "in its batch":
        told.take(0, 1, 1)
    else:
        told.take(0, event(1, last=1)).take(1)

    assert ([0, 1], [1], []) == (told.delivered, told.duplicates, told.dead)


def test_an_event_beside_an_invalid_one_with_its_number_is_none_the_worse():
    """Nothing with that number was delivered, nor is it held: there is nothing it doubles."""
    told = Told().take(event(0, last=9)).take(event(1, last=3), event(1, clock=1))

    assert ([("invalid", 1)], [0, 1]) == (told.dead, told.delivered)


def test_an_event_that_is_sent_again_beside_a_late_one_is_delivered():
    told = Told(gap_timeout=10, on_gap="skip").take(1).judge(10)

    told.take(event(0), again(0))

    assert ([("late", 0)], [1, 0]) == (told.dead, told.delivered)


def test_both_of_two_late_events_are_dead():
    """What is not delivered is not dropped either."""
    told = Told(gap_timeout=10, on_gap="skip").take(1).judge(10).take(0, 0)

    assert ([("late", 0), ("late", 0)], []) == (told.dead, told.duplicates)


# The last number


def test_the_last_number_closes_the_session():
    told = Told().take(0, 1, event(2, last=2))

    assert ([0, 1, 2], True) == (told.delivered, told.session.closed)


def test_any_event_may_say_which_number_is_the_last():
    told = Told().take(event(0, last=2), 2)
    assert not told.session.closed

    told.take(1)
    assert ([0, 1, 2], True) == (told.delivered, told.session.closed)


def test_what_comes_behind_the_last_number_is_dead():
    """Whether it was held when the session closed, came with it, or comes later."""
    told = Told().take(4).take(0, event(1, last=1), 2).take(7)

    assert [0, 1] == told.delivered
    assert [("closed", 2), ("closed", 4), ("closed", 7)] == sorted(told.dead)


def test_another_last_number_than_before_is_invalid():
    """Which of them is right nobody knows; the session keeps the first."""
    told = Told().take(event(0, last=2)).take(event(1, last=1), event(2, last=2))

    assert ([("invalid", 1)], [0], [2]) == (told.dead, told.delivered, told.held)
    assert "the last number is 1, and was 2 before" in told.letters[0].detail


def test_a_last_number_before_its_own_is_invalid():
    told = Told().take(0).take(event(1, last=0))

    assert ([("invalid", 1)], [0]) == (told.dead, told.delivered)


def test_a_number_before_the_first_is_invalid():
    told = Told(first=1).take(0, 1)

    assert ([("invalid", 0)], [1]) == (told.dead, told.delivered)


def test_an_invalid_event_leaves_its_number_expected():
    told = Told().take(event(0, last=5)).take(event(1, last=2)).take(1)

    assert [0, 1] == told.delivered


# Gaps


def test_no_gap_is_judged_before_its_time():
    told = Told(gap_timeout=10).take(event(1, clock=5))
    assert 15 == told.logic.due(told.session)

    told.judge(14)
    assert ([], [1]) == (told.dead, told.held)


def test_skip_leaves_out_what_is_missing():
    told = Told(gap_timeout=10, on_gap="skip").take(0, 3, 4).judge(10)

    assert ([0, 3, 4], [("skipped", (1, 2))]) == (told.delivered, told.records)
    assert [5] == told.take(5).delivered[3:]


def test_dead_letter_gives_up_what_is_behind_the_gap():
    """The letters say what was missing, and the session goes on behind them."""
    told = Told(gap_timeout=10, on_gap="dead-letter").take(0, event(3, 7), event(4, 8)).judge(17)

    assert [Dead(3, 4, "gap", 1, (1, 2), 7)] == told.letters
    assert ([0, 5], []) == (told.take(5).delivered, told.held)


def test_hold_reports_a_gap_once_until_there_is_progress():
    told = Told(gap_timeout=10, on_gap="hold").take(1, 4).judge(10).judge(1000)
    assert [("stale", (0, 0))] == told.records
    assert None is told.logic.due(told.session)

    told.take(0, now=1000)
    assert [0, 1] == told.delivered

    told.judge(1000)
    assert [("stale", (2, 3))] == told.records[1:]
    assert ([4], []) == (told.held, told.dead)


def test_the_next_gap_has_its_own_age():
    told = Told(gap_timeout=10, on_gap="skip").take(1).take(event(3, clock=8)).judge(10)
    assert ([1], [3]) == (told.delivered, told.held)
    assert 18 == told.logic.due(told.session)

    told.judge(18)
    assert [("skipped", (0, 0)), ("skipped", (2, 2))] == told.records


def test_the_oldest_hold_is_a_gaps_age():
    """However early its number is: all that is before it waits no longer."""
    told = Told(gap_timeout=10, on_gap="skip").take(event(3)).take(event(1, clock=8)).judge(10)

    assert ([1, 3], []) == (told.delivered, told.held)


@pytest.mark.parametrize(("clock", "now", "due"), [(5, 0, 15), (5, 100, 110), (200, 100, 210)])
def test_a_hold_begins_with_the_event_or_when_it_was_read(clock, now, due):
    """A backlog from another partition has its full time."""
    told = Told(gap_timeout=10).take(event(1, clock=clock), now=now)

    assert due == told.logic.due(told.session)


@pytest.mark.parametrize("on_gap", ["skip", "dead-letter"])
def test_a_gap_before_the_last_number_does_not_keep_a_session_open(on_gap):
    told = Told(gap_timeout=10, on_gap=on_gap).take(0, event(2, last=2), 4).judge(10)

    assert told.session.closed
    assert ("closed", 4) in told.dead


@pytest.mark.parametrize("on_gap", ["skip", "dead-letter"])
def test_what_is_held_behind_the_last_number_does_not_keep_a_session_open(on_gap):
    """All of it is dead, as its session is closed."""
    told = Told(gap_timeout=10, on_gap=on_gap).take(event(0, last=2), 5).judge(10)

    assert (True, [("closed", 5)]) == (told.session.closed, told.dead)


# What was given up


@pytest.mark.parametrize(("on_gap", "given_up"), [("skip", [1, 2]), ("dead-letter", [1, 2, 3])])
def test_what_was_given_up_and_comes_later_is_dead(on_gap, given_up):
    told = Told(gap_timeout=10, on_gap=on_gap).take(0, 3).judge(10)
    before = len(told.dead)

    told.take(*given_up)

    assert [("late", number) for number in given_up] == told.dead[before:]


@pytest.mark.parametrize(("on_gap", "given_up"), [("skip", [1, 2]), ("dead-letter", [1, 2, 3])])
def test_what_was_given_up_is_delivered_if_somebody_sends_it_on_purpose(on_gap, given_up):
    """Once; its order is lost."""
    told = Told(gap_timeout=10, on_gap=on_gap).take(0, 3).judge(10)
    before = len(told.delivered)

    told.take(*map(again, given_up)).take(*map(again, given_up)).take(*given_up)

    assert given_up == told.delivered[before:]
    assert 2 * given_up == told.duplicates


def test_an_event_of_a_closed_session_is_dead():
    told = Told(gap_timeout=10, on_gap="skip").take(event(1, last=1)).judge(10)

    assert [("closed", 0), ("closed", 2)] == told.take(0, 2).dead


def test_an_event_of_a_closed_session_is_delivered_if_somebody_sends_it_on_purpose():
    """Once, whatever came of others meanwhile."""
    told = Told().take(0, 3).take(words=("close",))

    told.take(again(3), again(1)).take(again(3), again(1), again(0)).take(2)

    assert [0, 1, 3] == told.delivered
    assert [0, 1, 3] == told.duplicates
    assert [("closed", 3), ("closed", 2)] == told.dead


def test_a_replay_of_an_expected_number_is_an_event_as_others():
    assert [0, 1] == Told().take(again(1)).take(again(0)).delivered


# Caps


@pytest.mark.parametrize(("cap", "size"), [({"max_events": 2}, 1), ({"max_bytes": 20}, 10)])
def test_events_over_the_cap_are_dead_and_stay_expected(cap, size):
    told = Told(**cap).take(*(event(number, size=size) for number in (1, 2, 3)))
    assert ([("overflow", 3)], [1, 2]) == (told.dead, told.held)

    told.take(0, again(3))
    assert [0, 1, 2, 3] == told.delivered


def test_what_can_be_delivered_at_once_needs_no_room():
    assert list(range(9)) == Told(max_events=1, max_bytes=1).take(*range(9)).delivered


def test_what_is_delivered_in_a_batch_makes_room_in_it():
    """Nobody has to know how a feed was cut into batches."""
    told = Told(max_events=2).take(1, 2).take(0, 4)

    assert ([0, 1, 2], [4], []) == (told.delivered, told.held, told.dead)


def test_a_letter_over_the_cap_names_what_is_missing_and_no_more():
    told = Told(max_events=1).take(2).take(0, 1, 4, 6)

    assert ([0, 1, 2], [4]) == (told.delivered, told.held)
    assert [("overflow", 6)] == told.dead
    assert told.letters[0].missing in (None, (3, 3))


def test_a_letter_over_the_cap_says_how_much_is_held():
    told = Told(max_events=2, max_bytes=9).take(1, 2, 3)

    assert "holds 2 events, 2 bytes; the caps are 2 and 9" in told.letters[0].detail


# By hand, and after a long time


def test_a_session_can_be_closed_by_hand():
    told = Told().take(0, 2, words=("close",)).take(1)

    assert ([0], [("closed", 2), ("closed", 1)]) == (told.delivered, told.dead)


def test_a_session_that_nobody_has_seen_can_be_closed():
    assert [("closed", 0)] == Told().take(words=("close",)).take(0).dead


def test_letters_of_a_closed_session_name_the_gap_before_each():
    """Numbers that were held are not missing."""
    told = Told().take(1, 4).take(words=("close",))

    assert [(0, 0), (2, 3)] == [each.missing for each in told.letters]


def test_release_delivers_what_is_held():
    told = Told(on_gap="hold").take(1, 3, words=("release",)).take(4)

    assert ([1, 3, 4], False) == (told.delivered, told.session.closed)
    assert [("skipped", (0, 0)), ("skipped", (2, 2))] == told.records


def test_release_makes_a_stale_session_go_on():
    told = Told(gap_timeout=10, on_gap="hold").take(1).judge(10).take(words=("release",))

    assert ([1], False) == (told.delivered, told.session.stale)


def test_release_and_close_together_deliver_what_is_held():
    told = Told().take(1, words=("close", "release"))

    assert ([1], True, []) == (told.delivered, told.session.closed, told.dead)


def test_a_session_without_events_for_long_is_closed():
    told = Told(gap_timeout=None, idle_timeout=100).take(event(0, clock=50), 2)
    assert 150 == told.logic.due(told.session)

    told.judge(149)
    assert not told.session.closed

    told.judge(150)
    assert (True, [("closed", 2)]) == (told.session.closed, told.dead)


def test_a_session_that_is_closed_before_its_last_number_is_unfinished():
    told = Told(idle_timeout=100).take(event(0, last=3)).judge(100)

    assert ([("unfinished", (1, 3))], True) == (told.records, told.session.closed)


def test_every_event_is_a_sign_of_life():
    told = Told(idle_timeout=100).take(event(0)).take(event(0, clock=60))

    assert 160 == told.logic.due(told.session)


def test_a_closed_session_has_nothing_to_wait_for():
    told = Told(gap_timeout=10, idle_timeout=10).take(event(0, last=0))

    assert None is told.logic.due(told.session)
    assert [] == told.judge(1000).records


def test_the_largest_number_is_as_good_as_others():
    """What a letter says fits into a BIGINT, or no query could read it."""
    told = Told(gap_timeout=10).take(MAX_NUMBER).judge(10).take(5)

    assert [("gap", MAX_NUMBER), ("late", 5)] == told.dead
    assert all(each.expected is None or each.expected < 2**63 for each in told.letters)
