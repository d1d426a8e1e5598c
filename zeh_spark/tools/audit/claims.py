"""Compare the chunks of one batch with what the batch's receipt claims. Pure.

A receipt claims exactly its positions. In each partition it claims exactly its sequence numbers and
the cursor after them. The events together have to give its digest. If retention has removed the
beginning of a batch, its numbers are still checked, but not its content.
"""

from __future__ import annotations

from collections.abc import Iterator

from zeh_spark.service.store.batches import StoredRange, StoredReceipt
from zeh_spark.tools.audit.findings import Difference
from zeh_spark.tools.audit.lines import Stamps
from zeh_spark.tools.audit.pieces import Piece, position_of
from zeh_spark.wire.upload_format import Content


class Claim:
    """A receipt, and what has been seen of its batch.

    Attributes:
        whole: Whether nothing of the batch was removed.

    Args:
        oldest: The lowest position that the feed still has.
    """

    def __init__(self, receipt: StoredReceipt, oldest: int) -> None:
        assert receipt.positions
        self.receipt = receipt
        self.first, self.last = receipt.positions
        self.whole = self.first >= oldest
        self.content = Content()
        self._oldest = oldest
        self._ranges = {each.partition: each for each in receipt.ranges}
        self._following: dict[int, int] = {}

    def add(self, piece: Piece, stamps: Stamps, content: Content) -> Difference | None:
        """Take the chunk at the next of its positions, and return the first difference."""
        return next(self._wrong(piece, stamps, content), None)

    def end(self) -> Difference | None:
        """Return the first difference after all of its positions have been seen."""
        return next(self._wrong_at_end(), None)

    def _wrong(self, piece: Piece, stamps: Stamps, content: Content) -> Iterator[Difference]:
        receipt, g = self.receipt, piece.position
        if (stamps.producer, stamps.batch) != (receipt.producer, receipt.batch):
            found = f"batch {stamps.batch} of producer {stamps.producer!r}"
            yield self._differs(g, "whose events stand here", "its own", found)
        if stamps.time != receipt.time:
            yield self._differs(g, "zeh-time", receipt.time, stamps.time)
        part = self._ranges.get(stamps.partition)
        if part is None:
            yield self._differs(g, "partition", f"one of {sorted(self._ranges)}", stamps.partition)
            return
        begin = self._following.get(stamps.partition, part.first if self.whole else None)
        if begin is None:
            begin = max(part.first, stamps.sequence)
        if stamps.sequence != begin:
            yield self._differs(g, f"sequence number in partition {stamps.partition}", begin,
                                stamps.sequence)  # fmt: skip
        end = stamps.sequence + content.events
        if end > part.last + 1:
            yield self._differs(g, f"last sequence number in partition {stamps.partition}",
                                part.last, end - 1)  # fmt: skip
        if end == part.last + 1 and piece.cursor != part.cursor:
            yield self._differs(g, f"cursor after partition {stamps.partition}", part.cursor,
                                piece.cursor)  # fmt: skip
        self._following[stamps.partition] = end
        self.content += content

    def _wrong_at_end(self) -> Iterator[Difference]:
        receipt = self.receipt
        for each in receipt.ranges:
            seen = self._following.get(each.partition)
            if seen != each.last + 1 and not (seen is None and self._may_be_gone(each)):
                yield self._differs(
                    self.last, f"last sequence number in partition {each.partition}", each.last,
                    "none" if seen is None else seen - 1,
                )  # fmt: skip
        found = (self.content.events, self.content.digest)
        if self.whole and found != (receipt.events, receipt.digest):
            yield self._differs(
                self.first, "content", f"{receipt.events} events with digest {receipt.digest}",
                f"{found[0]} with {found[1]}",
            )  # fmt: skip

    def _may_be_gone(self, part: StoredRange) -> bool:
        """Return whether retention has removed all events of a range, by its last position."""
        return (position_of(part.cursor) or self._oldest) < self._oldest

    def _differs(self, position: int, what: str, expected: object, found: object) -> Difference:
        receipt = self.receipt
        return Difference(position, what, expected, found, receipt.producer, receipt.batch)
