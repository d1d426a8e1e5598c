"""A store for one test: a SQLite file in memory, where the machine has /dev/shm."""

from __future__ import annotations

import functools
import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from zeh_spark.service.sql.commits import _append
from zeh_spark.service.sql.producers import Lock, find_feed
from zeh_spark.service.sql.store import SqlStore
from zeh_spark.service.sql.uploads import insert_blobs
from zeh_spark.service.sqlite.store import open_sqlite
from zeh_spark.service.store.batches import RECEIPTS, Call, CommitFacts, Declared, ProducerState
from zeh_spark.service.store.commit_plan import Moved, published
from zeh_spark.service.store.interface import Clock, now_ms
from zeh_spark.service.store.log import Log
from zeh_spark.wire.upload_format import Content, StagedChunk

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


_open: list[ScratchStore] = []


def close_those_after(count: int) -> None:
    """Close all stores but the first `count` that are open, the newest first."""
    for store in reversed(_open[count:]):
        store.close()


def count_open() -> int:
    return len(_open)


class ScratchStore(SqlStore):
    """An empty store, or one with `feeds` of so many partitions each.

    Its file goes when it is closed: after its test, by `tests/conftest.py`.
    Tests derive from it, to let something happen in the middle of a call.
    """

    def __init__(self, *, clock: Clock = now_ms, receipts: int = RECEIPTS, **feeds: int) -> None:
        folder = tempfile.mkdtemp(prefix="zeh-store-", dir=MEMORY)
        file = Path(folder, "feeds.db")
        file.write_bytes(empty_store())
        opened = open_sqlite(str(file), clock=clock, receipts=receipts)
        super().__init__(opened._database, clock=clock, receipts=receipts)
        self._folder, self.file = folder, file
        self.reads: Counter[tuple[str, str]] = Counter()  # by what, and of which feed
        _open.append(self)
        for name, partitions in feeds.items():
            self.create(name, partitions)

    def append(
        self, feed: str, chunks: Sequence[StagedChunk], times: Sequence[int] | None = None
    ) -> None:
        """Append chunks in this order, each as a batch of its own: a hundred in a commit's time.

        For tests of what readers get. No producer is noted. `times` are those of the batches.
        """

        def work(connection: Connection) -> None:
            feed_id, state = find_feed(connection, feed, Lock.CHANGE)
            known = CommitFacts(ProducerState("p"), state.partitions)
            blobs = insert_blobs(connection, [each.frame for each in chunks])
            publications = []
            for number, (blob, each) in enumerate(zip(blobs, chunks, strict=True)):
                call = Call("p", "i", "r", number, state.partitions)
                digest = hashlib.sha256(each.frame).digest()
                moved = [Moved(blob, each.partition, each.events, each.size, digest)]
                now = times[number] if times else self.now()
                done = published(known, call, Declared(Content(), ()), state, moved, {}, now)
                publications.append(done)
                state = done.feed
            if publications:
                _append(connection, feed_id, publications)

        self._write(work)

    def before_read(self, what: str, feed: str) -> None:
        """Called before a snapshot is opened, and before each read in it, which `what` names."""

    def _note(self, what: str, feed: str) -> None:
        self.reads[what, feed] += 1
        self.before_read(what, feed)

    @contextmanager
    def snapshot(self, feed: str, positions: Iterable[int] = ()) -> Iterator[Any]:
        self._note("snapshot", feed)
        with super().snapshot(feed, positions) as log:
            yield _WatchedLog(log, self)

    def close(self) -> None:
        if self in _open:
            _open.remove(self)
            super().close()
            shutil.rmtree(self._folder)


class _WatchedLog:
    """A log whose reads its store hears of."""

    def __init__(self, log: Log, store: ScratchStore) -> None:
        self._log = log
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        if callable(found):
            self._store._note(name, self._log.state.name)
        return found


@functools.cache
def empty_store() -> bytes:
    """Return a store without feeds, to copy: it takes a third of the time that a new one takes."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        file = Path(folder, "feeds.db")
        open_sqlite(str(file)).close()
        return file.read_bytes()
