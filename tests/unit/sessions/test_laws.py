"""What holds for sessions whatever comes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sessions.histories import begins, held_by, policies, spread, steps, went
from zeh_spark.spark.sessions.model import Dead, Deliver, Duplicate, SessionRecord
from zeh_spark.spark.sessions.session_decision import SessionLogic


@given(policies, steps())
def test_whatever_the_policy_and_the_input_after_each_step(policy, several):
    """Law: nothing is lost, and nothing is given twice in a session. Two events with one number,
    the first of them a replay, are both given if wanted. Only what is sent again on purpose is
    delivered out of order, and what is held keeps within the caps. What is said to be missing was
    neither delivered nor held, and dead letters after a gap name all that lies between what was
    expected and them.
    """
    logic, session, newest = SessionLogic(policy), None, -1
    arrived, ended, times, conflicts = (Counter[int]() for _ in range(4))
    delivered: set[int] = set()
    for step in several:
        arrived.update(each.number for each in step.arrivals)
        before, held = session, held_by(session)
        session, outcomes = went(logic, session, step)
        given, dead = spread(outcomes, Deliver), spread(outcomes, Dead)
        closes = begins(before, session) and session.closed
        if begins(before, session):
            times.clear()
            delivered.clear()
            newest = -1

        ended.update(number for number, _ in given + dead)
        ended.update(each.number for each in outcomes if isinstance(each, Duplicate))
        assert arrived == ended + Counter(held_by(session))

        conflicts.update(number for number, each in dead if each.reason == "conflict")
        times.update(number for number, each in given if each.known or not closes)
        assert all(count <= 1 + conflicts[number] for number, count in times.items())

        replayed = {each.number for each in step.arrivals if each.replay}
        for number, _ in given:
            assert number > newest or number in replayed
            newest = max(newest, number)

        delivered |= {number for number, _ in given}
        told = [e for e in outcomes if isinstance(e, Dead | SessionRecord) and e.missing]
        missing = {n for each in told for n in range(each.missing.first, each.missing.last + 1)}
        assert set() == missing & (delivered | held | held_by(session))
        assert all(each.missing.first <= each.missing.last for each in told)
        for each in (e for e in outcomes if isinstance(e, Dead) and e.reason == "gap"):
            assert (each.expected, each.first - 1) == each.missing
            assert each.since is not None

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
            assert (due is not None and due <= step.now) == bool(
                outcomes or (session.closed and due is not None)
            )
            assert (logic.due(session) or step.now + 1) > step.now
            assert [] == logic.judge(session, step.now)[1]


@given(policies, steps(), st.integers(0, 30))
def test_reports_of_sessions_that_do_not_advance_change_nothing_else(policy, history, patience):
    """Law: they are only added, one between two advances, and never before their time."""
    plain, watched = SessionLogic(policy), SessionLogic(replace(policy, stale_timeout=patience))
    mine = theirs = None
    waits_since, reported = 0, False
    for step in history:
        before = mine.next if mine else None
        theirs, expected = went(plain, theirs, step)
        mine, found = went(watched, mine, step)
        reports = [each for each in found if each[0] == "stale" and each.received is None]
        assert [each for each in found if each not in reports] == expected
        if mine is None:
            continue
        assert len(reports) <= (not reported or mine.next != before)
        if reports and mine.next == before:
            assert step.now >= waits_since + patience
        if mine.next != before:
            waits_since, reported = mine.advanced, False
        reported = reported or bool(reports)
        assert reported == mine.reported or mine.closed
