"""What one way of reading a partition has brought, and how two ways differ. Pure.

Rule for editors: a legal publisher may send the events between two checkpoints in any order, and
other cursors each time (spec, "Checkpoint"). So events are compared as multisets: exactly between
cursors that both ways have, and up to an end; otherwise only as far as the order allows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from zeh_spark.tools.check.lines import Part
from zeh_spark.wire import wire

Events = Counter[str]


@dataclass(slots=True)
class Chain:
    """The events of a partition, read page after page, each page up to its last checkpoint.

    Args:
        begin: the cursor that it begins with.
        known: the chain that this is compared with, which has that cursor.
        at: the number of events before that cursor there.

    Attributes:
        events: each as canonical JSON.
        marks: that cursor and those of its checkpoints, each with the number of events before it.
        tail: the events after the last checkpoint of the last page.
        pages: the number of answers.
        idle: whether an answer had no events.
        ended: whether the last answer said that there is nothing more now.
        stopped: whether it cannot be continued: refused, broken off, or without a new cursor.
    """

    partition: int
    begin: str = wire.FIRST
    at: int = 0
    known: Chain | None = None
    events: list[str] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    pages: int = 0
    idle: bool = False
    ended: bool = False
    stopped: bool = False

    def __post_init__(self) -> None:
        self.marks.append((self.begin, 0))

    def again(self, cursor: str = wire.FIRST, at: int = 0) -> Chain:
        """Return a chain to be read from a mark of this one, and compared with it."""
        return Chain(self.partition, cursor, at, self)

    @property
    def cursor(self) -> str:
        """The cursor to continue with."""
        return self.marks[-1][0]

    @property
    def middle(self) -> tuple[str, int]:
        """A checkpoint in the middle, if there is one."""
        return self.marks[len(self.marks) // 2]

    def add(self, part: Part) -> None:
        """Add a page. Events after its last checkpoint are left out, because they come again.

        Without any checkpoint all its events count, and the chain stops.
        """
        before, upto = len(self.events), part.marks[-1][1] if part.marks else len(part.events)
        self.pages += 1
        self.marks += [(cursor, before + events) for cursor, events in part.marks]
        self.stopped |= bool(part.events) and not part.marks
        self.events += part.events[:upto]
        self.tail = part.events[upto:]


def differences(known: Chain, other: Chain, ordered: bool) -> tuple[Events, Events]:
    """Return the events of `known` that `other` lacks, and those that only `other` has.

    `other` begins with a cursor of `known`. `ordered` tells whether the publisher sends events in
    the same order each time.
    """
    begin, places = other.at, dict(known.marks)
    shared = [(places[cursor], place) for cursor, place in other.marks[1:] if cursor in places]
    there, place = next((each for each in reversed(shared) if each[0] >= begin), (begin, 0))
    first, second = Events(known.events[begin:there]), Events(other.events[:place])
    expected, got = known.events[there:], other.events[place:]
    kept = taken = min(len(expected), len(got)) // 2
    if not ordered:
        kept = _mark(known, there + kept) - there
        taken = _mark(other, place + taken) - place
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
    return max(place for _, place in chain.marks if place <= events)
