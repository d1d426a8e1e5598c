"""How long a feed keeps its events and receipts: what may be removed, and how it is removed.

Chunks are removed whole, the oldest first, in order of g over all partitions, a few at a time. What
was removed last from each partition stays known (its anchor). So only a reader that has not read
the removed events gets an error.

A batch with a name is published once, however often it is repeated. The name stays known for ever,
in the producer's row; the receipt, with which a repeated batch is compared, is removed after a
time. Rejected: to remove both, because a repeat would be published a second time.

Times are those of the store's clock (`Store.now`), with which commits were stamped, too. `clock`
says when it is not believed, and then nothing is removed by age.

Rule for editors: `removable` decides what may be removed. It has no side effects, and its result is
always a beginning of the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from zeh_spark.service.reads.committed import positions
from zeh_spark.service.store.acts import Actor
from zeh_spark.service.store.cursor_sets import NOBODY, CursorSet
from zeh_spark.service.store.interface import NAMES_MS, Retention, Store
from zeh_spark.service.store.log import Chunk, Log
from zeh_spark.service.store.packs import SEALED_AFTER_MS
from zeh_spark.wire.phrases import counted, in_units

_SIZES = ((1 << 40, " TiB"), (1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB"), (1, " B"))

STEP_CHUNKS, STEP_BYTES, STEP_NAMES = 64, 16 << 20, 500
"""Most chunks, bytes and names of batches that one transaction removes, while others wait."""

_MOST = 4096
"""Most chunks that are looked up at a time."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What may be removed, or was removed.

    Attributes:
        newest: The time of the newest event, in ms since 1970.
        held_by: The reader because of which the next chunk stays, if it would be removed otherwise.
    """

    chunks: int = 0
    events: int = 0
    bytes: int = 0
    upto: int = 0
    newest: int = 0
    held_by: str | None = None

    def with_step(self, step: Removal) -> Removal:
        events, size = self.events + step.events, self.bytes + step.bytes
        return Removal(self.chunks + step.chunks, events, size, step.upto, step.newest)


def words(rule: Retention, readers: Sequence[str] | None = None) -> str:
    """Return what a feed keeps, in words.

    `readers` are those of its cursor sets that may be named; the others are counted. Without them,
    all are named.
    """
    limits = []
    if rule.age_ms is not None:
        limits.append(f"what is younger than {_lasting(rule.age_ms)}")
    if rule.bytes is not None:
        limits.append(f"the newest {in_units(rule.bytes, _SIZES)}")
    kept = [", of that ".join(limits) or "all events"]
    named = [repr(each) for each in (rule.readers if readers is None else readers)]
    if hidden := len(rule.readers) - len(named):
        named.append(counted(hidden, "cursor set"))
    if named:
        verb = "has" if len(rule.readers) == 1 else "have"
        kept.append(f"what {' and '.join(named)} {verb} not read yet")
    if rule.names_ms != NAMES_MS:
        how_long = "for ever" if rule.names_ms is None else f"for {_lasting(rule.names_ms)}"
        kept.append(f"the receipts of batches with names {how_long}")
    if rule.producers_ms is not None:
        kept.append(f"producers that have published within {_lasting(rule.producers_ms)}")
    return ", and ".join(kept)


def _lasting(ms: int) -> str:
    for unit, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute")):
        if ms >= unit and ms % unit == 0:
            return counted(ms // unit, name)
    return f"{ms / 1000:g} seconds"


def removable(
    oldest: Iterable[Chunk],
    size: int,
    retention: Retention,
    now: int,
    unread_by: Callable[[Chunk], str | None],
) -> Iterator[Removal]:
    """Yield what may be removed, chunk by chunk: each value has all so far.

    `oldest` is the log from its beginning, `size` its bytes, and `now` is in ms since 1970.
    `unread_by` returns a reader that is waited for and has not passed a chunk; None if all have.
    """
    removal = Removal()
    for chunk in oldest:
        too_old = retention.age_ms is not None and chunk.time < now - retention.age_ms
        too_much = retention.bytes is not None and size - removal.bytes > retention.bytes
        if not too_old and not too_much:
            return
        if reader := unread_by(chunk):
            yield replace(removal, held_by=reader)
            return
        removal = removal.with_step(Removal(1, chunk.events, chunk.size, chunk.g, chunk.time))
        yield removal


def plan(store: Store, feed: str, retention: Retention) -> Removal:
    newest = deque(_steps(store, feed, retention), maxlen=1)
    return newest.pop() if newest else Removal()


def next_step(store: Store, feed: str, retention: Retention) -> tuple[Removal, bool]:
    """Return what one step would remove now, and whether nothing else would be removed after it."""
    step = Removal()
    for step in _steps(store, feed, retention):
        if step.chunks >= STEP_CHUNKS or step.bytes >= STEP_BYTES:
            return step, False
    return step, True


def prune(
    store: Store,
    feed: str,
    retention: Retention | None = None,
    stopped: Callable[[], bool] = lambda: False,
    *,
    narrowed: Callable[[Retention], Retention] = lambda rule: rule,
    by: Actor | None = None,
    progress: Callable[[int], object] = lambda events: None,
) -> Removal:
    """Remove what may be removed now, and return what that was.

    It is done step by step, each after another look at what may be removed, so that a changed
    retention or a reader that goes back is respected. Several processes may do it at the same time.
    By default the feed's own retention counts, of which `narrowed` makes the one to go by.
    `stopped` is asked between two steps whether to leave the rest for another time. With `by`, each
    step is an administrative act; the publisher's upkeep leaves none. `progress` is told the events
    that were removed since its last call. Raises RuntimeError if what was removed is there again,
    so that this would never end.
    """
    done = Removal()
    while not stopped():
        step, _ = next_step(store, feed, narrowed(retention or store.retention(feed)))
        if not step.chunks:
            return replace(done, held_by=step.held_by)
        if step.upto <= done.upto:
            raise RuntimeError(
                f"feed {feed!r}: events up to position {done.upto} were removed and are there"
                " again. If the store was restored meanwhile, prune again. Otherwise report this:"
                " it is a fault of zeh_spark"
            )
        store.remove(feed, step.upto, by=by)
        progress(step.events)
        done = done.with_step(step)
    return done


def seal(store: Store, feed: str) -> tuple[int, int]:
    """Pack chunks of a feed that are old enough (see `packs`); return how many packs and chunks."""
    packs = chunks = 0
    while step := seal_next(store, feed):
        packs, chunks = packs + 1, chunks + step
    return packs, chunks


def seal_next(store: Store, feed: str) -> int:
    """Make one pack (see `Store.seal`)."""
    return store.seal(feed, store.now() - SEALED_AFTER_MS)


def expire_names(store: Store, feed: str, stopped: Callable[[], bool] = lambda: False) -> int:
    """Delete the receipts of the feed's batches with names that are old enough.

    It returns the number of batches. Their names stay known, and are refused. `stopped` is as for
    `prune`.
    """
    return _expired(store, feed, store.retention(feed).names_ms, store.expire_names, stopped)


def expire_producers(store: Store, feed: str, stopped: Callable[[], bool] = lambda: False) -> int:
    """Delete the feed's producers that were idle for long enough, if its retention says so.

    It has the arguments of `expire_names`. It returns the number of producers. Their names stay
    known, and are refused.
    """
    kept = store.retention(feed).producers_ms
    return _expired(store, feed, kept, store.expire_producers, stopped)


def _expired(
    store: Store,
    feed: str,
    kept: int | None,
    expire: Callable[[str, int, int], int],
    stopped: Callable[[], bool],
) -> int:
    done = step = 0
    while kept is not None and (done == 0 or step == STEP_NAMES) and not stopped():
        step = expire(feed, store.now() - kept, STEP_NAMES)
        done += step
        if not step:
            break
    return done


def _steps(store: Store, feed: str, retention: Retention) -> Iterator[Removal]:
    if retention.age_ms is None and retention.bytes is None:
        return iter(())
    passed = []
    for name in retention.readers:
        kept = next(iter(store.cursor_sets(feed, name)), CursorSet(name, NOBODY, {}))
        passed.append((kept, positions(store, feed, kept.cursors)))

    def unread_by(chunk: Chunk) -> str | None:
        for kept, by_n in passed:
            if not by_n:
                return kept.name  # it has not kept a cursor yet
            for n, read in by_n.items():
                partition = chunk.partition % n
                if read.get(partition, 0) < chunk.g and kept.may_read(n, partition):
                    return kept.name
        return None

    with store.snapshot(feed) as log:
        state = log.state
        found = log.scan(_begin(log), state.head, STEP_CHUNKS)
    oldest = _oldest(store, feed, found, state.head)
    return removable(oldest, state.size, retention, store.now(), unread_by)


def _oldest(store: Store, feed: str, found: Sequence[Chunk], head: int) -> Iterator[Chunk]:
    """Yield the log from its beginning, `found`, of at most STEP_CHUNKS chunks.

    It ends where another process has removed more meanwhile: the sizes of that are not known, and
    would be removed once more. Rejected: by partitions, which may be packs apart.
    """
    limit = STEP_CHUNKS
    while True:
        yield from found
        if len(found) < limit:
            return
        after, limit = found[-1].g, min(2 * limit, _MOST)
        with store.snapshot(feed) as log:
            if _begin(log) > after:
                return
            found = log.scan(after, head, limit)


def _begin(log: Log) -> int:
    return max((each.g for each in log.anchors.values()), default=0)
