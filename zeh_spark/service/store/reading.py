"""Where a reader is in a store's feed: cursors become positions, and positions lead to chunks.

Rule for editors: retention may remove chunks between any two reads of a store. So `check_kept`
follows each read that looks for chunks after a position.

Runs in the publisher's worker threads.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zeh_spark.errors import StoreError
from zeh_spark.service.store.commit_plan import tag
from zeh_spark.service.store.interface import Anchor, Chunk, FeedState, Store
from zeh_spark.service.store.problems import Problem, bad_cursor, cursor_gone, other_history
from zeh_spark.wire import problems, wire

READ_BYTES = 1 << 20
"""Bytes of lines, about, that one read of the store brings if chunks are small."""

_CURSOR = re.compile(r"(0|[1-9][0-9]{0,17})\.([0-9a-f]{8})")
_WINDOW, _LEAST_WINDOW = 1024, 4
"""Most chunks that are looked up at a time for all partitions, and least for each of them."""


@dataclass(frozen=True, slots=True)
class History:
    """What a store knows of some positions of a feed.

    Attributes:
        tags: The tags by g, of chunks that exist, of anchors, and of the feed's beginning.
        anchors: What was removed last, by stored partition.
    """

    tags: Mapping[int, str]
    anchors: Mapping[int, Anchor]


def known_history(store: Store, feed: FeedState, cursors: Iterable[str]) -> History:
    """Return what the store knows of the positions of some cursors. Raises Problem."""
    given = (parse_cursor(0, each) for each in cursors)
    numbers = {found[0] for found in given if found}
    tags = {0: tag(feed.origin), **store.tags(feed.name, numbers)}
    anchors = store.anchors(feed.name)
    tags.update({anchor.g: anchor.tag for anchor in anchors.values()})
    return History(tags, anchors)


def positions(
    store: Store, feed: FeedState, asked: Mapping[int, str], n: int
) -> dict[int, tuple[int, str]]:
    """Return g and cursor of each asked partition; special cursors become concrete ones.

    Raises Problem if a cursor is not one of this feed's history, or events after it are gone.
    """
    for partition, cursor in asked.items():
        parse_cursor(partition, cursor)  # a refusal names the partition
    return positions_in(known_history(store, feed, asked.values()), store, feed, asked, n)


def positions_in(
    history: History, store: Store, feed: FeedState, asked: Mapping[int, str], n: int
) -> dict[int, tuple[int, str]]:
    """Return the same, given what the store knows of the cursors."""
    tags, anchors = history.tags, history.anchors
    beginning = Anchor(0, tags[0])
    found_at, lost = {}, {}
    for each, cursor in asked.items():
        found = parse_cursor(each, cursor)
        stored = covered(each, n, feed.partitions)
        gone = [anchors[p] for p in stored if p in anchors]
        first = max(gone, key=lambda anchor: anchor.g, default=beginning)
        if found:
            check_history(each, cursor, found, tags, feed, removed=bool(anchors))
            if found[0] < first.g or found[0] not in tags:
                lost[each] = first.cursor
            found_at[each] = (found[0], cursor)
        else:
            seeks = stored and cursor == wire.LAST  # most of a large n have no stored partition
            last = store.last(feed.name, stored, feed.head) if seeks else None
            found_at[each] = (last or first).g, (last or first).cursor
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
    now, feed = store.now(), store.feed(name)
    if feed.replica and time > feed.time:
        raise Problem(
            problems.REPLICA_BEHIND,
            f"time is {time}, and the last commit that this replica has was at {feed.time}, in ms "
            f"since 1970: more events before that time may come to it; ask again, or ask a "
            f"publisher of the primary",
        )
    if time > max(now, feed.time):
        raise Problem(
            problems.BAD_TIME,
            f"time is {time}, ahead of the publisher's clock, {now}, in ms since 1970: events "
            f"before that time may still come. Ask for a time that has passed",
            now=now,
        )
    older, end = 0, feed.head  # what is after `end` is not older
    while older < end:
        middle = (older + end) // 2
        found = store.scan(name, middle, end, 1)
        if found and found[0].time < time:
            older = found[0].g
        else:
            end = middle
    stored = {each: covered(each, n, feed.partitions) for each in range(min(n, feed.partitions))}
    last = {each: store.last(name, parts, older) for each, parts in stored.items()}
    anchors = store.anchors(name)  # after all other reads, because chunks may have gone meanwhile
    beginning = Anchor(0, tag(feed.origin))
    cursors = dict.fromkeys(range(n), beginning.cursor)
    for each, parts in stored.items():
        found_last = last[each] or beginning
        places = [found_last, *(anchors[part] for part in parts if part in anchors)]
        cursors[each] = max(places, key=lambda place: place.g).cursor
    return cursors


def check_kept(store: Store, feed: str, positions: Mapping[int, int]) -> None:
    """Raise Problem if chunks after these positions are gone: a read may have missed some.

    `positions` has the position after which the read began, by stored partition.
    """
    anchors = store.anchors(feed)
    for partition, g in positions.items():
        if partition in anchors and anchors[partition].g > g:
            raise cursor_gone(partition, f"{g}.…", anchors[partition].cursor)


def check_history_kept(store: Store, feed: str, chunks: Sequence[Chunk]) -> None:
    """Raise Problem if the feed has other chunks now at the positions of some that were looked up.

    A store may be replaced while an answer is under way: a connection may lead to a standby that
    lags, and has become the database. Call it after the frames of these chunks were read, or before
    chunks that were looked up after them are used.
    """
    tags = store.tags(feed, [each.g for each in chunks])
    for each in chunks:
        if tags.get(each.g, each.tag) != each.tag:
            why = f"position {each.g} has the tag {tags[each.g]!r} now"
            replica = store.feed(feed).replica
            raise other_history(each.partition, each.cursor, why, replica=replica)


def frames_of(store: Store, feed: str, chunks: Sequence[Chunk]) -> list[bytes]:
    """Return the frames of chunks. Raises Problem if they were removed or replaced meanwhile."""
    try:
        frames = store.frames([each.blob for each in chunks])
    except StoreError:
        check_kept(store, feed, {each.partition: each.g - 1 for each in reversed(chunks)})
        raise
    check_history_kept(store, feed, chunks)
    return frames


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
    match = _CURSOR.fullmatch(cursor)
    if not match:
        raise bad_cursor(
            partition, cursor, "_first, _last, and cursors that this feed gave, like 17.0a1b2c3d"
        )
    return int(match[1]), match[2]


def check_history(
    partition: int,
    cursor: str,
    found: tuple[int, str],
    tags: Mapping[int, str],
    feed: FeedState,
    *,
    removed: bool,
) -> None:
    """Raise Problem for a cursor that the feed, as it is now, cannot have given.

    `found` is its g and tag. `removed` says whether some of the feed's tags are gone with their
    chunks.
    """
    (g, given), why = found, None
    if g > feed.head:
        why = f"the feed ends at position {feed.head}"
    elif tags.get(g) != given and not (g not in tags and removed):
        why = f"position {g} has the tag {tags.get(g)!r}"
    if why:
        raise other_history(partition, cursor, why, replica=feed.replica)


def scanned(
    store: Store,
    feed: str,
    after: Mapping[int, int],
    begin: int,
    upto: int,
    limit: int,
    most: int,
) -> Iterator[Chunk]:
    """Yield the chunks of all partitions with `begin` < g <= `upto`.

    Nothing may be removed after the position that `after` has for each partition. `limit` chunks
    are read at first, then more at a time, up to `most`.
    """
    while begin < upto:
        found = store.scan(feed, begin, upto, limit)
        check_kept(store, feed, {each: max(begin, g) for each, g in after.items()})
        yield from found
        if len(found) < limit:
            return
        begin, limit = found[-1].g, min(2 * limit, most)


def groups(chunks: Iterable[Chunk], most_bytes: int, most_chunks: int) -> Iterator[list[Chunk]]:
    """Yield neighbours that are read together: one chunk, or several small ones."""
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if group and (size + chunk.size > most_bytes or len(group) == most_chunks):
            yield group
            group, size = [], 0
        group.append(chunk)
        size += chunk.size
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
    if len(positions) == 1:
        ((partition, after),) = positions.items()
        yield from _of_one(look_up, partition, after, min(limit, most), most)
        return
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


def _of_one(
    look_up: Callable[[Mapping[int, int], int], list[Chunk]],
    partition: int,
    after: int,
    limit: int,
    most: int,
) -> Iterator[Chunk]:
    """Yield the chunks of one partition (see `in_order`)."""
    while found := look_up({partition: after}, limit):
        yield from found
        if len(found) < limit:
            return
        after, limit = found[-1].g, min(2 * limit, most)
