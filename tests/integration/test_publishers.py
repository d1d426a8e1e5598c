"""Two publishers over one PostgreSQL, and both of them and the database killed under load."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlencode

import pytest
import requests

from tests import postgresql
from tests.contract.databases import in_threads
from tests.fix_metrics import Scrape
from tests.fix_publish import Caller, Reply, Who, rows
from tests.fix_publisher import new_feed, served
from tests.patience import eventually
from tests.store_contract.writers import everything, frames_of
from zeh_spark.publisher import open_store
from zeh_spark.service.store.batches import chained
from zeh_spark.testing import running_publisher
from zeh_spark.wire.upload_format import lines_of

WRITERS = 8


@pytest.fixture
def url(own_server: postgresql.Server) -> str:
    """A store with the feed `orders`."""
    return new_feed(own_server.url(own_server.create_database()), partitions=2)


class Publishers:
    """Two processes; each comes back at its port when it was killed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stacks = [ExitStack(), ExitStack()]
        self.bases = [self._start(each, 0) for each in self._stacks]

    def _start(self, stack: ExitStack, port: int) -> str:
        return stack.enter_context(served(self._url, port=port))[0]

    def kill(self, which: int) -> None:
        self._stacks[which].close()
        self._start(self._stacks[which], int(self.bases[which].rpartition(":")[2]))

    def close(self) -> None:
        for each in self._stacks:
            each.close()


@dataclass
class Writers:
    """Each publishes its batches in order, each call at any publisher, until it is acknowledged."""

    bases: list[str]
    acknowledged: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def write(self, name: str, batches: int | None) -> None:
        chance = random.Random(name)
        with ExitStack() as stack:
            callers = [
                stack.enter_context(closing(Caller(f"{base}/orders", timeout=30)))
                for base in self.bases
            ]
            for batch in itertools.count() if batches is None else range(batches):
                if self.ended.is_set():
                    return
                self._publish(callers, chance, Who(batch, producer=name))

    def _publish(self, callers: list[Caller], chance: random.Random, who: Who) -> None:
        events = [f"{who.producer}.{who.batch}.{at}" for at in range(3)]
        chunks = rows(events[0]) + rows(*events[1:], partition=1)
        while True:
            staged = self._called(lambda: chance.choice(callers).upload(who, chunks))
            done = staged and self._called(lambda: chance.choice(callers).commit(who, chunks))
            if done and done.status == 200:
                self.acknowledged[who.producer] += 1
                return
            if done and done.short != (409, "upload-missing"):  # of a database that was killed
                self.refused.append(f"{who}: {done.document}")
                return

    def _called(self, call: Callable[[], Reply]) -> Reply | None:
        """None: to be called again."""
        try:
            reply = call()
        except requests.RequestException:
            return None
        return None if reply.status >= 500 else reply


class Reader(threading.Thread):
    """Follows the feed at both publishers in turn, and notes what it gets."""

    def __init__(self, bases: list[str]) -> None:
        super().__init__()
        self._bases = itertools.cycle(bases)
        self._ended = threading.Event()
        self.got: dict[int, list[str]] = {0: [], 1: []}
        self.failure: str | None = None

    def run(self) -> None:
        behind = {0: "_first", 1: "_first"}
        while not self._ended.is_set():
            with suppress(requests.RequestException):  # a publisher that is away; the other is next
                self._page(behind)

    def _page(self, behind: dict[int, str]) -> None:
        query = {f"cursor{each}": cursor for each, cursor in behind.items()}
        answer = requests.get(
            f"{next(self._bases)}/orders", params={"n": "2", "wait": "1", **query}, timeout=30
        )
        if answer.status_code != 200:
            self.failure = answer.text if answer.status_code < 500 else self.failure
            return
        for line in map(requests.models.complexjson.loads, answer.content.splitlines()):
            if "cursor" in line:
                behind[line["partition"]] = line["cursor"]
            else:
                self.got[line["partition"]].append(line["data"])

    def stop(self) -> None:
        self._ended.set()
        self.join()


@contextmanager
def running(url: str) -> Iterator[tuple[Publishers, Writers, Reader]]:
    publishers = Publishers(url)
    reader = Reader(publishers.bases)
    reader.start()
    try:
        yield publishers, Writers(publishers.bases), reader
    finally:
        reader.stop()
        publishers.close()


def check(url: str, writers: Writers, reader: Reader) -> None:
    """All that was acknowledged is there once, in order, and the reader saw exactly that."""
    with closing(open_store(url)) as store:
        found = everything(store)
        assert list(range(1, len(found) + 1)) == [each.g for each in found]
        data: dict[int, list[str]] = {0: [], 1: []}
        following: Counter[tuple[str | None, int]] = Counter()
        for begin in range(0, len(found), 500):
            some = found[begin : begin + 500]
            frames = frames_of(store, some)
            for chunk, frame in zip(some, frames, strict=True):
                assert chunk.sequence == following[chunk.producer, chunk.partition]
                following[chunk.producer, chunk.partition] += chunk.events
                lines = lines_of(frame).splitlines()
                data[chunk.partition] += [line.split(b'"')[-2].decode() for line in lines]
        for producer in store.producers("orders"):
            receipts = store.receipts("orders", producer.name, 1 << 40, 1000)
            assert [each.hash for each in receipts] == [chained(each) for each in receipts]
    assert [] == writers.refused
    for name, batches in writers.acknowledged.items():
        mine = [each for each in data[0] if each.startswith(f"{name}.")]
        assert [f"{name}.{batch}.0" for batch in range(batches)] == mine[:batches]
        assert len(mine) - batches in (0, 1)  # the last one, whose answer was lost
    assert data == reader.got
    assert reader.failure is None


def caught_up(url: str, reader: Reader) -> bool:
    with closing(open_store(url)) as store:
        return sum(each.events for each in everything(store)) == sum(map(len, reader.got.values()))


def test_a_pooler_before_the_database_changes_nothing(
    postgresql_server: postgresql.Server, pooler: postgresql.Pooler
) -> None:
    """Two connections, lent by the transaction, are enough for writers, readers and who waits."""
    url = pooler.url(postgresql_server.create_database())
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_store(url))) for _ in range(2)]
        stores[0].create("orders", 2)
        bases = [stack.enter_context(running_publisher(each)) for each in stores]
        writers, reader = Writers(bases), Reader(bases)
        reader.start()
        stack.callback(reader.stop)
        assert in_threads(4, lambda number: writers.write(f"w{number}", 5)) == []
        eventually(lambda: caught_up(url, reader))
        reader.stop()
        check(url, writers, reader)
        check_awakened(*bases)


def check_awakened(base: str, other: str) -> None:
    """Check that one publisher wakes a reader in time for what the other commits."""
    ends = {f"cursor{each}": "_last" for each in range(2)}
    url = f"{base}/orders?{urlencode({'n': 2, 'wait': 60, **ends})}"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(requests.get, url, timeout=30)
        eventually(lambda: Scrape(base)("zeh_waiting_readers", feed="orders") == 1)
        assert Caller(f"{other}/orders").publish(Who(0, producer="late"), "late").status == 200
        assert "late" in waiting.result().text


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("deaths", [6, pytest.param(200, marks=pytest.mark.campaign)])
def test_deaths_of_publishers_and_database_lose_and_double_nothing(
    own_server: postgresql.Server, url: str, deaths: int
) -> None:
    """SIGKILL of one or the other, again and again, under load (F14, PU-04)."""
    chance = random.Random(7)
    with running(url) as (publishers, writers, reader):
        threads = [
            threading.Thread(target=writers.write, args=(f"w{number}", None), daemon=True)
            for number in range(WRITERS)
        ]
        for each in threads:
            each.start()
        for death in range(deaths):
            some = sum(writers.acknowledged.values()) + chance.randrange(1, 24)
            eventually(lambda some=some: sum(writers.acknowledged.values()) > some)
            if death % 3 == 2:
                own_server.kill()
                own_server.start()
            else:
                publishers.kill(death % 3)
        writers.ended.set()
        for each in threads:
            each.join()
        eventually(lambda: caught_up(url, reader))
    check(url, writers, reader)
