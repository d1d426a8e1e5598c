"""The contract for feeds and reading. Writing is in `batches`."""

from __future__ import annotations

import multiprocessing
import threading
import uuid
from functools import partial

import pytest

from tests.store_contract.site import Opened, Site, StoppedClock
from tests.store_contract.writers import call, chunk, everything, large, publish, until, upload
from zeh_spark.errors import StoreError
from zeh_spark.protocol.upload_format import lines_of
from zeh_spark.publisher import Store
from zeh_spark.store.feed import ChunkFeed
from zeh_spark.store.interface import UnknownFeedError


def test_batches_get_positions_in_the_order_of_their_commits(store: Store) -> None:
    """A feed is in the order in which it was published, a batch in that of partitions (ZE-06)."""
    publish(store, chunk(1, b"1"))
    publish(store, chunk(1, b"3"), chunk(0, b"2"))
    publish(store, chunk(0, b"4"))
    found = [(c.g, c.partition) for c in everything(store)]
    assert [(1, 1), (2, 0), (3, 1), (4, 0)] == found


def test_frames_come_back_as_staged(store: Store) -> None:
    """I read what was written, byte for byte."""
    chunks = [large(0, b"1"), large(0, b"3"), chunk(1, b'{"a":2}')]
    publish(store, *chunks)
    blobs = [each.blob for each in everything(store)]
    assert [each.frame for each in reversed(chunks)] == store.frames(blobs[::-1])


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
    """Positions after the head have no tag."""
    publish(store, chunk(0, b"1"), chunk(1, b"2"))
    expected = {each.g: each.tag for each in everything(store)}
    assert expected == store.tags("orders", [0, 1, 2, 3])


def test_last_looks_only_at_the_partitions_asked_for(store: Store) -> None:
    """`_last` of a partition is its own last chunk."""
    publish(store, chunk(0, b"1"), chunk(1, b"2"))
    last = [store.last("orders", asked, 2) for asked in ([0], [1], [0, 1], [])]
    assert [1, 2, 2, None] == [each and each.g for each in last]


def test_the_place_of_a_time_is_found(store: Store, clock: StoppedClock) -> None:
    """A reader starts at the first event that was committed at a time or later."""
    publish(store, chunk(0, b"1"))
    clock.pass_hours(1)
    publish(store, chunk(1, b"2"))
    publish(store, chunk(0, b"3"))
    first, second, third = everything(store)
    feed = ChunkFeed(store, "orders")
    starts = [feed.cursors_at(2, time) for time in (first.time, first.time + 1, second.time)]
    assert {0: first.cursor, 1: starts[0][1]} == starts[1] == starts[2]
    assert [[1, 2, 3], [2, 3]] == [
        [each.g for part in feed.outline(start, 2, 9).parts for each in part.chunks]
        for start in starts[:2]
    ]
    clock.pass_hours(1)
    assert {0: third.cursor, 1: second.cursor} == feed.cursors_at(2, store.now())


def test_chunks_are_limited_per_partition_and_by_the_upper_end(store: Store) -> None:
    """A read is as short as I want it."""
    for g in range(1, 9):
        publish(store, chunk(g % 2, b"%d" % g))
    found = store.chunks("orders", {0: 2, 1: 0}, upto=7, limit=2)
    assert [1, 3, 4, 6] == [each.g for each in found]


def test_feeds_are_summed_up(store: Store) -> None:
    """The list of feeds shows what is in them."""
    store.create("empty", 1)
    publish(store, chunk(0, b"1", b"2"), chunk(1, b"3"))
    size = sum(each.size for each in everything(store))
    found = [(each.name, each.partitions, each.events, each.size) for each in store.feeds()]
    assert [("empty", 1, 0, 0), ("orders", 2, 3, size)] == found


def test_time_of_a_feed_never_decreases(store: Store, clock: StoppedClock) -> None:
    """No event is older than one before it, whatever the clock does."""
    publish(store, chunk(0, b"1"))
    clock.now = 1
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
    """A mistyped name of a feed has an error of its own."""
    with pytest.raises(UnknownFeedError, match="no feed 'order'"):
        store.feed("order")


def test_version_changes_with_every_commit(opened: Opened, store: Store) -> None:
    """A waiting reader notices what another connection commits."""
    for _ in range(3):
        before = store.version()
        publish(opened(), chunk(0, b"1"))
        until(partial(_changed, store, before))


def _changed(store: Store, version: int) -> bool:
    return store.version() != version


def test_version_stands_still_without_commits(opened: Opened, store: Store) -> None:
    """Waiting readers are not woken by reads, by uploads, or by cursors that others save."""
    before = store.version()
    everything(opened())
    opened().stage("orders", call(), upload(chunk(0, b"1")))
    opened().save_cursors("orders", "mailer", 2, {0: "a"})
    assert before == store.version()


def test_threads_that_commit_at_once_get_positions_without_gaps(opened: Opened) -> None:
    """Two loads at the same time are both there, and each batch is in one piece."""
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
    """I never see a part of a batch, nor a position without all positions before it."""
    opened().create("orders", 2)
    writer = threading.Thread(target=_publish_batches, args=(opened(), 100))
    reader, seen = opened(), []
    writer.start()
    while writer.is_alive():
        seen.append([each.g for each in everything(reader)])
    writer.join()
    assert [] == [gs for gs in seen if len(gs) % 2 or gs != list(range(1, len(gs) + 1))]


def test_processes_that_commit_at_once_lose_nothing(site: Site) -> None:
    """Loads from two terminals go into one store."""
    store = site.open()
    store.create("orders", 2)
    start = multiprocessing.get_context("spawn").Process
    _run([start(target=_publish_from_a_process, args=(site.opener(),)) for _ in range(2)])
    assert list(range(1, 81)) == [each.g for each in everything(store)]
    numbers = [each.sequence for each in everything(store) if each.partition == 0]
    assert list(range(40)) == numbers


def _publish_batches(store: Store, count: int) -> None:
    """Publish batches of two chunks, one in each partition, with the same random data."""
    for _ in range(count):
        data = b'"%s"' % uuid.uuid4().hex.encode()
        publish(store, chunk(0, data), chunk(1, data))


def _publish_from_a_process(opened: Opened) -> None:
    _publish_batches(opened(), 20)


def _run(workers: list[threading.Thread] | list[multiprocessing.context.SpawnProcess]) -> None:
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _pairs(frames: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(frames[::2], frames[1::2], strict=True))


def _lines(frame: bytes) -> str:
    """Return the random data of a chunk."""
    return lines_of(frame).decode().split('"data":')[1]
