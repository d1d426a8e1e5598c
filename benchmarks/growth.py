"""What grows with a feed: time of plans and pages deep in it, of many partitions and of many
consumers, and memory with the bytes that are read.

The stores are put into SQLite row by row (`feeds.fill`). Times are CPU times of the publisher's
own calls, in this process, so that neither HTTP nor a busy machine hides what grows: the median of
many, turn by turn. A store that is larger than the machine's memory also waits for its disk.
"""

from __future__ import annotations

import itertools
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from benchmarks import queries
from benchmarks.feeds import PARTITIONS, Filling, fill, filling, flights, serving
from benchmarks.rows import MIB, Row, ratio
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.wire.direct_reads import PlanRequest

FEW = 1000
"""Chunks of the small store, and of what is planned in each."""

CONSUMERS = 10_000
MANY_PARTITIONS = 1024
_EVENT_BYTES = 400
_TURNS = 30

Calls = Mapping[str, Callable[[], object]]


def measured(
    work: Path, _events: int, chunks: int = 1_000_000, gigabytes: Sequence[float] = ()
) -> Iterator[Row]:
    """All of it: a store of so many chunks against one of FEW, and feeds of these sizes."""
    yield from depth(work, chunks)
    yield from idle(work, chunks)
    yield from partitions(work, chunks)
    yield from consumers(work)
    peaks = {size: memory(work, size) for size in sorted(gigabytes)}
    for size, found in peaks.items():
        for name, peak in found.items():
            yield f"{name}, {size:g} GB feed", f"{peak / MIB:.0f} MiB", ""
    if len(peaks) > 1:
        least, most = min(peaks), max(peaks)
        for name, peak in peaks[most].items():
            what = f"{name}: memory at {most:g} GB / at {least:g} GB"
            yield ratio(what, peak / peaks[least][name], "<= 1.3")


def tiny(partitions: int, chunks: int) -> Iterator[Filling]:
    """Chunks of one event, one partition after the other."""
    made = [filling(each, [each]) for each in range(partitions)]
    return itertools.islice(itertools.cycle(made), chunks)


def depth(work: Path, chunks: int) -> Iterator[Row]:
    """Plans and pages of a large store against the same of a small one, before and after all that
    can be packed is packed.
    """
    small = _store(work, PARTITIONS, FEW)
    large = _store(work, PARTITIONS, chunks)
    with closing(small), closing(large):
        for packed, aim in (("", "<= 2"), (", packed", "<= 1.5")):
            times = medians(_of_depth(small), _of_depth(large))
            for name, (few, many) in times.items():
                what = f"{name}{packed}: {chunks:,} chunks / {FEW:,} ({few * 1000:.2f} ms)"
                yield ratio(what, many / few, aim)
            while large.seal("flights", before=1 << 62):
                pass


def _of_depth(store: Store) -> Calls:
    feed = ChunkFeed(store, "flights")
    head = store.feed("flights").head
    first = dict.fromkeys(range(PARTITIONS), "_first")
    last = dict.fromkeys(range(PARTITIONS), "_last")
    end = at(store, PARTITIONS, head - FEW // 2)
    newest = at(store, PARTITIONS, head)
    lagging = {**newest, 0: "_first"}
    return {
        "plan of 500 chunks at the beginning": lambda: feed.plan(request(first, FEW // 2)),
        "plan of 500 chunks at the end": lambda: feed.plan(request(end, FEW // 2)),
        "plan if one partition lags": lambda: feed.plan(request(lagging, FEW // 2)),
        "plan if nothing is new": lambda: feed.plan(request(newest, FEW // 2)),
        "plan from _last": lambda: feed.plan(request(last, FEW // 2)),
        "page of 500 events at the beginning": lambda: page(feed, first, PARTITIONS),
        "page of 500 events at the end": lambda: page(feed, end, PARTITIONS),
        "page of one partition at the end": lambda: page(feed, {1: end[1]}, PARTITIONS),
    }


def idle(work: Path, chunks: int) -> Iterator[Row]:
    """Plans and pages of a packed store of which most partitions have one old chunk."""
    made = [_idle_store(work, each) for each in (MANY_PARTITIONS + FEW, chunks)]
    with closing(made[0]), closing(made[1]):
        while made[1].seal("flights", before=1 << 62):
            pass
        times = medians(*map(_of_idle, made))
        for name, (few, many) in times.items():
            what = f"{name}: {chunks:,} chunks, packed / {MANY_PARTITIONS + FEW:,}"
            yield ratio(f"{what} ({few * 1000:.2f} ms)", many / few, "<= 1.5")


def _idle_store(work: Path, chunks: int) -> Store:
    some = itertools.chain(
        tiny(MANY_PARTITIONS, MANY_PARTITIONS), tiny(PARTITIONS, chunks - MANY_PARTITIONS)
    )
    return open_store(fill(work, f"idle-{chunks}", MANY_PARTITIONS, some))


def _of_idle(store: Store) -> Calls:
    feed = ChunkFeed(store, "flights")
    head = store.feed("flights").head
    with store.snapshot("flights") as log:
        last = log.last(range(MANY_PARTITIONS), head - FEW // 2)
    end = {each: place.cursor for each, place in last.items()}
    return {
        "plan of 500 chunks at the end, 1,020 cursors idle": (
            lambda: feed.plan(request(end, FEW // 2))
        ),
        "page of 500 events at the end, 1,020 cursors idle": (
            lambda: page(feed, end, MANY_PARTITIONS)
        ),
    }


def partitions(work: Path, chunks: int) -> Iterator[Row]:
    """The same with 1,024 partitions, all of them read together, and one of them."""
    count = MANY_PARTITIONS
    small, large = (_store(work, count, each) for each in (2 * count, chunks))
    with closing(small), closing(large):
        times = medians(_of_partitions(small), _of_partitions(large))
        for name, (few, many) in times.items():
            what = f"{count:,} partitions: {name}: {chunks:,} chunks / {2 * count:,}"
            yield ratio(f"{what} ({few * 1000:.2f} ms)", many / few, "<= 2")


def _of_partitions(store: Store) -> Calls:
    feed = ChunkFeed(store, "flights")
    head = store.feed("flights").head
    end = at(store, MANY_PARTITIONS, head - MANY_PARTITIONS)
    newest = at(store, MANY_PARTITIONS, head)
    spread = {each: (end if each % 2 else newest)[each] for each in end}
    return {
        "plan of a chunk of each": lambda: feed.plan(request(end, MANY_PARTITIONS)),
        "plan if every second one lags": lambda: feed.plan(request(spread, MANY_PARTITIONS)),
        "plan if nothing is new": lambda: feed.plan(request(newest, MANY_PARTITIONS)),
        "page of a chunk of each": lambda: page(feed, end, MANY_PARTITIONS, MANY_PARTITIONS),
        "page of one of them": lambda: page(feed, {1: end[1]}, MANY_PARTITIONS),
    }


def consumers(work: Path) -> Iterator[Row]:
    """A reader that keeps its cursors at the publisher, beside 10,000 that do, and alone."""
    alone = _store(work, PARTITIONS, FEW, "alone", consumers=["consumer-5000"])
    names = [f"consumer-{each}" for each in range(CONSUMERS)]
    beside = _store(work, PARTITIONS, FEW, "beside", consumers=names)
    with closing(alone), closing(beside):
        times = medians(_of_consumer(alone), _of_consumer(beside))
        for name, (few, many) in times.items():
            what = f"{name}: {CONSUMERS:,} consumers / one ({few * 1000:.2f} ms)"
            yield ratio(what, many / few, "<= 2")


def _of_consumer(store: Store) -> Calls:
    feed = ChunkFeed(store, "flights")
    cursors = at(store, PARTITIONS, FEW // 2)

    def resumed() -> None:
        page(feed, feed.load_cursors("consumer-5000", PARTITIONS), PARTITIONS)

    return {
        "page that resumes": resumed,
        "cursors kept": lambda: feed.save_cursors("consumer-5000", 4, cursors),
    }


def memory(work: Path, gigabytes: float) -> dict[str, int]:
    """Peaks of the processes of a direct stream of so many GB: what plans, the publisher, and the
    largest of the Python workers.
    """
    spark = queries.session()
    events = int(gigabytes * 1e9 / _EVENT_BYTES)
    url = fill(work, f"memory-{events}", PARTITIONS, flights(events))
    with serving(url) as (url, publisher):
        peaks = queries.peaks_of(lambda: queries.stream(queries.feed(spark, url)))
        peaks["publisher"] = queries.peak_memory(publisher)
    Path(work, f"memory-{events}.db").unlink()
    return peaks


def at(store: Store, partitions: int, g: int) -> dict[int, str]:
    """The cursor of each partition of a store of `tiny` chunks, after position `g`."""
    last = {each: g - (g - 1 - each) % partitions for each in range(partitions)}
    with store.snapshot("flights", last.values()) as log:
        tags = log.tags
    return {each: f"{here}.{tags[here]}" if here > 0 else "_first" for each, here in last.items()}


def request(cursors: Mapping[int, str], chunks: int) -> PlanRequest:
    named = {str(each): cursor for each, cursor in cursors.items()}
    return PlanRequest(len(cursors), named, max_events=chunks)


def page(feed: ChunkFeed, cursors: Mapping[int, str], n: int, events: int = FEW // 2) -> None:
    for _ in feed.page(cursors, n, events):
        pass


def medians(small: Calls, large: Calls) -> dict[str, tuple[float, float]]:
    """The median CPU seconds of each call, at the small and at the large store, turn by turn."""
    found = {}
    for name in small:
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(_TURNS):
            for calls, seconds in zip((small, large), times, strict=True):
                began = time.process_time()
                calls[name]()
                seconds.append(time.process_time() - began)
        found[name] = (statistics.median(times[0]), statistics.median(times[1]))
    return found


def _store(
    work: Path,
    partitions: int,
    chunks: int,
    name: str | None = None,
    consumers: Sequence[str] = (),
) -> Store:
    """A store of `tiny` chunks, where these consumers keep their cursors."""
    url = fill(work, name or f"tiny-{partitions}-{chunks}", partitions, tiny(partitions, chunks))
    store = open_store(url)
    kept = at(store, partitions, chunks // 2)
    rows = [(name, partitions, p, cursor) for name in consumers for p, cursor in kept.items()]
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
        database.executemany("INSERT INTO cursor_sets VALUES (1, ?, ?, ?, ?)", rows)
        database.commit()
    return store
