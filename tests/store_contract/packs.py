"""The contract for packs: nothing that is read depends on what is packed (see `store.packs`)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.patience import eventually
from tests.store_contract.direct_reads import fetched
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    data,
    everything,
    frames_of,
    large,
    publish,
    publish_as,
)
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Store
from zeh_spark.service.reads import direct_plans
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.retention import rules
from zeh_spark.service.retention.pruner import Pruner
from zeh_spark.service.sql import packed_log
from zeh_spark.service.store import packs
from zeh_spark.service.store.interface import Retention, StoreBusyError
from zeh_spark.service.store.packs import SEALED_AFTER_MS, blocks_of
from zeh_spark.wire.direct_reads import PlanRequest
from zeh_spark.wire.upload_format import lines_of

EVER = 1 << 62
"""A time in ms that has not come."""


LIMITS: Sequence[dict[str, Any]] = (
    {},
    {"max_events": 1},
    {"max_events": 7},
    {"max_bytes": 500},
    {"range_bytes": 1},
    {"range_bytes": 150, "max_events": 11},
)
"""Limits of plans, which are reached within packs, and by whole ones."""


def answers(store: Store, partitions: int) -> Sequence[Any]:
    """What readers of all kinds get, from each position."""
    with store.snapshot(FEED) as log:
        chunks = log.scan(0, log.state.head, log.state.head)
        anchors, state = log.anchors, log.state
        last = [log.last(range(partitions), upto) for upto in range(state.head + 1)]
    feed = ChunkFeed(store, FEED)
    found: list[Any] = [[each[:-1] for each in chunks], anchors, state, last]
    for n in (1, 3):
        starts = [dict.fromkeys(range(n), "_first")]
        for upto in (each.g for each in chunks[::3]):
            behind = {each.partition % n: each.cursor for each in chunks if each.g <= upto}
            starts.append({each: behind.get(each, "_first") for each in range(n)})
        found.append([feed.cursors_at(n, each.time) for each in chunks])
        for at in starts:
            found.append([[*feed.page(at, n, hint)] for hint in (1, 3, 100)])
            cursors = {str(each): cursor for each, cursor in at.items()}
            whole = direct_plans.plan(store, FEED, PlanRequest(n, cursors))[1]
            some = {each: cursors[each] for each in (["0"] if n == 1 else ["0", "2"])}
            part = direct_plans.plan(store, FEED, PlanRequest(n, some))[1]
            assert part.ranges == [each for each in whole.ranges if str(each.partition) in some]
            assert part.ends == {each: whole.ends[each] for each in some}
            for read, limit in itertools.product((cursors, some), LIMITS):
                request = PlanRequest(n, read, **limit)
                plan = direct_plans.plan(store, FEED, request)[1]
                again = PlanRequest(n, read, ends=plan.ends)
                found.append((plan, fetched(store, request, plan)))
                found.append(direct_plans.plan(store, FEED, again)[1].ranges)
            found.append(direct_plans.plan(store, FEED, PlanRequest(n, whole.ends))[1])
    return found


@pytest.mark.parametrize("removed", [0, 2, 5])
def test_readers_get_the_same_after_a_seal(store, clock, monkeypatch, removed):
    """Whichever n I read with, and wherever I am."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 4)
    monkeypatch.setattr("zeh_spark.service.store.packs.BLOCK_BYTES", 120)
    monkeypatch.setattr("zeh_spark.service.store.packs.OWN_BYTES", 1000)
    chance = random.Random(removed)
    for batch in range(11):
        clock.now += 1
        some = [chunk(0, b"%d" % batch), large(1, b"1"), chunk(1, b"1", b"2"), chunk(0, b"3")]
        by = call(batch // 2, producer="pq"[batch % 2])
        publish_as(store, by, *some[: chance.choice([1, 2, 4])])
    store.remove(FEED, removed)
    before = answers(store, 2)
    while store.seal(FEED, EVER):
        assert before == answers(store, 2)
    assert 0 == everything(store)[0].blob < everything(store)[-1].blob
    publish(store, chunk(1, b"9"))
    assert before[0] == answers(store, 2)[0][:-1]


@pytest.mark.parametrize("sealed", [1, 9])
def test_what_is_under_way_goes_on_after_a_seal(store, monkeypatch, sealed):
    """A page that was begun, and a plan whose chunks a task fetches later, or once more."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 4)
    monkeypatch.setattr("zeh_spark.service.reads.pages._CHUNKS", 3)
    for batch in range(30):
        publish(store, chunk(batch % 2, b"%d" % batch))
    request = PlanRequest(2, {"0": "_first", "1": "_first"}, range_bytes=200)
    plan = direct_plans.plan(store, FEED, request)[1]
    planned = fetched(store, request, plan)
    page = ChunkFeed(store, FEED).page({0: "_first", 1: "_first"}, 2, 100)
    found = [next(page) for _ in range(4)]
    for _ in range(sealed):
        store.seal(FEED, EVER)
    found += page
    lines = [each.lines for each in found]
    assert lines == [lines_of(frame) for frame in frames_of(store, everything(store))]
    assert planned == fetched(store, request, plan)


def test_only_full_packs_of_old_chunks_are_sealed(store, clock, monkeypatch):
    """A quiet feed stays as it is, and what is new is read as it was committed."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 4)
    for batch in range(9):
        publish(store, chunk(0, b"%d" % batch))
    assert (0, 0) == rules.seal(store, FEED)
    clock.now += SEALED_AFTER_MS
    assert (0, 0) == rules.seal(store, FEED)
    clock.now += 1
    assert (2, 8) == rules.seal(store, FEED)
    assert [0] * 8 == [each.blob for each in everything(store)[:-1]]
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_BYTES", 100)
    for batch in range(3):
        publish(store, chunk(0, b"%d" % batch))
    assert 2 == store.seal(FEED, EVER)


def test_two_publishers_seal_each_chunk_once(opened, store, monkeypatch):
    """No event is lost or doubled, even while another process removes old ones."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 2)
    for batch in range(30):
        publish(store, chunk(batch % 2, b"%d" % batch))
    stores = [store, opened()]
    monkeypatch.setattr(rules, "SEALED_AFTER_MS", -EVER)
    with ThreadPoolExecutor() as pool:
        sealing = [pool.submit(rules.seal, each, FEED) for each in stores]
        for upto in range(1, 9):
            store.remove(FEED, upto)
        packed = sum(each.result()[1] for each in sealing)
    assert 0 < packed + rules.seal(store, FEED)[1] <= 30
    assert [b"%d" % each for each in range(8, 30)] == data(store)
    assert 2 >= sum(each.blob > 0 for each in everything(store))


def test_a_chunk_with_other_lines_is_not_packed(store, monkeypatch):
    """What is damaged stays where somebody may look at it, and I hear its position."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 2)
    for batch in range(5):
        publish(store, chunk(0, b"%d" % batch))
    monkeypatch.setattr("zeh_spark.service.store.packs.count_lines", lambda lines: 2)
    with pytest.raises(StoreError, match="the frame of position 1 has other lines"):
        store.seal(FEED, EVER)
    assert everything(store)[0].blob


def test_a_chunk_with_other_lines_is_not_served(store, site):
    """I get an error, and not more or fewer events than were committed."""
    publish(store, chunk(0, b"1"), chunk(1, b"2"))
    site.execute(f"UPDATE {site.schema}recent_chunks SET size = size - 1 WHERE g = 2")
    with pytest.raises(StoreError, match="damaged: a frame does not have the lines of its chunks"):
        [*ChunkFeed(store, FEED).page({1: "_first"}, 2, 100)]


def test_the_frames_of_a_pack_go_with_the_last_of_its_chunks(store, site, monkeypatch):
    """Retention frees the room of what is packed, too."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 3)
    for batch in range(7):
        publish(store, chunk(batch % 2, b"%d" % batch))
    while store.seal(FEED, EVER):
        pass

    def frames() -> int:
        return site.execute(f"SELECT count(*) FROM {site.schema}blobs")[0][0]

    counts = []
    for upto in (0, 2, 3, 7):
        store.remove(FEED, upto)
        assert [b"%d" % each for each in range(upto, 7)] == data(store)
        counts.append(frames())
    assert [3, 3, 2, 0] == counts  # one of each pack, and that of the last chunk
    for batch in range(4):
        publish(store, chunk(1, b"%d" % batch))
    assert 3 == store.seal(FEED, EVER)
    assert [b"0", b"1", b"2", b"3"] == data(store)


def packed(store: Store, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Publish events 0, 1, … of two partitions, and pack them by two."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 2)
    for batch in range(count):
        publish(store, chunk(batch % 2, b"%d" % batch))
    while store.seal(FEED, EVER):
        pass


def test_a_pack_that_is_missing_is_an_error(store, site, monkeypatch):
    """The events before it and after it never come as if there were none between them."""
    packed(store, monkeypatch, 7)
    site.execute(f"DELETE FROM {site.schema}packs WHERE last = 4")
    for n in (1, 2):
        with pytest.raises(StoreError, match=r"damaged: its pack with position [34] is missing"):
            for at in range(n):
                [*ChunkFeed(store, FEED).page({at: "_first"}, n, 100)]
    with pytest.raises(StoreError, match=r"its pack with position [34] is missing"):
        store.remove(FEED, 6)


def saved(site: Any) -> Callable[[], None]:
    """Return what undoes the first pack of two, as a failover to a standby does."""
    of = site.schema
    for table in ("recent_chunks", "blobs"):
        site.execute(f"CREATE TABLE {of}old_{table} AS SELECT * FROM {of}{table}")

    def undo() -> None:
        site.execute(f"INSERT INTO {of}blobs SELECT * FROM {of}old_blobs WHERE id <= 2")
        old = f"SELECT * FROM {of}old_recent_chunks WHERE g < 3"
        site.execute(f"INSERT INTO {of}recent_chunks {old}")
        site.execute(f"DELETE FROM {of}packs")

    return undo


def test_a_pack_that_a_failover_undoes_while_it_is_read_is_a_busy_store(store, site, monkeypatch):
    """It is not damaged: the reader asks again, and gets the rest."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 2)
    for batch in range(3):
        publish(store, chunk(0, b"%d" % batch))
    undo = saved(site)
    assert 2 == store.seal(FEED, EVER)
    chunks = everything(store)
    undo()
    with store.snapshot(FEED) as log, pytest.raises(StoreBusyError, match="was in a pack"):
        [*log.frames([each.g for each in chunks], [each.blob for each in chunks])]
    assert [b"0", b"1", b"2"] == data(store)


def test_what_is_packed_follows_what_was_packed_before(store, site, monkeypatch):
    """Also if a failover undoes the pack before it meanwhile: nothing durable depends on it."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 2)
    for batch in range(5):
        publish(store, chunk(batch % 2, b"%d" % batch))
    undo = saved(site)
    assert 2 == store.seal(FEED, EVER)

    def undone(chunks: Sequence[Any]) -> Any:
        undo()
        return blocks_of(chunks)

    with monkeypatch.context() as patch:
        patch.setattr("zeh_spark.service.sql.administration.blocks_of", undone)
        assert 0 == store.seal(FEED, EVER)
    assert [b"0", b"1", b"2", b"3", b"4"] == data(store)
    assert store.seal(FEED, EVER) in (0, 2)  # 0 if a read has sealed it
    assert 0 == everything(store)[1].blob


def test_retention_reads_each_pack_once(store, monkeypatch):
    """However many partitions have their next chunk in packs of their own."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 2)
    store.create("wide", 60)
    for batch in range(61):
        publish(store, chunk(-batch % 60, b"1"), feed="wide")
    while store.seal("wide", EVER):
        pass
    read: list[bytes] = []
    monkeypatch.setattr(packed_log, "decode", lambda row: read.append(row) or packs.decode(row))
    assert rules.next_step(store, "wide", Retention(bytes=0))[0].chunks == 61
    assert 30 == len(read) == len({*read})


def test_partitions_that_are_rarely_written_are_read_in_one_pass(store, monkeypatch):
    """A reader of all partitions, far behind, asks for each pack a few times, and not once for each
    partition.
    """
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 2)
    store.create("wide", 60)
    for batch in range(120):
        publish(store, chunk(0 if batch % 2 else batch // 2, b"%d" % batch), feed="wide")
    while store.seal("wide", EVER):
        pass
    read: list[bytes] = []
    decode = packs.Totals.decode
    monkeypatch.setattr(packs.Totals, "decode", lambda row: read.append(row) or decode(row))
    for begun in ({}, {0: everything(store, "wide")[-1].cursor}):
        read.clear()
        feed, at = ChunkFeed(store, "wide"), dict.fromkeys(range(60), "_first") | begun
        found = [each for each in feed.page(at, 60, 1000) if each.lines]
        assert 120 - 61 * len(begun) == len(found)
        assert 2 * 60 > len(read)


def test_a_publisher_packs_what_is_old(store, site, clock, monkeypatch, caplog):
    """Also if a feed before it cannot be packed: I read why in the log."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 2)
    store.create("a", 1)
    for batch in range(5):
        publish(store, chunk(0, b"%d" % batch), feed="a")
        publish(store, chunk(0, b"%d" % batch))
    feeds = f"{site.schema}feeds WHERE name = 'a'"
    site.execute(
        f"UPDATE {site.schema}recent_chunks SET size = 1 WHERE feed = (SELECT id FROM {feeds})"
    )
    clock.now += SEALED_AFTER_MS + 1
    with Pruner(store, every_seconds=0.01):
        eventually(lambda: [0] * 4 == [each.blob for each in everything(store)[:-1]])
        eventually(lambda: "feed 'a': old chunks are not packed for now: " in caplog.text)
    assert "the frame of position 1 has other lines than its chunk" in caplog.text
    assert all(each.blob for each in everything(store, "a"))
    assert [b"%d" % each for each in range(5)] == data(store)
