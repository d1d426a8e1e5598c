"""The commit decision, whole: every combination of a few values of all that it goes by, against a
table in plain words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import msgspec
import pytest

from zeh_spark.chunks import Content
from zeh_spark.publisher.batches import (
    Attempt,
    Call,
    Declared,
    Found,
    Known,
    Producer,
    Receipt,
    Remedies,
    after,
    receipt_for,
)
from zeh_spark.publisher.problems import Problem
from zeh_spark.publisher.producers import Decision, Step, decide, unwrapped

SAME, OTHER, MORE = Content(3, 0xABCDEF0123 << 88), Content(3, 7), Content(9, 9 << 99)
RECEIPT = Receipt(
    number=9,
    producer="p",
    incarnation="a",
    batch=0,
    run="r0",
    level=1,
    events=SAME.events,
    digest=SAME.digest,
    digest_version=1,
    partition_count=2,
    ranges=(),
    positions=None,
    time=5,
    previous="",
)
OPTIONS = {
    "acceptGap": "accept_gap",
    "replaceIncarnation": "replace_incarnation",
    "keepFirst": "keep_first",
}


@dataclass(frozen=True)
class Case:
    """A call in words."""

    producer: str  # unknown, known, deleted
    caller: str  # current, former, stranger: its incarnation
    run: str  # current, overtaken, new
    number: str  # before, last, next, beyond, none
    receipt: str  # kept, expired: of the batch, if there was one
    content: str  # upload, same, other, version: what is declared
    found: str  # unasked, whole, fewer, none, changed
    partitions: str  # same, other
    remedy: str  # none, replace, gap, keep, all, others

    @property
    def last(self) -> int:
        """Of the caller's incarnation."""
        if self.producer == "unknown":
            return -1
        return {"current": 2, "former": 4, "stranger": -1}[self.caller]

    @property
    def batch(self) -> int | None:
        steps = {"before": -1, "last": 0, "next": 1, "beyond": 3, "none": None}
        step = steps[self.number]
        return None if step is None else self.last + step

    @property
    def incarnation(self) -> str:
        return {"current": "a", "former": "f", "stranger": "s"}[self.caller]


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


@cache
def cases() -> list[Case]:
    """All that can be: strangers have committed nothing, an unknown producer knows nobody."""
    every = product(
        ("unknown", "known", "deleted"),
        ("current", "former", "stranger"),
        ("current", "overtaken", "new"),
        ("before", "last", "next", "beyond", "none"),
        ("kept", "expired"),
        ("upload", "same", "other", "version"),
        ("unasked", "whole", "fewer", "none", "changed"),
        ("same", "other"),
        ("none", "replace", "gap", "keep", "all", "others"),
    )
    return [case for case in (Case(*each) for each in every) if possible(case)]


def possible(case: Case) -> bool:
    taken = case.number in ("before", "last")
    nobody = case.producer == "unknown" or case.caller == "stranger"
    if nobody and (taken or case.run != "new"):
        return False
    if case.producer == "unknown" and case.caller != "stranger":
        return False
    if case.run == "current" and case.caller != "current":
        return False
    if not taken and case.receipt == "expired":
        return False
    return case.found == "unasked" or case.content != "upload"


def receipt_of(case: Case) -> Receipt | None:
    if case.number not in ("before", "last") or case.receipt == "expired":
        return None
    assert case.batch is not None
    return msgspec.structs.replace(RECEIPT, incarnation=case.incarnation, batch=case.batch)


def known_of(case: Case) -> Known:
    if case.producer == "unknown":
        return Known(Producer("p"), 2)
    state = Producer("p", "a", 3, "r1", 2, 30, "c" * 64, 7, case.producer == "deleted")
    return Known(state, 2, case.last, case.run != "new", receipt_of(case))


def remedies_of(case: Case) -> Remedies:
    right = {
        "replace_incarnation": f"a@2:{case.incarnation}",
        "accept_gap": f"{case.incarnation}@{case.last}:{case.batch}",
        "keep_first": f"{case.incarnation}:{case.batch}:{SAME.digest[:8]}",
    }
    short = {"replace": "replace_incarnation", "gap": "accept_gap", "keep": "keep_first"}
    if case.remedy == "others":  # as they were printed in other states
        return Remedies(f"a@{case.last - 1}:{case.batch}", "a@1:f", f"a:{case.batch}:00000000")
    if case.remedy == "all":
        return Remedies(**right)
    if case.remedy == "none":
        return Remedies()
    return Remedies(**{short[case.remedy]: right[short[case.remedy]]})


def call_of(case: Case) -> Call:
    run = {"current": "r1", "overtaken": "r0", "new": "r2"}[case.run]
    count = 2 if case.partitions == "same" else 3
    return Call("p", case.incarnation, run, case.batch, count, remedies_of(case))


def declared_of(case: Case) -> Declared | None:
    if case.content == "upload":
        return None
    attempts = (Attempt(0, 7, 2, 2), Attempt(1, 8, 1, 1), Attempt(2, 9, 0, 0))
    version = 2 if case.content == "version" else 1
    return Declared(OTHER if case.content == "other" else SAME, attempts, version)


def found_of(case: Case) -> dict[tuple[int, int], Found] | None:
    if case.found == "unasked":
        return None
    if case.found == "none":
        return {}
    whole = OTHER if case.content == "other" else SAME
    first = Content(2, 5)
    second = Content(1, (whole.sum - 5 + (case.found == "changed")) % (1 << 128))
    uploads = 1 if case.found == "fewer" else 2
    return {(0, 7): Found(uploads, first), (1, 8): Found(1, second)}


def decision_of(case: Case, remedies: Remedies | None = None) -> Decision:
    call = call_of(case)
    call = call if remedies is None else replace(call, remedies=remedies)
    return decide(known_of(case), call, declared_of(case), found_of(case))


def named(decision: Decision) -> str:
    if isinstance(decision, Problem):
        return decision.name
    return "committed" if isinstance(decision, Receipt) else decision.name


def said(decision: Decision) -> object:
    return decision.document() if isinstance(decision, Problem) else decision


def refusals() -> Iterator[tuple[Case, Problem]]:
    for case in cases():
        decision = decision_of(case)
        if isinstance(decision, Problem):
            yield case, decision


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


def test_committed_is_answered_with_the_receipt_itself() -> None:
    """A repetition gets the answer of the first time (KA-02)."""
    found = [(decision_of(each), receipt_of(each)) for each in cases()]
    assert [] == [each for each, kept in found if isinstance(each, Receipt) and each != kept]


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


def test_option_is_printed_ready_to_paste() -> None:
    """The remedy stands in the sentence and, for programs, in a member."""
    printed = {problem.name for _, problem in refusals() if "option" in problem.members}
    assert {"incarnation-changed", "batch-gap", "batch-conflict"} == printed
    for _, problem in refusals():
        for name, value in problem.members.get("option", {}).items():
            assert problem.detail.endswith(f"set once {name}={value}")


def test_printed_option_lets_this_refusal_pass() -> None:
    """What the error tells me to set helps; what else is wrong is then told."""
    for case, problem in refusals():
        if "option" in problem.members:
            ((name, value),) = problem.members["option"].items()
            with_it = replace(remedies_of(case), **{OPTIONS[name]: value})
            assert named(decision_of(case, with_it)) != problem.name


def test_option_is_inert_wherever_it_is_not_printed() -> None:
    """A remedy left in the code acts only where I would be told to set it (A2)."""
    bare = [each for each in cases() if each.remedy == "none"]
    before = {each: decision_of(each) for each in bare}
    options = [problem.members.get("option") for _, problem in refusals()]
    for option in {next(iter(each.items())) for each in options if each}:
        with_it = Remedies(**{OPTIONS[option[0]]: option[1]})
        for case, decision in before.items():
            prints = isinstance(decision, Problem) and decision.members.get("option")
            if prints != dict([option]):
                assert said(decision_of(case, with_it)) == said(decision)


@pytest.mark.parametrize("name", ["replaceIncarnation", "acceptGap"])
def test_option_is_inert_once_it_has_acted(name: str) -> None:
    """After the batch that a remedy let in, each next one is judged as without it (A2)."""
    acted = 0
    for case, problem in refusals():
        option = problem.members.get("option", {}).get(name)
        if option is None:
            continue
        remedies = replace(remedies_of(case), **{OPTIONS[name]: option})
        if decision_of(case, remedies) is Step.PUBLISH:
            acted += 1
            _check_inert(case, replace(call_of(case), remedies=remedies))
    assert acted


def _check_inert(case: Case, call: Call) -> None:
    declared = declared_of(case)
    assert declared
    receipt = receipt_for(known_of(case), call, declared, (), (0, 0), 8)
    for incarnation, run, step in product("afs", ("r0", "r1", "r2", "r3"), (0, 1, 2, 3)):
        mine = incarnation == receipt.incarnation
        last = receipt.batch if mine else 2
        known = Known(after(receipt), 2, last, run == receipt.run, receipt if mine else None)
        later = replace(call, incarnation=incarnation, run=run, batch=last + step)
        without = replace(later, remedies=Remedies())
        assert said(decide(known, later, declared)) == said(decide(known, without, declared))


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
        assert Producer(
            "p", receipt.incarnation, receipt.level, receipt.run, receipt.batch, receipt.number,
            receipt.hash, 8,
        ) == after(receipt)  # fmt: skip


def test_problem_is_raised_where_the_store_asks() -> None:
    """A refusal ends the store's transaction."""
    for case in cases():
        decision = decision_of(case)
        if isinstance(decision, Problem):
            with pytest.raises(Problem):
                unwrapped(decision)
        else:
            assert unwrapped(decision) is decision


@pytest.mark.parametrize(
    ("incarnation", "printed", "given"),
    [
        ("a", f"a:0:{SAME.digest[:8]}", [OTHER, MORE]),
        ("batch", f"p:0:{SAME.digest[:8]}:{OTHER.digest[:8]}", [OTHER]),
    ],
)
def test_what_keeps_the_first(incarnation: str, printed: str, given: list[Content]) -> None:
    """A stream's remedy holds for its batch, a named batch's for exactly those rows (A2)."""
    call = Call("p", incarnation, "r2", 0, 2)
    receipt = receipt_by(incarnation)
    known = Known(after(receipt), 2, 0, run_known=False, receipt=receipt)
    refused = decide(known, call, Declared(OTHER, ()))
    assert isinstance(refused, Problem)
    assert {"keepFirst": printed} == refused.members["option"]
    kept = replace(call, remedies=Remedies(keep_first=printed))
    answers = [(each, decide(known, kept, Declared(each, ()))) for each in (OTHER, MORE)]
    assert given == [each for each, answer in answers if answer is receipt]


def test_who_has_no_memory_is_told_that_the_number_is_taken() -> None:
    """Nobody offers me to drop my rows in favour of somebody else's."""
    receipt = receipt_by("plain")
    known = Known(after(receipt), 2, 0, run_known=False, receipt=receipt)
    refused = decide(known, Call("p", "plain", "r2", 0, 2), Declared(OTHER, ()))
    assert isinstance(refused, Problem)
    assert ("number-taken", False) == (refused.name, "option" in refused.members)


def receipt_by(incarnation: str) -> Receipt:
    return msgspec.structs.replace(RECEIPT, incarnation=incarnation, batch=0)


def test_accepted_gap_of_one_incarnation_is_inert_in_another() -> None:
    """A remedy of the old checkpoint, left in the code, does not act in the new one (A2)."""
    declared, remedies = Declared(SAME, ()), Remedies(accept_gap="a@-1:1")
    old = Call("p", "a", "r1", 1, 2, remedies)
    assert decide(Known(Producer("p"), 2), old, declared) is Step.MOVE
    new = Call("p", "b", "r2", 1, 2, replace(remedies, replace_incarnation="a@1:b"))
    known = Known(Producer("p", "a", 1, "r1", 1, 1), 2)
    assert "batch-gap" == named(decide(known, new, declared))
