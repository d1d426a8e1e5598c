"""The result of an audit: the first difference, or how much was checked. Pure values.

Rule for editors: `str` of both is what `zeh-spark audit` prints; `docs/operate/audit.md` quotes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from zeh_spark.wire.phrases import counted


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the feed and its receipts."""

    position: int
    what: str
    expected: object
    found: object
    producer: str | None = None
    batch: int | None = None

    def __str__(self) -> str:
        whose = "" if self.producer is None else f" of producer {self.producer!r}"
        if self.batch is not None:
            whose = f", batch {self.batch}{whose}"
        elif whose:
            whose = f", {whose[4:]}"
        return (
            f"position {self.position:,}{whose}: {self.what}: expected {self.expected}, found "
            f"{self.found}"
        )


@dataclass(slots=True)
class Tally:
    """How much was checked so far.

    Args:
        batches: Batches that were checked completely, those without events included.
        empty: How many of these have no events.
        partial: Batches whose beginning retention has removed. Their content is not checked.
        removed: Batches that retention has removed completely. Only their receipts are checked.
        expired: Batches whose receipt has expired. Only their numbers are checked.
        gaps: How many times a producer left batch numbers out, which an operator has accepted.
    """

    producers: int = 0
    batches: int = 0
    empty: int = 0
    events: int = 0
    first: int = 0
    last: int = 0
    partial: int = 0
    partial_events: int = 0
    removed: int = 0
    expired: int = 0
    expired_events: int = 0
    gaps: int = 0

    def __str__(self) -> str:
        return "\n".join([self._whole(), *self._parts()])

    def _whole(self) -> str:
        if not (self.batches or self.last):
            return "Nothing to check: nobody has published here."
        where = f"positions {self.first:,} to {self.last:,}" if self.last else "no positions"
        said = (
            "Every batch once, unaltered" if self.batches else "No difference; batches left whole"
        )
        return (
            f"{said}: {counted(self.batches, 'batch', 'batches')} of "
            f"{counted(self.producers, 'producer')}, {counted(self.events, 'event')}, {where}."
        )

    def _parts(self) -> list[str]:
        """Return a sentence for each kind of batch that was checked in part, or not at all."""
        batches = {
            f"without events, among these: {self.empty:,}": self.empty,
            f"removed in part (numbers checked, not content): {self.partial:,}, with "
            f"{counted(self.partial_events, 'event')} left": self.partial,
            f"removed from the feed before position {self.first:,} (receipts checked, nothing "
            f"else): {self.removed:,}": self.removed,
            f"whose receipt has expired (numbers checked, not content): {self.expired:,}, with "
            f"{counted(self.expired_events, 'event')}": self.expired,
        }
        said = [f"Batches {words}." for words, count in batches.items() if count]
        if self.gaps:
            said.append(f"Gaps in batch numbers that an operator accepted: {self.gaps:,}.")
        return said
