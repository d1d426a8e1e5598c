"""Direct reads: ask a publisher for a plan, fetch the chunks of planned ranges, and find a time.

Rule for editors: what comes is compared with the plan before a row is made of it: positions, frame
hashes, counts, digests. An answer that breaks off is asked for again from the last group that came
whole, so no chunk is given twice. Anything else that differs fails.

Plans are asked for on the driver, chunks in tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import numpy as np
import requests

from zeh_spark.client.http.credentials import masked
from zeh_spark.client.http.responses import TransientError, problem_document
from zeh_spark.client.http.retry import Retry
from zeh_spark.client.http.transport import Body, Transport
from zeh_spark.errors import (
    AccessError,
    CursorGoneError,
    OptionError,
    PublisherError,
    UnavailableError,
)
from zeh_spark.wire import direct_reads, problems
from zeh_spark.wire.direct_reads import (
    INLINE_BYTES,
    FormatError,
    Group,
    Plan,
    PlannedRange,
    PlanRequest,
    RangeEnd,
    Totals,
)

_JSON = {"Content-Type": "application/json"}

_RANGES = 1000
"""Most ranges that are asked for at a time."""

NOT_OFFERED = {404, 405, 501}
"""How a publisher answers that does not know plans and chunks."""

_TIME_REFUSED = {problems.BAD_TIME.name, problems.NO_COMMIT_TIMES.name}


def plan(transport: Transport, request: PlanRequest, *, with_chunks: bool = False) -> Plan:
    """Ask for a plan. The plan's ranges lead from the cursors to its ends.

    With `with_chunks`, it brings its chunks if it is small, and the publisher knows how to.
    """
    return transport.retry().call(lambda: _planned(transport, request, with_chunks=with_chunks))


def cursors_at(transport: Transport, n: int, time: int) -> dict[int, str]:
    """Ask where each partition begins for a reader of all events that were committed since a time.

    `n` is the number of partitions that the reader works with; `time` is in ms since 1970. Raises
    OptionError if the publisher or the feed cannot tell it, or the time is ahead.
    """
    return transport.retry().call(lambda: _at_time(transport, n, time))


def _at_time(transport: Transport, n: int, time: int) -> dict[int, str]:
    why = "its answer is none to this request, which only the publisher of zeh-spark knows"
    try:
        with transport.request("GET", "/cursors", f"n={n}&time={time}", proven=True) as response:
            text = Body(response, transport.url).whole()
        found = direct_reads.decode_cursors(text).cursors
        if found.keys() == {str(each) for each in range(n)}:
            return {each: found[str(each)] for each in range(n)}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    except (PublisherError, TransientError) as exc:
        document = problem_document(exc.body or "")
        if problems.name_in(document) in _TIME_REFUSED:
            why = str(document.get("detail"))
        elif isinstance(exc, AccessError) or exc.status not in {400, *NOT_OFFERED}:
            raise
        else:
            why = f"it answers {exc.status}; that of zeh-spark, from this version on, can"
    raise OptionError(
        f"option 'startingTimestamp' is {time}, but the publisher of {transport.url} does not tell "
        f"where the feed was then: {masked(why)}. Set 'startingCursors' instead",
        option="startingTimestamp",
        anchor="startingtimestamp-cannot-be-used",
    )


def _planned(transport: Transport, request: PlanRequest, *, with_chunks: bool) -> Plan:
    sent = msgspec.json.encode(request)
    prefer = {"Prefer": direct_reads.WITH_CHUNKS} if with_chunks else {}
    with _asked(transport, "/plan", sent, **prefer) as response:
        body = Body(response, transport.url)
        text = body.whole()
        if not body.proven:
            raise TransientError(UnavailableError(f"{transport.url}: the end of a plan is missing"))
    try:
        found = direct_reads.decode_plan(text)
        direct_reads.checked_ranges(found, request)
    except (msgspec.MsgspecError, FormatError, UnicodeDecodeError, RecursionError) as exc:
        said = masked(text[:200].decode(errors="replace"))
        raise PublisherError(
            f"{transport.url} answered a request for a plan with something else ({exc}): {said!r}. "
            f"Read with fetch=driver, and tell the publisher's owner",
            body=said,
            anchor="direct-reads",
        ) from None
    return found


def _asked(transport: Transport, path: str, body: bytes, **more: str) -> requests.Response:
    """Send a request of direct reads, and return its answer (errors as `Transport.request`).

    An answer by which a publisher does not offer direct reads is final, whatever its status.
    """
    try:
        return transport.request("POST", path, body=body, headers={**_JSON, **more})
    except (PublisherError, TransientError) as exc:
        if exc.status not in NOT_OFFERED:
            raise
        refused = exc.final if isinstance(exc, TransientError) else exc
        raise PublisherError(
            f"{refused}. This was asked for a direct read. If the feed is there, another publisher "
            f"answers, or a proxy that does not pass POST on: set fetch=driver until that is "
            f"changed",
            status=exc.status,
            body=exc.body,
            anchor="direct-reads",
        ) from refused


@dataclass(frozen=True, slots=True)
class FetchedGroup:
    """Neighbouring chunks of a range, checked.

    Args:
        headers: what the chunks are: an array of `direct_reads.HEADERS`.
        producers: the names of their producers, by what stands for them in `headers`.
        places: where their lines are: an array of `direct_reads.PLACES`.
    """

    partition: int
    headers: np.ndarray
    producers: dict[int, str]
    places: np.ndarray
    frames: Sequence[bytes]


def fetch(transport: Transport, n: int, ranges: Sequence[PlannedRange]) -> Iterator[FetchedGroup]:
    """Fetch the chunks of planned ranges.

    The chunks of each range come in order of g, each once. Raises PublisherError if they are not
    what was planned, and UnavailableError after `retryTimeout` without progress.
    """
    return _Fetch(transport, n, list(ranges), transport.retry()).groups()


def carried(transport: Transport, n: int, plan: Plan) -> list[FetchedGroup]:
    """Return the chunks that came with a small plan, checked like fetched ones; none if none came.

    Raises PublisherError if they are not what was planned.
    """
    if plan.chunks is None or sum(each.bytes for each in plan.ranges) > INLINE_BYTES:
        return []
    return _Fetch(transport, n, plan.ranges, transport.retry()).carried(plan.chunks)


@dataclass(slots=True)
class _Fetch:
    """A fetch under way: `at` is the range that is coming, `got` what came of it so far."""

    transport: Transport
    n: int
    ranges: list[PlannedRange]
    retry: Retry
    at: int = 0
    cursor: str = ""
    got: Totals = Totals()

    def __post_init__(self) -> None:
        self.cursor = self.ranges[0].from_ if self.ranges else ""

    def carried(self, answer: bytes) -> list[FetchedGroup]:
        try:
            found = [*self._parts(iter([answer]), 0, len(self.ranges))]
            if self.at < len(self.ranges):
                raise FormatError("they came with the plan, and end too early")
        except FormatError as exc:
            raise self._other(str(exc)) from None
        return found

    def groups(self) -> Iterator[FetchedGroup]:
        while self.at < len(self.ranges):
            try:
                upto = min(self.at + _RANGES, len(self.ranges))
                yield from self._answer(upto)
                if self.at < upto:
                    raise TransientError(self._broken_off())
            except TransientError as failure:
                self._wait(failure)
            except CursorGoneError as exc:
                raise self._gone(exc) from exc

    def _wait(self, failure: TransientError) -> None:
        """Pause before the next request. Raises the final error if the time is over."""
        try:
            self.retry.wait(failure)
        except UnavailableError as exc:
            raise exc.reworded(
                f"{exc.what}. This was asked in a task: if executors have no route to the "
                f"publisher, set fetch=driver"
            ) from exc

    def _answer(self, upto: int) -> Iterator[FetchedGroup]:
        """Yield the groups of the next ranges up to one, as far as they come in one answer."""
        first = self.at
        left = self.ranges[first:upto]
        left[0] = msgspec.structs.replace(left[0], from_=self.cursor)
        sent = msgspec.json.encode(direct_reads.chunks_request(self.n, left))
        with _asked(self.transport, "/chunks", sent) as response:
            self._check_type(response)
            pieces = iter(Body(response, self.transport.url))
            try:
                yield from self._parts(pieces, first, upto)
            except FormatError as exc:
                raise self._other(str(exc)) from None
            if self.at == upto:
                _finish(response, pieces)

    def _parts(self, pieces: Iterator[bytes], first: int, upto: int) -> Iterator[FetchedGroup]:
        """Yield the groups of an answer about the ranges from `first`, until one is complete."""
        for part in direct_reads.parse_answer(pieces):
            if part.range != self.at - first:
                raise FormatError(f"range {part.range} came, not {self.at - first}")
            if isinstance(part, Group):
                yield self._checked(part)
            else:
                self._end(part)
            self.retry.progress()
            if self.at == upto:
                return

    def _check_type(self, response: requests.Response) -> None:
        kind = response.headers.get("Content-Type", "")
        encoding = response.headers.get("Content-Encoding", "identity")
        if (
            response.status_code != 200
            or kind.partition(";")[0].strip().lower() != direct_reads.CONTENT_TYPE
            or encoding != "identity"
        ):
            raise self._other(f"it is {response.status_code} {kind!r}, encoded as {encoding!r}")

    def _checked(self, group: Group) -> FetchedGroup:
        planned, headers = self.ranges[self.at], group.headers
        begin, end = position(self.cursor), position(planned.to)
        g = headers["g"]
        if not (begin < g[0] and g[-1] <= end and (np.diff(g) > 0).all()):
            raise FormatError(f"chunks {g[0]} to {g[-1]} came for those from {begin} to {end}")
        if (headers["partition"] % self.n != planned.partition).any():
            raise FormatError(f"a chunk of partition {planned.partition} is of another one")
        if not (headers["events"].all() and headers["size"].all()):
            raise FormatError("a chunk is empty")
        names = {direct_reads.name_hash(name): name for name in group.producers}
        if not {*headers["producer"].tolist()} <= names.keys():
            raise FormatError("the name of a producer is missing")
        beyond = headers["sequence"] + headers["events"]  # below 0 if it is too large
        numbers = headers["time"], headers["batch"], headers["sequence"], beyond
        if any((each < 0).any() for each in numbers):
            raise FormatError("a time, or the number of a batch or of an event, is out of range")
        self.got += direct_reads.totals(headers)
        self.cursor = f"{g[-1]}.{headers['tag'][-1]:08x}"
        return FetchedGroup(planned.partition, headers, names, group.places, group.frames)

    def _end(self, end: RangeEnd) -> None:
        """Compare what came of a range with what was planned, and go on with the next one."""
        planned = self.ranges[self.at]
        if end.to != planned.to or self.got != direct_reads.totals_of(planned):
            raise FormatError(
                f"chunks, events, bytes and digest of the range from {planned.from_!r} to "
                f"{planned.to!r} are {self.got.chunks}, {self.got.events}, {self.got.bytes} and "
                f"{self.got.hex}; planned are {planned.chunks}, {planned.events}, {planned.bytes} "
                f"and {planned.digest}"
            )
        self.at += 1
        self.got = Totals()
        if self.at < len(self.ranges):
            self.cursor = self.ranges[self.at].from_

    def _broken_off(self) -> UnavailableError:
        planned = self.ranges[self.at]
        return UnavailableError(
            f"partition {planned.partition}, cursor {self.cursor!r}: the publisher of "
            f"{self.transport.url} broke off before it had sent the chunks up to {planned.to!r}. "
            f"Nothing is lost: start again once it answers"
        )

    def _other(self, why: str) -> PublisherError:
        planned = self.ranges[self.at]
        return PublisherError(
            f"partition {planned.partition}, cursor {self.cursor!r}: the publisher of "
            f"{self.transport.url} did not send the chunks that were planned: {masked(why)}. If a "
            f"proxy changes its answers, or another version of it answers, correct that; "
            f"fetch=driver reads page by page",
            partition=planned.partition,
            cursor=self.cursor,
            anchor="direct-reads",
        )

    def _gone(self, exc: CursorGoneError) -> CursorGoneError:
        planned = self.ranges[self.at]
        return exc.reworded(
            f"partition {planned.partition}, cursor {self.cursor!r}: {exc}. The events were there "
            f"when the batch was planned, and were removed before it was read. Keep events for "
            f"longer, or name this reader with 'cursorSet' and have retention wait for it; smaller "
            f"batches ('maxBytesPerTrigger') help, too, and so does 'stagingLocation', which keeps "
            f"a batch until it is done",
            partition=planned.partition,
            cursor=self.cursor,
            advice=None,
        )


def _finish(response: requests.Response, pieces: Iterator[bytes]) -> None:
    """Read the end of the framing of a whole answer, so that its connection is used again."""
    if response.raw.chunked:
        with suppress(TransientError):  # all that was planned has come
            next(pieces, None)


def position(cursor: str) -> int:
    """Return the position in a cursor of a plan. Raises FormatError if there is none."""
    g = cursor.partition(".")[0]
    if not (g.isascii() and g.isdigit() and len(g) < 20):
        raise FormatError(f"{cursor!r} is no cursor of a plan")
    return int(g)
