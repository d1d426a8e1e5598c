"""A waiting plan wakes with the first event, whenever it comes; lagging copies are waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from tests.patience import PATIENCE, Halt, eventually
from tests.scratch_store import ScratchStore
from zeh_spark.errors import StoreError
from zeh_spark.service.app import direct_api
from zeh_spark.service.store.log import FeedState
from zeh_spark.testing import publish, running_publisher

HOURS = 7200
"""Seconds for which a plan may wait that nothing wakes: longer than a test."""


class Moments(ScratchStore):
    """A store in which something happens once, in the middle of a call.

    Attributes:
        then: What happens when a method, by its name, is called so many times from now on: before
            it returns what it has found.
        looks: How often the version was asked for.
        fails: Whether it answers nothing any more.
    """

    def __init__(self) -> None:
        super().__init__(orders=1)
        self.then: dict[str, tuple[int, Callable[[], object]]] = {}
        self.looks = 0
        self.fails = False
        publish(self, "orders", ["old"])

    def _looked(self, method: str) -> None:
        if self.fails:
            raise StoreError("the disk is gone")
        left, happens = self.then.pop(method, (0, None))
        if left > 1 and happens:
            self.then[method] = left - 1, happens
        elif happens:
            happens()

    def feed(self, name: str) -> FeedState:
        found = super().feed(name)
        self._looked("feed")
        return found

    def before_read(self, what: str, feed: str) -> None:
        self._looked(what)

    def version(self) -> int:
        found = super().version()
        self.looks += 1
        self._looked("version")
        return found


def cursor(store: ScratchStore) -> str:
    state = store.feed("orders")
    return f"{state.head}.{state.history[:4].hex()}"


@pytest.fixture
def store() -> Moments:
    return Moments()


@pytest.fixture
def plan(store, monkeypatch):
    """`plan(cursor)`: a plan that waits until it is woken, under way."""
    monkeypatch.setattr(direct_api, "MAX_WAIT", HOURS)
    with ThreadPoolExecutor(8) as pool, ExitStack() as stack:
        base = stack.enter_context(running_publisher(store))

        def ask(cursor: str) -> Future[requests.Response]:
            body = {"n": 1, "cursors": {"0": cursor}, "wait": HOURS}
            return pool.submit(requests.post, f"{base}/orders/plan", json=body, timeout=HOURS)

        ask.stop = partial(pool.submit, stack.close)
        yield ask
        stack.close()


def is_waiting(store: Moments) -> None:
    """Return once the publisher waits for the store's version to change."""
    before = store.looks
    eventually(lambda: store.looks > before + 3)


def events(answer: Future[requests.Response]) -> int:
    found = answer.result(PATIENCE)
    assert 200 == found.status_code, found.text
    return sum(each["events"] for each in found.json()["ranges"])


@pytest.mark.parametrize(
    ("method", "times"),
    [("snapshot", 1), ("unread", 1), ("feed", 1), ("version", 1), ("version", 2)],
)
def test_an_event_that_comes_while_a_plan_begins_to_wait_wakes_it(store, plan, method, times):
    """No moment is too early for a commit: before the first look, after the last, or between."""
    at = cursor(store)
    store.then[method] = times, lambda: publish(store, "orders", ["new"])
    assert 1 == events(plan(at))
    assert {} == store.then


def test_an_event_that_other_readers_know_already_wakes(store, plan):
    """I looked before it came, and wait after it woke others, while one more waits for the next."""
    before = cursor(store)
    store.then["unread"] = 1, (look := Halt())  # the plan has seen the feed, and looks for chunks
    late = plan(before)
    assert look.reached.wait(PATIENCE)
    publish(store, "orders", ["new"])
    other = plan(cursor(store))
    is_waiting(store)
    look.go.set()
    assert 1 == events(late)
    assert not other.done()
    publish(store, "orders", ["newer"])
    assert 1 == events(other)


def test_where_the_feed_ends_is_decided_once(store, plan):
    """I ask for `_last`, and get what comes after I asked."""
    waits = plan("_last")
    is_waiting(store)
    publish(store, "orders", ["new"])
    assert 1 == events(waits)


def test_stopping_wakes_a_plan_although_the_store_hangs(store, plan):
    """A restart of the publisher does not wait for a database."""
    waits = plan(cursor(store))
    is_waiting(store)
    store.then["version"] = 1, (hang := Halt())
    assert hang.reached.wait(PATIENCE)
    stopped = plan.stop()
    try:
        assert 0 == events(waits)
    finally:
        hang.go.set()
        stopped.result(PATIENCE)


def test_a_store_that_fails_wakes_a_plan(store, plan):
    """I meet the error, and do not wait for a store that says nothing."""
    waits = plan(cursor(store))
    is_waiting(store)
    store.fails = True
    answer = waits.result(PATIENCE)
    store.fails = False
    assert answer.status_code in {500, 503}


# Copies that lag


class Lagging(ScratchStore):
    """A copy of a feed that may be behind."""

    def __init__(self) -> None:
        super().__init__(orders=1)
        self.old: FeedState | None = None
        publish(self, "orders", [1])

    @contextmanager
    def snapshot(self, feed: str, positions: Iterable[int] = ()) -> Iterator[Any]:
        with super().snapshot(feed, positions) as log:
            yield SimpleNamespace(state=self.old, anchors={}, tags=log.tags) if self.old else log


@pytest.fixture
def lagging(start):
    """A copy, and a run that has read its first event."""
    store = Lagging()
    with running_publisher(store) as base:
        run = start(url=f"{base}/orders", fetch="executors", retryTimeout="30s")
        assert [1] == run.until(1)
        yield store, run


def while_it_lags(store: Lagging, old: FeedState, read, caplog):
    """Read while the copy is as old as this, until it catches up after the first refusal."""
    store.old = old
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(read)
        try:
            eventually(lambda: found.done() or "this copy of the feed lags" in caplog.text)
            assert not found.done()
        finally:
            store.old = None
        return found.result(PATIENCE)


def test_a_task_waits_for_a_copy_that_lags(lagging, caplog):
    """A load balancer may send my task to another copy than my driver."""
    store, run = lagging
    old = store.feed("orders")
    publish(store, "orders", [2])
    end = run.reader.latestOffset(run.offset, run.limit)
    partitions = run.reader.partitions(run.offset, end)
    read = partial(next, run.reader.read(partitions[0]))
    assert ["2"] == while_it_lags(store, old, read, caplog)["data"].to_pylist()


def test_a_plan_waits_for_a_copy_that_lags(lagging, start, caplog):
    """After a restart a query continues where it was, also if the copy lags at first."""
    store, run = lagging
    old = store.feed("orders")
    publish(store, "orders", [2])
    run.until(2)
    publish(store, "orders", [3])
    url = run.reader._options.url.full
    again = start(url=url, fetch="executors", retryTimeout="30s", offset=run.offset)
    assert {0: [3]} == while_it_lags(store, old, again.next, caplog)
