"""Publishers that look odd, and do nothing that the specification forbids."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import replace

from tests.fix_raw_server import Answer, Request, chunked, head, ok, refused
from tests.one_bug.publisher import Asked, Event, Line, Publisher, RefusalError, table

ODDITIES, legal = table()


@legal("")
class Plain(Publisher):
    """Nothing is odd."""


@legal("")
class NewCursorsEachTime(Publisher):
    """A cursor has a random part, and is another one each time."""

    def cursor(self, at: int) -> str:
        return f"{random.getrandbits(60):x}.{super().cursor(at)}"

    def start(self, asked: Asked, cursor: str) -> int:
        return super().start(asked, cursor.rpartition(".")[2])


@legal("")
class AnotherOrderEachTime(Publisher):
    """Between two checkpoints, events come in another order each time."""

    def lines(self, asked: Asked, partition: int, places: list[int]) -> Iterator[Line]:
        for begin in range(0, len(places), self.every):
            some = places[begin : begin + self.every]
            mixed = random.sample(some, len(some))
            yield from (self.event(asked, partition, at) for at in mixed)
            yield self.checkpoint(asked, partition, places, begin + len(some))


@legal("")
class AnotherOrderAndNewCursors(AnotherOrderEachTime, NewCursorsEachTime):
    """Both, so that neither the order nor the cursors of two answers are the same."""


@legal("")
class OneCheckpointAPage(AnotherOrderAndNewCursors):
    """A page has one checkpoint, and its events in any order."""

    every = 10_000


@legal("")
class PagesOfOneEvent(Publisher):
    """Whatever the hint, a page has one event."""

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        return super().chosen(replace(asked, hint=1), partition, start)


@legal("")
class PagesOfFifty(Publisher):
    """Whatever the hint, a page has fifty events."""

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        return super().chosen(replace(asked, hint=50), partition, start)


@legal("")
class TinyChunks(Publisher):
    """An answer comes in chunks of a few bytes, which end anywhere."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        step = max(1, len(body) // 500)
        pieces = [body[at : at + step] for at in range(0, len(body), step)]
        return super().framed(asked, body) if asked.packed else chunked(*pieces)


@legal("")
class Grows(Publisher):
    """With each request, events are added."""

    def respond(self, request: Request) -> Answer:
        with self.lock:
            self.log.extend(self.made(len(self.log)) for _ in range(7))
        return super().respond(request)


@legal("")
class GrowsWithinAPage(Publisher):
    """A small feed grows while it is read."""

    def __init__(self) -> None:
        super().__init__()
        del self.log[3:]

    def respond(self, request: Request) -> Answer:
        with self.lock:
            self.log.append(self.made(len(self.log)))
        return super().respond(request)


@legal("")
class MovesWhatIsUpdated(Publisher):
    """An event that is updated moves to the end of the feed, and leaves its place."""

    def respond(self, request: Request) -> Answer:
        with self.lock:
            at = self.answers * 13 % len(self.log)
            event = self.log[at]
            if event.home >= 0:
                self.log[at] = replace(event, home=-1)
                self.log.append(replace(event, data={**event.data, "version": self.answers}))
        return super().respond(request)

    def has(self, asked: Asked, partition: int, at: int) -> bool:
        return self.log[at].home >= 0 and super().has(asked, partition, at)


@legal("")
class AlwaysTheSameEvent(Publisher):
    """All events have the same data."""

    def made(self, at: int) -> Event:
        return Event(at % 4, {"tick": 1})


@legal("")
class Empty(Publisher):
    """There are no events."""

    def __init__(self) -> None:
        super().__init__()
        self.log.clear()


@legal("")
class OneEvent(Publisher):
    """There is one event, in one partition."""

    def __init__(self) -> None:
        super().__init__()
        del self.log[1:]


@legal("")
class OnePartitionOnly(Publisher):
    """One partition is all there is."""

    native = 1
    accepts = (1,)


@legal("")
class AnyN(Publisher):
    """Every n is emulated; partitions beyond the fourth are empty."""

    accepts = tuple(range(1, 1025))

    def has(self, asked: Asked, partition: int, at: int) -> bool:
        return self.log[at].home % min(asked.n, 4) == partition


@legal("")
class EmptyPagesOnTheWay(Publisher):
    """Pages may be empty, with another cursor, before the next events come."""

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        if start // 50 % 2:
            return []
        return [at for at in super().chosen(asked, partition, start) if at < start // 50 * 50 + 50]

    def part(self, asked: Asked, partition: int, start: int) -> list[Line]:
        places = self.chosen(asked, partition, start)
        if len(places) == asked.limit:
            return list(self.lines(asked, partition, places))
        end = {"partition": partition, "cursor": self.cursor(min(start // 50 * 50 + 50, 800))}
        return [*(each for each in self.lines(asked, partition, places) if "data" in each), end]


@legal("")
class CheckpointsFirst(Publisher):
    """A page begins with the checkpoint of its start, and has checkpoints without events."""

    def lines(self, asked: Asked, partition: int, places: list[int]) -> Iterator[Line]:
        yield {"partition": partition, "cursor": self.cursor(places[0])}
        for line in super().lines(asked, partition, places):
            yield from (line, line) if "cursor" in line else (line,)


@legal("")
class Busy(Publisher):
    """Now and then a request is refused for a moment, with all statuses that mean so."""

    statuses = (408, 409, 425, 429, 502, 503)

    def respond(self, request: Request) -> Answer:
        with self.lock:
            self.answers += 1
        if self.answers % 7 == 0:
            status = self.statuses[self.answers // 7 % len(self.statuses)]
            return refused(status, "again", **({"retry_after": 0} if status == 429 else {}))
        return super().respond(request)


@legal("")
class ClosesConnections(Publisher):
    """Each connection serves one request, and says so."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        return replace(ok(body, connection="close"), end="close")


@legal("")
class OldHttp(Publisher):
    """It speaks HTTP/1.0, with Content-Length."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        told = head(content_type="application/x-ndjson", content_length=len(body))
        return Answer((told.replace(b"HTTP/1.1", b"HTTP/1.0") + body,), "close")


@legal("")
class OtherJson(Publisher):
    """Names come in another order, with spaces; all characters but ASCII are escaped."""

    def line(self, line: Line) -> bytes:
        named = {"headers": {}, **line} if "data" in line else line
        return json.dumps(dict(reversed(named.items())), ensure_ascii=True).encode()


@legal("")
class OddData(Publisher):
    """Data may be anything, and texts may look like lines of the feed."""

    def made(self, at: int) -> Event:
        odd = [at, f"{at}", [at], at % 2 == 0, {"cursor": f"{at}"}, {"partition": 9, "data": at}]
        odd += [f'"cursor":"{at}"', 10**30 + at, at + 0.5, {"\\": at, "": at, "a\n": "\x00"}]
        return Event(at % 4, odd[at % len(odd)], {"type": "\n"})


@legal("")
class LastIsTheLastEvent(Publisher):
    """_last gives the newest event again."""

    def start(self, asked: Asked, cursor: str) -> int:
        if cursor != "_last":
            return super().start(asked, cursor)
        mine = [at for at in range(len(self.log)) if self.has(asked, min(asked.cursors), at)]
        return mine[-1] if mine else 0


@legal("")
class ForgetsTheOldest(Publisher):
    """The oldest events are deleted while the feed is read."""

    def respond(self, request: Request) -> Answer:
        with self.lock:
            self.log[self.answers % len(self.log)] = Event(-1, None)
        return super().respond(request)

    def has(self, asked: Asked, partition: int, at: int) -> bool:
        return self.log[at].home >= 0 and super().has(asked, partition, at)


@legal("")
class FlushesGzip(Publisher):
    """A packed page is flushed after each line."""

    def pack(self, asked: Asked, body: bytes) -> bytes:
        import zlib

        packer = zlib.compressobj(wbits=31)
        pieces = [
            packer.compress(each) + packer.flush(zlib.Z_SYNC_FLUSH)
            for each in body.splitlines(keepends=True)
        ]
        return b"".join(pieces) + packer.flush()


@legal("")
class NeverPacks(Publisher):
    """It does not compress."""

    def pack(self, asked: Asked, body: bytes) -> bytes:
        raise AssertionError

    def framed(self, asked: Asked, body: bytes) -> Answer:
        return ok(body)


@legal("")
class TotalHint(Publisher):
    """The hint counts the events of all partitions together."""

    def page(self, asked: Asked) -> list[Line]:
        found: list[Line] = []
        left = asked.limit
        for partition, cursor in asked.cursors.items():
            start = self.start(asked, cursor)
            part = self.part(replace(asked, hint=left), partition, start)
            left -= sum("data" in each for each in part)
            found += part
        return found


@legal("")
class LineByLine(Publisher):
    """Lines of several partitions are mixed."""

    def page(self, asked: Asked) -> list[Line]:
        parts = [
            self.part(asked, partition, self.start(asked, cursor))
            for partition, cursor in asked.cursors.items()
        ]
        found: list[Line] = []
        while any(parts):
            found += [each.pop(0) for each in parts if each]
        return found


@legal("")
class TellsTheNumber(Publisher):
    """It tells the number of partitions, and its refusals are problem documents."""

    def respond(self, request: Request) -> Answer:
        try:
            self.asked(request)
        except RefusalError:
            document = {"type": "about:blank", "partitionCount": 4}
            return ok(json.dumps(document).encode(), 400, content_type="application/problem+json")
        return super().respond(request)


@legal("")
class LargeEvents(Publisher):
    """Events have 50 kB, so that a few hundred of them are more than may be read."""

    def made(self, at: int) -> Event:
        return Event(at % 5 % 4, {"id": at, "text": "x" * 50_000})

    def pack(self, asked: Asked, body: bytes) -> bytes:
        return gzip.compress(body, 1)
