"""Bugs of cursors, partitions and the end: where a reader continues, and what it gets there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

from tests.fix_raw_server import Answer, Request
from tests.one_bug.publisher import Asked, Line, Publisher, RefusalError, table

BUGS, told_by = table()


# continuing


@told_by("resume")
class RepeatsTheEventOfACursor(Publisher):
    """The event before a cursor comes again: `>=` instead of `>`."""

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        while start > 0 and not self.has(asked, partition, start - 1):
            start -= 1
        return super().chosen(asked, partition, max(0, start - 1))


@told_by("resume")
class SkipsTheEventAfterACursor(Publisher):
    """The first event after a cursor does not come."""

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        found = super().chosen(asked, partition, start)
        return found[1:] if start else found


@told_by("resume")
class LosesAnEventAfterAFullPage(Publisher):
    """The last checkpoint of a full page is one event too far."""

    def checkpoint(self, asked: Asked, partition: int, places: list[int], number: int) -> Line:
        if number == len(places) == asked.limit:
            rest = super().chosen(replace(asked, hint=1), partition, places[-1] + 1)
            return {"partition": partition, "cursor": self.cursor((rest or places)[0] + 1)}
        return super().checkpoint(asked, partition, places, number)


@told_by("resume")
class DoublesAnEventAfterAFullPage(Publisher):
    """The last checkpoint of a full page is before its last event."""

    def checkpoint(self, asked: Asked, partition: int, places: list[int], number: int) -> Line:
        if number == len(places) == asked.limit and number > 1:
            return {"partition": partition, "cursor": self.cursor(places[-1])}
        return super().checkpoint(asked, partition, places, number)


@told_by("resume")
class CheckpointsBeforeTheirEvents(Publisher):
    """A checkpoint comes before the events that it counts as read."""

    def lines(self, asked: Asked, partition: int, places: list[int]) -> Iterator[Line]:
        for begin in range(0, len(places), self.every):
            end = min(begin + self.every, len(places))
            yield self.checkpoint(asked, partition, places, end)
            yield from (self.event(asked, partition, at) for at in places[begin:end])


@told_by("resume")
class AllCheckpointsAreThePagesLast(Publisher):
    """All checkpoints of a page have the cursor after its last event."""

    def checkpoint(self, asked: Asked, partition: int, places: list[int], number: int) -> Line:
        return super().checkpoint(asked, partition, places, len(places))


@told_by("resume")
class CheckpointsWithinAPageAreItsFirst(Publisher):
    """All checkpoints of a page but the last have the cursor after the first event."""

    def checkpoint(self, asked: Asked, partition: int, places: list[int], number: int) -> Line:
        number = number if number == len(places) else 1
        return super().checkpoint(asked, partition, places, number)


@told_by("resume")
class SkipsTheTailOfAPage(Publisher):
    """Events after the last checkpoint of a page are not sent again."""

    every = 7

    def lines(self, asked: Asked, partition: int, places: list[int]) -> Iterator[Line]:
        for number, at in enumerate(places, 1):
            if number % self.every == 0 or len(places) < self.every:
                yield self.checkpoint(asked, partition, places, number)
            yield self.event(asked, partition, at)


@told_by("resume")
class LosesEventsOfOneInstant(Publisher):
    """A cursor is a time; of events with the same time only those in one page come."""

    def checkpoint(self, asked: Asked, partition: int, places: list[int], number: int) -> Line:
        at = places[number - 1]
        return {"partition": partition, "cursor": self.cursor(at - at % 16 + 16)}


@told_by("resume")
class LosesEventsInTheLastPartition(Publisher):
    """One partition only loses an event in the middle of its feed, if a page begins after it."""

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        found = super().chosen(asked, partition, start)
        return found[1:] if start and partition == asked.n - 1 > 0 else found


@told_by("resume")
class RefusesItsOwnCursors(Publisher):
    """It decodes a cursor twice, so that the plus in it becomes a space."""

    def start(self, asked: Asked, cursor: str) -> int:
        return super().start(asked, cursor.replace("+", " "))


@told_by("resume")
class EndsInTheMiddle(Publisher):
    """From some place on, pages in small steps are empty, as at the end."""

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        return [] if 300 <= start < 500 else super().chosen(asked, partition, start)


@told_by("resume")
class StopsAtAGap(Publisher):
    """Where numbers are missing, each page is empty, so that a reader never gets beyond."""

    gap = range(300, 790)

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        found = [at for at in super().chosen(asked, partition, start) if at not in self.gap]
        return [at for at in found if (at < 300) == (start < 300)] if start not in self.gap else []

    def start(self, asked: Asked, cursor: str) -> int:
        return 795 if cursor == "_last" else super().start(asked, cursor)


@told_by("last")
class ForgetsWhileItWaits(Publisher):
    """At the end, an answer with wait has the checkpoint of the beginning."""

    def page(self, asked: Asked) -> list[Line]:
        found = super().page(asked)
        if asked.wait and not any("data" in each for each in found):
            return [self.idle(each, 0) for each in asked.cursors]
        return found


@told_by("resume")
class SkipsAfterAnEmptyPage(Publisher):
    """In the middle, an empty page with another cursor skips a hundred events."""

    def idle(self, partition: int, start: int) -> Line:
        return {"partition": partition, "cursor": self.cursor(min(start + 100, len(self.log)))}

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        return [] if 300 <= start < 400 else super().chosen(asked, partition, start)


@told_by("progress")
class NeverMovesOn(Publisher):
    """The last checkpoint of a page is its own cursor."""

    def part(self, asked: Asked, partition: int, start: int) -> list[Line]:
        found = super().part(asked, partition, start)
        return [*found[:-1], {"partition": partition, "cursor": self.cursor(start)}]


@told_by("repeatable")
class TakesACursorOnce(Publisher):
    """A cursor that was used is forgotten, so that a reader cannot repeat a page after a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[tuple[object, ...]] = set()

    def page(self, asked: Asked) -> list[Line]:
        key = (asked.n, *asked.cursors.items())
        with self.lock:
            known = key in self.used
            self.used.add(key)
        if known and not any(each in ("_first", "_last") for each in asked.cursors.values()):
            raise RefusalError(410, "this cursor was used")
        return super().page(asked)


@told_by("repeatable")
class KeepsThePositionItself(Publisher):
    """It continues where the last request of a partition ended, whatever the cursor."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[tuple[int, int], int] = {}

    def part(self, asked: Asked, partition: int, start: int) -> list[Line]:
        known = self.at.get((asked.n, partition), 0)
        found = super().part(asked, partition, known if start else 0)
        places = self.chosen(asked, partition, known if start else 0)
        self.at[asked.n, partition] = places[-1] + 1 if places else known
        return found


@told_by("resume")
class LosesAnEventNowAndThen(Publisher):
    """Every fifth page lacks an event."""

    def page(self, asked: Asked) -> list[Line]:
        found = super().page(asked)
        return found[1:] if self.answers % 5 == 0 and len(found) > 3 else found


@told_by("checkpoint")
class NoCheckpoint(Publisher):
    """Pages with events have no checkpoint."""

    def lines(self, asked: Asked, partition: int, places: list[int]) -> Iterator[Line]:
        return (each for each in super().lines(asked, partition, places) if "data" in each)


# the end


@told_by("progress")
class RepeatsTheLastEventAtTheEnd(Publisher):
    """At the end, each answer has the last event again."""

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        found = super().chosen(asked, partition, start)
        mine = [at for at in range(len(self.log)) if self.has(asked, partition, at)]
        return found or mine[-1:]


@told_by("progress")
class BeginsAnewAtTheEnd(Publisher):
    """The checkpoint at the end is that of the beginning."""

    def idle(self, partition: int, start: int) -> Line:
        return {"partition": partition, "cursor": self.cursor(0)}


@told_by("resume")
class RefusesTheEnd(Publisher):
    """At the end it answers 404."""

    def idle(self, partition: int, start: int) -> Line:
        raise RefusalError(404, "no more events")


@told_by("last")
class LastIsFirst(Publisher):
    """_last begins at the beginning."""

    def start(self, asked: Asked, cursor: str) -> int:
        return 0 if cursor == "_last" else super().start(asked, cursor)


@told_by("last")
class CursorOfLastIsTheFirst(Publisher):
    """_last gives no events, and the cursor of the beginning."""

    def page(self, asked: Asked) -> list[Line]:
        if "_last" in asked.cursors.values():
            return [self.idle(each, 0) for each in asked.cursors]
        return super().page(asked)


@told_by("last")
class LastWithoutCheckpoint(Publisher):
    """_last is answered with nothing."""

    def page(self, asked: Asked) -> list[Line]:
        return [] if "_last" in asked.cursors.values() else super().page(asked)


@told_by("last")
class CursorOfLastIsRefused(Publisher):
    """The cursor that _last gives is none that is accepted."""

    def page(self, asked: Asked) -> list[Line]:
        if "_last" in asked.cursors.values():
            return [{"partition": each, "cursor": "end"} for each in asked.cursors]
        return super().page(asked)


# cursors and partitions that do not exist


@told_by("cursor-unknown")
class BeginsAnewForAnUnknownCursor(Publisher):
    """A cursor that it does not know means the beginning."""

    def start(self, asked: Asked, cursor: str) -> int:
        try:
            return super().start(asked, cursor)
        except RefusalError:
            return 0


@told_by("partition-unknown")
class ServesPartitionsThatDoNotExist(Publisher):
    """Partition 4 of 4 is partition 0 again."""

    def check(self, asked: Asked) -> None:
        if asked.n not in self.accepts or not asked.cursors:
            raise RefusalError(400, "no")

    def has(self, asked: Asked, partition: int, at: int) -> bool:
        return super().has(asked, partition % asked.n, at)


@told_by("n-mismatch")
class OneOfFourForOne(Publisher):
    """With n=1, partition 0 of 4 is all that comes."""

    def has(self, asked: Asked, partition: int, at: int) -> bool:
        return self.log[at].home == partition if asked.n == 1 else super().has(asked, partition, at)


@told_by("n-mismatch")
class BothHalvesAreWhole(Publisher):
    """With n=2, both partitions have all events."""

    def has(self, asked: Asked, partition: int, at: int) -> bool:
        return asked.n == 2 or super().has(asked, partition, at)


@told_by("n-mismatch")
class IgnoresN(Publisher):
    """Every n is accepted, and partition 1 of 2 is partition 1 of 4."""

    accepts = (1, 2, 3, 4, 5, 6, 7, 8)

    def has(self, asked: Asked, partition: int, at: int) -> bool:
        return self.log[at].home == partition


@told_by("n-mismatch")
class WrapsAround(Publisher):
    """With a larger n, the partitions repeat."""

    accepts = (1, 2, 4, 5, 8)

    def has(self, asked: Asked, partition: int, at: int) -> bool:
        return self.log[at].home % min(asked.n, 4) == partition % 4


# several cursors


@told_by("several-cursors")
class ReadsTheFirstCursorOnly(Publisher):
    """Of several cursors only the first one's events come, and all are told to be read."""

    def part(self, asked: Asked, partition: int, start: int) -> list[Line]:
        found = super().part(asked, partition, start)
        return found if partition == min(asked.cursors) else found[-1:]


@told_by("several-cursors")
class OneCursorForAll(Publisher):
    """Of several cursors, the first one's place is taken for all."""

    def page(self, asked: Asked) -> list[Line]:
        first = asked.cursors[min(asked.cursors)]
        return super().page(replace(asked, cursors=dict.fromkeys(asked.cursors, first)))


@told_by("several-cursors")
class DividesTheHintToNothing(Publisher):
    """The hint is divided by the number of cursors, and 1 becomes 0."""

    def asked(self, request: Request) -> Asked:
        found = super().asked(request)
        return replace(found, hint=found.limit // len(found.cursors))


@told_by("several-cursors")
class MixesUpPartitions(Publisher):
    """Of several partitions, all lines are named after the first."""

    def page(self, asked: Asked) -> list[Line]:
        first = min(asked.cursors)
        return [{**each, "partition": first} for each in super().page(asked)]


# requests that meet


@told_by("connection")
class RepeatsTheAnswerOnAConnection(Publisher):
    """Every second request for a page on a connection gets what the one before it got."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, list[Line]] = {}

    def page(self, asked: Asked) -> list[Line]:
        if known := self.kept.pop(asked.connection, None):
            return known
        self.kept[asked.connection] = found = super().page(asked)
        return found


@told_by("parallel")
class MixesUpRequests(Publisher):
    """Requests at the same time share a variable, so that lines of a page get lost.

    From the request for the end of the last partition on, a request waits for another one, until
    two have met. So the test does not depend on how fast they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.busy = 0
        self.waits = self.have_met = False
        self.changed = threading.Condition()

    def respond(self, request: Request) -> Answer:
        with self.changed:
            self.busy += 1
            self.changed.notify_all()
            if self.waits and not self.have_met:
                self.have_met = self.changed.wait_for(lambda: self.busy > 1, 5)
            self.waits |= request.query.get("cursor3") == "_last"
        try:
            return super().respond(request)
        finally:
            with self.changed:
                self.busy -= 1

    def page(self, asked: Asked) -> list[Line]:
        found = super().page(asked)
        return found[2:] if self.busy > 1 and len(found) > 3 else found
