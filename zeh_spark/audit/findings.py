"""What an audit finds: the first difference, or what was checked and how far. Values, and words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """Something is not as it must be at a feed's position, of a batch if that is known."""

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
    """What was checked so far. `batches` and `events`: wholly; `first` and `last`: the positions
    that were read.

    `partial`: batches whose beginning was removed from the feed; `removed`: those of which nothing
    is left; `expired`: those whose receipt is gone; `unstamped`: chunks older than producers;
    `gaps`: numbers that producers left out, with an operator's consent.
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
    unstamped: int = 0
    unstamped_events: int = 0
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
            f"{said}: {_counted(self.batches, 'batch', 'batches')} of "
            f"{_counted(self.producers, 'producer')}, {_counted(self.events, 'event')}, {where}."
        )

    def _parts(self) -> list[str]:
        """What was checked in part, or not at all."""
        batches = {
            f"without events, among these: {self.empty:,}": self.empty,
            f"removed in part (numbers checked, not content): {self.partial:,}, with "
            f"{_counted(self.partial_events, 'event')} left": self.partial,
            f"removed from the feed before position {self.first:,} (receipts checked, nothing "
            f"else): {self.removed:,}": self.removed,
            f"whose receipt has expired (numbers checked, not content): {self.expired:,}, with "
            f"{_counted(self.expired_events, 'event')}": self.expired,
        }
        said = [f"Batches {words}." for words, count in batches.items() if count]
        if self.unstamped:
            said.append(
                f"Chunks older than producers (not checked): {self.unstamped:,}, with "
                f"{_counted(self.unstamped_events, 'event')}."
            )
        if self.gaps:
            said.append(f"Gaps in batch numbers that an operator accepted: {self.gaps:,}.")
        return said


def _counted(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
