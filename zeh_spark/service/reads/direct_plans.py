"""Plans of direct reads: what a batch reads after some cursors, and where it ends.

A plan takes chunks in order of g over all partitions, as a page does, so no partition starves and
time ascends. It reads the index and never a frame, in one snapshot. It ends early rather than to
keep the snapshot for long.

Most plans begin where the last one ended: every chunk after the highest position is wanted, and is
found by one scan, or known from the totals of whole packs. Partitions whose position is far behind
are looked up one by one, up to that point.

Runs in the publisher's worker threads.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from zeh_spark.service.reads.direct_reads import check_not_ahead
from zeh_spark.service.reads.reading import (
    chunks_after,
    covered,
    head_of,
    numbers_of,
    parse_cursor,
    positions,
)
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.log import Chunk, FeedState, Log, PackTotals, header_records
from zeh_spark.service.store.problems import Problem, other_history
from zeh_spark.wire import problems, wire
from zeh_spark.wire.direct_reads import (
    MAX_LIMIT,
    PLAN_CHUNKS,
    Plan,
    PlannedRange,
    PlanRequest,
    Totals,
    totals,
)

RANGE_BYTES = 16 << 20
"""Bytes of lines of a range, about, if the reader does not say."""

_FIRST_CHUNKS, _SCAN_CHUNKS = 64, 4096

_ENDLESS = 1 << 62
_PLAN_SECONDS = 5.0
"""Seconds after which a plan takes no more chunks."""


@dataclass(slots=True)
class _Range:
    """What a range has so far: chunks, and what whole packs have of its partition.

    Attributes:
        size: The bytes of the lines of both.
        last: The cursor after the last chunk.
    """

    chunks: list[Chunk] = field(default_factory=list)
    sums: Totals = Totals()
    size: int = 0
    last: str = ""


class Planner:
    """Makes one plan (see `plan`) of a feed's log."""

    def __init__(self, log: Log, request: PlanRequest) -> None:
        self._log = log
        self._feed = log.state
        self._request = request
        self._end = time.monotonic() + _PLAN_SECONDS
        self._starts = self._checked(_numbered(request.cursors))
        self._stored = self._by_stored(self._starts)
        self._ends: dict[int, tuple[int, str]] = {}
        self._upto = self._feed.head
        if isinstance(request.ends, dict):
            self._ends = self._checked(_numbered(request.ends))
            for partition, (end, cursor) in self._ends.items():
                start, begin = self._starts[partition]
                if end < start:
                    raise Problem(
                        problems.BAD_PLAN,
                        f"partition {partition} ends at {cursor!r}, before it begins, at {begin!r}",
                    )
            self._upto = max((g for g, _ in self._ends.values()), default=0)
        if isinstance(request.upto, str):
            self._upto = min(self._upto, self._position(request.upto))
        self._stored_ends = self._by_stored(self._ends)
        self._found: dict[int, list[_Range]] = defaultdict(lambda: [_Range()])
        self._goal = _given(request.range_bytes, RANGE_BYTES)
        limits = _given(request.max_events, _ENDLESS), _given(request.max_bytes, _ENDLESS)
        self._left = [*limits, PLAN_CHUNKS]

    def plan(self) -> Plan:
        more, last = False, 0
        for step in self._wanted():  # one chunk at most exceeds a limit
            if last and (min(self._left) <= 0 or time.monotonic() > self._end):
                more = True
                break
            if isinstance(step, Chunk):
                last = step.g
                self._count(step.events, step.size)
                self._add(step)
            else:
                last = step.last
                self._count(*_events_and_bytes(step))
                self._add_all(step)
        reached = self._ends if self._ends and not more else self._starts
        cursors = {each: cursor for each, (_, cursor) in reached.items()}
        if reached is self._starts:
            cursors |= {each: ranges[-1].last for each, ranges in self._found.items()}
        return Plan(
            {str(each): cursor for each, cursor in sorted(cursors.items())},
            more,
            head_of(self._feed),
            self._feed.time,
            self._feed.head - last if more else 0,
            [
                each
                for partition in sorted(self._found)
                for each in self._planned(partition, cursors[partition])
            ],
        )

    def _wanted(self) -> Iterator[Chunk | PackTotals]:
        """Yield the chunks after the positions, in order of g, and not after explicit ends."""
        high = min(max(self._stored.values(), default=0), self._upto)
        before = {each: g for each, g in self._stored.items() if g < high}
        behind = self._log.unread(before, high)
        yield from self._chunks({each: before[each] for each in sorted(behind)}, high)
        everything = {*self._stored}
        if len(everything) < self._feed.partitions:  # what follows may be of other partitions
            everything = self._log.unread(dict.fromkeys(everything, high), self._upto)
        if not everything:
            return
        first_end = min(self._stored_ends.values(), default=self._upto)
        for pack in self._log.packs(high, min(self._upto, first_end)):
            if high < pack.first - 1:
                yield from self._chunks(dict.fromkeys(everything, high), pack.first - 1)
            high = pack.last
            sums = {each: pack.sums[each] for each in pack.sums.keys() & everything}
            if not sums:
                continue
            pack = pack._replace(sums=sums)
            if all(map(int.__lt__, _events_and_bytes(pack), self._left)):
                yield pack
            else:
                yield from self._chunks(dict.fromkeys(everything, pack.first - 1), high)
        yield from self._chunks(dict.fromkeys(everything, high), self._upto)

    def _chunks(self, after: Mapping[int, int], upto: int) -> Iterator[Chunk]:
        ends = self._stored_ends
        found = chunks_after(lambda: self._log, after, upto, _FIRST_CHUNKS, _SCAN_CHUNKS)
        return (each for each in found if each.g <= ends[each.partition]) if ends else found

    def _count(self, events: int, size: int) -> None:
        self._left = [left - more for left, more in zip(self._left, (events, size, 1), strict=True)]

    def _range(self, partition: int) -> _Range:
        """Return the range of a reader's partition that the next chunk is in."""
        ranges = self._found[partition]
        if ranges[-1].size >= self._goal:
            ranges.append(_Range())
        return ranges[-1]

    def _add(self, chunk: Chunk) -> None:
        found = self._range(chunk.partition % self._request.n)
        found.chunks.append(chunk)
        found.size += chunk.size
        found.last = chunk.cursor

    def _add_all(self, pack: PackTotals) -> None:
        """Add a pack: what it has of a reader's partition as one sum, unless a range ends in it."""
        of: dict[int, list[int]] = defaultdict(list)
        for stored in pack.sums:
            of[stored % self._request.n].append(stored)
        for partition, some in of.items():
            found, sums = self._range(partition), Totals()
            for each in some:
                sums += pack.sums[each]
            if found.size + sums.bytes <= self._goal:
                found.sums += sums
                found.size += sums.bytes
                found.last = max((pack.places[each] for each in some), key=attrgetter("g")).cursor
            else:
                for chunk in self._chunks(dict.fromkeys(some, pack.first - 1), pack.last):
                    self._add(chunk)

    def _planned(self, partition: int, end: str) -> Iterator[PlannedRange]:
        """Yield the ranges of a partition: each begins where the one before it ends."""
        ranges = self._found[partition]
        ends = [each.last for each in ranges[:-1]] + [end]
        begins = [self._starts[partition][1], *ends]
        for each, begin, to in zip(ranges, begins, ends, strict=False):
            told = each.sums + totals(header_records(each.chunks))
            yield PlannedRange(partition, begin, to, told.chunks, told.events, told.bytes, told.hex)

    def _checked(self, cursors: Mapping[int, str]) -> dict[int, tuple[int, str]]:
        for partition, cursor in cursors.items():
            check_not_ahead(self._feed, partition, cursor)
        return positions(self._log, cursors, self._request.n)

    def _position(self, cursor: str) -> int:
        check_not_ahead(self._feed, 0, cursor)
        found = parse_cursor(0, cursor)
        if found is None:
            raise Problem(problems.BAD_PLAN, f"upto is {cursor!r}; allowed are the heads of plans")
        known = self._log.tags.get(found[0], found[1])
        if known != found[1]:
            why = f"position {found[0]}, where the plan is to end (upto), has the tag {known!r}"
            raise other_history(0, cursor, why, replica=self._feed.replica)
        return found[0]

    def _by_stored(self, found: Mapping[int, tuple[int, str]]) -> dict[int, int]:
        return {
            stored: g
            for partition, (g, _) in found.items()
            for stored in covered(partition, self._request.n, self._feed.partitions)
        }


def plan(store: Store, name: str, request: PlanRequest) -> tuple[FeedState, Plan]:
    """Return a feed, and a plan of what it has after some cursors, with the newest epoch.

    The request was checked (`check_plan`). Raises Problem if a cursor is refused, or events after
    it are gone.
    """
    named = [request.upto, *request.cursors.values()]
    named += request.ends.values() if isinstance(request.ends, dict) else ()
    with store.snapshot(name, numbers_of(each for each in named if isinstance(each, str))) as log:
        plan = Planner(log, request).plan()
        plan.epoch = log.identity.epochs[-1]
        return log.state, plan


def check_plan(request: PlanRequest, most: int) -> None:
    """Raise Problem for a request for a plan that no feed can answer.

    `most` is the most partitions that a reader may work with.
    """
    n, ends = request.n, request.ends if isinstance(request.ends, dict) else request.cursors
    limits = request.max_events, request.max_bytes, request.range_bytes
    wrong = None
    if not 1 <= n <= most:
        wrong = f"n is {n}; allowed are 1 to {most}"
    elif not _are_some(request.cursors, n) or ends.keys() != request.cursors.keys():
        wrong = f"cursors need some of 0 to {n - 1}, and ends, if they are given, the same ones"
    elif any(isinstance(each, int) and not 1 <= each <= MAX_LIMIT for each in limits):
        wrong = f"a limit is {limits}; allowed are 1 to {MAX_LIMIT}"
    elif not 0 <= request.wait <= MAX_LIMIT:
        wrong = f"wait is {request.wait}; allowed are whole seconds from 0"
    elif isinstance(request.ends, dict) and wire.LAST in ends.values():
        wrong = "an end is _last; allowed are _first, and cursors that the feed gave"
    if wrong:
        raise Problem(problems.BAD_PLAN, wrong)


def _events_and_bytes(pack: PackTotals) -> tuple[int, int]:
    sums = pack.sums.values()
    return sum(each.events for each in sums), sum(each.bytes for each in sums)


def _are_some(cursors: Mapping[str, str], n: int) -> bool:
    return bool(cursors) and cursors.keys() <= {*map(str, range(n))}


def _numbered(cursors: Mapping[str, str]) -> dict[int, str]:
    return {int(partition): cursor for partition, cursor in cursors.items()}


def _given(value: object, default: int) -> int:
    return value if isinstance(value, int) else default
