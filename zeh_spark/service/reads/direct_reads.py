"""The chunks of planned ranges (`direct_plans`), as a store's feed answers them.

What can be refused is refused before the first piece of an answer. Chunks that retention removes
between two snapshots end it with an error. Groups of chunks are kept encoded for the next readers
(`answer_cache`).

Runs in the publisher's worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import zstandard

from zeh_spark.service.reads.answer_cache import AnswerCache, key_of
from zeh_spark.service.reads.reading import (
    Reading,
    covered,
    head_of,
    numbers_of,
    parse_cursor,
    positions,
)
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.log import FeedState, Log, Run
from zeh_spark.service.store.packs import cut
from zeh_spark.service.store.problems import Problem, other_history
from zeh_spark.wire import direct_reads, problems, wire
from zeh_spark.wire.direct_reads import (
    MAX_RANGES,
    PLACES,
    ChunksRequest,
    EncodedGroup,
    Totals,
    encode_end,
    encode_group,
)
from zeh_spark.wire.upload_format import CHUNK_BYTES, frame_of

_GROUP_BYTES = 4 << 20
_MANY_PIECES = 64


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
    cache = cache or AnswerCache(0)
    cursors = [cursor for each in request.ranges for cursor in (each.from_, each.to)]
    reading = Reading(store, name, numbers_of(cursors))

    def answers() -> Iterator[list[bytes]]:
        """Yield what is made in each snapshot: a group, or several small ones."""
        log, size = reading.log(), 0
        found = _endpoints(log, request)
        made = [direct_reads.BEGINNING]
        for number, (wanted, (begin, end)) in enumerate(zip(request.ranges, found, strict=True)):
            sent = Totals()
            after = dict.fromkeys(covered(wanted.partition, request.n, log.state.partitions), begin)
            for run in reading.runs(after, end, _GROUP_BYTES, direct_reads.GROUP_CHUNKS):
                key = key_of("group", log.state.origin, (), run.headers.tobytes(), run.names)
                encoded = cache.get(key, partial(_encoded, reading, run))
                count(encoded.totals.events)
                made += [encoded.line(number), encoded.body]
                size += encoded.totals.bytes
                sent += encoded.totals
                reading.taken(run.headers["partition"].tolist(), run.positions)
                if size > _GROUP_BYTES // 2 or len(made) >= _MANY_PIECES:
                    yield made  # now: the snapshot is closed anyway, if frames were in objects
                    made, size = [], 0
            made.append(encode_end(number, wanted.to, sent))
        yield made

    for made in reading.parts(answers()):
        yield from made


def _encoded(reading: Reading, run: Run) -> EncodedGroup:
    """Return the group of a run. A frame of which it needs less than half is cut first."""
    sizes = run.headers["size"].tolist()
    places = np.zeros(len(sizes), PLACES)
    frames: list[bytes] = []
    pieces: dict[int, bytes] = {}

    def cut_frame() -> None:
        places["frame"][[*pieces]] = len(frames)
        places["offset"][[*pieces]] = np.cumsum([0, *map(len, pieces.values())])[:-1]
        frames.append(frame_of(b"".join(pieces.values())))
        pieces.clear()

    for each in reading.frames(run.positions, run.blobs):
        used = sum(sizes[at] for at in each.chunks)
        if each.offsets and 2 * used < zstandard.frame_content_size(each.packed):
            pieces.update(zip(each.chunks, cut(sizes, each), strict=True))
            if sum(map(len, pieces.values())) > CHUNK_BYTES // 2:
                cut_frame()
        else:
            places["frame"][each.chunks] = len(frames)
            places["offset"][each.chunks] = each.offsets or 0
            frames.append(each.packed)
    if pieces:
        cut_frame()
    return encode_group(run.headers, run.names, places, frames)


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


def _endpoints(log: Log, request: ChunksRequest) -> list[tuple[int, int]]:
    """Return the positions between which each range lies. Raises Problem."""
    ends = [(each.partition, cursor) for each in request.ranges for cursor in (each.from_, each.to)]
    for partition, cursor in ends:
        check_not_ahead(log.state, partition, cursor)
    found = []
    for each in request.ranges:
        begin, end = (
            positions(log, {each.partition: cursor}, request.n)[each.partition]
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
