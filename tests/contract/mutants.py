"""Ways to leave one check out of the commit decision, and short histories that then go wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.store_contract.drivers import TaskLayout
from tests.store_contract.world import World
from zeh_spark.publisher import Problem
from zeh_spark.service.store import commit_decision
from zeh_spark.service.store.batches import (
    Call,
    CommitFacts,
    Declared,
    Found,
    StoredReceipt,
    TaskAttempt,
)
from zeh_spark.wire.upload_format import Content

REAL = commit_decision.decide
Scenario = Callable[[World], None]
Mutant = Callable[..., commit_decision.Decision]
Uploads = dict[tuple[int, int], Found] | None


# Mutants of the decision: each alters what it is given so that one check always passes


def _not_deleted(known: CommitFacts, *given: Any) -> commit_decision.Decision:
    return REAL(replace(known, producer=replace(known.producer, deleted=False)), *given)


def _allowing(
    name: str, value: Callable[[CommitFacts, Call], str], *, if_set: bool = False
) -> Mutant:
    """The right remedy is there; with `if_set`, only where there is any: a remedy of one side."""

    def mutant(known: CommitFacts, call: Call, *given: Any) -> commit_decision.Decision:
        if getattr(call.overrides, name) or not if_set:
            right = replace(call.overrides, **{name: value(known, call)})
            call = replace(call, overrides=right)
        return REAL(known, call, *given)

    return mutant


def _replacement(known: CommitFacts, call: Call) -> str:
    return f"{known.producer.incarnation}@{known.producer.last}:{call.incarnation}"


def _gap(known: CommitFacts, call: Call) -> str:
    return f"{call.incarnation}@{known.last}:{call.batch}"


def _keep(known: CommitFacts, call: Call) -> str:
    return f"{call.incarnation}:{call.batch}:{known.receipt.identity if known.receipt else ''}"


def _unfenced(known: CommitFacts, *given: Any) -> commit_decision.Decision:
    return REAL(replace(known, run_known=False), *given)


def _never_expired(known: CommitFacts, call: Call, *given: Any) -> commit_decision.Decision:
    decision = REAL(known, call, *given)
    if isinstance(decision, Problem) and decision.name == "batch-expired":
        return _receipt(call, given[0] if given else None)
    return decision


def _receipt(call: Call, declared: Declared | None) -> StoredReceipt:
    content = declared.content if declared else Content()
    return StoredReceipt(
        number=1, producer="p", incarnation=call.incarnation, batch=call.batch or 0, run="r0",
        level=1, events=content.events, digest=content.digest, digest_version=1,
        partition_count=2, ranges=(), positions=None, time=0, previous="",
    )  # fmt: skip


def any_layout(known: CommitFacts, call: Call, *given: Any) -> commit_decision.Decision:
    return REAL(known, replace(call, partition_count=known.partition_count), *given)


def without_content_check(
    known: CommitFacts, call: Call, declared: Declared | None = None, found: Uploads = None
) -> commit_decision.Decision:
    """Without 9."""
    if declared and found is not None:
        content = sum((each.content for each in found.values()), Content())
        declared = replace(declared, content=content)
    return REAL(known, call, declared, found)


def any_uploads(
    known: CommitFacts, call: Call, declared: Declared | None = None, found: Uploads = None
) -> commit_decision.Decision:
    """Without 8."""
    return REAL(known, call, _as_found(declared, found), found)


def _anything(
    known: CommitFacts, call: Call, declared: Declared | None = None, found: Uploads = None
) -> commit_decision.Decision:
    """Without 8 and 9."""
    return without_content_check(known, call, _as_found(declared, found), found)


def _as_found(declared: Declared | None, found: Uploads) -> Declared | None:
    if not declared or found is None:
        return declared
    named = [(each, found.get((each.task, each.attempt), Found())) for each in declared.attempts]
    attempts = [TaskAttempt(a.task, a.attempt, f.uploads, f.content.events) for a, f in named]
    return replace(declared, attempts=tuple(attempts))


# Histories


def _replay_with_other_rows(world: World) -> None:
    execution = world.execute(TaskLayout())
    assert execution
    world.commit(execution, heard=False)
    world.restart()
    world.run_batch(TaskLayout(version=1))


def _restore(world: World) -> None:
    backup = world.copy_store()
    world.run_batch(TaskLayout())
    world.restore_store(backup)
    world.run_batch(TaskLayout())


STEPS: dict[str, Callable[[World], object]] = {
    "run": lambda world: world.run_batch(TaskLayout()),
    "run-older": lambda world: world.run_batch(TaskLayout(), which=0),
    "run-changed": lambda world: world.run_batch(TaskLayout(version=1)),
    "delete": World.delete_producer,
    "lose": lambda world: world.lose_checkpoint(0),
    "start-second": World.start_a_second_driver,
    "roll-back": lambda world: world.roll_back(4, recut=False),
    "replay-changed": _replay_with_other_rows,
    "restore": _restore,
    "paste": World.paste_remedy,  # and it is left in the code
}


def _history(steps: str) -> Scenario:
    """What happens, step by step."""

    def scenario(world: World) -> None:
        for step in steps.split():
            STEPS[step](world)

    return scenario


def lose_an_upload(world: World) -> None:
    execution = world.execute(TaskLayout(seed=1, tasks=2))
    assert execution
    world.release(execution)
    world.deliver_again(execution, 1)
    world.commit(execution)


def _change_a_body(world: World) -> None:
    """On the way, so that its length and its number of events stay."""
    real, changed = world._planned(world.drivers[0], TaskLayout()), TaskLayout(version=1)
    other = world._planned(world.drivers[0], changed).uploads
    at = [replace(each, attempt=real.uploads[0].attempt) for each in other]
    world.honest.add("content-mismatch")
    world.deliver_again(replace(real, uploads=tuple(at)), 9)
    world.commit(real)


@dataclass(frozen=True)
class Check:
    """A check: without it (`mutant`), `scenario` shows `anomaly`; with it, `refusal` is told."""

    name: str
    mutant: Mutant
    scenario: Scenario
    refusal: str
    anomaly: str


_replacing = functools.partial(_allowing, "replace_incarnation", _replacement)
_keeping = functools.partial(_allowing, "keep_first", _keep)
_over_a_gap = functools.partial(_allowing, "accept_gap", _gap)
CHANGED, CONFLICT = "incarnation-changed", "batch-conflict"

CHECKS = [
    Check("1 deleted", _not_deleted, _history("run delete run"), "producer-deleted", "resurrected"),
    Check("2 incarnation", _replacing(), _history("run lose run"), CHANGED, "intruder"),
    Check("2 both sides of replaceIncarnation", _replacing(if_set=True),
          _history("run lose run paste run lose run"), CHANGED, "intruder"),
    Check("3 fence", _unfenced, _history("run start-second run run-older run-older"),
          "fenced", "zombie"),
    Check("4a expired", _never_expired, _history("run run run run roll-back run-changed"),
          "batch-expired", "diverged"),
    Check("4f conflict", _keeping(), _history("replay-changed"), CONFLICT, "diverged"),
    Check("4e both sides of keepFirst", _keeping(if_set=True),
          _history("replay-changed paste run-changed replay-changed"), CONFLICT, "diverged"),
    Check("5 gap", _over_a_gap(), _history("run restore"), "batch-gap", "lost"),
    Check("5 first batch", _over_a_gap(), _history("restore"), "batch-gap", "lost"),
    Check("5 both sides of acceptGap", _over_a_gap(if_set=True),
          _history("run restore paste run run restore"), "batch-gap", "lost"),
    Check("8 and 9 whole", _anything, lose_an_upload, "upload-missing", "torn"),
    Check("9 content", without_content_check, _change_a_body, "content-mismatch", "torn"),
]  # fmt: skip
