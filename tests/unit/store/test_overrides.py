"""Options that a refused commit prints: each lets that pass, and is inert in all other cases."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import msgspec
import pytest

from tests.unit.store.producer_cases import (
    OTHER,
    RECEIPT,
    Case,
    call_of,
    cases,
    decision_of,
    declared_of,
    known_of,
    named,
    refusals,
    remedies_of,
    said,
)
from zeh_spark.service.store.batches import (
    Call,
    CommitFacts,
    Declared,
    Overrides,
    after,
    receipt_for,
)
from zeh_spark.service.store.commit_decision import Step, decide
from zeh_spark.service.store.problems import Problem

OPTIONS = {
    "acceptGap": "accept_gap",
    "replaceIncarnation": "replace_incarnation",
    "keepFirst": "keep_first",
}


def test_option_is_printed_ready_to_paste() -> None:
    """The remedy stands in the sentence and, for programs, in a member."""
    printed = {problem.name for _, problem in refusals() if "option" in problem.members}
    assert {"incarnation-changed", "batch-gap", "batch-conflict"} == printed
    for _, problem in refusals():
        for name, value in problem.members.get("option", {}).items():
            assert problem.detail.endswith(f"set once {name}={value}")


def test_printed_option_lets_this_refusal_pass() -> None:
    """What I am told to set helps, and what else is wrong is told. With a typing error: inert."""
    for case, problem in refusals():
        if "option" in problem.members:
            ((name, value),) = problem.members["option"].items()
            with_it = replace(remedies_of(case), **{OPTIONS[name]: value})
            assert named(decision_of(case, with_it)) != problem.name
            for wrong in (value + "0", " " + value, value[1:], value.upper() + ":", "", "*"):
                with_it = replace(remedies_of(case), **{OPTIONS[name]: wrong})
                assert problem.members["option"] == decision_of(case, with_it).members["option"]


def test_option_is_inert_wherever_it_is_not_printed() -> None:
    """An override left in the code acts only where I would be told to set it (A2)."""
    bare = [each for each in cases() if each.remedy == "none"]
    before = {each: decision_of(each) for each in bare}
    options = [problem.members.get("option") for _, problem in refusals()]
    for option in {next(iter(each.items())) for each in options if each}:
        with_it = Overrides(**{OPTIONS[option[0]]: option[1]})
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
        overrides = replace(remedies_of(case), **{OPTIONS[name]: option})
        if decision_of(case, overrides) is Step.PUBLISH:
            acted += 1
            _check_inert(case, replace(call_of(case), overrides=overrides))
    assert acted


def _check_inert(case: Case, call: Call) -> None:
    declared = declared_of(case)
    assert declared
    receipt = receipt_for(known_of(case), call, declared, (), (0, 0), 8)
    for incarnation, run, step in product("afs", ("r0", "r1", "r2", "r3"), (0, 1, 2, 3)):
        mine = incarnation == receipt.incarnation
        last = receipt.batch if mine else 2
        known = CommitFacts(after(receipt), 2, last, run == receipt.run, receipt if mine else None)
        later = replace(call, incarnation=incarnation, run=run, batch=last + step)
        without = replace(later, overrides=Overrides())
        assert said(decide(known, later, declared)) == said(decide(known, without, declared))


def test_who_has_no_memory_is_told_that_the_number_is_taken() -> None:
    """Nobody offers me to drop my rows in favour of somebody else's."""
    receipt = msgspec.structs.replace(RECEIPT, incarnation="plain", batch=0)
    known = CommitFacts(after(receipt), 2, 0, run_known=False, receipt=receipt)
    refused = decide(known, Call("p", "plain", "r2", 0, 2), Declared(OTHER, ()))
    assert isinstance(refused, Problem)
    assert ("number-taken", False) == (refused.name, "option" in refused.members)
