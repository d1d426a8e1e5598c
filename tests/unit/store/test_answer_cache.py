"""Parts of answers are kept within bounds, and made once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.cases import each_case
from tests.patience import Halt
from zeh_spark.service.reads import answer_cache
from zeh_spark.service.reads.answer_cache import AnswerCache, key_of
from zeh_spark.service.store.log import Chunk


@dataclass(frozen=True)
class Part:
    cost: int


def test_the_cache_keeps_what_was_used_last_within_its_bytes() -> None:
    """Memory is bounded, and the parts that many readers want stay."""
    cache = AnswerCache(10_000)
    made: list[bytes] = []

    def get(key: bytes) -> None:
        def make() -> Part:
            made.append(key)
            return Part(4000)

        cache.get(key, make)
        assert cache.size <= 10_000

    for key in (b"a", b"b", b"a", b"c", b"a", b"b"):
        get(key)
    assert [b"a", b"b", b"c", b"b"] == made


def test_a_part_larger_than_the_cache_is_not_kept() -> None:
    """A small cache is not emptied for what it cannot hold."""
    cache = AnswerCache(10_000)
    small, large = Part(100), Part(10_000)
    cache.get(b"small", lambda: small)
    assert large is cache.get(b"large", lambda: large)
    assert small is cache.get(b"small", lambda: Part(0))
    assert large is not cache.get(b"large", lambda: Part(0))


def test_threads_that_want_the_same_make_it_once() -> None:
    """Readers that begin together cost one rendering."""
    cache, barrier, gate = AnswerCache(10_000), threading.Barrier(8), threading.Event()
    made: list[int] = []

    def make() -> Part:
        made.append(1)
        gate.wait(10)
        return Part(1)

    def want() -> Part:
        barrier.wait(10)
        return cache.get(b"key", make)

    with ThreadPoolExecutor(8) as pool:
        wanted = [pool.submit(want) for _ in range(8)]
        threading.Timer(0.05, gate.set).start()
        found = {id(each.result(10)) for each in wanted}
    assert (1, [1]) == (len(found), made)


def test_nobody_waits_for_long_for_another_one_who_makes_it(monkeypatch) -> None:
    """What is made of old events waits for storage, which may hang. Few threads may do so."""
    monkeypatch.setattr(answer_cache, "_PATIENCE", 0.01)
    cache, halt, slow, mine = AnswerCache(10_000), Halt(), Part(1), Part(2)

    def make() -> Part:
        halt()
        return slow

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(cache.get, b"key", make)
        assert halt.reached.wait(10)
        assert mine is cache.get(b"key", lambda: mine)
        halt.go.set()
        assert slow is other.result()
    assert slow is cache.get(b"key", lambda: mine)


def test_a_part_that_could_not_be_made_is_made_again() -> None:
    """A store that was locked for a moment does not spoil a page."""
    cache = AnswerCache(10_000)

    def fail() -> Part:
        raise OSError("locked")

    with pytest.raises(OSError, match="locked"):
        cache.get(b"key", fail)
    assert Part(1) == cache.get(b"key", lambda: Part(1))


CHUNK = Chunk(7, 1, 10, 900, 1_700_000_000_000, "0a1b2c3d", "p", 3, 20, 5)
OTHERS = {
    "g": 8, "partition": 2, "events": 11, "size": 901, "time": 1, "tag": "ffffffff",
    "producer": "q", "batch": 4, "sequence": 21,
}  # fmt: skip


@each_case("name", OTHERS)
def test_chunks_that_differ_have_other_keys(name: str) -> None:
    """Events that were published again after a restore, at another time, are other bytes."""
    other = CHUNK._replace(**{name: OTHERS[name]})
    assert key_of("page", b"origin", [CHUNK], 2) != key_of("page", b"origin", [other], 2)


def test_a_chunk_that_was_packed_has_its_old_key() -> None:
    """Readers that keep an answer have not to fetch it again."""
    packed = CHUNK._replace(blob=0)
    assert key_of("page", b"origin", [CHUNK], 2) == key_of("page", b"origin", [packed], 2)


def test_keys_tell_feeds_kinds_and_ways_of_rendering_apart() -> None:
    """A feed that was created again under its old name is another feed."""
    keys = {
        key_of("page", b"origin", [CHUNK], 2, ("_all",), False),
        key_of("page", b"other", [CHUNK], 2, ("_all",), False),
        key_of("group", b"origin", [CHUNK], 2, ("_all",), False),
        key_of("page", b"origin", [CHUNK, CHUNK], 2, ("_all",), False),
        key_of("page", b"origin", [CHUNK], 3, ("_all",), False),
        key_of("page", b"origin", [CHUNK], 2, (), False),
        key_of("page", b"origin", [CHUNK], 2, ("_all",), True),
    }
    assert 7 == len(keys)
