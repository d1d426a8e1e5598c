"""Check the feed against the receipts, chunk by chunk in order of position. Pure.

The positions, numbers and content that a receipt claims have to be exactly there. A chunk that no
receipt claims has to be older than the receipts that are left of its producer.

Rule for editors: what retention has removed from the beginning of the feed is no difference.
Everything after that has to be there without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator

from zeh_spark.tools.audit import lines
from zeh_spark.tools.audit.claims import Claim
from zeh_spark.tools.audit.findings import Difference, Tally
from zeh_spark.tools.audit.ledger import Ledger
from zeh_spark.tools.audit.lines import OddLineError, Stamps
from zeh_spark.tools.audit.pieces import Piece
from zeh_spark.wire.upload_format import Content


class NotOursError(Exception):
    """The feed is served by another kind of publisher."""


class Judge:
    """Takes the chunks of a feed in order of position, and reports the first difference.

    Args:
        only: A producer, to check only its batches and its named batches; None, to check all.

    Guarantee: it reports no difference only if all that is left of the feed is as the receipts say.
    """

    def __init__(
        self, ledger: Ledger, removed: int, head: int, tally: Tally, only: str | None = None
    ) -> None:
        self._ledger = ledger
        self._head = head
        self._tally = tally
        self._only = only
        self._receipts = ledger.receipts()
        self._claim: Claim | None = None
        self._at = removed
        self._oldest = removed + 1
        self._begun = False
        self._time = 0
        self._expired: tuple[str, int | None, int, int] | None = None

    def chunk(self, piece: Piece) -> Difference | None:
        """Take the next chunk, and return the first difference.

        Raises NotOursError if its lines have no stamps of a publisher.
        """
        wrong = next(self._wrong(piece), None)
        self._at = piece.position
        return wrong

    def end(self) -> Difference | None:
        """Return the first difference after the publisher has said that there are no more."""
        return next(self._wrong_at_end(), None)

    def _wrong(self, piece: Piece) -> Iterator[Difference]:
        yield from self._misplaced(piece)
        claimed = self._claim is not None and self._claim.first <= piece.position
        try:
            stamps = lines.stamps_of(piece.lines)
            if not (claimed or self._only is None or belongs(stamps.producer, self._only)):
                return
            yield from self._misstamped(piece, stamps)
            self._time = stamps.time
            content = lines.content(piece.lines, stamps)
        except OddLineError as exc:
            if not exc.stamped:
                raise NotOursError(str(exc)) from None
            yield self._differs(piece.position, "the lines", "those of a publisher", str(exc))
            return
        yield from self._judged(piece, stamps, content)

    def _judged(self, piece: Piece, stamps: Stamps, content: Content) -> Iterator[Difference]:
        if self._claim is None or self._claim.first > piece.position:
            yield from self._unclaimed(piece, stamps, content)
            yield from self._unnumbered(piece, stamps, content)
            return
        claim, self._expired = self._claim, None
        yield from filter(None, [claim.add(piece, stamps, content)])
        yield from self._unnumbered(piece, stamps, content)
        if piece.position == claim.last:
            yield from filter(None, [claim.end()])
            self._count(claim)
            yield from self._next_claim()

    def _misplaced(self, piece: Piece) -> Iterator[Difference]:
        g = piece.position
        yield from self._beginning()
        if g <= self._at:
            yield self._differs(g, "order of positions", f"one after {self._at}", g)
        elif g > self._at + 1:
            yield from self._absent(self._at + 1, g - 1)
        self._tally.first = self._tally.first or g
        self._tally.last = g
        if not piece.lines:
            yield self._differs(g, "events", "some", "none")

    def _beginning(self) -> Iterator[Difference]:
        if not self._begun:
            self._begun = True
            yield from self._next_claim()

    def _absent(self, first: int, last: int) -> Iterator[Difference]:
        """Report missing positions, unless they may be of producers that are not checked."""
        if self._claim and self._claim.first <= last:
            yield self._differs(max(first, self._claim.first), "events", "some", "no such position")
        elif self._only is None:
            yield self._differs(first, "events", "some", "no such position")

    def _misstamped(self, piece: Piece, stamps: Stamps) -> Iterator[Difference]:
        if stamps.partition != stamps.served or stamps.partition != piece.partition:
            yield self._differs(piece.position, "zeh-partition", piece.partition,
                                f"{stamps.partition}, on lines of {stamps.served}")  # fmt: skip
        if stamps.time < self._time:
            yield self._differs(piece.position, "zeh-time", f"at least {self._time}, as before",
                                stamps.time)  # fmt: skip

    def _unnumbered(self, piece: Piece, stamps: Stamps, content: Content) -> Iterator[Difference]:
        producer, number = stamps.producer, stamps.sequence
        expected = self._next_number(producer, stamps.partition)
        if expected not in (None, number):
            yield Difference(
                piece.position, f"sequence number in partition {stamps.partition}", expected,
                number, producer, stamps.batch,
            )  # fmt: skip
        self._ledger.saw(producer, stamps.partition, number + content.events)

    def _unclaimed(self, piece: Piece, stamps: Stamps, content: Content) -> Iterator[Difference]:
        producer, g = stamps.producer, piece.position
        known = self._ledger.producer(producer)
        if known is None:
            expected = "one that the publisher's list has"
            yield Difference(g, "producer", expected, "none there", producer, stamps.batch)
        elif not known.may_lack_receipt(g):
            expected = "one that claims this position"
            yield Difference(g, "receipt", expected, "none", producer, stamps.batch)
        before = self._expired
        self._expired = (producer, stamps.batch, stamps.time, stamps.partition)
        same = before is not None and before[:3] == self._expired[:3]
        # The chunks of a batch are in order of partition.
        if not (same and before and before[3] <= stamps.partition):
            self._tally.expired += 1
        self._tally.expired_events += content.events

    def _next_claim(self) -> Iterator[Difference]:
        """Continue with the next receipt of which something is left in the feed."""
        while True:
            before, self._claim = self._claim, None
            receipt = next(self._receipts, None)
            if receipt is None:
                return
            self._claim = Claim(receipt, self._oldest)
            if before and self._claim.first <= before.last:
                of = f"batch {before.receipt.batch} of producer {before.receipt.producer!r}"
                yield self._differs(self._claim.first, "positions in the receipt",
                                    f"none of {of}", list(receipt.positions or ()))  # fmt: skip
            if self._claim.last >= self._oldest:
                return
            self._tally.removed += 1

    def _count(self, claim: Claim) -> None:
        if claim.whole:
            self._tally.batches += 1
            self._tally.events += claim.content.events
        else:
            self._tally.partial += 1
            self._tally.partial_events += claim.content.events

    def _wrong_at_end(self) -> Iterator[Difference]:
        yield from self._beginning()
        if self._at < self._head or self._claim:
            yield from self._absent(self._at + 1, max(self._head, self._at + 1))
        for producer, partition, told in self._ledger.told():
            expected = self._next_number(producer, partition)
            if expected not in (None, told):
                what = f"nextSequences of partition {partition}"
                yield Difference(self._at, what, expected, told, producer)

    def _next_number(self, producer: str, partition: int) -> int | None:
        """Return the number that has to come next.

        None if retention has removed those before, or if the producer has expired, and this is its
        first one.
        """
        seen = self._ledger.following(producer, partition)
        if seen is not None or self._oldest > 1:
            return seen
        known = self._ledger.producer(producer)
        has_expired = known is not None and known.expired and known.lowest is None
        return None if has_expired else self._ledger.first(producer, partition)

    def _differs(self, position: int, what: str, expected: object, found: object) -> Difference:
        claim = self._claim
        receipt = claim.receipt if claim and claim.first <= position <= claim.last else None
        whose = (receipt.producer, receipt.batch) if receipt else (None, None)
        return Difference(position, what, expected, found, *whose)


def belongs(producer: str, only: str) -> bool:
    """Return whether `producer` is the producer `only`, or one of its named batches."""
    return producer == only or producer.startswith(f"{only}#")
