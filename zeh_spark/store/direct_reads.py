"""Direct reads of a store's feed: plans, and the chunks of planned ranges.

A plan takes chunks in order of g over all partitions, as a page does, so no partition starves and
time ascends. It reads the index and never a frame. After each look-up it checks that retention
removed nothing that it had still to see.

Most plans begin where the last one ended: every chunk after the highest position is wanted, and is
found by one scan. Partitions whose position is far behind are looked up one by one, up to that
point.

Runs in the publisher's worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from zeh_spark.errors import StoreError
from zeh_spark.protocol import direct_reads, problems, wire
from zeh_spark.protocol.direct_reads import (
    HEADERS,
    MAX_RANGES,
    PLAN_CHUNKS,
    ChunksRequest,
    EncodedGroup,
    Plan,
    PlannedRange,
    PlanRequest,
    Totals,
    encode_end,
    encode_group,
    name_hash,
    totals,
)
from zeh_spark.store.answer_cache import AnswerCache, key_of
from zeh_spark.store.batches import MAX_NUMBER
from zeh_spark.store.commit_plan import tag
from zeh_spark.store.interface import Chunk, FeedState, Store
from zeh_spark.store.problems import Problem
from zeh_spark.store.reading import (
    check_history_kept,
    check_kept,
    covered,
    in_order,
    known_history,
    parse_cursor,
    positions,
    positions_in,
)

RANGE_BYTES = 16 << 20
"""Bytes of lines of a range, about, if the reader does not say."""

_SCAN_CHUNKS, _FIRST_CHUNKS = 4096, 64
_GROUP_CHUNKS, _GROUP_BYTES = direct_reads.GROUP_CHUNKS, 4 << 20
_ENDLESS = 1 << 62
_TRIES = 5
"""How often a plan is made from the beginning, because retention removed chunks meanwhile."""


@dataclass(slots=True)
class _Range:
    """A range that a plan is filling."""

    begin: str
    chunks: list[Chunk] = field(default_factory=list)
    size: int = 0

    def planned(self, partition: int, to: str) -> PlannedRange:
        found = totals(header_records(self.chunks))
        return PlannedRange(
            partition, self.begin, to, found.chunks, found.events, found.bytes, found.hex
        )


class Planner:
    """Makes one plan (see `plan`). The feed is as it was when this was made."""

    def __init__(self, store: Store, name: str, request: PlanRequest) -> None:
        self._store = store
        self._feed = store.feed(name)
        self._request = request
        self._starts = self._checked(_numbered(request.cursors))
        self._stored = self._by_stored(self._starts)
        self._ends: dict[int, tuple[int, str]] = {}
        self._upto = self._feed.head
        if isinstance(request.ends, dict):
            self._ends = self._checked(_numbered(request.ends))
            self._check_ends()
            self._upto = max((g for g, _ in self._ends.values()), default=0)
        if isinstance(request.upto, str):
            self._upto = min(self._upto, self._position(request.upto))
        self._stored_ends = self._by_stored(self._ends)

    def plan(self) -> Plan:
        """Return the plan."""
        cursors = {each: cursor for each, (_, cursor) in self._starts.items()}
        open_ranges: dict[int, _Range] = {}
        ranges: dict[int, list[PlannedRange]] = {}
        limit, goal = self._limit(), _given(self._request.range_bytes, RANGE_BYTES)
        more = False
        for chunk in self._wanted():
            if limit.full:
                more = True
                break
            limit.take(chunk)
            partition = chunk.partition % self._request.n
            here = open_ranges.get(partition)
            if here is None:
                here = open_ranges[partition] = _Range(cursors[partition])
            here.chunks.append(chunk)
            here.size += chunk.size
            if here.size >= goal:
                cursors[partition] = chunk.cursor
                ranges.setdefault(partition, []).append(here.planned(partition, chunk.cursor))
                del open_ranges[partition]
        for partition, here in open_ranges.items():
            cursors[partition] = here.chunks[-1].cursor
        if self._ends and not more:
            cursors = {each: cursor for each, (_, cursor) in self._ends.items()}
        for partition, here in open_ranges.items():
            found = ranges.setdefault(partition, [])
            found.append(here.planned(partition, cursors[partition]))
        for partition, found in ranges.items():  # a range that was full may end before the end
            if found[-1].to != cursors[partition]:
                found[-1] = _up_to(found[-1], cursors[partition])
        return Plan(
            {str(each): cursor for each, cursor in sorted(cursors.items())},
            more,
            f"{self._feed.head}.{tag(self._feed.history)}",
            self._feed.time,
            self._feed.head - limit.last if more else 0,
            [each for partition in sorted(ranges) for each in ranges[partition]],
        )

    def _wanted(self) -> Iterator[Chunk]:
        """Yield the chunks after the positions, in order of g."""
        high = min(max(self._stored.values(), default=0), self._upto)
        before = {each: g for each, g in self._stored.items() if g < high}
        behind = self._store.unread(self._feed.name, before, high)
        check_kept(self._store, self._feed.name, before)
        found = chunks_of(
            self._store, self._feed.name, {each: before[each] for each in sorted(behind)}, high
        )
        yield from self._within(found)
        yield from self._within(self._scanned(high))

    def _scanned(self, after: int) -> Iterator[Chunk]:
        """Yield all chunks after a position that every partition has reached."""
        name, limit = self._feed.name, 64
        while after < self._upto:
            found = self._store.scan(name, after, self._upto, limit)
            check_kept(self._store, name, {each: max(after, g) for each, g in self._stored.items()})
            yield from found
            if len(found) < limit:
                return
            after, limit = found[-1].g, min(4 * limit, _SCAN_CHUNKS)

    def _within(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Yield the chunks that are not after the explicit end of their partition."""
        ends = self._stored_ends
        return (each for each in chunks if each.g <= ends[each.partition]) if ends else chunks

    def _limit(self) -> _Limit:
        request = self._request
        most = min(_given(request.max_chunks, PLAN_CHUNKS), PLAN_CHUNKS)
        return _Limit(
            _given(request.max_events, _ENDLESS), _given(request.max_bytes, _ENDLESS), most
        )

    def _checked(self, cursors: Mapping[int, str]) -> dict[int, tuple[int, str]]:
        return checked_positions(self._store, self._feed, cursors, self._request.n)

    def _check_ends(self) -> None:
        for partition, (end, cursor) in self._ends.items():
            start, begin = self._starts[partition]
            if end < start:
                raise Problem(
                    problems.BAD_PLAN,
                    f"partition {partition} ends at {cursor!r}, before it begins, at {begin!r}",
                )

    def _position(self, cursor: str) -> int:
        """Return the position of a cursor of the feed, which may be of any partition."""
        _check_not_ahead(self._feed, 0, cursor)
        found = parse_cursor(0, cursor)
        if found is None:
            raise Problem(problems.BAD_PLAN, f"upto is {cursor!r}; allowed are the heads of plans")
        known = self._store.tags(self._feed.name, [found[0]]).get(found[0], found[1])
        if known != found[1]:
            raise Problem(
                problems.CURSOR_OF_ANOTHER_HISTORY,
                f"upto is {cursor!r}, but position {found[0]} has the tag {known!r}: the feed was "
                f"restored to an earlier state",
                partition=0,
                cursor=cursor,
            )
        return found[0]

    def _by_stored(self, found: Mapping[int, tuple[int, str]]) -> dict[int, int]:
        return {
            stored: g
            for partition, (g, _) in found.items()
            for stored in covered(partition, self._request.n, self._feed.partitions)
        }


@dataclass(slots=True)
class _Limit:
    """How much a plan may still take, and the position of the last chunk that it took.

    It is exceeded by one chunk at most.
    """

    events: int
    bytes: int
    chunks: int
    last: int = 0

    @property
    def full(self) -> bool:
        return self.last > 0 and (self.events <= 0 or self.bytes <= 0 or self.chunks <= 0)

    def take(self, chunk: Chunk) -> None:
        self.last = chunk.g
        self.events -= chunk.events
        self.bytes -= chunk.size
        self.chunks -= 1


def plan(store: Store, name: str, request: PlanRequest) -> Plan:
    """Return a plan of what comes after some cursors.

    Args:
        store: The store.
        name: The feed's name.
        request: The request, which was checked (`check_plan`).

    Raises:
        UnknownFeedError: The store has no such feed.
        Problem: A cursor is refused, or events after it are gone.
    """
    for _ in range(_TRIES):
        planner = Planner(store, name, request)  # refuses cursors after which events are gone
        try:
            return planner.plan()
        except Problem as problem:
            if problem.type is not problems.CURSOR_GONE:
                raise
            removed = problem  # while the plan was made
    raise removed


def requested_chunks(
    store: Store,
    name: str,
    request: ChunksRequest,
    cache: AnswerCache | None = None,
    count: Callable[[int], object] = int,
) -> Iterator[bytes]:
    """Yield the answer to a request for chunks, in pieces.

    What can be refused is refused before the first piece.

    Args:
        store: The store.
        name: The feed's name.
        request: The request, which was checked (`check_ranges`).
        cache: Where groups are kept for the next readers.
        count: Is told the number of events of each group before it is sent.

    Raises:
        UnknownFeedError: The store has no such feed.
        Problem: A cursor is refused, or chunks of a range are gone.
    """
    feed, cache = store.feed(name), cache or AnswerCache(0)
    found = _endpoints(store, feed, request)
    yield direct_reads.BEGINNING
    for number, (wanted, (begin, end)) in enumerate(zip(request.ranges, found, strict=True)):
        sent = Totals()
        stored = covered(wanted.partition, request.n, feed.partitions)
        after = dict.fromkeys(stored, begin)
        for chunks in _groups(chunks_of(store, name, after, end, everything=request.n == 1)):
            key = key_of("group", feed.origin, chunks)
            group = cache.get(key, partial(_encoded, store, name, chunks))
            count(group.totals.events)
            yield group.line(number)
            yield group.body
            sent += group.totals
        yield encode_end(number, wanted.to, sent)


def _encoded(store: Store, name: str, chunks: Sequence[Chunk]) -> EncodedGroup:
    names = {each.producer for each in chunks if each.producer is not None}
    return encode_group(header_records(chunks), names, _frames(store, name, chunks))


def chunks_of(
    store: Store, name: str, after: Mapping[int, int], upto: int, *, everything: bool = False
) -> Iterator[Chunk]:
    """Yield chunks of stored partitions in order of g. Raises Problem if some of them are gone.

    Args:
        store: The store.
        name: The feed's name.
        after: For each stored partition, the position after which to begin.
        upto: The highest position.
        everything: Whether these are all partitions of the feed, with the same position.
    """

    def look_up(positions: Mapping[int, int], limit: int) -> list[Chunk]:
        found = store.chunks(name, positions, upto, limit)
        check_kept(store, name, positions)
        return found

    if not everything:
        yield from in_order(look_up, after, _FIRST_CHUNKS)
        return
    begin = min(after.values(), default=0)
    while found := store.scan(name, begin, upto, _GROUP_CHUNKS):
        check_kept(store, name, dict.fromkeys(after, begin))
        yield from found
        begin = found[-1].g
    check_kept(store, name, dict.fromkeys(after, begin))


def check_plan(request: PlanRequest, most: int) -> None:
    """Raise Problem for a request for a plan that no feed can answer.

    Args:
        request: The request.
        most: Most partitions that a reader may work with.
    """
    n, ends = request.n, request.ends if isinstance(request.ends, dict) else request.cursors
    limits = request.max_events, request.max_bytes, request.max_chunks, request.range_bytes
    wrong = None
    if not 1 <= n <= most:
        wrong = f"n is {n}; allowed are 1 to {most}"
    elif not _every(request.cursors, n) or not _every(ends, n):
        wrong = f"cursors, and ends if they are given, need a cursor for each of 0 to {n - 1}"
    elif any(isinstance(each, int) and not 1 <= each <= MAX_NUMBER for each in limits):
        wrong = f"a limit is {limits}; allowed are 1 to {MAX_NUMBER}"
    elif not 0 <= request.wait <= MAX_NUMBER:
        wrong = f"wait is {request.wait}; allowed are whole seconds from 0"
    elif isinstance(request.ends, dict) and wire.LAST in ends.values():
        wrong = "an end is _last; allowed are _first, and cursors that the feed gave"
    if wrong:
        raise Problem(problems.BAD_PLAN, wrong)


def check_ranges(request: ChunksRequest, most: int) -> None:
    """Raise Problem for a request for chunks that no feed can answer (see `check_plan`)."""
    n, wrong = request.n, None
    if not 1 <= n <= most:
        wrong = f"n is {n}; allowed are 1 to {most}"
    elif not 1 <= len(request.ranges) <= MAX_RANGES:
        wrong = f"there are {len(request.ranges)} ranges; allowed are 1 to {MAX_RANGES}"
        if request.ranges:
            wrong = f"{wrong}. Ask for the others in another request"
    for each in request.ranges:
        if not 0 <= each.partition < n:
            wrong = f"a range is of partition {each.partition}, but n is {n}"
        elif {each.from_, each.to} & {wire.FIRST, wire.LAST}:
            wrong = f"a range is from {each.from_!r} to {each.to!r}; allowed are cursors of plans"
    if wrong:
        raise Problem(problems.BAD_RANGES, wrong)


def _every(cursors: Mapping[str, str], n: int) -> bool:
    return len(cursors) == n and all(str(each) in cursors for each in range(n))


def checked_positions(
    store: Store, feed: FeedState, cursors: Mapping[int, str], n: int
) -> dict[int, tuple[int, str]]:
    """Return g and cursor of each partition (see `feed.positions`).

    Raises:
        Problem: A cursor is refused; `cursor-ahead` if this copy of the feed may only lag.
    """
    for partition, cursor in cursors.items():
        _check_not_ahead(feed, partition, cursor)
    return positions(store, feed, cursors, n)


def _check_not_ahead(feed: FeedState, partition: int, cursor: str) -> None:
    found = parse_cursor(partition, cursor)
    if found and found[0] > feed.head:
        head = f"{feed.head}.{tag(feed.history)}"
        raise Problem(
            problems.CURSOR_AHEAD,
            f"the cursor {cursor!r} of partition {partition} is after the feed's newest chunk, "
            f"{head!r}: this copy of the feed lags, or its store was restored to an earlier state",
            partition=partition,
            cursor=cursor,
            head=head,
        )


def header_records(chunks: Sequence[Chunk]) -> np.ndarray:
    """Return the header records of chunks: an array of HEADERS."""
    found = np.empty(len(chunks), HEADERS)
    if not chunks:
        return found
    columns = dict(zip(Chunk._fields, zip(*chunks, strict=True), strict=True))
    hashes = {name: name_hash(name) for name in set(columns["producer"])}
    for name in ("g", "time", "partition", "events", "size"):
        found[name] = columns[name]
    for name in ("batch", "sequence"):
        found[name] = [-1 if each is None else each for each in columns[name]]
    found["producer"] = [hashes[each] for each in columns["producer"]]
    found["tag"] = np.frombuffer(bytes.fromhex("".join(columns["tag"])), ">u4")
    return found


def _endpoints(store: Store, feed: FeedState, request: ChunksRequest) -> list[tuple[int, int]]:
    """Return the positions between which each range lies. Raises Problem."""
    ends = [(each.partition, cursor) for each in request.ranges for cursor in (each.from_, each.to)]
    for partition, cursor in ends:
        _check_not_ahead(feed, partition, cursor)
    history = known_history(store, feed, [cursor for _, cursor in ends])
    found = []
    for each in request.ranges:
        begin, end = (
            positions_in(history, store, feed, {each.partition: cursor}, request.n)[each.partition]
            for cursor in (each.from_, each.to)
        )
        if end[0] < begin[0]:
            raise Problem(
                problems.BAD_RANGES,
                f"a range of partition {each.partition} ends at {each.to!r}, before it begins, at "
                f"{each.from_!r}",
            )
        found.append((begin[0], end[0]))
    return found


def _groups(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    """Yield neighbours that are sent, and kept, together: about _GROUP_BYTES of lines."""
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if group and (size + chunk.size > _GROUP_BYTES or len(group) == _GROUP_CHUNKS):
            yield group
            group, size = [], 0
        group.append(chunk)
        size += chunk.size
    if group:
        yield group


def _frames(store: Store, name: str, group: Sequence[Chunk]) -> list[bytes]:
    try:
        frames = store.frames([each.blob for each in group])
    except StoreError:
        check_kept(store, name, {each.partition: each.g - 1 for each in reversed(group)})
        raise
    check_history_kept(store, name, group)
    return frames


def _numbered(cursors: Mapping[str, str]) -> dict[int, str]:
    return {int(partition): cursor for partition, cursor in cursors.items()}


def _given(value: object, default: int) -> int:
    return value if isinstance(value, int) else default


def _up_to(planned: PlannedRange, to: str) -> PlannedRange:
    return PlannedRange(
        planned.partition,
        planned.from_,
        to,
        planned.chunks,
        planned.events,
        planned.bytes,
        planned.digest,
    )
