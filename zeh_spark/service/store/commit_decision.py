"""The commit decision: what becomes of a producer's batch. It has no side effects.

`decide` is called for every upload and for every commit, always with what the store knows inside
the same transaction.

Rule for editors: safety depends on incarnation, number and content. Levels only detect a second
driver early. Overrides do nothing unless they are exactly what the publisher would print now:
otherwise, a remedy left in the code lost or doubled data in 396 of 400 simulated runs. Each case
names the alternative that was rejected; tests/contract/test_mutations.py shows that each is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from zeh_spark.service.store import refusals
from zeh_spark.service.store.acts import Act, Action, new_act
from zeh_spark.service.store.batches import Call, CommitFacts, Declared, Found, StoredReceipt
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import wire
from zeh_spark.wire.upload_format import DIGEST_VERSION, Content


class Step(Enum):
    """What to do next, if nothing is refused and nothing was committed before."""

    STAGE = auto()
    MOVE = auto()
    PUBLISH = auto()


Decision = Step | StoredReceipt | Problem
"""A receipt means that the batch is committed already, with this receipt."""


def decide(
    known: CommitFacts,
    call: Call,
    declared: Declared | None = None,
    found: Mapping[tuple[int, int], Found] | None = None,
) -> Decision:
    """Return what becomes of a call.

    An upload is decided without `declared`. A commit is decided twice: first without `found`, then
    with what was found of its attempts when they were moved. `found` is by task and attempt.
    """
    producer, batch = known.producer, known.number_of(call)
    # 1. The producer was deleted. Rejected: starting again at -1, because late requests would be
    #    published again.
    if producer.deleted:
        return refusals.producer_deleted(call)
    # 2. Another incarnation: a lost checkpoint, or two jobs with one name. Rejected: deciding by
    #    the number alone, because batches 0, 1, … of the new checkpoint would count as published,
    #    and be lost.
    if producer.receipts and call.incarnation != producer.incarnation:
        remedy = f"{producer.incarnation}@{producer.last}:{call.incarnation}"
        if call.overrides.replace_incarnation != remedy:
            return refusals.incarnation_changed(call, producer, remedy)
    # 3. A run that another one has overtaken, except for what it published itself. Rejected: levels
    #    at a run's first request, because two drivers that restart would fence each other for ever.
    #    Rejected: no exception, because a call whose answer was lost would be told that nothing
    #    was published.
    overtaken = known.run_known and call.run != producer.run
    if overtaken and not _published_by(call, declared, known.receipt):
        return refusals.fenced(call, producer)
    if batch <= known.last:
        return _committed_before(known.receipt, call, declared)
    # 5. Batches are missing between, also for an unknown producer, whose last batch is -1.
    #    Rejected: continuing, because what a restore or an emptied store undid would be lost
    #    without an error.
    remedy = f"{call.incarnation}@{known.last}:{batch}"
    if batch != known.last + 1 and call.overrides.accept_gap != remedy:
        return refusals.batch_gap(call, producer, known.last, remedy)
    # 5b. Too many producers for this client. Rejected: a limit for the feed, because one client
    #     would use it up for all.
    if not producer.receipts and call.maker and known.made >= call.maker.most:
        return refusals.too_many_producers(call, call.maker.most)
    # 6. Made for another number of partitions. Rejected: taking it, because keys would change their
    #    partition.
    if call.partition_count != known.partition_count:
        return refusals.layout_changed(call, known.partition_count)
    # 6b. The producer is to begin with numbers with which it did not begin. Rejected: continuing
    #     after its own, because the caller relies on numbers that are others.
    for partition, number in call.starting:
        own = known.sequences.get(partition)
        if own and own.first != number:
            return refusals.starting_sequence(call, partition, number, own)
    if declared is None:
        return Step.STAGE
    # 7. Counted in a way that is not known here. Rejected: keeping a receipt with which nothing
    #    can be compared.
    if declared.digest_version != DIGEST_VERSION:
        return refusals.digest_version(call, declared.digest_version, DIGEST_VERSION)
    if found is None:
        return Step.MOVE
    # 8. Not all of it is there. Rejected: publishing what is there, a part of a batch.
    for each in declared.attempts:
        here = found.get((each.task, each.attempt), Found())
        if (here.uploads, here.content.events) != (each.uploads, each.events):
            return refusals.upload_missing(call, each, here)
    # 9. It is not what the driver counted. Rejected: trusting the transport.
    content = sum((each.content for each in found.values()), Content())
    if content != declared.content:
        return refusals.content_mismatch(call, declared.content, content)
    # 10. Events were checked with an older schema that is not compatible, or with none. Rejected:
    #     checking them here, because a commit reads no events.
    versions = [each.schema_version for each in found.values() if each.schema_version is not None]
    if versions and min(versions) < known.schema_since:
        return refusals.schema_changed(call, min(versions), known.schema_version)
    return Step.PUBLISH


def _committed_before(
    receipt: StoredReceipt | None, call: Call, declared: Declared | None
) -> Decision:
    """Decide case 4: the batch's number is taken, in the caller's own incarnation."""
    # 4a. Its receipt is gone. Rejected: answering "committed", because other rows would be lost
    #     without an error.
    if receipt is None:
        return refusals.batch_expired(call)
    # An upload need not be sent; its content is compared at the commit.
    if declared is None:
        return receipt
    # 4b. Contents that cannot be compared. Rejected: comparing them, which gives false conflicts.
    if declared.digest_version != receipt.digest_version:
        return refusals.digest_version(call, declared.digest_version, receipt.digest_version)
    # 4c. The same. Rejected: requiring the same tasks or order, because a replay has others.
    content = declared.content
    if content.is_in(receipt):
        return receipt
    # 4d. Another program with the same name was quicker. Rejected: offering to keep the first,
    #     because that is the other program's.
    if call.incarnation == wire.PLAIN_INCARNATION:
        return refusals.number_taken(call, content, receipt)
    # 4e. The operator keeps the first one. 4f. The operator does not. Rejected: keeping it always,
    #     because other rows under the same number would be lost without an error.
    keep = keeping(call, receipt, content)
    if call.overrides.keep_first == keep:
        return receipt
    return refusals.batch_conflict(call, content, receipt, keep)


def keeping(call: Call, receipt: StoredReceipt, content: Content) -> str:
    """Return the override that keeps what was published.

    A stream's override names the batch: its rows may be others at each try, and its number moves
    on. A named batch can be repeated for ever, so its override names the rows, too. Rejected:
    leaving them out, because the override then also dropped whatever was published under that name
    later.
    """
    if call.incarnation == wire.BATCH_INCARNATION:
        given = content.digest[:8]
        return f"{receipt.producer}:{receipt.batch}:{receipt.identity}:{given}"
    return f"{receipt.incarnation}:{receipt.batch}:{receipt.identity}"


def accepted_override(
    feed: str, known: CommitFacts, call: Call, declared: Declared, time: int
) -> Act | None:
    """Return the administrative act that a commit is which `decide` did not refuse.

    It is one if `decide` would have refused the commit without an override, else None.
    """
    producer, receipt, given = known.producer, known.receipt, call.overrides
    batch = known.number_of(call)
    told: dict[str, Any] = {}
    if producer.receipts and call.incarnation != producer.incarnation:
        told["replaceIncarnation"] = given.replace_incarnation
    if batch > known.last + 1:
        told["acceptGap"] = given.accept_gap
    if batch <= known.last and receipt and not declared.content.is_in(receipt):
        told["keepFirst"] = given.keep_first
        told |= {"kept_events": receipt.events, "dropped_events": declared.content.events}
    if not told:
        return None
    about = {"batch": batch, "run": call.run, **told}
    return new_act(call.by, Action.ACCEPT_OVERRIDE, time, feed=feed, subject=call.producer, **about)


def _published_by(call: Call, declared: Declared | None, receipt: StoredReceipt | None) -> bool:
    """Return whether the call's run has published this; an upload's content shows at the commit."""
    if receipt is None or call.run != receipt.run:
        return False
    if declared is None:
        return True
    same_version = declared.digest_version == receipt.digest_version
    return same_version and declared.content.is_in(receipt)


def known_receipt(known: CommitFacts, call: Call) -> StoredReceipt | None:
    """Return the receipt of the call's batch; None if it is not committed.

    Raises Problem if the receipt is gone (case 4a).
    """
    assert call.batch is not None
    if known.receipt is None and call.batch <= known.last:
        raise refusals.batch_expired(call)
    return known.receipt


def unwrapped(decision: Decision) -> Step | StoredReceipt:
    """Return the decision, unless it is a Problem, which is raised."""
    if isinstance(decision, Problem):
        raise decision
    return decision
