"""What one way of reading a partition has brought, and how two ways differ. Pure.

Rule for editors: a legal publisher may send the events between two checkpoints in any order, and
other cursors each time (spec, "Checkpoint"). So events are compared as multisets: exactly between
cursors that both ways have, and up to an end; otherwise only as far as the order allows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from zeh_spark.tools.check.lines import Page

Events = Counter[str]


@dataclass(slots=True)
class Chain:
    """The events of a partition, read page after page, each page up to its last checkpoint.

    Args:
        begin: the cursor that it begins with.
        events: each as canonical JSON.
        marks: the cursors of its checkpoints, each with the number of events before it.
        tail: the events after the last checkpoint of the last page.
        pages: the number of answers.
        idle: whether an answer had no events.
        ended: whether the last answer said that there is nothing more now.
        stopped: whether it cannot be continued: refused, broken off, or without a new cursor.
    """

    begin: str
    events: list[str] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    pages: int = 0
    idle: bool = False
    ended: bool = False
    stopped: bool = False

    @property
    def cursor(self) -> str:
        """The cursor to continue with."""
        return self.marks[-1][0] if self.marks else self.begin

    @property
    def middle(self) -> tuple[int, str]:
        """A place in the middle: the number of events before it, and its cursor."""
        cursor, events = self.marks[len(self.marks) // 2] if self.marks else (self.begin, 0)
        return events, cursor

    @property
    def last(self) -> tuple[int, str]:
        """The place of its last checkpoint, like `middle`."""
        return (self.marks[-1][1] if self.marks else 0), self.cursor

    def add(self, page: Page, partition: int) -> None:
        """Add a page. Events after its last checkpoint are left out, because they come again.

        Without any checkpoint all its events count, and the chain stops.
        """
        found, cursors = page.of(partition), page.cursors(partition)
        before = len(self.events)
        self.pages += 1
        self.marks += [(each.cursor, before + each.events) for each in cursors]
        self.stopped |= bool(found) and not cursors
        upto = cursors[-1].events if cursors else len(found)
        self.events += found[:upto]
        self.tail = found[upto:]

    def places(self) -> dict[str, int]:
        """Return the last number of events before each cursor."""
        return dict(self.marks)


def differences(known: Chain, begin: int, other: Chain, ordered: bool) -> tuple[Events, Events]:
    """Return the events of `known` that `other` lacks, and those that only `other` has.

    `other` was read from a place in `known` that `begin` events precede. `ordered` tells whether
    the publisher sends events in the same order each time.
    """
    places = known.places()
    shared = [(places[cursor], place) for cursor, place in other.marks if cursor in places]
    there, place = next((each for each in reversed(shared) if each[0] >= begin), (begin, 0))
    first, second = Events(known.events[begin:there]), Events(other.events[:place])
    expected, got = known.events[there:], other.events[place:]
    kept = taken = min(len(expected), len(got)) // 2
    if not ordered:
        kept = max(0, _mark(known, there + kept) - there)
        taken = max(0, _mark(other, place + taken) - place)
    lost = (first - second) | (Events(expected[:kept]) - Events(got))
    more = (second - first) | (Events(got[:taken]) - Events(expected))
    if other.ended:
        lost |= Events(known.events[begin:]) - Events(other.events)
    if known.ended:
        more |= Events(other.events) - Events(known.events[begin:])
    return lost, more


def confirmed(lost: Events, more: Events, known: Events, again: Events) -> tuple[Events, Events]:
    """Return the differences that are none of the feed itself, by what is there `again`.

    Missing events count if they are still there, and others if they were not added since. If events
    were updated or deleted since, others only count if they are known.
    """
    lost, more = lost & again, more - (again - known)
    if known - again:
        more = Events({event: count for event, count in more.items() if event in known})
    return lost, more


def _mark(chain: Chain, events: int) -> int:
    """Return the last place of a checkpoint that at most so many events precede."""
    return max((place for _, place in chain.marks if place <= events), default=0)
