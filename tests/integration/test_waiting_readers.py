"""Readers that wait at the end of a feed cost nothing, and wake together when it has more."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
import requests

from tests.fix_metrics import Scrape
from tests.fix_publisher import connected
from tests.patience import PATIENCE, eventually
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import Block, Feed
from zeh_spark.service.app import direct_api, read_requests
from zeh_spark.service.app.long_polling import POLL_SECONDS
from zeh_spark.service.store.log import FeedState
from zeh_spark.testing import publish, running_publisher

READERS = 20
HOURS = 7200
"""Seconds for which those wait who are woken: longer than a test."""


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    for api in (direct_api, read_requests):
        monkeypatch.setattr(api, "MAX_WAIT", HOURS)


class CountingStore(ScratchStore):
    """A store with the feeds `orders` and `others` that counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__(orders=1, others=1)
        self.asked: Counter[tuple[str, str]] = Counter()
        for name in ("orders", "others"):
            publish(self, name, ["old"])

    def feed(self, name: str) -> FeedState:
        self.asked["feed", name] += 1
        return super().feed(name)

    def before_read(self, what: str, feed: str) -> None:
        """Each page and each plan begins with a snapshot."""
        self.asked["pages", feed] += what == "snapshot"


def data_of(answer: requests.Response) -> list[object]:
    assert 200 == answer.status_code
    lines = [json.loads(line) for line in answer.content.splitlines()]
    return [line["data"] for line in lines if "data" in line]


def last_cursor(base: str, feed: str) -> str:
    answer = requests.get(f"{base}/{feed}?n=1&cursor0=_last&pagesizehint=0", timeout=30)
    return str(answer.json()["cursor"])


def waited(base: str, feed: str, cursor: str, hint: int = 100) -> list[object]:
    url = f"{base}/{feed}?n=1&cursor0={cursor}&wait={HOURS}&pagesizehint={hint}"
    return data_of(requests.get(url, timeout=HOURS))


def move_others(store: CountingStore, base: str, times: int) -> None:
    """Publish to the other feed, and know that the watch has looked since."""
    for number in range(times):
        cursor = last_cursor(base, "others")
        before = store.asked["pages", "others"]
        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(waited, base, "others", cursor)
            eventually(lambda before=before: store.asked["pages", "others"] > before)  # type: ignore[misc]
            publish(store, "others", [number])
            assert [number] == reader.result()


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def readers_of(
    pool: ThreadPoolExecutor, store: CountingStore, base: str
) -> list[Future[list[object]]]:
    """Readers that wait at the end of `orders`."""
    cursor = last_cursor(base, "orders")
    eventually(partial(is_quiet, store))
    waiting = [pool.submit(waited, base, "orders", cursor) for _ in range(READERS)]
    eventually(lambda: Scrape(base)("zeh_waiting_readers", feed="orders") == READERS)
    eventually(partial(is_quiet, store))
    return waiting


def is_quiet(store: CountingStore) -> bool:
    """Whether nothing was asked of the store for a quarter of a second."""
    before = store.asked.total()
    threading.Event().wait(0.25)
    return before == store.asked.total() and before > 0


def test_readers_that_wait_ask_the_store_for_nothing(store: CountingStore) -> None:
    """However busy other feeds are. My driver gets its plan when there is something, not before."""
    with running_publisher(store) as base, ThreadPoolExecutor(READERS + 1) as pool:
        waiting = readers_of(pool, store, base)
        asked = plan_from(last_cursor(base, "orders"), wait=HOURS)
        plan = pool.submit(requests.post, f"{base}/orders/plan", json=asked, timeout=HOURS)
        eventually(partial(is_quiet, store))
        before = store.asked["pages", "orders"]
        move_others(store, base, 5)
        assert before == store.asked["pages", "orders"]
        publish(store, "orders", ["new"])
        assert [["new"]] * READERS == [each.result() for each in waiting]
        assert [1] == [each["events"] for each in plan.result().json()["ranges"]]


def plan_from(cursor: str, **more: object) -> dict[str, object]:
    return {"n": 1, "cursors": {"0": cursor}, **more}


def test_stopping_wakes_all_who_wait(store: CountingStore) -> None:
    """A restart of the publisher does not wait for long polls."""
    with ThreadPoolExecutor(READERS) as pool:
        with running_publisher(store) as base:
            waiting = readers_of(pool, store, base)
            assert not any(each.done() for each in waiting)
        assert [[]] * READERS == [each.result(PATIENCE) for each in waiting]


class OwnFeed(Feed):
    """A feed that has an event once its version is 1."""

    partitions = 1

    def __init__(self) -> None:
        self.version_now = 0
        self.pages, self.asked = 0, 0

    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str]
    ) -> Iterator[Block]:
        self.pages += 1
        yield Block(0, b'{"partition":0,"data":1}\n' if self.version_now else b"", "1")

    def version(self) -> object:
        self.asked += 1
        return self.version_now


def test_a_feed_of_any_kind_wakes_its_readers() -> None:
    """My own feed has a version and nothing else."""
    feed = OwnFeed()
    with running_publisher({"mine": feed}) as base, ThreadPoolExecutor(READERS) as pool:
        hints = range(1, READERS + 1)  # readers that ask for the same are answered together
        waiting = [pool.submit(waited, base, "mine", "1", hint) for hint in hints]
        eventually(lambda: feed.pages >= READERS)
        feed.version_now = 1
        assert [[1]] * READERS == [each.result() for each in waiting]


class RoutingFeed(OwnFeed):
    """A feed whose readers are answered by two others."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = {"hot": OwnFeed(), "cold": OwnFeed()}

    def for_reader(self, token: str, consumer: str) -> Feed:
        return self.parts[consumer]

    def version(self) -> object:
        return [each.version_now for each in self.parts.values()]


def test_readers_that_are_answered_by_other_feeds_are_woken_by_theirs() -> None:
    """A reader of the cold copy hears of its events, though one of the hot copy waits too."""
    feed = RoutingFeed()

    def asked(consumer: str) -> list[object]:
        query, headers = f"n=1&cursor0=1&wait={HOURS}", {"ZEH-Consumer": consumer}
        answer = requests.get(f"{base}/mine?{query}", headers=headers, timeout=PATIENCE)
        return [line["data"] for line in map(json.loads, answer.iter_lines()) if "data" in line]

    with running_publisher({"mine": feed}) as base, ThreadPoolExecutor(2) as pool:
        hot = pool.submit(asked, "hot")
        eventually(lambda: feed.parts["hot"].pages > 0)
        cold = pool.submit(asked, "cold")
        eventually(lambda: feed.parts["cold"].pages > 0)
        feed.parts["cold"].version_now = 1
        assert [1] == cold.result(PATIENCE)
        assert not hot.done()
        feed.parts["hot"].version_now = 1
        assert [1] == hot.result(PATIENCE)


def test_client_that_goes_away_ends_its_wait() -> None:
    """Readers that hang up leave nothing behind: the feed is asked only while somebody waits."""
    feed = OwnFeed()

    def is_left_alone() -> bool:
        before = feed.asked
        threading.Event().wait(30 * POLL_SECONDS)
        return feed.asked == before

    with running_publisher({"mine": feed}) as base, ExitStack() as readers:
        for _ in range(20):
            reader = readers.enter_context(connected(base))
            reader.sendall(b"GET /mine?n=1&cursor0=1&wait=60 HTTP/1.1\r\nHost: x\r\n\r\n")
        eventually(lambda: feed.asked > 100)
        readers.close()
        eventually(is_left_alone)


class Unwatchable(OwnFeed):
    """A feed that can be read, but cannot tell whether it has changed."""

    def version(self) -> object:
        raise OSError("the network is gone")

    def own_version(self) -> object:
        return 0


def test_readers_of_a_feed_that_cannot_be_watched_ask_again_slowly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A feed whose version fails is not asked for pages as fast as the processor can."""
    feed = Unwatchable()
    with running_publisher({"mine": feed}) as base:
        url = f"{base}/mine?n=1&cursor0=1&wait=1"
        assert [] == data_of(requests.get(url, timeout=60))
    assert feed.pages < 20
    assert "waiting readers are woken: the network is gone" in caplog.messages
