"""Compare answers: the same page again, and a page from within another one. Pure.

Rule for editors: between two checkpoints the order of events is free (spec, "Checkpoint"). So
events are compared as multisets, up to a checkpoint that both answers have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from zeh_spark.tools.check.lines import Page
from zeh_spark.tools.check.rules import Verdict
from zeh_spark.wire.phrases import counted


def compared(known: Page, other: Page, partition: int, upto: int, same: int) -> tuple[Verdict, str]:
    """Return whether two answers to the same request have the same events up to a checkpoint."""
    first, second = known.of(partition)[:upto], other.of(partition)[:same]
    if first == second:
        return Verdict.PASS, f"{counted(len(first), 'event')} came again as before"
    how = "in another order" if Counter(first) == Counter(second) else "and others"
    return Verdict.DEVIATION, f"{counted(len(first), 'event')}, then {len(second)} {how}"


def events_before(page: Page, partition: int, cursor: str) -> int | None:
    """Return how many events of a page come before a checkpoint; None if it is not there."""
    found = [each.events for each in page.cursors(partition) if each.cursor == cursor]
    return found[-1] if found else None


def resumed(page: Page, rest: Page, partition: int, begin: int) -> Iterator[tuple[Verdict, str]]:
    """Yield whether an answer has what a page has after one of its checkpoints.

    `rest` is the answer to the checkpoint's cursor; `begin` events of the page come before that
    checkpoint.
    """
    for known in page.cursors(partition):
        upto = events_before(rest, partition, known.cursor)
        if known.events <= begin or upto is None:
            continue
        expected = Counter(page.of(partition)[begin : known.events])
        got = Counter(rest.of(partition)[:upto])
        lost, more = (expected - got).total(), (got - expected).total()
        where = f"from the checkpoint after event {begin}"
        if lost or more:
            yield (
                Verdict.FAILURE,
                f"{where} to the one after event {known.events}: {counted(lost, 'event')} missing, "
                f"{more} more than before",
            )
            return
        yield Verdict.PASS, where
