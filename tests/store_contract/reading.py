"""The contract for feeds and reading. Writing is in `batches`."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.patience import eventually
from tests.store_contract.writers import (
    call,
    chunk,
    data,
    everything,
    frames_of,
    large,
    publish,
    upload,
)
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Store
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.reads.pages import Part
from zeh_spark.service.store.interface import StoreBusyError, UnknownFeedError
from zeh_spark.service.store.log import Chunk


def test_batches_get_positions_in_the_order_of_their_commits(store):
    """A feed is in the order in which it was published, a batch in that of partitions (ZE-06)."""
    publish(store, chunk(1, b"1"))
    publish(store, chunk(1, b"3"), chunk(0, b"2"))
    publish(store, chunk(0, b"4"))
    found = [(c.g, c.partition) for c in everything(store)]
    assert [(1, 1), (2, 0), (3, 1), (4, 0)] == found


def test_frames_come_back_as_staged(opened, store):
    """I read what was written, byte for byte; a restart of the publisher changes no cursor."""
    chunks = [large(0, b"1"), large(0, b"3"), chunk(1, b'{"a":2}')]
    publish(store, *chunks)
    before = everything(store)
    assert [each.frame for each in reversed(chunks)] == frames_of(store, before[::-1])
    publish(opened(), chunk(0, b"2"))
    assert [each.cursor for each in before] == [each.cursor for each in everything(opened())[:-1]]


def test_tags_are_those_of_the_chunks(store):
    """Positions after the head have no tag. A cursor tells which feed gave it."""
    store.create("copies", 2)
    for feed in ("orders", "copies"):
        publish(store, chunk(0, b"1"), chunk(1, b"2"), feed=feed)
    expected, copies = ({c.g: c.tag for c in everything(store, f)} for f in ("orders", "copies"))
    with store.snapshot("orders", [0, 1, 2, 3]) as log:
        assert expected == {g: tag for g, tag in log.tags.items() if g}
    assert expected[1] != copies[1]


def test_last_looks_only_at_the_partitions_asked_for(store):
    """`_last` of a partition is its own last chunk."""
    publish(store, chunk(0, b"1"), chunk(1, b"2"))
    with store.snapshot("orders") as log:
        found = [log.last(asked, 2) for asked in ([0], [1], [0, 1], [])]
    last = [{partition: each.g for partition, each in chunks.items()} for chunks in found]
    assert [{0: 1}, {1: 2}, {0: 1, 1: 2}, {}] == last


def test_the_place_of_a_time_is_found(store, clock):
    """A reader starts at the first event that was committed at a time or later."""
    publish(store, chunk(0, b"1"))
    clock.pass_hours(1)
    publish(store, chunk(1, b"2"))
    publish(store, chunk(0, b"3"))
    first, second, third = everything(store)
    feed = ChunkFeed(store, "orders")

    def chunks_of(part: Part) -> Sequence[Chunk]:
        return part.chunks

    starts = [feed.cursors_at(2, time) for time in (first.time, first.time + 1, second.time)]
    assert {0: first.cursor, 1: starts[0][1]} == starts[1] == starts[2]
    assert [[1, 2, 3], [2, 3]] == [
        [each.g for chunks in feed.open(start, 2, 9, chunks_of).parts for each in chunks]
        for start in starts[:2]
    ]
    clock.pass_hours(1)
    assert {0: third.cursor, 1: second.cursor} == feed.cursors_at(2, store.now())


def test_chunks_are_limited_per_partition_and_by_the_upper_end(store):
    """A read is as short as I want it."""
    for g in range(1, 9):
        publish(store, chunk(g % 2, b"%d" % g))
    with store.snapshot("orders") as log:
        found = log.chunks({0: 2, 1: 0}, upto=7, limit=2)
    assert [1, 3, 4, 6] == [each.g for each in found]


def test_a_snapshot_is_of_one_moment(store):
    """What is committed or removed while I read is not in what I read, or still is."""
    publish(store, chunk(0, b"1"), chunk(1, b"2"))
    before = everything(store)
    with store.snapshot("orders", [1, 3]) as log:
        publish(store, chunk(0, b"3"))
        store.remove("orders", 2)
        assert ((2, {}), before) == ((log.state.head, log.anchors), log.scan(0, 9, 9))
        frames = log.frames([1, 2], [each.blob for each in before])
        assert 2 == len([*frames])
        assert {0, 1} == log.tags.keys()
    assert [3] == [each.g for each in everything(store)]


def test_a_snapshot_tells_the_identity_of_its_feed(store, clock):
    """With the epochs of a feed that was restored, in their order."""
    for _ in range(3):
        clock.pass_hours(1)
        store.begin_epoch("orders")
    with store.snapshot("orders") as log:
        assert store.identity("orders") == log.identity
        assert store.feed("orders") == log.state


def test_a_snapshot_that_lasts_is_given_up(store, monkeypatch):
    """It would keep the store from removing what is old."""
    monkeypatch.setattr("zeh_spark.service.sql.log.SNAPSHOT_SECONDS", -1)
    with store.snapshot("orders") as log, pytest.raises(StoreBusyError, match="Try again"):
        log.scan(0, 9, 9)


def test_feeds_are_summed_up(store):
    """The list of feeds shows what is in them."""
    store.create("empty", 1)
    publish(store, chunk(0, b"1", b"2"), chunk(1, b"3"))
    size = sum(each.size for each in everything(store))
    found = [(each.name, each.partitions, each.events, each.size) for each in store.feeds()]
    assert [("empty", 1, 0, 0), ("orders", 2, 3, size)] == found


def test_time_of_a_feed_never_decreases(store, clock):
    """No event is older than one before it, whatever the clock does."""
    publish(store, chunk(0, b"1"))
    clock.now = 1
    publish(store, chunk(0, b"2"))
    first, second = everything(store)
    assert first.time == second.time


@pytest.mark.parametrize(
    ("name", "partitions", "said"),
    [
        *((name, 1, "cannot be called") for name in ["", "a/b", "healthz", "-x", "x" * 101, "ä"]),
        *(("x", partitions, "1 to 1024") for partitions in (0, 1025)),
        ("orders", 2, "'orders' exists already"),
    ],
)
def test_feed_that_cannot_be_created_is_named(store, name, partitions, said):
    """Its name is part of its address, partitions have limits; a second create empties nothing."""
    with pytest.raises(StoreError, match=said):
        store.create(name, partitions)
    with pytest.raises(UnknownFeedError, match="no feed 'order'"):
        store.feed("order")


def test_version_changes_with_commits_only(opened, store):
    """Another connection's commits wake readers; reads, uploads and saved cursors do not."""
    for _ in range(3):
        before = store.version()
        publish(opened(), chunk(0, b"1"))
        eventually(lambda before=before: store.version() != before)
    before = store.version()
    everything(opened())
    opened().stage("orders", call(), upload(chunk(0, b"1")))
    opened().save_cursors("orders", "mailer", 2, {0: "a"})
    assert before == store.version()


def test_threads_that_commit_at_once_get_positions_without_gaps(opened):
    """Two loads at the same time are both there, and each batch is in one piece."""
    opened().create("orders", 2)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(_publish_batches, opened(), 20)
    found, events = everything(opened()), data(opened())
    assert list(range(1, 161)) == [each.g for each in found]
    assert events[::2] == events[1::2]
    assert 80 == len({*events})


def test_readers_see_a_batch_in_all_partitions_or_in_none(opened):
    """I never see a part of a batch, nor a position without all positions before it."""
    opened().create("orders", 2)
    writer = threading.Thread(target=_publish_batches, args=(opened(), 100))
    reader, seen = opened(), []
    writer.start()
    while writer.is_alive():
        seen.append([each.g for each in everything(reader)])
    writer.join()
    assert [] == [gs for gs in seen if len(gs) % 2 or gs != list(range(1, len(gs) + 1))]


def _publish_batches(store: Store, count: int) -> None:
    """Publish batches of two chunks, one in each partition, with the same random data."""
    for _ in range(count):
        text = b'"%s"' % uuid.uuid4().hex.encode()
        publish(store, chunk(0, text), chunk(1, text))
