"""Both sides' values of each refusal, next to each other."""

from __future__ import annotations

from tests.cases import each_case
from zeh_spark.service.console.refusal_table import sides
from zeh_spark.service.store import refusals
from zeh_spark.service.store.batches import Call, Found, ProducerState, StoredReceipt, TaskAttempt
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.recent_refusals import RecentRefusals
from zeh_spark.wire.upload_format import Content

CALL = Call("till", "inc-2", "run-2", 9, 4)
STATE = ProducerState("till", "inc-1", 3, "run-1", 6, 7, "", 0)
RECEIPT = StoredReceipt(1, "till", "inc-2", 9, "run-1", 1, 5, "d" * 32, 1, 4, (), (1, 1), 0, "")


def shown(problem: Problem):
    noted = RecentRefusals()
    noted.note({"feed": "orders", "producer": "till", "batch": "9"}, problem, "id", "")
    return sides(noted.newest()[0])


@each_case(
    ("problem", "row", "option"),
    [
        (refusals.batch_gap(CALL, STATE, 6, "x@6:9"), ("batch", "6", "9"), "acceptGap=x@6:9"),
        (refusals.batch_gap(CALL, STATE, -1, "x@-1:9"), ("batch", "none", "9"), "acceptGap=x@-1:9"),
        (refusals.incarnation_changed(CALL, STATE, "inc-1:inc-2"),
         ("incarnation", "inc-1", "inc-2"), "replaceIncarnation=inc-1:inc-2"),
        (refusals.fenced(CALL, STATE), ("run", "run-1", "run-2"), ""),
        (refusals.batch_conflict(CALL, Content(8, 1), RECEIPT, "dddddddd"),
         ("events", "5", "8"), "keepFirst=dddddddd"),
        (refusals.number_taken(CALL, Content(8, 1), RECEIPT), ("events", "5", "8"), ""),
        (refusals.digest_version(CALL, 2, 1), ("digestVersion", "1", "2"), ""),
        (refusals.upload_missing(CALL, TaskAttempt(0, 0, 3, 30), Found(2, Content(20, 1))),
         ("uploads", "2", "3"), ""),
        (refusals.content_mismatch(CALL, Content(3, 1), Content(2, 1)), ("events", "2", "3"), ""),
    ],
)  # fmt: skip
def test_each_side_has_its_own_value(problem: Problem, row, option: str) -> None:
    """The remedy, with the option that it names, is told once, and so is each value."""
    found = shown(problem)
    names = [each[0] for each in (*found.rows, *found.facts)]

    assert row in found.rows
    assert all(ours != theirs for _, ours, theirs in found.rows)
    assert len(names) == len(set(names))
    assert option in found.remedy
    assert "option" not in names
    assert problem.members["remedy"] == found.remedy
    assert problem.detail == f"{found.detail}; {found.remedy}"


def test_what_is_neither_sides_value_is_a_fact() -> None:
    assert ("partitionCount", "8") in shown(refusals.layout_changed(CALL, 8)).facts
    assert ("quota", "10") in shown(refusals.quota_exceeded(CALL, 10, 9, 5)).facts
