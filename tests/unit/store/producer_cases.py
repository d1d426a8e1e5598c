"""Every combination of a few values of all that the commit decision goes by, for its tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import msgspec

from zeh_spark.service.store.batches import (
    Call,
    CommitFacts,
    Declared,
    Found,
    Overrides,
    ProducerState,
    StoredReceipt,
    TaskAttempt,
)
from zeh_spark.service.store.commit_decision import Decision, decide
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire.upload_format import Content

SAME, OTHER = Content(3, 0xABCDEF0123 << 88), Content(3, 7)
RECEIPT = StoredReceipt(
    number=9, producer="p", incarnation="a", batch=0, run="r0", level=1, events=SAME.events,
    digest=SAME.digest, digest_version=1, partition_count=2, ranges=(), positions=None, time=5,
    previous="",
)  # fmt: skip


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


def receipt_of(case: Case) -> StoredReceipt | None:
    if case.number not in ("before", "last") or case.receipt == "expired":
        return None
    assert case.batch is not None
    return msgspec.structs.replace(RECEIPT, incarnation=case.incarnation, batch=case.batch)


def known_of(case: Case) -> CommitFacts:
    if case.producer == "unknown":
        return CommitFacts(ProducerState("p"), 2)
    state = ProducerState("p", "a", 3, "r1", 2, 30, "c" * 64, 7, case.producer == "deleted")
    return CommitFacts(state, 2, case.last, case.run != "new", receipt_of(case))


def remedies_of(case: Case) -> Overrides:
    right = {
        "replace_incarnation": f"a@2:{case.incarnation}",
        "accept_gap": f"{case.incarnation}@{case.last}:{case.batch}",
        "keep_first": f"{case.incarnation}:{case.batch}:{SAME.digest[:8]}",
    }
    short = {"replace": "replace_incarnation", "gap": "accept_gap", "keep": "keep_first"}
    if case.remedy == "others":  # as they were printed in other states
        return Overrides(f"a@{case.last - 1}:{case.batch}", "a@1:f", f"a:{case.batch}:00000000")
    if case.remedy == "all":
        return Overrides(**right)
    if case.remedy == "none":
        return Overrides()
    return Overrides(**{short[case.remedy]: right[short[case.remedy]]})


def call_of(case: Case) -> Call:
    run = {"current": "r1", "overtaken": "r0", "new": "r2"}[case.run]
    count = 2 if case.partitions == "same" else 3
    return Call("p", case.incarnation, run, case.batch, count, remedies_of(case))


def declared_of(case: Case) -> Declared | None:
    if case.content == "upload":
        return None
    attempts = (TaskAttempt(0, 7, 2, 2), TaskAttempt(1, 8, 1, 1), TaskAttempt(2, 9, 0, 0))
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


def decision_of(case: Case, overrides: Overrides | None = None) -> Decision:
    call = call_of(case)
    call = call if overrides is None else replace(call, overrides=overrides)
    return decide(known_of(case), call, declared_of(case), found_of(case))


def named(decision: Decision) -> str:
    if isinstance(decision, Problem):
        return decision.name
    return "committed" if isinstance(decision, StoredReceipt) else decision.name


def said(decision: Decision) -> object:
    return decision.document() if isinstance(decision, Problem) else decision


def refusals() -> Iterator[tuple[Case, Problem]]:
    for case in cases():
        decision = decision_of(case)
        if isinstance(decision, Problem):
            yield case, decision
