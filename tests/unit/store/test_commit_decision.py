"""The commit decision, whole: all combinations of a few values of its facts, against a table."""

from __future__ import annotations

from tests.unit.store.producer_cases import (
    SAME,
    Case,
    call_of,
    cases,
    decision_of,
    declared_of,
    known_of,
    named,
    refusals,
)
from zeh_spark.service.store.batches import ProducerState, after, receipt_for
from zeh_spark.service.store.commit_decision import Step

EXPECTED = """
producer-deleted     the producer was deleted
incarnation-changed  another incarnation than the current one, and no word that it may replace that
fenced               another run has published since this one did, and not this
batch-expired        a number that is taken, and its receipt is gone
committed            an upload for a number that is taken
digest-version       a number that is taken; contents made in another way
committed            a number that is taken; the same content
committed            a number that is taken; other content, and the word to keep the first
batch-conflict       a number that is taken
batch-gap            a number beyond the next, and no word to accept the gap
layout-changed       the batch is made for another number of partitions
STAGE                an upload
digest-version       a commit; contents made in another way
MOVE                 a commit, before it is known what there is
upload-missing       not as many uploads or events as the tasks sent
content-mismatch     other content than the driver summed up
PUBLISH              else
"""


def true_of(case: Case, words: str) -> bool:
    """Whether all that a line of the table says is so, up to the first line that is."""
    taken = case.number in ("before", "last") and case.last >= 0
    facts = {
        "the producer was deleted": case.producer == "deleted",
        "another incarnation than the current one": case.producer != "unknown"
        and case.caller != "current",
        "no word that it may replace that": case.remedy not in ("replace", "all"),
        "another run has published since this one did": case.run == "overtaken",
        "not this": not taken
        or case.receipt == "expired"
        or case.content not in ("same", "upload"),  # all that there is has come from this run
        "a number that is taken": taken,
        "its receipt is gone": case.receipt == "expired",
        "an upload for a number that is taken": taken and case.content == "upload",
        "contents made in another way": case.content == "version",
        "the same content": case.content == "same",
        "other content": case.content == "other",
        "the word to keep the first": case.remedy in ("keep", "all"),
        "a number beyond the next": case.number == "beyond",
        "no word to accept the gap": case.remedy not in ("gap", "all"),
        "the batch is made for another number of partitions": case.partitions == "other",
        "an upload": case.content == "upload",
        "a commit": case.content != "upload",
        "before it is known what there is": case.found == "unasked",
        "not as many uploads or events as the tasks sent": case.found in ("fewer", "none"),
        "other content than the driver summed up": case.found == "changed",
        "else": True,
    }
    parts = words.replace(", and ", "; ").replace(", before", "; before").split("; ")
    return all(facts[part] for part in parts)


def expected(case: Case) -> str:
    for line in EXPECTED.strip().splitlines():
        answer, words = line.split(maxsplit=1)
        if true_of(case, words):
            return answer
    raise AssertionError


def test_every_case_is_decided_as_the_table_says() -> None:
    """What becomes of a batch can be read in a table of a page (EX-09, F4-F12, F15-F18)."""
    wrong = [(each, named(decision_of(each))) for each in cases()]
    wrong = [(each, found) for each, found in wrong if found != expected(each)]
    assert [] == wrong[:3]


def test_every_line_of_the_table_is_reached() -> None:
    """No rule stands there for nothing."""
    lines = [line.split(maxsplit=1)[1] for line in EXPECTED.strip().splitlines()]
    reached = {
        next(at for at, words in enumerate(lines) if true_of(case, words)) for case in cases()
    }
    assert set(range(len(lines))) == reached


def test_refusal_tells_both_sides() -> None:
    """I see what the publisher knows and what came, and what to do (EX-09)."""
    both = {
        "incarnation-changed": ({"incarnation": "a", "lastBatch": 2}, "current"),
        "fenced": ({"run": "r1", "level": 3, "lastBatch": 2}, "current"),
        "digest-version": ({"digestVersion": 1}, "expected"),
        "batch-conflict": ({"events": 3, "digest": SAME.digest}, "published"),
    }
    for case, problem in refusals():
        call, document = call_of(case), problem.document()
        given = {"producer": "p", "incarnation": call.incarnation, "run": call.run}
        assert {**given, "batch": call.batch}.items() <= document.items()
        assert document["remedy"] and document["detail"].endswith(document["remedy"])
        if problem.name in both:
            values, member = both[problem.name]
            assert values == document[member]


def test_levels_rise_with_each_run_and_incarnation_that_publishes() -> None:
    """Who came last can be told (F7), and numbers of receipts have no gaps."""
    published = [each for each in cases() if decision_of(each) is Step.PUBLISH]
    assert published
    for case in published:
        known, declared = known_of(case), declared_of(case)
        assert declared
        receipt = receipt_for(known, call_of(case), declared, (), (0, 0), 8)
        rose = case.run != "current" or case.caller != "current"
        state = known.producer
        assert (state.level + rose, state.receipts + 1, state.chain) == (
            receipt.level,
            receipt.number,
            receipt.previous,
        )
        assert ProducerState(
            "p", receipt.incarnation, receipt.level, receipt.run, receipt.batch, receipt.number,
            receipt.hash, 8,
        ) == after(receipt)  # fmt: skip
