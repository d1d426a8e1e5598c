"""Check a producer's receipts against each other, and against the producer's state. Pure.

The receipts are taken newest first, as the publisher gives them, and are not kept.

Rule for editors: others may publish meanwhile. Commits may come between the state and the receipts,
and between two pages of receipts, and newer receipts make older ones expire. So the state is
compared with the receipt of its own number, wherever that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from zeh_spark.service.store.batches import RECEIPTS, StoredRange, StoredReceipt, after, chained
from zeh_spark.tools.audit.findings import Difference
from zeh_spark.wire.wire import BATCH_INCARNATION


class ListedState(msgspec.Struct, frozen=True, rename="camel"):
    """A producer's state as the publisher tells it, under the names of the publish API."""

    producer: str
    incarnation: str | None
    last_batch: int
    run: str | None
    level: int
    receipts: int
    chain: str
    time: int | None
    deleted: bool
    next_sequences: dict[int, int]
    first_sequences: dict[int, int] = {}


def state_of(document: Mapping[str, Any]) -> ListedState:
    return msgspec.convert(document, ListedState, str_keys=True)


class Chain:
    """The receipts of one producer, taken from the newest to the oldest.

    Attributes:
        first: The lowest position that a receipt claims; None if none does.
        last: The highest position that a receipt claims, or 0.
        within: How many receipts are of the audited part, up to `head`.
        empty: How many of these have no events.

    Args:
        state: The producer's state, asked for before its receipts.
    """

    def __init__(self, state: ListedState, head: int) -> None:
        self.state = state
        self.first: int | None = None
        self.last = 0
        self.within = 0
        self.empty = 0
        self.gaps = 0
        self._head = head
        self._place = head
        self._newer: StoredReceipt | None = None
        self._newest = 0
        self._batches: dict[str, int] = {}
        self._next: dict[int, int] = {}
        self._since: list[tuple[StoredRange, ...]] = []

    @property
    def oldest(self) -> int:
        """The number of the oldest receipt so far; one more than the newest if there was none."""
        return self._newer.number if self._newer else self.state.receipts + 1

    def add(self, receipt: StoredReceipt) -> Difference | None:
        """Take the next older receipt, and return the first thing that is wrong with it."""
        newer, self._newer, behind = self._newer, receipt, self._place
        self._newest = self._newest or receipt.number
        if receipt.positions:
            self._place = receipt.positions[0]
            self.first = self._place
            self.last = max(self.last, receipt.positions[1])
        self._count(receipt)
        wrong = next(self._wrong(receipt, newer, behind), None)
        self._remember(receipt)
        return wrong

    def end(self, newest: int) -> Difference | None:
        """Return what is wrong after the last receipt that the publisher gave.

        `newest` is the number of the producer's newest receipt, asked for after all of them.
        """
        return next(self._wrong_at_end(newest), None)

    def told(self) -> Mapping[int, int]:
        """Return the next sequence number of each partition that only the state tells.

        These are partitions of which no receipt is left. It is empty if the state cannot be
        compared with the audited part.
        """
        if self.oldest == 1 or self.first is None or self.first > self._head:
            return {}
        kept = {**self._next, **{e.partition: 0 for each in self._since for e in each}}
        return {p: n for p, n in self.state.next_sequences.items() if p not in kept}

    def _count(self, receipt: StoredReceipt) -> None:
        if not receipt.positions:
            self.within, self.empty = self.within + 1, self.empty + 1
        elif receipt.positions[0] <= self._head:
            self.within += 1
        else:  # all receipts that came before this one were committed even later
            self.within = self.empty = 0

    def _wrong(
        self, receipt: StoredReceipt, newer: StoredReceipt | None, behind: int
    ) -> Iterator[Difference]:
        if receipt.producer != self.state.producer:
            yield self._differs(receipt, "the receipt's producer", self.state.producer,
                                receipt.producer)  # fmt: skip
        if (right := chained(receipt)) != receipt.hash:
            yield self._differs(receipt, "the receipt's hash", right, receipt.hash)
        told = sum(each.last - each.first + 1 for each in receipt.ranges)
        if told != receipt.events:
            yield self._differs(receipt, "events by the receipt's ranges", receipt.events, told)
        if bool(receipt.positions) != bool(receipt.events):
            yield self._differs(
                receipt, "the receipt's positions",
                "some" if receipt.events else "none", receipt.positions,
            )  # fmt: skip
        if receipt.number == 1 and receipt.previous:
            yield self._differs(receipt, "the hash before the first receipt", "none",
                                receipt.previous)  # fmt: skip
        if receipt.number == self.state.receipts:
            yield from self._unlike_state(receipt)
        if newer:
            yield from self._unlinked(receipt, newer, behind)
        before = self._batches.get(receipt.incarnation)
        if before is not None and before <= receipt.batch:
            yield self._differs(
                receipt, f"a batch number of incarnation {receipt.incarnation!r}",
                f"one below {before}, which came later", receipt.batch,
            )  # fmt: skip

    def _unlinked(
        self, receipt: StoredReceipt, newer: StoredReceipt, behind: int
    ) -> Iterator[Difference]:
        if newer.number != receipt.number + 1:
            found = f"{receipt.number}, then {newer.number}"
            yield self._lost(behind, receipt.number + 1, found)
        elif newer.previous != receipt.hash:
            yield self._differs(receipt, f"the hash that receipt {newer.number} names for this one",
                                receipt.hash, newer.previous)  # fmt: skip
        if newer.level < receipt.level:
            yield self._differs(receipt, "the receipt's level", f"at most {newer.level}, as later",
                                receipt.level)  # fmt: skip
        if newer.time < receipt.time:
            yield self._differs(receipt, "the receipt's time", f"at most {newer.time}, as later",
                                receipt.time)  # fmt: skip

    def _unlike_state(self, receipt: StoredReceipt) -> Iterator[Difference]:
        state, right = self.state, after(receipt)
        compared = {
            "chain": (right.chain, state.chain),
            "incarnation": (right.incarnation, state.incarnation),
            "lastBatch": (right.last, state.last_batch),
            "run": (right.run, state.run),
            "level": (right.level, state.level),
            "time": (right.time, state.time),
        }
        for name, (expected, found) in compared.items():
            if expected != found:
                yield self._differs(
                    receipt, f"the producer's {name}, which its newest receipt tells",
                    expected, found,
                )  # fmt: skip

    def _wrong_at_end(self, newest: int) -> Iterator[Difference]:
        if not self._newest and (self.state.deleted or self.state.incarnation == BATCH_INCARNATION):
            return  # the publisher deletes old receipts of batches with names and idle producers
        if self._newest < self.state.receipts:
            yield self._lost(self._head, self.state.receipts, self._newest or "none")
        elif self.oldest > max(1, newest - RECEIPTS + 1):
            yield self._lost(self._place, self.oldest - 1, f"none below {self.oldest}")
        if self.oldest <= self.state.receipts and not self._numbers_agree():
            expected, told = dict(sorted(self._next.items())), self.state.next_sequences
            yield Difference(
                min(self.last, self._head), "nextSequences, which the receipts tell", expected,
                dict(sorted(told.items())), self.state.producer,
            )  # fmt: skip

    def _numbers_agree(self) -> bool:
        """Return whether the state's `nextSequences` fit the receipts.

        The publisher looks them up a moment after the rest of the state. So they fit if they are
        those after the state's last receipt, or after a receipt that came since.
        """
        told, table = self.state.next_sequences, dict(self._next)
        for ranges in [(), *reversed(self._since)]:
            table.update((each.partition, each.last + 1) for each in ranges)
            mine = told if self.oldest == 1 else {p: n for p, n in told.items() if p in table}
            if mine == table:
                return True
        return False

    def _remember(self, receipt: StoredReceipt) -> None:
        if receipt.number > self.state.receipts:
            self._since.append(receipt.ranges)
        else:
            for each in receipt.ranges:
                self._next.setdefault(each.partition, each.last + 1)
        before = self._batches.get(receipt.incarnation)
        self.gaps += before is not None and before > receipt.batch + 1
        self._batches[receipt.incarnation] = receipt.batch
        if receipt.number == 1:  # every receipt that there ever was has been seen
            self.gaps += sum(first > 0 for first in self._batches.values())

    def _lost(self, place: int, number: int, found: object) -> Difference:
        """Return the difference for a missing receipt, at the highest position it may have claimed.

        If it did claim positions, the feed has events there that nothing claims. Their difference
        is at a lower position, and is reported instead.
        """
        what = "the producer's receipts by number"
        return Difference(place, what, number, found, self.state.producer)

    def _differs(
        self, receipt: StoredReceipt, what: str, expected: object, found: object
    ) -> Difference:
        return Difference(self._place, what, expected, found, receipt.producer, receipt.batch)
