"""Answers that are kept for the next readers are what a publisher without a cache would send."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import requests
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.patience import PATIENCE
from tests.scratch_store import ScratchStore
from tests.store_contract.writers import everything
from zeh_spark.publisher import Problem, Store, create_app, open_store
from zeh_spark.service.reads import direct_plans, pages
from zeh_spark.service.reads import direct_reads as store_reads
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.store.interface import StoreBusyError
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire import direct_reads
from zeh_spark.wire.direct_reads import ChunksRequest, Group, PlanRequest, WantedRange


class Replaceable:
    """A store that can be replaced by another one, as a restore replaces it under its publisher."""

    def __init__(self, store: Store) -> None:
        self.inner = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def filled(store: Store, *events: object) -> Store:
    store.create("orders", 2)
    for number, event in enumerate(events):
        publish(store, "orders", [event] * 3, partition=number % 2)
    return store


def page(base: str, n: int = 1, headers: str = "_all", coding: str = "identity") -> bytes:
    cursors = "&".join(f"cursor{each}=_first" for each in range(n))
    url = f"{base}/orders?n={n}&{cursors}&headers={headers}"
    answer = requests.get(url, headers={"Accept-Encoding": coding}, timeout=30)
    assert 200 == answer.status_code
    assert coding == answer.headers.get("Content-Encoding", "identity")
    return answer.content


def planned(base: str, cursor: str) -> dict[str, object]:
    asked = {"n": 1, "cursors": {"0": cursor}}
    plan = requests.post(f"{base}/orders/plan", json=asked, timeout=30).json()
    ranges = [{name: each[name] for name in ("partition", "from", "to")} for each in plan["ranges"]]
    return {"n": 1, "ranges": ranges}


def chunks(base: str) -> requests.Response:
    asked = planned(base, "_first")
    return requests.post(f"{base}/orders/chunks", json=asked, timeout=30)


def times(answer: requests.Response) -> set[int]:
    groups = direct_reads.parse_answer([answer.content])
    return {int(t) for each in groups if isinstance(each, Group) for t in each.headers["time"]}


@pytest.fixture
def store() -> Replaceable:
    return Replaceable(filled(ScratchStore(), {"i": 1}, {"i": 2}, {"i": 3}))


@pytest.fixture
def base(store: Replaceable) -> Iterator[str]:
    with running_publisher(store) as base:  # type: ignore[arg-type]  # it is one by delegation
        yield base


def test_the_second_reader_costs_no_look_at_the_frames(
    store: Replaceable, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand readers of my feed cost one reading of it, in pages and in chunks."""
    monkeypatch.setattr(pages, "READ_BYTES", 1)  # each chunk is a part
    monkeypatch.setattr(store_reads, "_GROUP_BYTES", 1)
    page(base), chunks(base)
    assert 6 == store.reads["frames", "orders"]
    store.reads.clear()
    page(base), chunks(base)
    assert 0 == store.reads["frames", "orders"]
    # of a page, a plan and chunks: one for each, unless the chunks are kept whole
    assert 2 <= store.reads["snapshot", "orders"] <= 3


def test_every_way_of_reading_gets_its_own_bytes(store: Replaceable, base: str) -> None:
    """Whatever others have asked for before me, I get what I ask for."""
    uncached = Starlette(routes=[Mount("/bare", create_app(store.inner, cache_bytes=0))])
    ways = list(product((1, 2, 3, 5), ("_all", "", "zeh-time"), ("identity", "gzip")))
    with running_publisher(store.inner, uncached) as bare:
        expected = [page(f"{bare}/bare", *way) for way in ways]
    for _ in range(2):
        assert expected == [page(base, *way) for way in ways]
    assert len({each for each in expected}) == len(ways) // 2  # coded and plain are the same text


def test_a_feed_created_again_is_not_the_one_that_was_kept(store: Replaceable, base: str) -> None:
    """A new feed under the name of an old one has its own events."""
    page(base), chunks(base)
    store.inner = filled(ScratchStore(), {"i": 4}, {"i": 5}, {"i": 6})
    found = [json.loads(line).get("data") for line in page(base).splitlines()]
    assert [4, 5, 6] == sorted({each["i"] for each in found if each})


def test_events_published_again_after_a_restore_have_their_own_stamps(tmp_path: Path) -> None:
    """The same events at the same positions, with the same tags, at another time."""
    made = f"sqlite:///{tmp_path}/made.db"
    filled(open_store(made)).close()
    shutil.copy(tmp_path / "made.db", tmp_path / "restored.db")
    stores = [
        open_store(f"sqlite:///{tmp_path}/{name}.db", clock=lambda time=time: time)  # type: ignore[misc]
        for name, time in (("made", 1_700_000_000_000), ("restored", 1_700_000_000_001))
    ]
    for each in stores:
        publish(each, "orders", [{"i": 1}], partition=0)
    cursors = {everything(each, "orders")[0].cursor for each in stores}
    assert 1 == len(cursors)
    store = Replaceable(stores[0])
    with running_publisher(store) as base:  # type: ignore[arg-type]
        assert b'"zeh-time":"1700000000000"' in page(base)
        assert {1_700_000_000_000} == times(chunks(base))
        store.inner = stores[1]
        assert b'"zeh-time":"1700000000001"' in page(base)
        assert {1_700_000_000_001} == times(chunks(base))
    for each in stores:
        each.close()


def test_removed_events_are_gone_although_they_are_kept(store: Replaceable, base: str) -> None:
    """Retention ends what readers get; one that has missed events is told."""
    first = requests.get(f"{base}/orders?n=1&cursor0=_first&pagesizehint=1", timeout=30)
    cursor = json.loads(first.content.splitlines()[-1])["cursor"]
    page(base)
    asked = planned(base, cursor)
    assert 200 == requests.post(f"{base}/orders/chunks", json=asked, timeout=30).status_code
    store.remove("orders", 2)
    assert b'"i":1' not in page(base)
    lost = requests.get(f"{base}/orders?n=1&cursor0={cursor}", timeout=30)
    assert 410 == lost.status_code
    assert 410 == requests.post(f"{base}/orders/chunks", json=asked, timeout=30).status_code


@pytest.fixture
def histories(tmp_path: Path) -> tuple[Replaceable, Store]:
    """A feed, and a copy that lacked its last events, and has others of the same sizes since."""
    first = filled(open_store(f"sqlite:///{tmp_path}/a.db"), "com")
    first.close()
    shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    old, new = (open_store(f"sqlite:///{tmp_path}/{name}.db") for name in "ab")
    for number in range(3):
        for store, what in ((old, "old"), (new, "new")):
            publish(store, "orders", [f"{what}{number}" + 5000 * "x"] * 150, partition=0)
    return Replaceable(old), new


def test_a_page_does_not_go_on_in_another_history(histories: tuple[Replaceable, Store]) -> None:
    """A standby that lagged becomes the database in the middle of my page: I lose no event."""
    store, other = histories
    blocks = ChunkFeed(store, "orders").page({0: "_first"}, 1, None)  # type: ignore[arg-type]
    found = [next(blocks) for _ in range(2)]
    store.inner = other
    with pytest.raises(Problem, match="tag") as refused:
        found += list(blocks)
    assert "cursor-of-another-history" == refused.value.name
    assert not any(b"new" in each.lines for each in found)


def test_chunks_are_never_those_of_another_history(
    histories: tuple[Replaceable, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a plan has named is what comes, or nothing."""
    monkeypatch.setattr(store_reads, "_GROUP_BYTES", 1)  # each chunk has a snapshot of its own
    store, other = histories
    request = PlanRequest(1, {"0": "_first"})
    plan = direct_plans.plan(store, "orders", request)[1]  # type: ignore[arg-type]
    wanted = [WantedRange(each.partition, each.from_, each.to) for each in plan.ranges]
    answer = store_reads.requested_chunks(store, "orders", ChunksRequest(1, wanted))  # type: ignore[arg-type]
    next(answer)
    store.inner = other
    with pytest.raises(Problem, match="tag"):
        list(answer)


def test_readers_that_are_woken_together_wait_for_their_own_time(
    store: Replaceable, base: str
) -> None:
    """Another reader's patience does not keep my answer."""
    end = requests.get(f"{base}/orders?n=2&cursor0=_last&pagesizehint=0", timeout=30).json()
    url = f"{base}/orders?n=2&cursor0={end['cursor']}&wait="
    with ThreadPoolExecutor(2) as pool:
        patient = pool.submit(requests.get, f"{url}60", timeout=PATIENCE)
        mine = pool.submit(requests.get, f"{url}2", timeout=PATIENCE)
        for _ in range(10):  # each wakes both, and neither has an event
            publish(store.inner, "orders", [{"i": 0}], partition=1)
            threading.Event().wait(0.1)
        assert 200 == mine.result().status_code
        assert not patient.done()
        publish(store.inner, "orders", [{"i": 7}], partition=0)
        assert b'"data":{"i": 7}' in patient.result().content


def restored(folder: Path, *feeds: str) -> Iterator[Store]:
    """A store with empty feeds of two partitions, and a copy of it."""
    with closing(open_store(f"sqlite:///{folder}/a.db")) as store:
        for each in feeds:
            store.create(each, 2)
    shutil.copy(folder / "a.db", folder / "b.db")
    return (open_store(f"sqlite:///{folder}/{name}.db") for name in "ab")


@pytest.mark.parametrize("way", ["page", "chunks"])
def test_events_that_were_published_again_are_not_mistaken_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A restored store has the same events in other places: mine never come from another feed."""
    monkeypatch.setattr(pages, "READ_BYTES", 1)  # each chunk is a part
    monkeypatch.setattr(store_reads, "_GROUP_BYTES", 1)
    old, new = restored(tmp_path, "orders", "secrets")
    publish(new, "secrets", ["secret"])
    for number, store in product(range(3), (old, new)):
        publish(store, "orders", [number], partition=0)
    assert old.feed("orders").history == new.feed("orders").history
    both = Replaceable(old)
    feed = ChunkFeed(both, "orders")  # type: ignore[arg-type]
    if way == "page":
        parts = (each.lines for each in feed.page({0: "_first"}, 1, None))
    else:
        _, plan = feed.plan(PlanRequest(1, {"0": "_first"}))
        wanted = [WantedRange(each.partition, each.from_, each.to) for each in plan.ranges]
        parts = feed.chunks(ChunksRequest(1, wanted))
    found = [next(parts)]
    both.inner = new
    with pytest.raises(StoreBusyError, match="meanwhile"):
        found += parts
    assert not any(b"secret" in each for each in found)


def test_a_page_does_not_go_on_in_a_history_whose_beginning_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removed the events that differ. I get an error, and miss no event unnoticed."""
    monkeypatch.setattr(pages, "_CHUNKS", 64)
    old, new = restored(tmp_path, "orders")
    for number in range(100):
        publish(old, "orders", [f"old{number}"], partition=0)
        publish(new, "orders", [f"new{number}"], partition=int(number < 90))
    new.remove("orders", 90)
    store = Replaceable(old)
    blocks = ChunkFeed(store, "orders").page({0: "_first"}, 2, None)  # type: ignore[arg-type]
    found = [next(blocks)]
    store.inner = new
    with pytest.raises(StoreBusyError, match="meanwhile"):
        found += blocks
    assert not any(b"new" in each.lines for each in found)
