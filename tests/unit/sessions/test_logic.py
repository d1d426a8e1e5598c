"""What becomes of the events of a session, case by case."""

from __future__ import annotations

import pytest

from tests.cases import each_case
from tests.unit.sessions.cases import Told, again, event
from zeh_spark.spark.sessions.model import Dead, Hold, Missing, SessionRecord
from zeh_spark.spark.stateful.ranges import MAX_NUMBER

SKIP = {"gap_timeout": 10, "on_gap": "skip"}
LETTER = {"gap_timeout": 10, "on_gap": "dead-letter"}
TWICE = {"delivered": [0, 1], "duplicates": [1], "dead": []}


def sent_again(told: Told, *numbers: int) -> Told:
    """Twice on purpose, and once as they came first."""
    return told.take(*map(again, numbers)).take(*map(again, numbers)).take(*numbers)


STORIES = {
    # In order
    "events are delivered in the order of their numbers":
        (lambda: Told().take(2, 0, 1).take(3), {"delivered": [0, 1, 2, 3]}),
    "early events are held until those before them were delivered, one after the other":
        (lambda: Told().take(3, 1).take(0).take(2), {"delivered": [0, 1, 2, 3], "held": []}),
    "a session begins with 0, or with 1":
        (lambda: Told(first=1).take(2).take(1), {"delivered": [1, 2]}),
    "or with the lowest number of its first batch":
        (lambda: Told(first="seen").take(5, 4), {"delivered": [4, 5]}),
    "a session that is only told words without effect does not begin":
        (lambda: Told().take(words=("release",)), {"session": None}),
    # Duplicates
    "the second event with a number is dropped, if the first was delivered":
        (lambda: Told().take(0, 1).take(1), TWICE),
    "or is held":
        (lambda: Told().take(1).take(1).take(0), TWICE),
    "or is in its batch":
        (lambda: Told().take(0, 1, 1), TWICE),
    "or is in a closed session":
        (lambda: Told().take(0, event(1, last=1)).take(1), TWICE),
    "an event beside an invalid one with its number doubles nothing that was delivered or is held":
        (lambda: Told().take(event(0, last=9)).take(event(1, last=3), event(1, clock=1)),
         {"dead": [("invalid", 1)], "delivered": [0, 1]}),
    "an event that is sent again beside a late one is delivered":
        (lambda: Told(**SKIP).take(1).judge(10).take(event(0), again(0)),
         {"dead": [("late", 0)], "delivered": [1, 0]}),
    "both of two late events are dead, because what is not delivered is not dropped either":
        (lambda: Told(**SKIP).take(1).judge(10).take(0, 0),
         {"dead": [("late", 0), ("late", 0)], "duplicates": []}),
    # The last number
    "the last number closes the session":
        (lambda: Told().take(0, 1, event(2, last=2)), {"delivered": [0, 1, 2], "closed": True}),
    "any event may say which number is the last, which closes it when all are there":
        (lambda: Told().take(event(0, last=2), 2).take(1),
         {"delivered": [0, 1, 2], "closed": True}),
    "what comes after the last number is dead, if it came with it, was held or comes later":
        (lambda: Told().take(4).take(0, event(1, last=1), 2).take(7),
         {"delivered": [0, 1], "sorted_dead": [("closed", 2), ("closed", 4), ("closed", 7)]}),
    "another last number than before is invalid, and the session keeps the first":
        (lambda: Told().take(event(0, last=2)).take(event(1, last=1), event(2, last=2)),
         {"dead": [("invalid", 1)], "delivered": [0], "held": [2],
          "details": ["the last number is 1, and was 2 before"]}),
    "a last number before its own is invalid":
        (lambda: Told().take(0).take(event(1, last=0)),
         {"dead": [("invalid", 1)], "delivered": [0]}),
    "a number before the first is invalid":
        (lambda: Told(first=1).take(0, 1), {"dead": [("invalid", 0)], "delivered": [1]}),
    "an invalid event leaves its number expected":
        (lambda: Told().take(event(0, last=5)).take(event(1, last=2)).take(1),
         {"delivered": [0, 1]}),
    # Gaps
    "no gap is judged before its time":
        (lambda: Told(gap_timeout=10).take(event(1, clock=5)).judge(14),
         {"due": 15, "dead": [], "held": [1]}),
    "skip leaves out what is missing, and the session continues":
        (lambda: Told(**SKIP).take(0, 3, 4).judge(10).take(5),
         {"delivered": [0, 3, 4, 5], "records": [("skipped", (1, 2))]}),
    "dead-letter gives up what is after the gap, says what was missing, and continues after it":
        (lambda: Told(**LETTER).take(0, event(3, 7), event(4, 8)).judge(17).take(5),
         {"letters": [Dead(3, 4, "gap", 1, Missing(1, 2), 7)], "delivered": [0, 5], "held": []}),
    "the next gap has its own age":
        (lambda: Told(**SKIP).take(1).take(event(3, clock=8)).judge(10),
         {"delivered": [1], "held": [3], "due": 18}),
    "and its own record":
        (lambda: Told(**SKIP).take(1).take(event(3, clock=8)).judge(10).judge(18),
         {"records": [("skipped", (0, 0)), ("skipped", (2, 2))]}),
    "the oldest hold is a gap's age, however early its number: all before it waits no longer":
        (lambda: Told(**SKIP).take(event(3)).take(event(1, clock=8)).judge(10),
         {"delivered": [1, 3], "held": []}),
    "a hold begins when it was read, because a backlog from another partition has its full time":
        (lambda: Told(gap_timeout=10).take(event(1, clock=5), now=100), {"due": 110}),
    "or with the event, if that is later":
        (lambda: Told(gap_timeout=10).take(event(1, clock=200), now=100), {"due": 210}),
    "a gap before the last number does not keep a session open":
        (lambda: Told(**SKIP).take(0, event(2, last=2), 4).judge(10),
         {"closed": True, "dead": [("closed", 4)]}),
    "nor with dead-letter":
        (lambda: Told(**LETTER).take(0, event(2, last=2), 4).judge(10),
         {"closed": True, "dead": [("gap", 2), ("closed", 4)]}),
    "what is held after the last number does not keep a session open":
        (lambda: Told(**SKIP).take(event(0, last=2), 5).judge(10),
         {"closed": True, "dead": [("closed", 5)]}),
    "and is dead with dead-letter, too":
        (lambda: Told(**LETTER).take(event(0, last=2), 5).judge(10),
         {"closed": True, "dead": [("closed", 5)]}),
    # What was given up
    "what was given up and comes later is dead":
        (lambda: Told(**SKIP).take(0, 3).judge(10).take(1, 2),
         {"dead": [("late", 1), ("late", 2)]}),
    "also what is a dead letter itself":
        (lambda: Told(**LETTER).take(0, 3).judge(10).take(1, 2, 3),
         {"dead": [("gap", 3), ("late", 1), ("late", 2), ("late", 3)]}),
    "what was given up is delivered if somebody sends it on purpose: once, its order is lost":
        (lambda: sent_again(Told(**SKIP).take(0, 3).judge(10), 1, 2),
         {"delivered": [0, 3, 1, 2], "duplicates": [1, 2],
          "dead": [("conflict", 1), ("conflict", 2)]}),
    "and so are dead letters":
        (lambda: sent_again(Told(**LETTER).take(0, 3).judge(10), 1, 2, 3),
         {"delivered": [0, 1, 2, 3], "duplicates": [1, 2, 3],
          "dead": [("gap", 3), ("conflict", 1), ("conflict", 2), ("conflict", 3)]}),
    "an event of a closed session is dead":
        (lambda: Told(**SKIP).take(event(1, last=1)).judge(10).take(0, 2),
         {"dead": [("closed", 0), ("closed", 2)]}),
    "it is delivered if somebody sends it on purpose: once, whatever came of others meanwhile":
        (lambda: Told().take(0, 3).take(words=("close",))
         .take(again(3), again(1)).take(again(3), again(1), again(0)).take(2),
         {"delivered": [0, 1, 3], "duplicates": [0, 1, 3], "dead": [("closed", 3), ("closed", 2)]}),
    "a replay of an expected number is an event as others":
        (lambda: Told().take(2).take(again(1)).take(again(0)), {"delivered": [0, 1, 2]}),
    # it waits for nothing, and what comes then is a new session
    "a replay begins no session and is delivered once, because its own may be forgotten":
        (lambda: Told().take(again(1)).take(again(1), again(0)).take(again(1)).take(0, 2).take(1),
         {"delivered": [1, 0, 0, 1, 2], "duplicates": [1, 1], "dead": []}),
    # these are of dead letters without a number; an event is no duplicate of its replay
    "a session continues after replays of its first numbers":
        (lambda: Told().take(again(0), again(1)).take(2).take(0).take(again(0)),
         {"delivered": [0, 1, 2, 0], "dead": [("conflict", 0)]}),
    "a late event is no duplicate of a replay, and can be replayed once":
        (lambda: Told(**SKIP).take(1).judge(10).take(again(0)).take(0).take(again(0))
         .take(again(0)),
         {"delivered": [1, 0, 0], "dead": [("conflict", 0)]}),
    "a session can be closed when only replays have come":
        (lambda: Told().take(again(1)).take(words=("close",)).take(2),
         {"delivered": [1], "dead": [("closed", 2)]}),
    # Caps
    "what can be delivered at once needs no room":
        (lambda: Told(max_events=1, max_bytes=1).take(*range(9)), {"delivered": [*range(9)]}),
    "what is delivered in a batch makes room in it, however a feed was cut into batches":
        (lambda: Told(max_events=2).take(1, 2).take(0, 4),
         {"delivered": [0, 1, 2], "held": [4], "dead": []}),
    "a dead letter over the cap says how much is held":
        (lambda: Told(max_events=2, max_bytes=9).take(1, 2, 3),
         {"details": ["the session holds 2 events, 2 bytes; the caps are 2 and 9"]}),
    # By hand, and after a long time
    "a session can be closed by hand":
        (lambda: Told().take(0, 2, words=("close",)).take(1),
         {"delivered": [0], "dead": [("closed", 2), ("closed", 1)]}),
    "also one that nobody has seen":
        (lambda: Told().take(words=("close",)).take(0), {"dead": [("closed", 0)]}),
    "dead letters of a closed session name the gap before each; what was held is not missing":
        (lambda: Told().take(1, 4).take(words=("close",)), {"missing": [(0, 0), (2, 3)]}),
    "release delivers what is held":
        (lambda: Told(on_gap="hold").take(1, 3, words=("release",)).take(4),
         {"delivered": [1, 3, 4], "closed": False,
          "records": [("skipped", (0, 0)), ("skipped", (2, 2))]}),
    "release makes a stale session continue":
        (lambda: Told(gap_timeout=10, on_gap="hold").take(1).judge(10).take(words=("release",)),
         {"delivered": [1], "stale": False}),
    "release and close together deliver what is held":
        (lambda: Told().take(1, words=("close", "release")),
         {"delivered": [1], "closed": True, "dead": []}),
    "a session without events is open for its time":
        (lambda: Told(gap_timeout=None, idle_timeout=100).take(event(0, clock=50), 2).judge(149),
         {"due": 150, "closed": False}),
    "and closed after it":
        (lambda: Told(gap_timeout=None, idle_timeout=100).take(event(0, clock=50), 2).judge(150),
         {"closed": True, "dead": [("closed", 2)]}),
    "a session that is closed before its last number is unfinished":
        (lambda: Told(idle_timeout=100).take(event(0, last=3)).judge(100),
         {"records": [("unfinished", (1, 3))], "closed": True}),
    "every event is a sign of life":
        (lambda: Told(idle_timeout=100).take(event(0)).take(event(0, clock=60)), {"due": 160}),
    "a closed session has nothing to wait for":
        (lambda: Told(gap_timeout=10, idle_timeout=10).take(event(0, last=0)).judge(1000),
         {"due": None, "records": []}),
}  # fmt: skip


@each_case("story", STORIES)
def test_what_becomes_of_events(story):
    tell, expected = STORIES[story]
    told = tell()
    assert expected == {name: getattr(told, name) for name in expected}


# Sessions that do not advance


def test_session_that_does_not_advance_is_reported_once():
    """It has no gap: the next event just does not come."""
    told = Told(stale_timeout=10).take(event(0, clock=5))
    assert 15 == told.due

    told.judge(14).judge(15).judge(1000)
    assert [SessionRecord("stale", 1, None, None, None)] == told.outcomes[1:]
    assert None is told.due

    told.take(event(1, clock=1000)).judge(1010)
    assert ([0, 1], 2) == (told.delivered, len([e for e in told.outcomes if e[0] == "stale"]))


def test_a_session_that_begins_with_a_gap_waits_from_its_first_event_on():
    """It is not stale before anybody could have sent what is missing."""
    told = Told(stale_timeout=10, gap_timeout=None).take(event(2, clock=5)).judge(14)
    assert (15, [Hold(2)]) == (told.due, told.outcomes)


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
    assert ([("closed", 2)], True) == (told.dead, told.closed)


def test_a_release_that_delivers_is_an_advance():
    """A session that somebody released, and that then waits again, is reported again."""
    told = Told(stale_timeout=10, gap_timeout=None).take(event(0, clock=1)).judge(11)
    told.take(event(2, clock=20), words=("release",)).judge(29)
    assert [("stale", 1), ("skipped", 1)] == [(e[0], e[1]) for e in told.outcomes if len(e) == 5]

    told.judge(30)
    assert SessionRecord("stale", 3, None, None, None) == told.outcomes[-1]


# What is given up or refused


@pytest.mark.parametrize("waits", [False, True])
def test_an_event_is_no_duplicate_of_a_replay(waits):
    """It may be that of an older session with the name: somebody has to see it."""
    told = Told().take(2) if waits else Told().take(0)
    told.take(again(1)).take(1).take(0)

    assert [("conflict", 1)] == told.dead
    assert ["number 1: a replayed event with this number came before"] == told.details
    assert ([0, 1, 2] if waits else [0, 1]) == told.delivered


@each_case(("cap", "size"), [({"max_events": 2}, 1), ({"max_bytes": 20}, 10)])
def test_events_over_the_cap_are_dead_and_stay_expected(cap, size):
    told = Told(**cap).take(*(event(number, size=size) for number in (1, 2, 3)))
    assert ([("overflow", 3)], [1, 2]) == (told.dead, told.held)

    told.take(0, again(3))
    assert [0, 1, 2, 3] == told.delivered


def test_a_dead_letter_over_the_cap_names_what_is_missing_and_no_more():
    told = Told(max_events=1).take(2).take(0, 1, 4, 6)

    assert ([0, 1, 2], [4]) == (told.delivered, told.held)
    assert [("overflow", 6)] == told.dead
    assert told.letters[0].missing in (None, (3, 3))


def test_the_largest_number_is_as_good_as_others():
    """What a dead letter says fits into a BIGINT, or no query could read it."""
    told = Told(gap_timeout=10).take(MAX_NUMBER).judge(10).take(5)

    assert [("gap", MAX_NUMBER), ("late", 5)] == told.dead
    assert all(each.expected is None or each.expected < 2**63 for each in told.letters)
