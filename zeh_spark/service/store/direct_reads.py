"""The chunks of planned ranges (`direct_plans`), as a store's feed answers them.

What can be refused is refused before the first piece of an answer. Chunks that retention removes
meanwhile end it with an error. Groups of chunks are kept encoded for the next readers
(`answer_cache`).

Runs in the publisher's worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from zeh_spark.service.store.answer_cache import AnswerCache, key_of
from zeh_spark.service.store.interface import Chunk, FeedState, Store
from zeh_spark.service.store.problems import Problem, other_history
from zeh_spark.service.store.reading import (
    check_kept,
    covered,
    frames_of,
    groups,
    head_of,
    in_order,
    known_history,
    parse_cursor,
    positions_in,
    scanned,
)
from zeh_spark.wire import direct_reads, problems, wire
from zeh_spark.wire.direct_reads import (
    HEADERS,
    MAX_RANGES,
    ChunksRequest,
    EncodedGroup,
    Totals,
    encode_end,
    encode_group,
    name_hash,
)

_FIRST_CHUNKS = 64
_GROUP_CHUNKS, _GROUP_BYTES = direct_reads.GROUP_CHUNKS, 4 << 20


def requested_chunks(
    store: Store,
    name: str,
    request: ChunksRequest,
    cache: AnswerCache | None = None,
    count: Callable[[int], object] = int,
) -> Iterator[bytes]:
    """Yield the answer to a request for chunks, in pieces.

    What can be refused is refused before the first piece. The request was checked (`check_ranges`).
    `count` is told the number of events of each group before it is sent. Raises Problem if a cursor
    is refused, or chunks of a range are gone.
    """
    feed, cache = store.feed(name), cache or AnswerCache(0)
    found = _endpoints(store, feed, request)
    yield direct_reads.BEGINNING
    for number, (wanted, (begin, end)) in enumerate(zip(request.ranges, found, strict=True)):
        sent = Totals()
        stored = covered(wanted.partition, request.n, feed.partitions)
        after = dict.fromkeys(stored, begin)
        found_chunks = chunks_of(store, name, after, end, everything=request.n == 1)
        for chunks in groups(found_chunks, _GROUP_BYTES, _GROUP_CHUNKS):
            key = key_of("group", feed.origin, chunks)
            group = cache.get(key, partial(_encoded, store, name, chunks))
            count(group.totals.events)
            yield group.line(number)
            yield group.body
            sent += group.totals
        yield encode_end(number, wanted.to, sent)


def _encoded(store: Store, name: str, chunks: Sequence[Chunk]) -> EncodedGroup:
    names = {each.producer for each in chunks}
    return encode_group(header_records(chunks), names, frames_of(store, name, chunks))


def chunks_of(
    store: Store, name: str, after: Mapping[int, int], upto: int, *, everything: bool = False
) -> Iterator[Chunk]:
    """Yield chunks of stored partitions in order of g. Raises Problem if some of them are gone.

    `after` has the position after which to begin, for each stored partition. With `everything`
    these are all partitions of the feed, with the same position.
    """

    def look_up(positions: Mapping[int, int], limit: int) -> list[Chunk]:
        found = store.chunks(name, positions, upto, limit)
        check_kept(store, name, positions)
        return found

    after = {partition: g for partition, g in after.items() if g < upto}
    if not after:
        return
    if not everything:
        yield from in_order(look_up, after, _FIRST_CHUNKS)
        return
    begin = min(after.values())
    yield from scanned(store, name, after, begin, upto, _GROUP_CHUNKS, _GROUP_CHUNKS)


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


def check_not_ahead(feed: FeedState, partition: int, cursor: str) -> None:
    """Raise Problem for a cursor after the feed's newest chunk: this copy of the feed may lag."""
    found = parse_cursor(partition, cursor)
    if found and found[0] > feed.head:
        if feed.replica:
            why = f"the feed ends at position {feed.head}"
            raise other_history(partition, cursor, why, replica=True)
        head = head_of(feed)
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
    for name in ("g", "time", "batch", "sequence", "partition", "events", "size"):
        found[name] = columns[name]
    found["producer"] = [hashes[each] for each in columns["producer"]]
    found["tag"] = np.frombuffer(bytes.fromhex("".join(columns["tag"])), ">u4")
    return found


def _endpoints(store: Store, feed: FeedState, request: ChunksRequest) -> list[tuple[int, int]]:
    """Return the positions between which each range lies. Raises Problem."""
    ends = [(each.partition, cursor) for each in request.ranges for cursor in (each.from_, each.to)]
    for partition, cursor in ends:
        check_not_ahead(feed, partition, cursor)
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
