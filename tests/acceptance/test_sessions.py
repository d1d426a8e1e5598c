"""Sessions in the order of their numbers: what users of Azure Service Bus build by hand.

The first part is a subscriber's flow chart, case by case: message received; is it the next in
sequence; process; is it the last; is the next one among the deferred; close the session.
"""

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_sessions import needs_batches

LAST = {"last": "headers['last']"}


# The flow chart


def test_a_subscribers_flow_chart(orders):
    """Sessions of one batch go through each of its branches, and none waits for another. What
    cannot be processed is a dead letter, and the session continues: messages without a session, or
    whose number is none, and ends that contradict each other.
    [SB-01, SB-02, SB-04, SB-05, SB-06, SB-07, SB-10, SB-13]
    """
    options = {**LAST, "gap_timeout": None}
    orders.add(("next", 0), ("next", 1), ("deferred", 2), ("deferred", 0), ("ends", 0))
    orders.add(("ends", 1), ("ends early", 1), last="true")
    orders.add(("a", 0), ("a", None), ("a", "x"), ("a", "-1"), ("a", "1.0"), (None, 7), ("", 8))
    orders.add(("a", "1\n"))
    orders.add(("a", 1), last="9")
    orders.add(("a", 2), last="4")
    orders.add(("a", 3), last="soon")
    orders.run(**options)
    steps = {name: orders.steps(name) for name in ("next", "deferred", "ends", "ends early", "a")}
    assert {
        "next": [0, 1], "deferred": [0], "ends": [0, 1], "ends early": [], "a": [0, 1]
    } == steps  # fmt: skip
    number = "and has to be a whole number from 0 to 9223372036854775806"
    assert {
        (7, "no session"),
        (8, "no session"),
        (2, "the last number is 4, and was 9 before"),
        (3, "last is 'soon', and has to be a number, true or false"),
        (None, f"sequence is NULL, {number}"),
        (None, f"sequence is 'x', {number}"),
        (None, f"sequence is '-1', {number}"),
        (None, f"sequence is '1.0', {number}"),
        (None, f"sequence is '1\n', {number}"),
    } == {(each.dead.received, each.dead.detail) for each in orders.dead}
    assert {"invalid"} == {each.dead.reason for each in orders.dead}
    orders.dead.clear()

    orders.add(("next", 2), ("deferred", 1), ("ends", 2), ("ends early", 0), ("next", 1))
    orders.run(**options)

    assert [0, 1, 2] == orders.steps("next")
    assert [0, 1, 2] == orders.steps("deferred")
    assert [0, 1] == orders.steps("ends early")
    assert [("closed", 2)] == orders.reasons()
    assert 1 == orders.count("duplicates")


# Gaps


@pytest.mark.slow
@needs_batches
def test_a_gap_older_than_the_timeout_goes_to_the_dead_letters(line):
    """The session continues after it; what was missing is late. [SB-11, R3, R4]

    A session holds no more than its cap: what does not fit is a dead letter, and its number stays
    expected. [SB-09, R5]
    """
    line.add(("a", 0), ("a", 2), ("a", 3), ("a", 5), at=100)
    line.add(*(("full", step) for step in range(1, 8)), ("other", 1), at=100)
    line.add(("full", 0), ("full", 6), ("other", 0), at=101)
    line.add(("b", 0), at=100 + 601)
    line.add(("b", 1), at=702)
    line.add(("a", 1), ("a", 6), at=703)
    line.run(limit="1", max_events=5)

    assert [("overflow", 6), ("overflow", 7)] == line.reasons("full")
    assert [list(range(7)), [0, 1], [0, 6]] == [line.steps(e) for e in ("full", "other", "a")]
    assert [("gap", 2), ("gap", 3), ("gap", 5), ("late", 1)] == line.reasons("a")
    dead = next(each for each in line.dead if each.dead.session == "a")
    assert (1, (1, 1)) == (dead.dead.expected, tuple(dead.dead.missing))
    assert 100 == dead.dead.held_since.timestamp()
    assert "2" == dead.headers["step"]


@pytest.mark.slow
@needs_batches
def test_a_session_can_be_held_until_somebody_releases_or_closes_it(line):
    """With `hold` a gap is reported once, and the session waits for a control event. [SB-08, R8]"""
    line.add(("a", 0), ("a", 2), ("b", 1), at=100)
    line.add(("c", 0), at=800)
    line.add(("c", 1), at=2000)
    line.add(("a", None), at=2001, **{"session-control": "release"})
    line.add(("b", None), at=2001, **{"session-control": "Close"})
    line.add(("c", None), at=2001, **{"session-control": "stop"})
    line.add(("b", 0), ("a", 3), at=2002)
    line.run(limit="1", on_gap="hold")

    assert [0, 2, 3] == line.steps("a")
    assert [("stale", 2), ("skipped", 2)] == line.reasons("a")
    assert [("stale", 1), ("closed", 1), ("closed", 0)] == line.reasons("b")
    assert [("invalid", None)] == line.reasons("c")


def test_sessions_begin_where_they_are_told(orders):
    orders.add(("a", 2), ("a", 0), ("a", 1))

    orders.run(first=1)

    assert ([1, 2], [("invalid", 0)]) == (orders.steps("a"), orders.reasons())
