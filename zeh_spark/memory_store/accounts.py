"""What is known of a producer of a feed, in this process's memory.

Rule for editors: whoever calls holds the store's lock. Nothing here decides what becomes of a batch
(see `store.commit_decision`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zeh_spark.store.batches import (
    Call,
    CommitFacts,
    Numbers,
    ProducerState,
    StoredReceipt,
    after,
)


@dataclass(slots=True)
class Account:
    """All that is known of a producer.

    Args:
        state: the producer as of its last batch.
        former: the last batch of each former incarnation.
        sequences: the numbers by stored partition.
        receipts: the newest receipts by their number.
    """

    state: ProducerState
    former: dict[str, int] = field(default_factory=dict)
    sequences: dict[int, Numbers] = field(default_factory=dict)
    receipts: dict[int, StoredReceipt] = field(default_factory=dict)

    def expire(self) -> None:
        """Forget what is not needed to refuse the producer by its name."""
        self.former.clear()
        self.sequences.clear()
        self.receipts.clear()

    def add(self, receipt: StoredReceipt, sequences: Mapping[int, Numbers], most: int) -> None:
        """Take a published batch into account.

        Args:
            receipt: the batch's receipt.
            sequences: the numbers after it, by stored partition.
            most: how many receipts are kept.
        """
        old = self.state
        if old.receipts and old.incarnation != receipt.incarnation:
            self.former[old.incarnation] = old.last
        self.state = after(receipt)
        self.sequences.update(sequences)
        self.receipts[receipt.number] = receipt
        self.receipts.pop(receipt.number - most, None)

    def facts(self, call: Call, partitions: int, *, deleted: bool) -> CommitFacts:
        """Return what is known when a call comes.

        Args:
            call: the call.
            partitions: how many partitions the feed has.
            deleted: whether the producer, or the one of whose batches it is, is deleted.
        """
        state, incarnation = replace(self.state, deleted=deleted), call.incarnation
        is_current = incarnation == state.incarnation
        last = state.last if is_current else self.former.get(incarnation, -1)
        run_known = self._knows(incarnation, call.run)
        mine = (each for each in self.receipts.values() if each.incarnation == incarnation)
        receipt = next((each for each in mine if each.batch == call.batch), None)
        return CommitFacts(state, partitions, last, run_known, receipt, self.sequences)

    def has_done(self, incarnation: str, batch: int | None, run: str) -> bool:
        """Return whether a batch that a run staged is published, or the run is overtaken."""
        if batch is None or self.state.incarnation != incarnation:
            return False
        overtaken = run != self.state.run and self._knows(incarnation, run)
        return batch <= self.state.last or overtaken

    def _knows(self, incarnation: str, run: str) -> bool:
        return any((e.incarnation, e.run) == (incarnation, run) for e in self.receipts.values())
