"""What of a session is given up, refused or ended, case by case."""

from __future__ import annotations

import pytest

from tests.unit.sessions.cases import Told, again, event
from zeh_spark.stateful.ranges import MAX_NUMBER

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
    assert given_up == told.duplicates
    assert given_up == [number for reason, number in told.dead if reason == "conflict"]


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
    assert [0, 1, 2] == Told().take(2).take(again(1)).take(again(0)).delivered


def test_a_replay_begins_no_session_and_is_delivered_once():
    """Its own may be forgotten: it waits for nothing, and what comes then is a new session."""
    told = Told().take(again(1)).take(again(1), again(0)).take(again(1))
    assert ([1, 0], [1, 1]) == (told.delivered, told.duplicates)

    told.take(0, 2).take(1)

    assert ([1, 0, 0, 1, 2], []) == (told.delivered, told.dead)


def test_a_session_continues_after_replays_of_its_first_numbers():
    """Of dead letters that had no number, so that nobody knew the session."""
    told = Told().take(again(0), again(1)).take(2)
    assert [0, 1, 2] == told.delivered

    told.take(0).take(again(0))
    assert ([0, 1, 2, 0], [("conflict", 0)]) == (told.delivered, told.dead)


@pytest.mark.parametrize("waits", [False, True])
def test_an_event_is_no_duplicate_of_a_replay(waits):
    """It may be that of an older session with the name: somebody has to see it."""
    told = Told().take(2) if waits else Told().take(0)
    told.take(again(1)).take(1).take(0)

    assert [("conflict", 1)] == told.dead
    assert "a replayed event with this number came before" in told.letters[0].detail
    assert ([0, 1, 2] if waits else [0, 1]) == told.delivered


def test_a_late_event_is_no_duplicate_of_a_replay():
    told = Told(gap_timeout=10, on_gap="skip").take(1).judge(10).take(again(0)).take(0)
    assert ([1, 0], [("conflict", 0)]) == (told.delivered, told.dead)

    assert [1, 0, 0] == told.take(again(0)).take(again(0)).delivered


def test_a_session_can_be_closed_when_only_replays_have_come():
    told = Told().take(again(1)).take(words=("close",)).take(2)

    assert ([1], [("closed", 2)]) == (told.delivered, told.dead)


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


def test_a_dead_letter_over_the_cap_names_what_is_missing_and_no_more():
    told = Told(max_events=1).take(2).take(0, 1, 4, 6)

    assert ([0, 1, 2], [4]) == (told.delivered, told.held)
    assert [("overflow", 6)] == told.dead
    assert told.letters[0].missing in (None, (3, 3))


def test_a_dead_letter_over_the_cap_says_how_much_is_held():
    told = Told(max_events=2, max_bytes=9).take(1, 2, 3)

    assert "holds 2 events, 2 bytes; the caps are 2 and 9" in told.letters[0].detail


# By hand, and after a long time


def test_a_session_can_be_closed_by_hand():
    told = Told().take(0, 2, words=("close",)).take(1)

    assert ([0], [("closed", 2), ("closed", 1)]) == (told.delivered, told.dead)


def test_a_session_that_nobody_has_seen_can_be_closed():
    assert [("closed", 0)] == Told().take(words=("close",)).take(0).dead


def test_dead_letters_of_a_closed_session_name_the_gap_before_each():
    """Numbers that were held are not missing."""
    told = Told().take(1, 4).take(words=("close",))

    assert [(0, 0), (2, 3)] == [each.missing for each in told.letters]


def test_release_delivers_what_is_held():
    told = Told(on_gap="hold").take(1, 3, words=("release",)).take(4)

    assert ([1, 3, 4], False) == (told.delivered, told.session.closed)
    assert [("skipped", (0, 0)), ("skipped", (2, 2))] == told.records


def test_release_makes_a_stale_session_continue():
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
    """What a dead letter says fits into a BIGINT, or no query could read it."""
    told = Told(gap_timeout=10).take(MAX_NUMBER).judge(10).take(5)

    assert [("gap", MAX_NUMBER), ("late", 5)] == told.dead
    assert all(each.expected is None or each.expected < 2**63 for each in told.letters)
