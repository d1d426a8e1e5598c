"""Where a reader is in a store's feed: cursors become positions, and positions lead to chunks.

Rule for editors: retention may remove chunks between two snapshots of a store, and a store may be
replaced: a connection may lead to a standby that lags, and has become the database. So what takes
more than one snapshot is read by a `Reading`, which compares each with where it is.

Runs in the publisher's worker threads.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from operator import attrgetter
from typing import TypeVar

import numpy as np

from zeh_spark.service.store.commit_plan import tag
from zeh_spark.service.store.interface import NoObjectError, Store, StoreBusyError
from zeh_spark.service.store.log import Anchor, BlockPlace, Chunk, FeedState, Frame, Log, Run
from zeh_spark.service.store.packs import lines_in
from zeh_spark.service.store.problems import Problem, bad_cursor, cursor_gone, other_history
from zeh_spark.wire import problems, wire

T = TypeVar("T")

READ_BYTES = 1 << 20
"""Bytes of lines, about, that one read of the store brings if chunks are small."""

CURSOR = re.compile(r"(0|[1-9][0-9]{0,17})\.([0-9a-f]{8})")
"""A cursor: a position and its tag."""

_WINDOW, _LEAST_WINDOW, _FIRST_CHUNKS = 1024, 4, 64
"""Most chunks that are looked up at a time for all partitions, least for each of them, and how many
of an answer are looked up first.
"""

_NEAR = 64
"""Positions that are no further apart are read by one scan, if they are of all partitions."""

_LAGS = "It may have been removed, and this replica does not know it yet. Ask again"


class Reading:
    """Reads a feed's log in a series of snapshots, each for a part of an answer.

    Guarantee: no chunk is skipped, and all are of one history. Each new snapshot is refused unless
    it has everything after the chunks that were taken, and the last chunk that was looked up, which
    stands for all before it. Its tag is not enough: events that are published again after a restore
    have the same tags, and their frames are elsewhere.

    Args:
        positions: Those whose tags the first snapshot has.
    """

    def __init__(self, store: Store, name: str, positions: Iterable[int]) -> None:
        self._store = store
        self._name = name
        self._positions = positions
        self._opened: Log | None = None
        self._stack = ExitStack()
        self._after: dict[int, int] = {}
        self._furthest: Chunk | None = None

    def parts(self, made: Iterator[T]) -> Iterator[T]:
        """Yield what `made` makes of `log`; no snapshot is open while somebody takes it."""
        end = object()
        while True:
            with ExitStack() as self._stack:
                part = next(made, end)
            self._opened = None
            if part is end:
                return
            yield part  # type: ignore[misc]

    def log(self) -> Log:
        """Return the snapshot; open one if there is none.

        Raises Problem or StoreBusyError if it is refused.
        """
        if self._opened is None:
            last = self._furthest
            opened = self._store.snapshot(self._name, [last.g] if last else self._positions)
            self._opened = log = self._stack.enter_context(opened)
            check_kept(log, self._after)
            if last:
                check_history(last.partition, last.cursor, (last.g, last.tag), log)
                found = log.scan(last.g - 1, last.g, 1)
                same = (each for each in found if each[:-1] == last[:-1])
                if not any(each.blob in (0, last.blob) for each in same):  # 0: packed meanwhile
                    raise StoreBusyError(
                        f"feed {self._name!r}: what is read was removed or restored meanwhile. Try "
                        f"again in a few seconds"
                    )
        return self._opened

    def chunks(self, after: Mapping[int, int], upto: int, limit: int, most: int) -> Iterator[Chunk]:
        """Yield chunks of stored partitions in order of g, up to a position (see `chunks_after`).

        Raises Problem if some of them are gone. Tell what was `taken`.
        """
        self._after = {partition: g for partition, g in after.items() if g < upto}
        if self._after:
            check_kept(self.log(), self._after)
            yield from chunks_after(self.log, after, upto, limit, most, self._seen)

    def runs(
        self, after: Mapping[int, int], upto: int, most_bytes: int, most_chunks: int
    ) -> Iterator[Run]:
        """Yield the same by columns: those of packs, several at a time; then `groups`."""
        self._after = {partition: g for partition, g in after.items() if g < upto}
        if not self._after:
            return
        check_kept(self.log(), self._after)
        runs: list[Run] = []
        wanted, low, size, count = dict(self._after), 0, 0, 0
        while run := self.log().packed(wanted, low, upto):
            headers = run.headers
            more = int(headers["size"].sum(dtype=np.int64))
            if runs and (size + more > most_bytes or count + len(headers) > most_chunks):
                yield Run.joined(runs)
                runs, size, count = [], 0, 0
            runs.append(run)
            size, count = size + more, count + len(headers)
            low = self._seen(run.part(slice(-1, None)).chunks())[-1].g
        if runs:
            yield Run.joined(runs)
        wanted = {partition: max(g, low) for partition, g in wanted.items()}
        found = chunks_after(self.log, wanted, upto, _FIRST_CHUNKS, _WINDOW, self._seen)
        yield from map(Run.made, groups(found, most_bytes, most_chunks))

    def lines(self, chunks: Sequence[Chunk]) -> list[bytes]:
        """Return the lines of chunks. Raises Problem if no snapshot can be opened."""
        frames = self.frames([each.g for each in chunks], [each.blob for each in chunks])
        return lines_in([each.size for each in chunks], frames)

    def frames(self, positions: Sequence[int], blobs: Sequence[int]) -> Iterator[Frame]:
        """Yield the frames of chunks (see `Log.frames`), last those in objects.

        These are read without a snapshot. If an object is missing, a new snapshot tells whether the
        chunks were removed, or are elsewhere now. Raises Problem if no snapshot can be opened, and
        StoreError if the storage fails.
        """
        left, failed = [*range(len(positions))], None
        while left:
            here = [positions[at] for at in left], [blobs[at] for at in left]
            moved: dict[BlockPlace, Frame] = {}
            for found in self.log().frames(*here):
                frame = found._replace(chunks=[left[at] for at in found.chunks])
                if frame.place is None:
                    yield frame
                else:
                    moved[frame.place] = frame
            if not moved:
                return
            self._stack.close()
            self._opened, left = None, []
            try:
                for place, block in self._store.read_blocks([*moved]):
                    yield moved.pop(place)._replace(packed=block, place=None)
            except NoObjectError as exc:
                if moved.keys() == failed:
                    if not self.log().state.replica:
                        raise
                    raise Problem(problems.REPLICA_BEHIND, f"{exc.what}. {_LAGS}") from exc
                failed = moved.keys()
                left = sorted(at for each in moved.values() for at in each.chunks)

    def taken(self, partitions: Iterable[int], positions: Iterable[int]) -> None:
        """Note that chunks were read, given their stored partitions: they may be removed."""
        self._after.update(zip(partitions, positions, strict=True))

    def _seen(self, chunks: list[Chunk]) -> list[Chunk]:
        if chunks and (self._furthest is None or self._furthest.g < chunks[-1].g):
            self._furthest = chunks[-1]
        return chunks


def numbers_of(cursors: Iterable[str]) -> set[int]:
    """Return the positions of cursors, for `Store.snapshot`; none of what is not valid."""
    matches = (CURSOR.fullmatch(cursor) for cursor in cursors)
    return {int(match[1]) for match in matches if match}


def positions(log: Log, asked: Mapping[int, str], n: int) -> dict[int, tuple[int, str]]:
    """Return g and cursor of each asked partition; special cursors become concrete ones.

    The snapshot was opened with `numbers_of` the cursors. Raises Problem if a cursor is not one of
    this feed's history, or events after it are gone.
    """
    given = {partition: parse_cursor(partition, cursor) for partition, cursor in asked.items()}
    tags, anchors, partitions = log.tags, log.anchors, log.state.partitions
    beginning = Anchor(0, tags[0])
    seeking = {
        stored
        for partition, cursor in asked.items()
        if cursor == wire.LAST  # most of a large n have no stored partition
        for stored in covered(partition, n, partitions)
    }
    last = log.last(sorted(seeking), log.state.head) if seeking else {}
    found_at, lost = {}, {}
    for each, found in given.items():
        stored = covered(each, n, partitions)
        first = _furthest(stored, beginning, anchors)
        if found:
            check_history(each, asked[each], found, log)
            if found[0] < first.g or found[0] not in tags:
                lost[each] = first.cursor
            found_at[each] = (found[0], asked[each])
        else:
            place = _furthest(stored, first, last) if asked[each] == wire.LAST else first
            found_at[each] = place.g, place.cursor
    if lost:
        each = min(lost)
        raise cursor_gone(each, asked[each], lost[each], lost)
    return found_at


def cursors_at(store: Store, name: str, n: int, time: int) -> dict[int, str]:
    """Return where each partition begins for a reader of all that was committed since a time.

    Times never decrease in a feed, so the place is found by bisection. Where retention removed
    events of that time, a partition begins with the oldest that are left. Raises Problem if the
    time, in ms since 1970, is ahead: events before it may still be committed, or come to a replica.
    """
    now = store.now()
    with store.snapshot(name) as log:
        feed = log.state
        check_has_passed(time, now, feed)
        older, end = 0, feed.head  # what is after `end` is not older
        while older < end:
            middle = (older + end) // 2
            found = log.scan(middle, end, 1)
            if found and found[0].time < time:
                older = found[0].g
            else:
                end = middle
        last = log.last(range(feed.partitions), older)
        beginning = Anchor(0, log.tags[0])
        cursors = dict.fromkeys(range(n), beginning.cursor)
        for each in range(min(n, feed.partitions)):
            stored = covered(each, n, feed.partitions)
            cursors[each] = _furthest(stored, beginning, last, log.anchors).cursor
    return cursors


def _furthest(stored: range, otherwise: Anchor, *among: Mapping[int, Anchor]) -> Anchor:
    """Return the place with the highest position of some stored partitions, if they have any."""
    found = [places[part] for places in among for part in stored if part in places]
    return max(found, key=attrgetter("g"), default=otherwise)


def check_has_passed(time: int, now: int, feed: FeedState) -> None:
    """Raise Problem if events of before a time, in ms since 1970, may still come."""
    if feed.replica and time > feed.time:
        raise Problem(
            problems.REPLICA_BEHIND,
            f"time is {time}, and the last commit that this replica has was at {feed.time}, in ms "
            f"since 1970: more events before that time may come to it; ask again, or ask a "
            f"publisher of the primary",
        )
    if time > max(now, feed.time):
        raise time_is_ahead(time, now)


def time_is_ahead(time: int, now: int) -> Problem:
    return Problem(
        problems.BAD_TIME,
        f"time is {time}, ahead of the publisher's clock, {now}, in ms since 1970: events "
        f"before that time may still come. Ask for a time that has passed",
        now=now,
    )


def check_kept(log: Log, positions: Mapping[int, int]) -> None:
    """Raise Problem if chunks after these positions are gone, by stored partition."""
    for partition, g in positions.items():
        if partition in log.anchors and log.anchors[partition].g > g:
            raise cursor_gone(partition, f"{g}.…", log.anchors[partition].cursor)


def head_of(feed: FeedState) -> str:
    """Return the cursor of a feed's newest chunk, or of its beginning."""
    return Anchor(feed.head, tag(feed.history)).cursor


def covered(partition: int, n: int, partitions: int) -> range:
    """Return the stored partitions of a reader's partition.

    None if n is larger than their number.
    """
    return range(partition, partitions, n)


def parse_cursor(partition: int, cursor: str) -> tuple[int, str] | None:
    """Return g and tag; None for a special cursor. Raises Problem for anything else."""
    if cursor in (wire.FIRST, wire.LAST):
        return None
    match = CURSOR.fullmatch(cursor)
    if not match:
        raise bad_cursor(
            partition, cursor, "_first, _last, and cursors that this feed gave, like 17.0a1b2c3d"
        )
    return int(match[1]), match[2]


def check_history(partition: int, cursor: str, found: tuple[int, str], log: Log) -> None:
    """Raise Problem for a cursor, of a g and tag, that the feed, as it is now, cannot have given.

    If some chunks were removed, their tags are gone with them.
    """
    (g, given), tags, feed, why = found, log.tags, log.state, None
    if g > feed.head:
        why = f"the feed ends at position {feed.head}"
    elif tags.get(g) != given and not (g not in tags and log.anchors):
        why = f"position {g} has the tag {tags.get(g)!r}"
    if why:
        raise other_history(partition, cursor, why, replica=feed.replica)


def chunks_after(
    log: Callable[[], Log],
    after: Mapping[int, int],
    upto: int,
    limit: int,
    most: int,
    seen: Callable[[list[Chunk]], list[Chunk]] = lambda chunks: chunks,
) -> Iterator[Chunk]:
    """Yield chunks of stored partitions in order of g, up to a position.

    `log` returns the snapshot to look into, where nothing after the positions may be removed, and
    `seen` is told what was looked up. `limit` chunks are looked up at first, then more at a time,
    up to `most`.
    """
    wanted, low = {each: g for each, g in after.items() if g < upto}, 0
    while wanted and (run := log().packed(wanted, low, upto)):
        found = seen(run.part(slice(limit)).chunks())
        yield from found
        low, limit = found[-1].g, min(2 * limit, most)
    after = {each: max(g, log().sealed) for each, g in after.items()}
    low, high = min(after.values(), default=upto), max(after.values(), default=upto)
    if low < upto and len(after) == log().state.partitions and high - low <= _NEAR:
        while low < upto:
            scanned = seen(log().scan(low, upto, limit))
            yield from (chunk for chunk in scanned if chunk.g > after[chunk.partition])
            if len(scanned) < limit:
                break
            low, limit = scanned[-1].g, min(2 * limit, most)
        return

    def look_up(positions: Mapping[int, int], limit: int) -> list[Chunk]:
        return seen(log().chunks(positions, upto, limit))

    if wanted := {each: g for each, g in after.items() if g < upto}:
        yield from in_order(look_up, wanted, limit)


def groups(chunks: Iterable[Chunk], most_bytes: int, most_chunks: int) -> Iterator[list[Chunk]]:
    """Yield neighbours that are read together: one chunk, or several small ones.

    The tag of a chunk decides, too, whether a group ends with it. So most groups are the same
    wherever readers begin, and can be kept.
    """
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if group and (size + chunk.size > most_bytes or len(group) == most_chunks):
            yield group
            group, size = [], 0
        group.append(chunk)
        size += chunk.size
        if int(chunk.tag, 16) % most_bytes < chunk.size:
            yield group
            group, size = [], 0
    if group:
        yield group


def in_order(
    look_up: Callable[[Mapping[int, int], int], list[Chunk]],
    positions: Mapping[int, int],
    limit: int = 8,
) -> Iterator[Chunk]:
    """Yield chunks of several partitions in order of g.

    `look_up` returns chunks after some positions, at most as many of each as its second argument.
    That is `limit` at first, and grows, because most pages are short.
    """
    most = max(_LEAST_WINDOW, _WINDOW // max(1, len(positions)))
    limits = dict.fromkeys(positions, min(limit, most))
    waiting: dict[int, deque[Chunk]] = {partition: deque() for partition in positions}
    for chunk in look_up(positions, min(limit, most)):
        waiting[chunk.partition].append(chunk)
    may_have_more = {each for each, found in waiting.items() if len(found) == limits[each]}
    lowest = [(found[0].g, partition) for partition, found in waiting.items() if found]
    heapq.heapify(lowest)
    while lowest:
        _, partition = heapq.heappop(lowest)
        found = waiting[partition]
        chunk = found.popleft()
        yield chunk
        if not found and partition in may_have_more:
            limits[partition] = min(2 * limits[partition], most)
            found.extend(look_up({partition: chunk.g}, limits[partition]))
            if len(found) < limits[partition]:
                may_have_more.discard(partition)
        if found:
            heapq.heappush(lowest, (found[0].g, partition))
