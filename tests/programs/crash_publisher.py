"""A publisher's store that dies, with SIGKILL, at every point of an act. Not a test.

Usage: crash_publisher.py ACT PLACE. Makes a store `before` at the place, and for each point a copy
of it, `0` and so on, in which a process of its own did the act up to that point. The points are
before each SQL statement (behind one is before the next: nothing lies between), and before and
after each COMMIT; at the last one the act is done. Prints the name of each point.

A place is a directory, with stores like `0/feeds.db`, or a URL of PostgreSQL, whose database's name
is what those of the stores begin with.
"""

import hashlib
import itertools
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect

from zeh_spark.publisher import Store, open_store
from zeh_spark.service.sqlite.writer import Writer
from zeh_spark.service.store import packs
from zeh_spark.service.store.batches import Call, Declared, Overrides, TaskAttempt, Upload
from zeh_spark.wire.upload_format import Chunker, Content, StagedChunk

FEED = "orders"
OLD = [b'"old"']


def chunk(partition: int, data: list[bytes]) -> StagedChunk:
    chunker = Chunker()
    full = [each for one in data for each in chunker.add(partition, {}, one)]
    (only,) = [*full, *chunker.close()]
    return only


def upload(number: int, *chunks: StagedChunk) -> Upload:
    digest = hashlib.sha256(b"".join(each.frame for each in chunks)).digest()
    return Upload(0, 0, number, digest, chunks)


def declared(uploads: list[Upload]) -> Declared:
    content = sum((each.content for each in uploads), Content())
    return Declared(content, (TaskAttempt(0, 0, len(uploads), content.events),))


def call(batch: int, producer: str = "p", incarnation: str = "a", **overrides: str) -> Call:
    return Call(producer, incarnation, "r1", batch, 2, Overrides(**overrides))


LARGE = [
    upload(at, *(chunk(partition, [b"%d" % (10 * at + partition)] * 300) for partition in (0, 1)))
    for at in range(2)
]
SMALL = [
    upload(at, *(chunk(partition, [b"%d" % (10 * at + partition)]) for partition in (0, 1, 0)))
    for at in range(4)
]
ALONE = [upload(0, chunk(0, [b"7"]))]
MANY = [chunk(at % 2, [b"%d" % at] * (90 if at == 2 else 1 + at % 3)) for at in range(9)]
SIZES = {"PACK_CHUNKS": 4, "BLOCK_BYTES": 120, "OWN_BYTES": 2000}
"""Of packs: OLD and MANY are two of them, one with a block of a chunk's own, and a rest."""
REMOVED = 3, 6
"""Positions up to which chunks are removed: in the first of these packs, and in the second one."""


def stage(store: Store, by: Call, uploads: list[Upload]) -> None:
    for each in uploads:
        store.stage(FEED, by, each)


def publish(store: Store, by: Call, uploads: list[Upload]) -> bool:
    stage(store, by, uploads)
    return store.commit(FEED, by, declared(uploads))[1]


def tidy(store: Store) -> None:
    while store.tidy():
        pass


def commit_together(store: Store) -> None:
    """Three batches in one transaction: they wait until the writer is free."""
    writes = store._database.writes  # type: ignore[attr-defined]
    if isinstance(writes, Writer):
        waiting, held = writes._durable, held_writer(writes)
    else:
        lane = writes._lanes.of(FEED)
        waiting, held = lane._waiting, lane.lead()
    with held:
        threads = [
            threading.Thread(target=store.commit, args=(FEED, call(0, name), declared(ALONE)))
            for name in "qrs"
        ]
        for thread in threads:
            thread.start()
        while len(waiting) < 3:
            pass
    for thread in threads:
        thread.join()


@contextmanager
def held_writer(writer: Writer) -> Iterator[None]:
    begun, free = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        free.wait()

    holder = threading.Thread(target=writer.write, args=(hold,))
    holder.start()
    begun.wait()
    yield
    free.set()
    holder.join()


def keep_tidy(store: Store) -> None:
    """Seal what can be sealed, then remove what is in one pack and a half, in two steps."""
    while store.seal(FEED, before=1 << 62):
        pass
    for upto in REMOVED:
        store.remove(FEED, upto)


def nothing(store: Store) -> None: ...


REPLACING = call(0, incarnation="b", replace_incarnation="a@0:b")
ACTS: dict[str, tuple[Callable[[Store], object], Callable[[Store], object]]] = {
    # what was done before, and what is done until the crash
    "stage": (nothing, lambda store: stage(store, call(1), LARGE)),
    "commit": (
        lambda store: stage(store, call(1), LARGE),
        lambda store: store.commit(FEED, call(1), declared(LARGE)),
    ),
    "first commit": (
        lambda store: stage(store, call(0, "q"), LARGE),
        lambda store: store.commit(FEED, call(0, "q"), declared(LARGE)),
    ),
    "pack": (
        lambda store: stage(store, call(1), SMALL),
        lambda store: store.commit(FEED, call(1), declared(SMALL)),
    ),
    "replace": (
        lambda store: stage(store, REPLACING, LARGE),
        lambda store: store.commit(FEED, REPLACING, declared(LARGE)),
    ),
    "tidy": (
        lambda store: (
            stage(store, Call("p", "a", "r9", 1, 2), SMALL),
            publish(store, call(1), LARGE),
        ),
        tidy,
    ),
    "release": (
        lambda store: stage(store, call(1), LARGE),
        lambda store: store.release(FEED, "p", 1, "r1"),
    ),
    "together": (
        lambda store: [stage(store, call(0, name), ALONE) for name in "qrs"],
        commit_together,
    ),
    "seal and remove": (
        lambda store: [
            publish(store, call(at), [upload(0, each)]) for at, each in enumerate(MANY, 1)
        ],
        keep_tidy,
    ),
}


class Points:
    """Counts the points that the process passes, and dies at one of them."""

    def __init__(self, last: int) -> None:
        self._left = last
        self._lock = threading.Lock()

    def install(self) -> None:
        event.listen(Engine, "before_cursor_execute", lambda *given: self("before", given[2]))
        commit = DefaultDialect.do_commit

        def do_commit(dialect: DefaultDialect, connection: object) -> None:
            self("before", "COMMIT")
            commit(dialect, connection)  # type: ignore[arg-type]
            self("after", "COMMIT")

        DefaultDialect.do_commit = do_commit  # type: ignore[assignment, method-assign]

    def __call__(self, when: str, statement: str) -> None:
        with self._lock:
            if self._left == 0:
                os.write(1, f"{when} {' '.join(statement.split())[:80]}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()  # no other thread passes meanwhile
            self._left -= 1

    def end(self) -> None:
        """The act is done; what the process does besides is no point of it."""
        with self._lock:
            self._left = -1


def in_a_process(work: Callable[[], None]) -> bool:
    """Whether it lived to the end."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("an act failed")
    return os.WIFEXITED(status)


def url_of(place: str, name: object) -> str:
    return f"{place}_{name}" if "://" in place else f"sqlite:///{place}/{name}/feeds.db"


def make(place: str, name: object, template: str | None) -> None:
    """An empty store, or a copy of one."""
    if "://" not in place:
        folder = Path(place, str(name))
        shutil.copytree(Path(place, template), folder) if template else folder.mkdir()
        return
    server, _, prefix = place.replace("+psycopg", "").rpartition("/")
    source = f"{prefix}_{template}" if template else "template1"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {prefix}_{name} TEMPLATE {source}")  # type: ignore[call-overload]


def main(act: str, place: str) -> None:
    prepare, do = ACTS[act]
    for name, size in SIZES.items():
        setattr(packs, name, size)
    make(place, "before", None)

    def begin() -> None:
        store = open_store(url_of(place, "before"))
        store.create(FEED, 2)
        publish(store, call(0), [upload(0, chunk(0, OLD))])
        prepare(store)
        store.close()

    def crash(point: int) -> None:
        store = open_store(url_of(place, point))
        points = Points(point)
        points.install()
        do(store)
        points.end()

    in_a_process(begin)
    for point in itertools.count():
        make(place, point, "before")
        if in_a_process(lambda point=point: crash(point)):  # type: ignore[misc]
            os.write(1, b"done\n")
            break


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
