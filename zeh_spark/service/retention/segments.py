"""Moves old packs to objects, deletes objects that nobody needs, and compares store and storage.

The order of steps is what keeps events safe: the name is on disk before the object is begun, and
the object before the store lets go of the blocks. An attempt that dies leaves a name, or an object
that the store names as garbage, and the next one has another name.

Runs in the publisher's thread for it, and in commands. Nothing here holds a transaction or a lock
while it waits for the storage.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import xxhash

from zeh_spark.errors import StoreError
from zeh_spark.service.segments.block_reader import read_span, spans
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.segments.ownership import check_owner, missing, owns, read_marker
from zeh_spark.service.segments.segment_format import SEGMENT_BYTES, SUFFIX, Index, new_name
from zeh_spark.service.sql.execution import logged
from zeh_spark.service.sql.segments import PackRun, PacksChangedError, StoredSegment
from zeh_spark.service.sql.store import SqlStore
from zeh_spark.service.store import clock
from zeh_spark.service.store.acts import Actor
from zeh_spark.service.store.interface import DamagedObjectError, NoObjectError
from zeh_spark.wire.phrases import size_of

log = logging.getLogger("zeh_spark.publisher")

EVERY_SECONDS = 3600.0
"""Seconds between two rounds of a publisher."""

OLDER_THAN_MS = 7 * 86_400_000
"""The age of events in ms from which a publisher moves them."""

TRIM_CHUNKS = 16_384
"""Most chunks that `trim` removes at a time. Measured: 60,000 take 0.24 s and 19 MB."""

_WAIT = "old events stay in the database for now"
_STAY = "objects that nobody needs any more stay for now"

_AT_A_TIME = 8
"""How many blocks, of about 1 MiB before compression, are taken out of the store at a time."""


def offload(
    store: SqlStore,
    feed: str,
    objects: Objects,
    before: int,
    *,
    full: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[int, int]:
    """Move packs of a feed to objects; return how many segments and bytes that were.

    Args:
        before: Only packs whose chunks were all committed before, in ms since 1970.
        full: Leave what does not fill a segment for later.
        stopped: Is asked between two segments whether to leave the rest for another time.

    Raises:
        OwnerError: The location is not this store's.
        ObjectError: The storage fails.
    """
    segments = size = 0
    while not stopped():
        check_owner(objects, store)
        _drop_copied(store, feed)  # also what an attempt has left that died
        if not (run := store.movable(feed, before, SEGMENT_BYTES, full=full)):
            break
        if not (moved := _move(store, feed, objects, run)):
            break  # it was trimmed meanwhile, or another process moves it
        segments, size = segments + 1, size + moved
    return segments, size


def _drop_copied(store: SqlStore, feed: str) -> None:
    """Delete the blocks that are in segments, and leave commits as much time as that takes."""
    begun = time.monotonic()
    while store.drop_copied(feed):
        time.sleep(time.monotonic() - begun)
        begun = time.monotonic()


def _move(store: SqlStore, feed: str, objects: Objects, run: PackRun) -> int:
    """Move packs to one object and return its size; 0 if they were changed meanwhile."""
    name = new_name(run.origin)
    headers = xxhash.xxh3_128(b"".join(headers for _, headers in run.packs)).digest()
    index = Index(run.origin, run.first, run.last, headers)
    store.begin_segment(objects.location, name)
    try:
        size = objects.put(name, index.parts(_blocks(store, feed, run)))
        at = run.first[0], run.last[0], objects.location, name
        store.end_segment(feed, run, StoredSegment(*at, index.encode(), size))
    except BaseException as exc:
        with suppress(StoreError):  # the object is garbage then, when the name is old
            store.give_up(name)
        if isinstance(exc, PacksChangedError):
            return 0
        raise
    return size


def _blocks(store: SqlStore, feed: str, run: PackRun) -> Iterator[tuple[int, bytes]]:
    for begin in range(0, len(run.blobs), _AT_A_TIME):
        some = run.blobs[begin : begin + _AT_A_TIME]
        yield from zip(some, store.blocks(feed, run, some), strict=True)


def collect(store: SqlStore, *, stopped: Callable[[], bool] = lambda: False) -> int:
    """Delete the objects that are garbage; return how many.

    Nothing is deleted in a location that is not this store's: its owner needs them, perhaps.
    """
    deleted = 0
    for location in store.garbage():
        try:
            objects = Objects(location)
            check_owner(objects, store, writes=False)
        except StoreError as exc:
            log.warning("%s: %s", _STAY, exc.what)
            continue
        for name in store.take_garbage(location):
            if stopped():
                return deleted
            try:
                objects.delete(name)
                store.forget(name)
                deleted += 1
            except StoreError as exc:
                log.warning("%s: %s", _STAY, exc.what)
    return deleted


@dataclass
class Inventory:
    """What was found.

    Attributes:
        segments: How many segments the store names.
        size: Their bytes.
        lost: What is wrong with which segment: by feed and last position, the error's words.
        unknown: Objects that the store does not name, with their bytes.
        foreign: Locations that belong to another store, with its token.
    """

    segments: int = 0
    size: int = 0
    lost: dict[tuple[str, int], str] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)


def take_inventory(
    store: SqlStore,
    location: str | None = None,
    *,
    read: bool = False,
    only: Collection[tuple[str, int]] | None = None,
) -> Inventory:
    """Look at all segments of a store. Raises ObjectError if the storage cannot be asked.

    Args:
        location: Another location to look for objects that are not known.
        read: Read all blocks, and compare them with what was written.
        only: Look only at these segments, by feed and last position.
    """
    found = Inventory()
    places = {location: Objects(location)} if location else {}
    there: dict[str, dict[str, int]] = {}
    for feed in store.feeds():
        for segment in store.segments(feed.name):
            if only is not None and (feed.name, segment.last) not in only:
                continue
            if segment.location not in places:
                places[segment.location] = Objects(segment.location)
            objects = places[segment.location]
            if segment.location not in there:
                if (marker := read_marker(objects)) is None:
                    raise missing(objects)
                if not owns(store, marker):
                    found.foreign[segment.location] = marker.owner
                there[segment.location] = objects.names()
            found.segments += 1
            found.size += segment.size
            try:
                size = there[segment.location].get(segment.name)
                if (size := objects.size(segment.name) if size is None else size) < segment.size:
                    raise DamagedObjectError(
                        f"{objects.name_of(segment.name)} has {size} bytes, and had {segment.size}"
                    )
                reads = read or size > segment.size  # more bytes after the blocks harm no reader
                for span in spans(store.blocks_in(feed.name, segment) if reads else ()):
                    read_span(objects, span)
            except (NoObjectError, DamagedObjectError) as exc:
                found.lost[feed.name, segment.last] = exc.what
    if location:
        there.setdefault(location, places[location].names())
    known = store.object_names()  # later: what is begun meanwhile is known
    for each, objects in places.items():
        for name, size in there[each].items():
            if name not in known and name.endswith(SUFFIX):
                found.unknown[objects.name_of(name)] = size
    return found


def trim(store: SqlStore, feed: str, upto: int, by: Actor) -> None:
    """Remove all events up to a position, in steps, for each of which commits wait."""
    with store.snapshot(feed) as log:
        at = max((each.g for each in log.anchors.values()), default=0)
    while at < upto:
        at = min(at + TRIM_CHUNKS, upto)
        store.remove(feed, at, by=by)


class Mover:
    """A context manager that moves what is old of all feeds from time to time, in a thread.

    Attributes:
        succeeded: When it has last done so, at first when it was made, in seconds since 1970. On
            a replica, which moves nothing, when it last looked.
    """

    def __init__(self, store: SqlStore, location: str) -> None:
        self._store = store
        self._objects = Objects(location)
        self.succeeded = time.time()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zeh-segments", daemon=True)

    def __enter__(self) -> Mover:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2.0)  # at most: it ends with the process, also if the storage hangs

    def _run(self) -> None:
        while True:
            if logged(log, _WAIT, self._move):
                self.succeeded = time.time()
            if self._ended.wait(EVERY_SECONDS):
                return

    def _move(self) -> bool:
        """Move what is old, and delete what is garbage; return whether all of it was done."""
        store, stopped = self._store, self._ended.is_set
        if store.replica_lag() is not None:
            return True
        now = store.now()
        if not clock.is_believed(now, clock.sign(store)):
            return False
        check_owner(self._objects, store, writes=False)
        before = now - OLDER_THAN_MS
        done: list[object] = []
        for feed in store.feeds():
            move = partial(offload, store, feed.name, self._objects, before, full=True)
            moved = logged(log, f"feed {feed.name!r}: {_WAIT}", partial(move, stopped=stopped))
            done.append(moved)
            if moved and moved[0]:
                log.info("feed %r: %s moved to storage", feed.name, size_of(moved[1]))
        if clock.is_believed(store.now(), now):  # it has not jumped since
            done.append(deleted := logged(log, _STAY, partial(collect, store, stopped=stopped)))
            if deleted:
                log.info("%d objects that nobody needs any more are deleted", deleted)
        return None not in done
