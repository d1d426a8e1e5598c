"""One text for every store of a publisher."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from zeh_spark.errors import StoreError
from zeh_spark.publisher import MemoryStore, Store, open_store, sql
from zeh_spark.publisher.chunks import Chunker, lines_of
from zeh_spark.publisher.store import Chunk, StagedChunk, StoreBusyError, UnknownFeedError

Opened = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens the store of the test, as often as it wants."""
    stores: list[Store] = []
    memory = MemoryStore()

    def open_again() -> Store:
        if request.param == "memory":
            return memory
        stores.append(open_store(f"sqlite:///{tmp_path / 'feeds.db'}"))
        return stores[-1]

    yield open_again
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Opened) -> Store:
    store = opened()
    store.create("orders", 2)
    return store


def chunk(partition: int, *data: bytes) -> StagedChunk:
    chunker = Chunker()
    full = [each for line in data for each in chunker.add(partition, {}, line)]
    return [*full, *chunker.close()][0]


def publish(store: Store, *chunks: StagedChunk, feed: str = "orders") -> None:
    batch = uuid.uuid4().hex
    store.commit(feed, batch, store.stage(batch, chunks))


def everything(store: Store, feed: str = "orders") -> list[Chunk]:
    state = store.feed(feed)
    return store.chunks(feed, dict.fromkeys(range(state.partitions), 0), state.head, 10_000)


def test_commit_gives_positions_in_the_order_of_staging(store: Store) -> None:
    """A batch becomes visible in the order in which I wrote it."""
    publish(store, chunk(1, b"1"), chunk(0, b"2"), chunk(1, b"3"))
    publish(store, chunk(0, b"4"))
    assert [(1, 1), (2, 0), (3, 1), (4, 0)] == [(c.g, c.partition) for c in everything(store)]


def test_frames_come_back_as_staged(store: Store) -> None:
    """What I read is what was written, byte for byte."""
    chunks = [chunk(0, b"1"), chunk(1, b'{"a":2}'), chunk(0, b"3")]
    publish(store, *chunks)
    blobs = [each.blob for each in everything(store)]
    assert [each.frame for each in reversed(chunks)] == store.frames(blobs[::-1])


def test_staged_chunks_are_invisible(store: Store) -> None:
    """Nothing of a load shows before it is complete."""
    store.stage("load", [chunk(0, b"1")])
    assert (0, []) == (store.feed("orders").head, everything(store))


def test_writer_that_crashed_between_stage_and_commit_leaves_nothing(opened: Opened) -> None:
    """After a crash I load the file again, and it is there once."""
    opened().create("orders", 2)
    opened().stage("crashed", [chunk(0, b"1")])
    store = opened()
    publish(store, chunk(0, b"1"))
    assert [(1, 0)] == [(c.g, c.partition) for c in everything(store)]


def test_batch_commits_once(store: Store) -> None:
    """Committing the same batch again is refused, not doubled."""
    count = store.stage("load", [chunk(0, b"1")])
    store.commit("orders", "load", count)
    with pytest.raises(StoreError, match="0 staged chunks, its writer counted 1"):
        store.commit("orders", "load", count)


def test_batch_with_a_missing_chunk_is_refused_whole(store: Store) -> None:
    """A batch is never published in part."""
    count = store.stage("load", [chunk(0, b"1"), chunk(1, b"2")])
    with pytest.raises(StoreError, match="2 staged chunks, its writer counted 3"):
        store.commit("orders", "load", count + 1)
    assert [] == everything(store)


def test_batch_with_a_partition_that_the_feed_lacks_is_refused(store: Store) -> None:
    """Events cannot get lost in a partition nobody reads."""
    count = store.stage("load", [chunk(0, b"1"), chunk(2, b"2")])
    with pytest.raises(StoreError, match="partition 2, but feed 'orders' has 2"):
        store.commit("orders", "load", count)
    assert [] == everything(store)


def test_discarded_batch_cannot_be_committed(store: Store) -> None:
    """What I gave up stays away."""
    count = store.stage("load", [chunk(0, b"1")])
    store.discard("load")
    with pytest.raises(StoreError, match="0 staged chunks"):
        store.commit("orders", "load", count)


def test_history_continues_after_reopening(opened: Opened) -> None:
    """A restart of the publisher changes no cursor."""
    opened().create("orders", 2)
    publish(opened(), chunk(0, b"1"))
    before = everything(opened())
    publish(opened(), chunk(0, b"2"))
    assert before == everything(opened())[:1]


def test_same_chunks_have_other_tags_in_another_feed(store: Store) -> None:
    """A cursor tells which feed gave it."""
    store.create("copies", 2)
    publish(store, chunk(0, b"1"))
    publish(store, chunk(0, b"1"), feed="copies")
    assert everything(store)[0].tag != everything(store, "copies")[0].tag


def test_tags_are_those_of_the_chunks(store: Store) -> None:
    """Positions beyond the head have none."""
    publish(store, chunk(0, b"1"), chunk(1, b"2"))
    expected = {each.g: each.tag for each in everything(store)}
    assert expected == store.tags("orders", [0, 1, 2, 3])


def test_last_looks_only_at_the_partitions_asked_for(store: Store) -> None:
    """`_last` of a partition is its own last chunk."""
    publish(store, chunk(0, b"1"), chunk(1, b"2"))
    last = [store.last("orders", asked, 2) for asked in ([0], [1], [0, 1], [])]
    assert [1, 2, 2, None] == [each and each.g for each in last]


def test_chunks_are_limited_per_partition_and_by_the_upper_end(store: Store) -> None:
    """A read is as short as its reader wants."""
    publish(store, *(chunk(g % 2, b"%d" % g) for g in range(1, 9)))
    found = store.chunks("orders", {0: 2, 1: 0}, upto=7, limit=2)
    assert [1, 3, 4, 6] == [each.g for each in found]


def test_cursor_set_keeps_the_last_cursor_of_each_partition(store: Store) -> None:
    """I find my place again by name."""
    store.save_cursors("orders", "mailer", 2, {0: "a", 1: "b"})
    store.save_cursors("orders", "mailer", 2, {1: "c"})
    kept = [
        store.load_cursors("orders", name, n)
        for name, n in (("mailer", 2), ("mailer", 4), ("x", 2))
    ]
    assert [{0: "a", 1: "c"}, {}, {}] == kept


def test_feeds_are_summed_up(store: Store) -> None:
    """The table of feeds shows what is in them."""
    store.create("empty", 1)
    publish(store, chunk(0, b"1", b"2"), chunk(1, b"3"))
    size = sum(each.size for each in everything(store))
    found = [(each.name, each.partitions, each.events, each.size) for each in store.feeds()]
    assert [("empty", 1, 0, 0), ("orders", 2, 3, size)] == found


def test_time_of_a_feed_never_decreases(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are not older than those before them, whatever the clock does."""
    publish(store, chunk(0, b"1"))
    for module in ("memory", "sql"):
        monkeypatch.setattr(f"zeh_spark.publisher.{module}.now_ms", lambda: 1)
    publish(store, chunk(0, b"2"))
    first, second = everything(store)
    assert first.time == second.time


@pytest.mark.parametrize("name", ["", "a/b", "healthz", "-x", "x" * 101, "ä"])
def test_names_that_no_url_could_carry_are_refused(store: Store, name: str) -> None:
    """A feed's name is part of its address."""
    with pytest.raises(StoreError, match="cannot be called"):
        store.create(name, 1)


@pytest.mark.parametrize("partitions", [0, 1025])
def test_partition_counts_have_limits(store: Store, partitions: int) -> None:
    """I am told what is allowed."""
    with pytest.raises(StoreError, match="1 to 1024"):
        store.create("x", partitions)


def test_feed_is_created_once(store: Store) -> None:
    """A second create does not empty my feed."""
    with pytest.raises(StoreError, match="'orders' exists already"):
        store.create("orders", 2)


def test_unknown_feed_has_its_own_error(store: Store) -> None:
    """A typing error in a feed's name says so."""
    with pytest.raises(UnknownFeedError, match="no feed 'order'"):
        store.feed("order")


def test_version_changes_with_every_commit(opened: Opened, store: Store) -> None:
    """A waiting reader notices what another connection commits."""
    versions = [store.version()]
    for _ in range(3):
        publish(opened(), chunk(0, b"1"))
        versions.append(store.version())
    assert 4 == len(set(versions))


def test_version_stands_still_without_commits(opened: Opened, store: Store) -> None:
    """Reading wakes nobody up."""
    before = store.version()
    everything(opened())
    assert before == store.version()


def test_threads_that_commit_at_once_get_positions_without_gaps(opened: Opened) -> None:
    """Two loads at the same time are both there, each in one piece."""
    opened().create("orders", 2)
    threads = [threading.Thread(target=_publish_batches, args=(opened(), 20)) for _ in range(4)]
    _run(threads)
    store = opened()
    batches = {
        tuple(map(_lines, pair))
        for pair in _pairs(store.frames([c.blob for c in everything(store)]))
    }
    assert (list(range(1, 161)), 80) == ([c.g for c in everything(store)], len(batches))


def test_readers_see_a_batch_in_all_partitions_or_in_none(opened: Opened) -> None:
    """I never see half a batch, nor a position before the one below it."""
    opened().create("orders", 2)
    writer = threading.Thread(target=_publish_batches, args=(opened(), 100))
    reader, seen = opened(), []
    writer.start()
    while writer.is_alive():
        seen.append([each.g for each in everything(reader)])
    writer.join()
    assert [] == [gs for gs in seen if len(gs) % 2 or gs != list(range(1, len(gs) + 1))]


def test_processes_that_commit_at_once_lose_nothing(tmp_path: Path) -> None:
    """Loads from two terminals go into one store."""
    url = f"sqlite:///{tmp_path / 'feeds.db'}"
    store = open_store(url)
    store.create("orders", 2)
    start = multiprocessing.get_context("spawn").Process
    _run([start(target=_publish_from_a_process, args=(url,)) for _ in range(2)])
    assert list(range(1, 81)) == [each.g for each in everything(store)]
    store.close()


def test_batches_left_for_a_day_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crashed loads do not fill the disk for ever."""
    file = tmp_path / "feeds.db"
    store = open_store(f"sqlite:///{file}")
    with monkeypatch.context() as clock:
        clock.setattr(sql, "now_ms", lambda: 0)
        store.stage("crashed", [chunk(0, b"1")])
    store.stage("new", [chunk(0, b"2")])
    with sqlite3.connect(file) as other:
        assert [("new",)] == other.execute(
            "SELECT batch FROM staged JOIN blobs ON blob = id"
        ).fetchall()
    store.close()


def test_store_that_stays_locked_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database held by somebody else is a matter of time, not a broken store."""
    monkeypatch.setattr("zeh_spark.publisher.sqlite.BUSY_MS", 50)
    file = tmp_path / "feeds.db"
    store = open_store(f"sqlite:///{file}")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusyError, match="locked"):
        store.create("orders", 1)
    other.close()
    store.close()


def test_sqlite_commits_are_on_disk(tmp_path: Path) -> None:
    """An acknowledged batch survives a power cut: WAL with full synchronisation, in large pages."""
    store = open_store(f"sqlite:///{tmp_path / 'feeds.db'}")
    assert isinstance(store, sql.SqlStore)
    with store._writing() as connection:
        pragmas = ("journal_mode", "synchronous", "page_size")
        found = [connection.exec_driver_sql(f"PRAGMA {each}").scalar_one() for each in pragmas]
    assert ["wal", 2, 16384] == found
    store.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://host/db", "PostgreSQL is not there yet"),
        ("feeds.db", "unknown store 'feeds.db'"),
        ("sqlite:///", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:////nowhere/at/all/feeds.db", "there is no /nowhere/at/all"),
        ("sqlite:////tmp", "is a directory"),
    ],
)
def test_store_that_cannot_be_opened_says_why(url: str, reason: str) -> None:
    """A wrong --store tells me what to write."""
    with pytest.raises(StoreError, match=reason):
        open_store(url)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not a database, but long enough to be read as one" * 50, "not a database"),
        (None, "another program's"),
    ],
)
def test_foreign_file_is_left_alone(tmp_path: Path, content: bytes | None, reason: str) -> None:
    """Pointing at the wrong file does not change it."""
    file = tmp_path / "other.db"
    if content is None:
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE theirs (id)")
    else:
        file.write_bytes(content)
    with pytest.raises(StoreError, match=reason):
        open_store(f"sqlite:///{file}")


def test_missing_file_is_not_made_where_it_must_exist(tmp_path: Path) -> None:
    """A typing error in --store does not serve an empty store."""
    file = tmp_path / "feeds.db"
    with pytest.raises(StoreError, match="zeh-spark create"):
        open_store(f"sqlite:///{file}", must_exist=True)
    assert not file.exists()


def _publish_batches(store: Store, count: int) -> None:
    """Batches of two chunks, one in each partition, with the same random data."""
    for _ in range(count):
        data = b'"%s"' % uuid.uuid4().hex.encode()
        publish(store, chunk(0, data), chunk(1, data))


def _publish_from_a_process(url: str) -> None:
    _publish_batches(open_store(url), 20)


def _run(workers: list[threading.Thread] | list[multiprocessing.context.SpawnProcess]) -> None:
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _pairs(frames: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(frames[::2], frames[1::2], strict=True))


def _lines(frame: bytes) -> str:
    """The random data of a chunk."""
    return lines_of(frame).decode().split('"data":')[1]
