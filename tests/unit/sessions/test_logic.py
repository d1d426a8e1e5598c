"""What becomes of the events of a session, case by case."""

from __future__ import annotations

import pytest

from tests.unit.sessions.cases import Told, again, event
from zeh_spark.sessions.model import Dead, Missing, SessionRecord

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


def test_what_comes_after_the_last_number_is_dead():
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


def test_dead_letter_gives_up_what_is_after_the_gap():
    """The dead letters say what was missing, and the session continues after them."""
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
def test_what_is_held_after_the_last_number_does_not_keep_a_session_open(on_gap):
    """All of it is dead, as its session is closed."""
    told = Told(gap_timeout=10, on_gap=on_gap).take(event(0, last=2), 5).judge(10)

    assert (True, [("closed", 5)]) == (told.session.closed, told.dead)


# Sessions that do not advance


def test_session_that_does_not_advance_is_reported_once():
    """It has no gap: the next event just does not come."""
    told = Told(stale_timeout=10).take(event(0, clock=5))
    assert 15 == told.logic.due(told.session)

    told.judge(14).judge(15).judge(1000)
    assert [SessionRecord("stale", 1, None, None, None)] == told.outcomes[1:]
    assert None is told.logic.due(told.session)

    told.take(event(1, clock=1000)).judge(1010)
    assert ([0, 1], 2) == (told.delivered, len([e for e in told.outcomes if e[0] == "stale"]))


def test_events_that_are_held_or_dropped_are_no_advance():
    """It was seen, and still waits for the same number."""
    told = Told(stale_timeout=10, gap_timeout=None).take(event(0, clock=1))
    told.take(event(2, clock=6)).take(event(0, clock=9)).judge(10).judge(11)

    assert SessionRecord("stale", 1, None, Missing(1, 1), 6) == told.outcomes[-1]


def test_gap_of_a_session_that_was_reported_is_judged_as_before():
    """One report switches off no other."""
    told = Told(stale_timeout=10, gap_timeout=20, on_gap="hold", idle_timeout=50)
    told.take(event(0, clock=1)).take(event(2, clock=5)).judge(11).judge(25).judge(54).judge(55)

    stale = [each for each in told.outcomes if isinstance(each, SessionRecord)]
    assert [("stale", None), ("stale", 2)] == [(each.reason, each.received) for each in stale]
    assert ([("closed", 2)], True) == (told.dead, told.session.closed)


def test_a_release_that_delivers_is_an_advance():
    """A session that somebody released, and that then waits again, is reported again."""
    told = Told(stale_timeout=10, gap_timeout=None).take(event(0, clock=1)).judge(11)
    told.take(event(2, clock=20), words=("release",)).judge(29)
    assert [("stale", 1), ("skipped", 1)] == [(e[0], e[1]) for e in told.outcomes if len(e) == 5]

    told.judge(30)
    assert SessionRecord("stale", 3, None, None, None) == told.outcomes[-1]
