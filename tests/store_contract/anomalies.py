"""Compare a feed, read as readers read it, with what was acknowledged, and name what is wrong.

The names are those that Jepsen uses:

lost            an acknowledged batch, or a part of it, is not on the feed
duplicate       rows are on the feed more often than they were published
torn            only a part of a batch is there
reordered       rows of a task are in another order in their partition
diverged        the feed has other rows than those that were acknowledged
phantom         there are events that nobody published
sequence gap    numbers of a producer and partition are not 0, 1, 2, …
intruder        another checkpoint published without being allowed to
zombie          a run published after another one had overtaken it
resurrected     a producer published after it was deleted

Runs in the contract's tests (`world`). Rule for editors: nothing here calls what the publisher
decides with, so that a fault of it cannot hide itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.store_contract.drivers import DriverRow, Execution
from tests.store_contract.writers import FEED, everything, frames_of
from zeh_spark.publisher import Problem, Store
from zeh_spark.service.store.batches import RECEIPTS, Call, StoredReceipt
from zeh_spark.service.store.log import Chunk
from zeh_spark.wire.upload_format import lines_of

Batch = tuple[str, int]
"""Incarnation and number."""


@dataclass(frozen=True)
class Entry:
    """A batch that became visible."""

    batch: Batch
    run: str
    positions: tuple[int, int] | None  # the first and the last on the feed; None without events
    rows: tuple[DriverRow, ...]
    lines: dict[int, list[bytes]]  # that the feed has to have of it, by partition


@dataclass
class Belief:
    """What drivers and operators were told, and so may believe about the feed."""

    log: list[Entry] = field(default_factory=list)  # the batches that became visible, in order
    # Of each batch that a driver was told is there.
    acknowledged_rows: dict[Batch, tuple[DriverRow, ...]] = field(default_factory=dict)
    # Batches that a restore took away, until a driver is told that a later one is there.
    undone: set[Batch] = field(default_factory=set)
    # Batches that an operator was told are missing, and accepted.
    excused: set[Batch] = field(default_factory=set)
    # The values of `replaceIncarnation` that an operator has set.
    replacements: set[str] = field(default_factory=set)
    # Batches for which an operator has set `keepFirst`, with the digest that it names.
    kept: set[tuple[Batch, str]] = field(default_factory=set)
    # Rows that an operator has allowed to be there twice, by `keepFirst`.
    doubled: set[tuple[str, int]] = field(default_factory=set)
    deleted: bool = False
    seen: list[str] = field(default_factory=list)  # anomalies, when they happened
    receipts: int = RECEIPTS  # how many of a producer the store keeps

    def acknowledged(
        self, execution: Execution, call: Call, receipt: StoredReceipt, new: bool, heard: bool
    ) -> None:
        """Note the answer to a commit: whether it is new, and whether the driver has heard it."""
        batch = (receipt.incarnation, receipt.batch)
        rows = tuple(sorted(execution.rows))
        if new:
            if not call.overrides.accept_gap:
                self.excused.discard(batch)
            self._check_new(Entry(batch, call.run, receipt.positions, rows, execution.lines))
        if heard:
            here = [each.rows for each in self.log if each.batch == batch]
            if here and here[-1] != rows and (batch, receipt.identity) in self.kept:
                changed = {row.id for row in {*here[-1]} ^ {*rows}}
                self.doubled |= {(batch[0], number) for number in changed}
                rows = here[-1]
            self.acknowledged_rows[batch] = rows
            self.undone = {
                each for each in self.undone if each[0] != batch[0] or each[1] >= batch[1]
            }

    def _check_new(self, entry: Entry) -> None:
        incarnation = entry.batch[0]
        if self.log and self.log[-1].batch[0] != incarnation:
            (old, last) = self.log[-1].batch
            if f"{old}@{last}:{incarnation}" not in self.replacements:
                self.seen.append(f"intruder: {entry.batch} after {(old, last)}")
        same = [each.run for each in self.log[-self.receipts :] if each.batch[0] == incarnation]
        if entry.run in same and entry.run != self.log[-1].run:
            self.seen.append(f"zombie: {entry.run} published {entry.batch}")
        if self.deleted:
            self.seen.append(f"resurrected: {entry.batch} of a deleted producer")
        self.log.append(entry)

    def granted(self, problem: Problem, name: str, value: str) -> None:
        """Note what an operator accepts by setting the override that a refusal printed."""
        incarnation, batch = problem.members["incarnation"], problem.members["batch"]
        if name == "replaceIncarnation":
            self.replacements.add(value)
        elif name == "acceptGap":
            last = problem.members["current"]["lastBatch"]
            self.excused |= {(incarnation, each) for each in range(last + 1, batch)}
        else:
            self.kept.add(((incarnation, batch), problem.members["published"]["digest"][:8]))

    def forget(self, incarnation: str, done: int) -> None:
        """Note that a checkpoint was rolled back to `done`: its drivers know of no later batch."""
        for batch in [*self.acknowledged_rows]:
            if batch[0] == incarnation and batch[1] > done:
                del self.acknowledged_rows[batch]
                self.undone.discard(batch)

    def restored(self, log: list[Entry]) -> None:
        """Note that the store was restored to a backup with these batches."""
        self.log = list(log)
        here = {each.batch for each in log}
        self.undone |= {each for each in self.acknowledged_rows if each not in here}


def found(store: Store, belief: Belief) -> list[str]:
    """Return the anomalies of a feed with one producer, `p`, one text for each."""
    chunks = everything(store)
    return [
        *belief.seen,
        *_of_the_log(store, chunks, belief.log),
        *_of_sequences(chunks),
        *_of_acknowledgements(belief),
        *_of_rows(belief),
    ]


def _of_the_log(store: Store, chunks: list[Chunk], log: list[Entry]) -> Iterator[str]:
    """Check that each batch is where its receipt says, whole and in order, and nothing else is."""
    behind = 0
    for entry in log:
        begin, end = entry.positions or (behind + 1, behind)
        if begin != behind + 1:
            yield f"phantom: positions {behind + 1} to {begin - 1}"
        behind = max(end, behind)
        mine = [each for each in chunks if begin <= each.g <= end]
        lines: dict[int, list[bytes]] = {}
        for chunk, frame in zip(mine, frames_of(store, mine), strict=True):
            here = lines_of(frame).splitlines() if frame else []
            lines.setdefault(chunk.partition, []).extend(here)
        yield from _of_lines(entry, lines)
    if store.feed(FEED).head != behind or any(each.g > behind for each in chunks):
        yield f"phantom: positions from {behind + 1}"


def _of_lines(entry: Entry, lines: dict[int, list[bytes]]) -> Iterator[str]:
    if lines == entry.lines:
        return
    wanted, got = (Counter(line for p in each for line in each[p]) for each in (entry.lines, lines))
    missing, more = wanted - got, got - wanted
    if missing:
        yield f"{'torn' if got else 'lost'}: {entry.batch} lacks {sorted(missing)}"
    if more:
        name = "duplicate" if more.keys() <= wanted.keys() else "phantom"
        yield f"{name}: {entry.batch} has {sorted(more)}"
    if not missing and not more:
        yield f"reordered: {entry.batch} is {lines}, not {entry.lines}"


def _of_sequences(chunks: list[Chunk]) -> Iterator[str]:
    following: Counter[int] = Counter()
    for each in chunks:
        if each.sequence != following[each.partition]:
            yield f"sequence gap: {each.sequence} at {each.g}, not {following[each.partition]}"
        following[each.partition] += each.events


def _of_acknowledgements(belief: Belief) -> Iterator[str]:
    """Check that each batch that a driver was told about is there once, with the rows it had."""
    for batch, rows in belief.acknowledged_rows.items():
        here = [each.rows for each in belief.log if each.batch == batch]
        if len(here) > 1:
            yield f"duplicate: {batch} is there {len(here)} times"
        elif here and here[0] != rows:
            yield f"diverged: {batch} has {here[0]}, acknowledged was {rows}"
        elif not here and batch not in belief.undone | belief.excused:
            yield f"lost: {batch} with {rows}"


def _of_rows(belief: Belief) -> Iterator[str]:
    """Check that each row of a checkpoint is there once."""
    rows = Counter((each.batch[0], row.id) for each in belief.log for row in each.rows)
    for (incarnation, number), times in rows.items():
        if times > 1 and (incarnation, number) not in belief.doubled:
            yield f"duplicate: row {number} of {incarnation} is there {times} times"
