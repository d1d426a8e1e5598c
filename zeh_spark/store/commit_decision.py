"""The commit decision: what becomes of a producer's batch. Pure.

`decide` is asked for every upload and for every commit, always with what the store knows inside the
same transaction.

Rule for editors: safety rests on incarnation, number and content. Levels only name a second driver
early, and overrides are inert unless they say exactly what the publisher would print now [a remedy
left in the code lost or doubled data in 396 of 400 simulated runs]. Each case names the alternative
that was rejected; tests/contract/test_mutations.py shows that each is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from zeh_spark.protocol import wire
from zeh_spark.protocol.upload_format import DIGEST_VERSION, Content
from zeh_spark.store import refusals
from zeh_spark.store.batches import Call, CommitFacts, Declared, Found, StoredReceipt
from zeh_spark.store.problems import Problem


class Step(Enum):
    """What to do next, where nothing is refused and nothing was committed before."""

    STAGE = auto()
    MOVE = auto()
    PUBLISH = auto()


Decision = Step | StoredReceipt | Problem
"""A receipt means: committed already, this is what was answered then."""


def decide(
    known: CommitFacts,
    call: Call,
    declared: Declared | None = None,
    found: Mapping[tuple[int, int], Found] | None = None,
) -> Decision:
    """What becomes of a call: of an upload without `declared`; of a commit in two steps, the second
    one with what was `found` of its attempts, by task and attempt, when they were moved.
    """
    producer, batch = known.producer, call.batch
    if batch is None:
        batch = known.last + 1
    # 1. The producer was deleted. [Starting again at -1: late requests would be published anew.]
    if producer.deleted:
        return refusals.producer_deleted(call)
    # 2. Another incarnation: a lost checkpoint, or two jobs with one name. [Going by the number
    #    alone: batches 0, 1, … of the new checkpoint would count as published, and be lost.]
    if producer.receipts and call.incarnation != producer.incarnation:
        remedy = f"{producer.incarnation}@{producer.last}:{call.incarnation}"
        if call.overrides.replace_incarnation != remedy:
            return refusals.incarnation_changed(call, producer, remedy)
    # 3. A run that another one has overtaken. [Levels at a run's first request: two drivers that
    #    restart would fence each other for ever.] Not for what it published itself. [A call whose
    #    answer was lost would hear that nothing was published.]
    overtaken = known.run_known and call.run != producer.run
    if overtaken and not _published_by(call, declared, known.receipt):
        return refusals.fenced(call, producer)
    if batch <= known.last:
        return _committed_before(known.receipt, call, declared)
    # 5. Batches are missing between. [Going on: what a restore or an emptied store undid would be
    #    lost in silence; also for a producer that is unknown, whose last batch is -1.]
    remedy = f"{call.incarnation}@{known.last}:{batch}"
    if batch != known.last + 1 and call.overrides.accept_gap != remedy:
        return refusals.batch_gap(call, producer, known.last, remedy)
    # 6. Routed for another number of partitions. [Taking it: keys would change their partition.]
    if call.partition_count != known.partition_count:
        return refusals.layout_changed(call, known.partition_count)
    if declared is None:
        return Step.STAGE
    # 7. Counted in a way that is not known here. [Keeping a receipt that nothing compares with.]
    if declared.digest_version != DIGEST_VERSION:
        return refusals.digest_version(call, declared.digest_version, DIGEST_VERSION)
    if found is None:
        return Step.MOVE
    # 8. Not all of it is there. [Publishing what is there: a torn batch.]
    for each in declared.attempts:
        here = found.get((each.task, each.attempt), Found())
        if (here.uploads, here.content.events) != (each.uploads, each.events):
            return refusals.upload_missing(call, each, here)
    # 9. It is not what the driver counted. [Trusting the transport.]
    content = sum((each.content for each in found.values()), Content())
    if content != declared.content:
        return refusals.content_mismatch(call, declared.content, content)
    return Step.PUBLISH


def _committed_before(
    receipt: StoredReceipt | None, call: Call, declared: Declared | None
) -> Decision:
    """Case 4: the batch's number is taken, in the caller's own incarnation."""
    # 4a. Its receipt is gone. [Answering "committed": other rows would be lost in silence.]
    if receipt is None:
        return refusals.batch_expired(call)
    # An upload learns that it need not be sent; its content shows at the commit.
    if declared is None:
        return receipt
    # 4b. Contents that cannot be compared. [Comparing all the same: a conflict that is none.]
    if declared.digest_version != receipt.digest_version:
        return refusals.digest_version(call, declared.digest_version, receipt.digest_version)
    # 4c. The same. [Asking for the same tasks or order, too: a replay has others.]
    content = declared.content
    if (content.events, content.digest) == (receipt.events, receipt.digest):
        return receipt
    # 4d. Somebody without a memory was quicker. [Offering to keep the first: it is another's.]
    if call.incarnation == wire.PLAIN_INCARNATION:
        return refusals.number_taken(call, content, receipt)
    # 4e. The operator keeps the first one. 4f. Nobody does. [Keeping it always: other rows under
    #     the same number would be lost in silence.]
    keep = keeping(call, receipt, content)
    if call.overrides.keep_first == keep:
        return receipt
    return refusals.batch_conflict(call, content, receipt, keep)


def keeping(call: Call, receipt: StoredReceipt, content: Content) -> str:
    """The override that keeps what was published. A stream's names the batch: its rows may be
    others at each try, and its number moves on. That of a named batch, which can come again for
    ever, names the rows, too [without them it went on to drop whatever came under the same name].
    """
    if call.incarnation == wire.BATCH_INCARNATION:
        given = content.digest[:8]
        return f"{receipt.producer}:{receipt.batch}:{receipt.identity}:{given}"
    return f"{receipt.incarnation}:{receipt.batch}:{receipt.identity}"


def _published_by(call: Call, declared: Declared | None, receipt: StoredReceipt | None) -> bool:
    """Whether the call's run has published this itself; an upload's content shows at the commit."""
    if receipt is None or call.run != receipt.run:
        return False
    if declared is None:
        return True
    content = declared.digest_version, declared.content.events, declared.content.digest
    return content == (receipt.digest_version, receipt.events, receipt.digest)


def known_receipt(known: CommitFacts, call: Call) -> StoredReceipt | None:
    """What is answered to who asks for a batch's receipt. Raises Problem if it is gone (4a)."""
    assert call.batch is not None
    if known.receipt is None and call.batch <= known.last:
        raise refusals.batch_expired(call)
    return known.receipt


def unwrapped(decision: Decision) -> Step | StoredReceipt:
    """Raises the Problem, if it is one."""
    if isinstance(decision, Problem):
        raise decision
    return decision
