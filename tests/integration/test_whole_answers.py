"""Whole answers that are kept for the next readers: without a look into the store, and right."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import create_app, open_store
from zeh_spark.service.reads.answer_cache import AnswerCache
from zeh_spark.testing import publish, running_publisher

Ask = Callable[[str], requests.Response]


def page(base: str, cursor: str = "_first", hint: int = 4, **headers: str) -> requests.Response:
    url = f"{base}/orders?n=1&cursor0={cursor}&headers=_all&pagesizehint={hint}"
    return requests.get(url, headers=headers, timeout=30)


def zipped(base: str) -> requests.Response:
    return page(base, **{"Accept-Encoding": "gzip"})


def planned(base: str) -> dict[str, object]:
    """What to ask for to get the first two chunks, of each partition one."""
    asked = {"n": 1, "cursors": {"0": "_first"}, "maxEvents": 4}
    found = requests.post(f"{base}/orders/plan", json=asked, timeout=30).json()["ranges"]
    ranges = [{name: each[name] for name in ("partition", "from", "to")} for each in found]
    return {"n": 1, "ranges": ranges}


def chunks(base: str, wanted: dict[str, object] | None = None) -> requests.Response:
    return requests.post(f"{base}/orders/chunks", json=wanted or planned(base), timeout=30)


def same(ask: Ask, base: str) -> Ask:
    """The same request again and again: a plan made again would be another one."""
    return partial(chunks, wanted=planned(base)) if ask is chunks else ask


ways = pytest.mark.parametrize("ask", [page, zipped, chunks])


def fill(store: Any, *values: int) -> None:
    """Publish chunks of two events."""
    for value in values:
        publish(store, "orders", [{"i": value}] * 2, partition=value % 2)


@pytest.fixture
def store() -> ScratchStore:
    found = ScratchStore(orders=2)
    fill(found, 0, 1, 2, 3)
    return found


@pytest.fixture
def base(store: ScratchStore) -> Iterator[str]:
    with running_publisher(store) as base:
        yield base


@ways
def test_the_next_reader_costs_no_look_at_the_feed(
    store: ScratchStore, base: str, ask: Ask
) -> None:
    """Also while others publish: what was published before stays the same."""
    with running_publisher(store, create_app(store, cache_bytes=0)) as bare:
        expected = ask(bare).content
    ask = same(ask, base)
    assert expected == ask(base).content

    def costs_nothing() -> bool:  # an answer that took its time is not kept
        fill(store, 4)
        store.reads.clear()
        assert expected == ask(base).content
        return 0 == store.reads["snapshot", "orders"]

    for _ in range(3):
        eventually(costs_nothing)


@ways
def test_removed_events_are_not_in_a_whole_answer(store: ScratchStore, base: str, ask: Ask) -> None:
    """Retention ends what is kept, too."""
    ask = same(ask, base)
    before = ask(base).content
    assert before == ask(base).content
    store.remove("orders", 1)
    assert before != ask(base).content
    cursor = json.loads(page(base, hint=2).content.splitlines()[-1])["cursor"]
    assert 200 == page(base, cursor, 2).status_code
    store.remove("orders", 3)
    assert 410 == page(base, cursor, 2).status_code


@pytest.mark.parametrize(("cursor", "hint"), [("_first", 99), ("_last", 0)])
def test_an_answer_that_ends_with_the_feed_is_not_kept(
    store: ScratchStore, base: str, cursor: str, hint: int
) -> None:
    """It has what was published since the last one."""
    for value in range(4, 7):
        before = page(base, cursor, hint).content
        fill(store, value)
        assert before != page(base, cursor, hint).content


def test_an_answer_that_is_to_be_fresh_comes_from_the_store(store: ScratchStore, base: str) -> None:
    """`no-cache` means what it says."""
    page(base)
    store.reads.clear()
    page(base, **{"Cache-Control": "no-cache"})
    assert 1 == store.reads["snapshot", "orders"]


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Any]:
    """A store, and a copy of it with another history since."""
    stores = []
    with closing(open_store(f"sqlite:///{tmp_path}/a.db")) as made:
        made.create("orders", 2)
    shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    for name, first in (("a", 0), ("b", 10)):
        stores.append(open_store(f"sqlite:///{tmp_path}/{name}.db"))
        fill(stores[-1], *range(first, first + 4))
    yield stores
    for each in stores:
        each.close()


@ways
def test_a_restore_into_the_open_file_is_noticed(tmp_path: Path, other: Any, ask: Ask) -> None:
    """Another program may do that, although the publisher serves the file. Both histories have the
    same origin, and as many chunks.
    """
    with running_publisher(other[1]) as base:
        expected = ask(base).content
    with running_publisher(other[0]) as base:
        again = same(ask, base)
        before = again(base).content
        assert before == again(base).content != expected
        with (
            closing(sqlite3.connect(tmp_path / "b.db")) as source,
            closing(sqlite3.connect(tmp_path / "a.db")) as target,
        ):
            source.backup(target)
        assert before != again(base).content
        assert expected == ask(base).content


def test_a_file_that_is_gone_is_noticed(tmp_path: Path, other: Any) -> None:
    """What was acknowledged elsewhere since would be missing from what is kept."""
    with running_publisher(other[0]) as base:
        assert 200 == page(base).status_code == page(base).status_code
        (tmp_path / "b.db").rename(tmp_path / "a.db")
        assert 500 == page(base).status_code


def test_readers_of_other_ranges_share_what_is_kept(store: ScratchStore, base: str) -> None:
    """Wherever the plans of two streams cut: most of their groups are the same."""
    for _ in range(60):
        publish(store, "orders", [{"i": number, "x": "x" * 900} for number in range(1000)])
    found = [
        end["cursor"]
        for end in map(json.loads, page(base, hint=1 << 30).iter_lines())
        if "cursor" in end
    ]
    read = []
    for begin in (found[4], found[11]):
        store.reads.clear()
        ranges = [{"partition": 0, "from": begin, "to": found[-1]}]
        asked = {"n": 1, "ranges": ranges}
        answer = requests.post(f"{base}/orders/chunks", json=asked, timeout=30)
        assert 200 == answer.status_code
        read.append(store.reads["frames", "orders"])
    assert read[0] > 8
    assert read[1] < read[0] * 0.8


def test_whole_answers_are_kept_within_the_same_bytes() -> None:
    """Memory is bounded, whatever is kept."""
    cache = AnswerCache(10_000)
    for number in range(10):
        cache.keep(number, [number], 3000)
        cache.keep(number, [number], 3000)
        assert [number] == cache.find(number)
        assert cache.size <= 10_000
    assert [None, [8], [9]] == [cache.find(number) for number in (0, 8, 9)]
