"""Old packs in objects: nothing that is read depends on where they are, and nothing gets lost."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.patience import eventually
from tests.scratch_store import ScratchStore
from tests.store_contract.packs import EVER, answers
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    data,
    everything,
    large,
    publish,
    publish_as,
    refused,
)
from zeh_spark.errors import StoreError
from zeh_spark.service.reads.answer_cache import AnswerCache
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.retention import segments as moving
from zeh_spark.service.retention.segments import (
    OLDER_THAN_MS,
    Mover,
    collect,
    offload,
    take_inventory,
)
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.segments.ownership import MARKER, OwnerError, adopt, read_marker
from zeh_spark.service.sql.segments import KEPT_MS
from zeh_spark.service.store.acts import Actor, Via
from zeh_spark.service.store.interface import (
    DamagedObjectError,
    LocationAwayError,
    NoObjectError,
    StoreBusyError,
)
from zeh_spark.service.store.packs import decode


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs of four chunks, and a segment for each two of them."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 4)
    monkeypatch.setattr("zeh_spark.service.store.packs.BLOCK_BYTES", 120)
    monkeypatch.setattr("zeh_spark.service.store.packs.OWN_BYTES", 1000)
    monkeypatch.setattr("zeh_spark.service.sql.segments._PACKS", 2)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(str(tmp_path / "cold"))


def fill(store: Any, clock: Any, batches: int = 11) -> None:
    chance = random.Random(1)
    for batch in range(batches):
        clock.now += 1
        some = [chunk(0, b"%d" % batch), large(1, b"1"), chunk(1, b"1", b"2"), chunk(0, b"3")]
        by = call(batch // 2, producer="pq"[batch % 2])
        publish_as(store, by, *some[: chance.choice([1, 2, 4])])
    while store.seal(FEED, EVER):
        pass


def counts(site: Any) -> list[int]:
    """How many blobs, segments and names of garbage there are."""
    tables = "blobs", "segments", "segment_garbage"
    return [site.execute(f"SELECT count(*) FROM {site.schema}{each}")[0][0] for each in tables]


def segments_in(objects: Objects) -> list[str]:
    return sorted(each for each in objects.names() if each.endswith(".segment"))


@pytest.mark.parametrize("removed", [0, 5])
def test_readers_get_the_same_from_objects(store, opened, site, clock, objects, removed):
    """Whichever n I read with, wherever I am, and from another publisher that moves nothing."""
    fill(store, clock)
    store.remove(FEED, removed)
    before = answers(store, 2)

    segments, size = offload(store, FEED, objects, EVER)

    assert segments == len(segments_in(objects)) == counts(site)[1] > 1
    assert sum(objects.size(each) for each in segments_in(objects)) == size
    recent = sum(each.blob > 0 for each in everything(store))
    assert [recent, segments, 0] == counts(site)
    assert before == answers(store, 2) == answers(opened(), 2)
    assert (0, 0) == offload(store, FEED, objects, EVER)


def test_retention_removes_to_the_chunk_and_objects_later(store, site, clock, objects, tmp_path):
    """It never waits for storage: readers get a 410 at once, and the object goes after 7 days."""
    fill(store, clock)
    expected = []
    copy = site.copy()
    for upto in range(1, 12):
        store.remove(FEED, upto)
        expected.append(answers(store, 2))
    site.restore(copy)
    store = site.open()
    offload(store, FEED, objects, EVER)
    away = tmp_path / "cold"
    away.rename(tmp_path / "away")

    for upto in range(1, 8):
        store.remove(FEED, upto)
    assert 1 < len(segments_in(Objects(str(tmp_path / "away"))))
    (tmp_path / "away").rename(away)
    kept = segments_in(objects)
    for upto, answer in enumerate(expected[7:], 8):
        store.remove(FEED, upto)
        assert answer == answers(store, 2)

    assert [1, 0] == [counts(site)[2], collect(store)]
    clock.now += KEPT_MS + 1
    assert [1, 0] == [collect(store), counts(site)[2]]
    assert len(kept) - 1 == len(segments_in(objects))
    assert expected[-1] == answers(store, 2)


def test_only_what_is_old_and_fills_a_segment_is_moved(store, clock, objects):
    """The publisher's own upkeep makes few large objects; an operator may move the rest."""
    fill(store, clock)
    chunks = everything(store)
    old = next(each.time for each in chunks if each.g == 8) + 1

    assert (0, 0) == offload(store, FEED, objects, chunks[3].time)
    assert 1 == offload(store, FEED, objects, old, full=True)[0]
    last = store.segments(FEED)[-1].last
    assert last == 8
    offload(store, FEED, objects, EVER, full=True)
    left = len([each for each in chunks if each.blob == 0]) // 4 % 2
    assert left == offload(store, FEED, objects, EVER)[0]


def test_an_object_that_is_missing_or_another_one_is_named(store, clock, objects):
    """Events are never skipped: the reader gets an error, and the others go on."""
    fill(store, clock)
    offload(store, FEED, objects, EVER)
    first, second, *_ = store.segments(FEED)
    content = objects.read(first.name, 0, first.size)
    other = objects.read(second.name, 0, second.size)

    def read() -> None:
        store.block_reader.kept = AnswerCache(0)
        [*ChunkFeed(store, FEED).page({0: "_first", 1: "_first"}, 2, 100)]

    objects.delete(first.name)
    with pytest.raises(NoObjectError, match=f"there is no object .*{first.name}"):
        read()
    damage = {
        "was cut off": content[: len(content) // 8],
        "was changed": content[:8] + bytes(each ^ 1 for each in content[8:]),
        "or is another object": other.ljust(len(content), b"x"),
    }
    for says, there in damage.items():
        objects.put(first.name, [there])
        with pytest.raises(DamagedObjectError, match=f"{first.name}.*{says}"):
            read()
    objects.put(first.name, [content])
    read()


def test_blocks_are_only_read_if_somebody_asks_for_it(store, clock, objects):
    """A check is quick and takes little memory. With --read it finds what has changed in place. An
    object that became longer is read: its events may all be there.
    """
    fill(store, clock)
    offload(store, FEED, objects, EVER)
    first, *_ = known = store.segments(FEED)
    at = store.blocks_in(FEED, first)[-1].offset
    content = objects.read(first.name, 0, first.size)
    changed = [content[:at], bytes([content[at] ^ 1]), content[at + 1 :]]
    objects.put(first.name, changed)

    assert {b""} == {each.encoded for each in known}
    assert {} == take_inventory(store).lost
    assert [(FEED, first.last)] == [*(lost := take_inventory(store, read=True).lost)]
    assert "was changed" in lost[FEED, first.last]

    objects.put(first.name, [*changed, b"more"])
    assert [(FEED, first.last)] == [*take_inventory(store).lost]
    objects.put(first.name, [content, b"more"])
    assert {} == take_inventory(store).lost


def test_what_is_trimmed_while_it_is_read_is_gone(store, clock, objects):
    """A reader whose object was deleted meanwhile hears that the events were removed."""
    fill(store, clock)
    offload(store, FEED, objects, EVER)
    page = ChunkFeed(store, FEED).page({0: "_first", 1: "_first"}, 2, 100)
    real = store.read_blocks

    def read_blocks(places: Any) -> Any:
        store.read_blocks = real
        store.remove(FEED, 8)
        objects.delete(next(iter(places)).name)
        return real(places)

    store.read_blocks = read_blocks
    assert ("cursor-gone", 410) == (lambda p: (p.name, p.status))(refused(lambda: [*page]))


def test_what_is_moved_while_it_is_read_is_read_there(store, clock, objects, site, tmp_path):
    """An operator may copy objects to another bucket, and change the location in the database."""
    fill(store, clock)
    offload(store, FEED, objects, EVER)
    expected = data(store)
    store.block_reader.kept = AnswerCache(0)
    page = ChunkFeed(store, FEED).page({0: "_first", 1: "_first"}, 2, 100_000)
    real = store.read_blocks

    def read_blocks(places: Any) -> Any:
        store.read_blocks = real
        (tmp_path / "cold").rename(tmp_path / "new")
        site.execute(f"UPDATE {site.schema}segments SET location = '{tmp_path / 'new'}'")
        return real(places)

    store.read_blocks = read_blocks
    found = b"".join(each.lines for each in page)
    assert expected == [line.split(b'"data":')[1][:-1] for line in found.splitlines()]


def test_two_publishers_move_each_pack_once(store, opened, clock, objects, site):
    """What the second one has written is deleted, and its name is nobody else's."""
    fill(store, clock, batches=30)
    before = data(store)
    stores = [store, opened(), opened()]
    with ThreadPoolExecutor() as pool:
        done = pool.map(lambda each: offload(each, FEED, objects, EVER), stores)
        moved = sum(segments for segments, _ in done)
    moved += offload(store, FEED, objects, EVER)[0]

    assert moved == len(store.segments(FEED))
    assert before == data(store)
    collect(store)
    assert [each.name for each in store.segments(FEED)] == sorted(
        segments_in(objects), key=[each.name for each in store.segments(FEED)].index
    )
    assert 0 == counts(site)[2]


def test_blocks_that_were_not_dropped_are_dropped_later(store, site, clock, objects, monkeypatch):
    """A publisher that dies between leaves each block twice, and readers read either."""
    fill(store, clock)
    before, (blocks, *_) = answers(store, 2), counts(site)
    monkeypatch.setattr(store, "drop_copied", lambda feed: False)
    offload(store, FEED, objects, EVER)
    assert (before, blocks) == (answers(store, 2), counts(site)[0])
    monkeypatch.undo()

    adopt(objects, ScratchStore())  # it may delete the objects
    with pytest.raises(OwnerError):
        offload(store, FEED, objects, EVER)
    assert blocks == counts(site)[0]
    adopt(objects, store)
    offload(store, FEED, objects, EVER)
    recent = sum(each.blob > 0 for each in everything(store))
    assert (before, recent) == (answers(store, 2), counts(site)[0])


@pytest.mark.parametrize("change", ["trim", "give up"])
def test_what_changes_while_it_is_moved_stays(store, clock, objects, site, change):
    """The swap is done only with what was written; else the object is garbage."""
    fill(store, clock)
    end = store.end_segment

    def end_segment(*given: Any) -> bool:
        if change == "trim":
            store.remove(FEED, 4)
        else:
            store.give_up(given[2].name)
        return end(*given)

    store.end_segment = end_segment
    assert (0, 0) == offload(store, FEED, objects, EVER)
    assert [0, 1] == counts(site)[1:]
    assert 1 == collect(store)
    assert [] == segments_in(objects)
    assert len(data(store)) == sum(each.events for each in everything(store))


def test_an_upload_that_fails_leaves_nothing(store, clock, objects, site, monkeypatch):
    """The store keeps the blocks, and the storage is cleaned up."""
    fill(store, clock)
    before = answers(store, 2)
    put = objects.put

    def full(name: str, parts: Any) -> int:
        size = put(name, [next(iter(parts))])
        if name == MARKER:
            return size
        raise OSError("no space left")

    monkeypatch.setattr(objects, "put", full)
    with pytest.raises(OSError, match="no space"):
        offload(store, FEED, objects, EVER)
    assert before == answers(store, 2)
    assert [1, 1] == [len(segments_in(objects)), collect(store)]
    assert [[], 0, 0] == [segments_in(objects), *counts(site)[1:]]


def test_an_old_intent_becomes_garbage_and_its_upload_cannot_end(store, clock, objects, site):
    """A process that continues after a pause of a week cannot finish its upload."""
    fill(store, clock)
    before = answers(store, 2)
    end = store.end_segment

    def end_segment(*given: Any) -> bool:
        clock.now += KEPT_MS + 1
        assert 1 == collect(store)
        return end(*given)

    store.end_segment = end_segment
    assert (0, 0) == offload(store, FEED, objects, EVER)
    assert before == answers(store, 2)
    assert [0, 0] == counts(site)[1:]


def test_a_restored_copy_beside_the_original_deletes_nothing(site, clock, objects, caplog):
    """It reads what is there, and neither moves nor deletes until somebody adopts the location."""
    store = site.open()
    store.create(FEED, 2)
    fill(store, clock)
    backup = site.copy()
    offload(store, FEED, objects, EVER)
    original, owner = answers(store, 2), store.owner()
    store.remove(FEED, 8)
    names = segments_in(objects)
    with_segments = site.copy()
    clock.now += KEPT_MS + 1

    for copy in (backup, with_segments):
        site.restore(copy)
        other = site.open()
        assert owner != other.owner()
        while other.seal(FEED, EVER):
            pass
        with pytest.raises(OwnerError, match="belongs to another store"):
            raise_if_moved = offload(other, FEED, objects, EVER)
            assert raise_if_moved == (0, 0)
            collect(other)
            moving.check_owner(objects, other)
        assert 0 == collect(other)
        assert names == segments_in(objects)
    assert original[0][8:] == answers(other, 2)[0]
    assert "belongs to another store" in caplog.text

    adopt(objects, other)
    assert 0 == collect(other)  # a later backup may name it
    clock.now += KEPT_MS + 1
    assert 1 == collect(other)


def test_a_publisher_moves_what_is_old_and_deletes_garbage(store, clock, objects):
    """With --segments it does so by itself, in a thread of its own."""
    fill(store, clock)
    clock.now += OLDER_THAN_MS + 1
    publish(store, chunk(0, b"9"))  # the clock is believed
    before = data(store)
    moving.check_owner(objects, store)
    store.begin_segment(objects.location, "feed/given-up.segment")
    objects.put("feed/given-up.segment", [b"x"])
    store.give_up("feed/given-up.segment")

    with Mover(store, objects.location):
        eventually(lambda: not store.garbage() and store.segments(FEED), 30)

    assert before == data(store)
    assert sorted(each.name for each in store.segments(FEED)) == segments_in(objects)


def test_hot_events_are_read_while_the_storage_hangs(store, clock, objects, tmp_path):
    """Only requests for old events are refused, with advice to try again."""
    fill(store, clock)
    offload(store, FEED, objects, EVER)
    publish(store, chunk(0, b"9"))
    last = everything(store)[-2].cursor
    location = tmp_path / "cold"
    location.rename(tmp_path / "away")
    location.write_text("no folder")  # each access fails: it is no missing object

    def read(cursor: str) -> Callable[[], Any]:
        return lambda: [*ChunkFeed(store, FEED).page({0: cursor, 1: cursor}, 2, 100)]

    for _ in range(5):
        with pytest.raises(StoreBusyError, match="storage of old events fails"):
            read("_first")()
        assert [0] == [each.partition for each in read(last)() if each.lines]


def test_a_location_of_a_store_with_the_same_token_is_not_mine(store, clock, objects):
    """The files of two volumes may have one number. What is missing there is not lost."""
    fill(store, clock)
    offload(store, FEED, objects, EVER)
    assert {} == take_inventory(store).foreign

    objects.put(MARKER, [b'{"owner": "%s", "nonce": "another"}' % store.owner().encode()])

    assert {objects.location: store.owner()} == take_inventory(store).foreign


def test_a_marker_is_read_whole_while_it_is_replaced(objects, tmp_path):
    """Another store adopts the location: its token has another length."""
    objects.put(MARKER, [b'{"owner": "1", "nonce": "1"}'])
    ended = threading.Event()

    def adopt_in_turns() -> None:
        for turn in itertools.count(1):
            made = tmp_path / "made"
            made.write_text('{"owner": "%s", "nonce": "1"}' % ("1" * (1 + turn % 2 * 40)))
            made.replace(tmp_path / "cold" / MARKER)
            if ended.is_set():
                return

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(adopt_in_turns)
        try:
            found = {len(read_marker(objects).owner) for _ in range(2_000)}
        finally:
            ended.set()
        done.result()
    assert {1, 41} == found


def test_what_is_lost_is_trimmed_in_steps(store, clock, objects, monkeypatch):
    """Commits wait for a step, and not for years of events."""
    fill(store, clock)
    store.remove(FEED, 2)
    monkeypatch.setattr(moving, "TRIM_CHUNKS", 3)

    moving.trim(store, FEED, 9, Actor("me", Via.CLI))

    assert [9, 8, 5] == [each.details["upto"] for each in store.acts(limit=3)]
    assert 10 == everything(store)[0].g


def test_the_marker_is_read_in_each_round(store, clock, objects, site):
    """Another store may have taken the location meanwhile."""
    fill(store, clock)
    offload(store, FEED, objects, EVER)
    store.remove(FEED, 8)
    clock.now += KEPT_MS + 1
    adopt(objects, ScratchStore())
    assert 0 == collect(store)
    objects.delete(MARKER)
    assert 0 == collect(store)
    adopt(objects, store)
    assert 0 == collect(store)
    clock.now += KEPT_MS + 1
    assert 1 == collect(store)


def lose_a_block(site: Any, feed: int) -> None:
    """Delete the frame of the first block of the feed with this number."""
    (headers,) = site.execute(f"SELECT headers FROM {site.schema}packs WHERE feed = {feed}")[0]
    block = decode(bytes(headers)).blocks[0].blob
    site.execute(f"DELETE FROM {site.schema}blobs WHERE id = {block}")


def test_a_damaged_feed_is_named_and_stops_no_other(store, site, clock, objects, caplog):
    """Nothing is moved of it, and a publisher moves the others and deletes what is garbage."""
    fill(store, clock)
    store.create("other", 1)
    for number in range(12):
        publish(store, chunk(0, b"%d" % number), feed="other")
    while store.seal("other", EVER):
        pass
    lose_a_block(site, 1)
    with pytest.raises(StoreError, match="the store is damaged: it has no frame"):
        offload(store, FEED, objects, EVER)
    assert 1 == counts(site)[2]

    clock.now += OLDER_THAN_MS + 1
    publish(store, chunk(0, b"9"), feed="other")  # the clock is believed
    mover = Mover(store, objects.location)
    began = mover.succeeded
    with mover:
        eventually(lambda: store.segments("other") and "is damaged" in caplog.text, 30)
        eventually(lambda: not store.garbage(), 30)
    assert began == mover.succeeded
    assert f"feed {FEED!r}: old events stay in the database for now" in caplog.text


def test_a_mover_that_does_not_believe_the_clock_has_not_succeeded(store, clock, objects):
    """An alert has to tell that nothing is moved."""
    fill(store, clock)
    clock.now += OLDER_THAN_MS + 2 * 86_400_000
    assert not Mover(store, objects.location)._move()
    store.see_clock(clock.now)
    assert Mover(store, objects.location)._move()
    assert store.segments(FEED)


def test_an_object_that_cannot_be_deleted_stops_no_other(store, clock, objects, caplog):
    """It is tried again in the next round."""
    moving.check_owner(objects, store)
    for name in ("feed/1.segment", "feed/2.segment", "feed/3.segment"):
        store.begin_segment(objects.location, name)
        objects.put(f"{name}/in/it" if name.startswith("feed/1") else name, [b"x"])
        store.give_up(name)

    assert [2, 0] == [collect(store), collect(store)]
    assert ["feed/1.segment"] == store.take_garbage(objects.location)
    assert "cannot delete" in caplog.text


def test_a_folder_that_is_not_mounted_is_no_loss(store, clock, objects, tmp_path):
    """Readers try again, until it is back."""
    fill(store, clock)
    expected = data(store)
    offload(store, FEED, objects, EVER)
    (tmp_path / "cold").rename(tmp_path / "away")
    (tmp_path / "cold").mkdir()

    def read() -> bytes:
        found = ChunkFeed(store, FEED).page({0: "_first", 1: "_first"}, 2, 100_000)
        return b"".join(each.lines for each in found)

    with pytest.raises(LocationAwayError, match="a folder may not be mounted"):
        read()
    (tmp_path / "cold").rmdir()
    (tmp_path / "away").rename(tmp_path / "cold")
    assert expected == [line.split(b'"data":')[1][:-1] for line in read().splitlines()]
