"""Bugs of parameters, lines and framing: what else an answer may lose or break."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace

from tests.fix_raw_server import (
    Answer,
    Request,
    chunked_without_end,
    ok,
    refused,
    short,
    until_close,
)
from tests.one_bug.publisher import Asked, Event, Line, Publisher, RefusalError, table

BUGS, told_by = table()


# the hint


@told_by("page-size-hint")
class NothingForAHintOfOne(Publisher):
    """The limit is the hint less one, and a hint of 1 is the end."""

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        return super().chosen(replace(asked, hint=asked.limit - 1), partition, start)


@told_by("page-size-hint")
class DoublesForAHintOfOne(Publisher):
    """A page of one event begins with the one before it."""

    def part(self, asked: Asked, partition: int, start: int) -> list[Line]:
        found = super().part(asked, partition, start)
        if asked.hint == 1 and start and "data" in found[0]:
            return [self.event(asked, partition, self.mine_before(asked, partition, start)), *found]
        return found

    def mine_before(self, asked: Asked, partition: int, start: int) -> int:
        return [at for at in range(start) if self.has(asked, partition, at)][-1]


@told_by("page-size-hint")
class SkipsToTheEndWithoutAHint(Publisher):
    """Without a hint, 100 events come, and the cursor of the end."""

    def checkpoint(self, asked: Asked, partition: int, places: list[int], number: int) -> Line:
        if asked.hint is None and number == len(places):
            return {"partition": partition, "cursor": self.cursor(len(self.log))}
        return super().checkpoint(asked, partition, places, number)


@told_by("page-size-hint")
class NothingWithoutAHint(Publisher):
    """Without a hint, no events come."""

    def chosen(self, asked: Asked, partition: int, start: int) -> list[int]:
        return [] if asked.hint is None else super().chosen(asked, partition, start)


@told_by("page-size-hint")
class BeginsLateWithoutAHint(Publisher):
    """Without a hint, _first is a hundred events back from the end."""

    def start(self, asked: Asked, cursor: str) -> int:
        if asked.hint is None and cursor == "_first":
            return len(self.log) - 100
        return super().start(asked, cursor)


@told_by("page-size-hint")
class LosesWhatALargeHintAsksFor(Publisher):
    """A page has 120 events at most, and a cursor as if the hint had been followed."""

    def lines(self, asked: Asked, partition: int, places: list[int]) -> Iterator[Line]:
        yield from (self.event(asked, partition, at) for at in places[:120])
        yield self.checkpoint(asked, partition, places, len(places))


@told_by("page-size-hint")
class RefusesAHintOfOne(Publisher):
    """A hint below 10 is refused."""

    def check(self, asked: Asked) -> None:
        super().check(asked)
        if asked.hint is not None and asked.hint < 10:
            raise RefusalError(400, "pagesizehint must be at least 10")


# headers


@told_by("headers")
class HeadersNobodyAskedFor(Publisher):
    """Headers come always."""

    def headers(self, asked: Asked, event: Event) -> dict[str, str]:
        return event.headers


@told_by("headers")
class AllHeadersForOne(Publisher):
    """All headers come if one is asked for."""

    def headers(self, asked: Asked, event: Event) -> dict[str, str]:
        return event.headers if asked.headers else {}


@told_by("headers")
class LosesEventsWithoutHeaders(Publisher):
    """With headers=_all, events that have none are left out."""

    def lines(self, asked: Asked, partition: int, places: list[int]) -> Iterator[Line]:
        for line in super().lines(asked, partition, places):
            if not asked.headers or "headers" in line or "cursor" in line:
                yield line


@told_by("headers")
class LosesEventsWithoutTheHeader(Publisher):
    """With the name of a header, events that do not have it are left out."""

    def lines(self, asked: Asked, partition: int, places: list[int]) -> Iterator[Line]:
        for line in super().lines(asked, partition, places):
            if (
                "_all" in asked.headers
                or not asked.headers
                or "headers" in line
                or "cursor" in line
            ):
                yield line


@told_by("headers")
class LosesAPageBoundaryWithHeaders(Publisher):
    """With headers, the cursor of a page is one event too far."""

    def checkpoint(self, asked: Asked, partition: int, places: list[int], number: int) -> Line:
        found = super().checkpoint(asked, partition, places, number)
        if asked.headers and number == len(places) < len(self.log):
            rest = self.chosen(replace(asked, hint=1), partition, places[-1] + 1)
            found["cursor"] = self.cursor((rest or places)[0] + 1)
        return found


@told_by("checkpoint")
class NoCheckpointWithHeaders(Publisher):
    """With headers, there is no checkpoint."""

    def lines(self, asked: Asked, partition: int, places: list[int]) -> Iterator[Line]:
        found = super().lines(asked, partition, places)
        return (each for each in found if not asked.headers or "data" in each)


@told_by("header-values")
class NumbersAsHeaders(Publisher):
    """The value of a header is a number."""

    def event(self, asked: Asked, partition: int, at: int) -> Line:
        line = super().event(asked, partition, at)
        return {**line, "headers": {"type": 1}} if "headers" in line else line


@told_by("headers")
class RefusesHeaders(Publisher):
    """headers=_all is refused."""

    def check(self, asked: Asked) -> None:
        super().check(asked)
        if asked.headers:
            raise RefusalError(400, "unknown parameter")


# compression


@told_by("compression")
class CutsWhatItPacks(Publisher):
    """The end of the gzip stream is missing."""

    def pack(self, asked: Asked, body: bytes) -> bytes:
        return super().pack(asked, body)[:-12]


@told_by("compression")
class LosesAnEventInGzip(Publisher):
    """A packed page lacks its first event."""

    def pack(self, asked: Asked, body: bytes) -> bytes:
        return super().pack(asked, body.partition(b"\n")[2] if body.count(b"\n") > 2 else body)


@told_by("compression")
class KeepsAPackedPage(Publisher):
    """A packed page is kept for each partition, whatever the cursor."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[int, ...], bytes] = {}

    def pack(self, asked: Asked, body: bytes) -> bytes:
        return self.kept.setdefault((asked.n, *asked.cursors), super().pack(asked, body))


@told_by("compression")
class PacksWithoutBeingAsked(Publisher):
    """All answers are packed."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        return super().framed(replace(asked, packed=True), body)


@told_by("compression")
class PacksInMembers(Publisher):
    """A packed page has several members; some clients read the first one only."""

    def pack(self, asked: Asked, body: bytes) -> bytes:
        return b"".join(map(gzip.compress, body.splitlines(keepends=True)))


# waiting, and what other clients ask for


@told_by("wait")
class NothingWhileWaiting(Publisher):
    """With wait, an answer has no events and the cursor of the end."""

    def page(self, asked: Asked) -> list[Line]:
        if asked.wait:
            return [self.idle(each, len(self.log)) for each in asked.cursors]
        return super().page(asked)


@told_by("wait")
class RefusesToWait(Publisher):
    """The parameter wait is refused."""

    def check(self, asked: Asked) -> None:
        super().check(asked)
        if asked.wait:
            raise RefusalError(400, "unknown parameter")


@told_by("content-type")
class AnArrayForOthers(Publisher):
    """Clients that do not ask for NDJSON by name get a JSON array."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        if "ndjson" in asked.accept:
            return super().framed(asked, body)
        return ok(b"[" + b",".join(body.splitlines()) + b"]", content_type="application/json")


@told_by("content-type")
class AnotherCharset(Publisher):
    """The Content-Type names Latin-1, which the Python client believes."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        return ok(body, content_type="application/x-ndjson; charset=iso-8859-1")


@told_by("n-missing")
class NoNNeeded(Publisher):
    """Without n, the answer is a page."""

    def asked(self, request: Request) -> Asked:
        if "n" not in request.query:
            return Asked(4, {0: "_first"}, 10)
        return super().asked(request)


# lines


@told_by("json")
class HalfAPair(Publisher):
    """An event has half of a surrogate pair."""

    def line(self, line: Line) -> bytes:
        return super().line(line).replace("😀".encode(), rb"\ud83d")


@told_by("keys")
class DataTwice(Publisher):
    """An event has its data twice."""

    def line(self, line: Line) -> bytes:
        return super().line(line).replace(b'"data":', b'"data":{"id":0},"data":')


@told_by("keys")
class CursorTwice(Publisher):
    """A checkpoint has two cursors."""

    def line(self, line: Line) -> bytes:
        first = json.dumps(self.cursor(0)).encode()
        return super().line(line).replace(b'"cursor":', b'"cursor":%b,"cursor":' % first)


@told_by("keys")
class EscapedData(Publisher):
    """The name data is written with an escape."""

    def line(self, line: Line) -> bytes:
        return super().line(line).replace(b'"data":', rb'"d\u0061ta":')


@told_by("keys")
class EscapedCursor(Publisher):
    """The name cursor is written with an escape."""

    def line(self, line: Line) -> bytes:
        return super().line(line).replace(b'"cursor":', rb'"\u0063ursor":')


@told_by("keys")
class NamesInDataTwice(Publisher):
    """An object in the data has a name twice."""

    def line(self, line: Line) -> bytes:
        return super().line(line).replace(b'"data":{', b'"data":{"id":0,')


@told_by("line-ends")
class NoFinalNewline(Publisher):
    """The last line has no newline."""

    def body(self, asked: Asked, lines: list[Line]) -> bytes:
        return super().body(asked, lines).rstrip(b"\n")


@told_by("json")
class BytesAfterAnObject(Publisher):
    """Each line has a comma after its object."""

    def line(self, line: Line) -> bytes:
        return super().line(line) + b","


@told_by("partition")
class NamesTheWrongPartition(Publisher):
    """All lines are of partition 0."""

    def line(self, line: Line) -> bytes:
        return super().line({**line, "partition": 0})


@told_by("json")
class AnErrorAsText(Publisher):
    """After 40 events, a text tells of an error, and the answer ends as if it was whole."""

    def body(self, asked: Asked, lines: list[Line]) -> bytes:
        failed = b"" if len(lines) <= 40 else b"Internal server error\n"
        return super().body(asked, lines[:40]) + failed


# framing


@told_by("connection")
class BytesAfterTheAnswer(Publisher):
    """More bytes come than Content-Length says."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        return super().framed(asked, body).then(b"\r\n\r\n")


@told_by("connection")
class CountsCharacters(Publisher):
    """Content-Length is the number of characters, not of bytes."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        if asked.packed:
            return super().framed(asked, body)
        characters = len(body.decode())
        return ok(body[:characters]).then(body[characters:])


@told_by("framing")
class CutsLongAnswers(Publisher):
    """An answer of more than 4 KiB is cut, before its length is reached."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        if asked.packed or len(body) < 4096:
            return super().framed(asked, body)
        return short(body[:4096], len(body) - 4096)


@told_by("framing")
class NoLastChunk(Publisher):
    """The chunk that says that this was all is missing."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        return super().framed(asked, body) if asked.packed else chunked_without_end(body)


@told_by("framing")
class EndsWithTheConnection(Publisher):
    """Only the end of the connection ends the answer."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        return super().framed(asked, body) if asked.packed else until_close(body)


@told_by("framing")
class BreaksOffNowAndThen(Publisher):
    """Every fourth answer breaks off."""

    def framed(self, asked: Asked, body: bytes) -> Answer:
        return short(body[:-1]) if self.answers % 4 == 0 else super().framed(asked, body)


@told_by("first")
class FailsForAPartition(Publisher):
    """One partition cannot be read."""

    def check(self, asked: Asked) -> None:
        super().check(asked)
        if 2 in asked.cursors:
            raise RefusalError(500, "no such table")


@told_by("cursor-missing")
class NoCursorNeeded(Publisher):
    """Without a cursor, it begins at the beginning."""

    def check(self, asked: Asked) -> None:
        if not asked.cursors:
            asked.cursors[0] = "_first"
        super().check(asked)


@told_by("last")
class RefusesLast(Publisher):
    """_last is refused."""

    def start(self, asked: Asked, cursor: str) -> int:
        if cursor == "_last":
            raise RefusalError(400, "unknown cursor")
        return super().start(asked, cursor)


@told_by("cursor-unknown")
class FailsForAnUnknownCursor(Publisher):
    """A cursor that it does not know is an error of the server."""

    def respond(self, request: Request) -> Answer:
        answer = super().respond(request)
        known = answer.pieces[0]
        wrong = isinstance(known, bytes) and b"no cursor of this feed" in known
        return refused(500, "internal server error") if wrong else answer
