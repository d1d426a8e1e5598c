"""The last refusals of publish requests."""

from __future__ import annotations

from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.recent_refusals import DETAIL_CHARACTERS, KEPT, RecentRefusals
from zeh_spark.wire import problems

NAMED = {"feed": "orders", "producer": "till-1", "batch": "7"}


def problem(detail: str = "no") -> Problem:
    return Problem(problems.BAD_COMMIT, detail)


def test_a_repeated_call_is_one_entry_that_counts() -> None:
    """A client that repeats a call for hours does not push out the others."""
    refusals = RecentRefusals()
    refusals.note(NAMED, problem("first"), "r1", "")
    refusals.note({**NAMED, "batch": "8"}, problem(), "r2", "")
    refusals.note(NAMED, problem("last"), "r3", "")

    newest, other = refusals.newest()

    assert ("7", 2, "last", "r3") == (newest.batch, newest.count, newest.detail, newest.request_id)
    assert newest.first <= newest.last
    assert ("8", 1) == (other.batch, other.count)


def test_only_the_last_ones_are_kept_with_details_that_are_cut() -> None:
    refusals = RecentRefusals()
    for batch in range(KEPT + 10):
        refusals.note({**NAMED, "batch": batch}, problem("x" * 10_000), "", "")

    expected = [(str(batch), DETAIL_CHARACTERS) for batch in reversed(range(10, KEPT + 10))]
    assert expected == [(each.batch, len(each.detail)) for each in refusals.newest()]


def test_requests_without_the_right_are_left_out() -> None:
    """A stranger cannot push out what I look for."""
    refusals = RecentRefusals()
    for kind in (problems.UNAUTHORIZED, problems.FORBIDDEN, problems.FOREIGN_ORIGIN):
        refusals.note(NAMED, Problem(kind, "no"), "", "")

    assert [] == refusals.newest()
