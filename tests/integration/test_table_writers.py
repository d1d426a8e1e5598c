"""A table that many write to while many read it as a feed, in a real PostgreSQL."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tests.fix_shop import KEYS, Shop
from zeh_spark.publisher import SqlTableFeed

WRITERS, TRANSACTIONS = 32, 25


@dataclass
class Follower:
    """A reader that follows a feed in pages, and starts anew at times with the cursors it kept."""

    open: Callable[[], Any]
    n: int
    hint: int
    got: dict[int, list[dict[str, int]]] = field(default_factory=lambda: defaultdict(list))

    def run(self, written: threading.Event) -> None:
        """Until all was written before a page that brings nothing."""
        cursors = dict.fromkeys(range(self.n), "_first")
        choice = random.Random(self.hint)
        feed = self.open()
        while True:
            done = written.is_set()
            if choice.random() < 0.1:
                feed = self.open()
            asked = choice.sample(sorted(cursors), choice.randint(1, self.n))
            if done:
                asked = sorted(cursors)
            found = 0
            for block in feed.page({each: cursors[each] for each in asked}, self.n, self.hint):
                cursors[block.partition] = block.cursor
                events = [json.loads(line)["data"] for line in block.lines.splitlines()]
                self.got[block.partition] += events
                found += len(events)
            if done and not found:
                return

    @property
    def ids(self) -> list[int]:
        return sorted(event["id"] for events in self.got.values() for event in events)

    @property
    def backwards(self) -> list[tuple[int, int]]:
        """Keys and versions that came behind a later version."""
        found = []
        for events in self.got.values():
            seen: dict[int, int] = {}
            for event in events:
                if event["version"] <= seen.get(event["key"], 0):
                    found.append((event["key"], event["version"]))
                seen[event["key"]] = event["version"]
        return found


def write(
    shop: Shop, number: int, pause: Callable[[psycopg.Connection[Any], float], object]
) -> None:
    """Transactions of random lengths over random orders, with savepoints and rollbacks."""
    choice = random.Random(number)
    with shop.connect() as connection:
        for _ in range(TRANSACTIONS):
            for key in sorted(choice.sample(range(1, KEYS + 1), choice.randint(1, 4))):
                with connection.transaction():
                    shop.change(connection, key)
                    if choice.random() < 0.2:
                        raise psycopg.Rollback
                pause(connection, choice.random() * (0.2 if choice.random() < 0.05 else 0.01))
            (connection.rollback if choice.random() < 0.1 else connection.commit)()


def busy(connection: psycopg.Connection[Any], seconds: float) -> None:
    """The service computes something."""
    connection.execute("SELECT pg_sleep(%s)", [seconds])


def follow_by_id(shop: Shop, written: threading.Event) -> list[int]:
    """What a reader gets that goes by the id alone."""
    got: list[int] = [0]
    with shop.connect(autocommit=True) as connection:
        while True:
            done = written.is_set()
            found = connection.execute(
                "SELECT id FROM outbox WHERE id > %s ORDER BY id LIMIT 100", [got[-1]]
            ).fetchall()
            got += [key for (key,) in found]
            if done and not found:
                return got[1:]


@pytest.mark.slow
def test_every_row_comes_once_and_each_order_in_order_while_32_write(shop: Shop) -> None:
    """However long a transaction takes, I neither miss nor double its rows, and the versions of an
    order come as they were committed. Going by ids alone I would miss rows; with the transaction's
    own number versions would come in the wrong order.
    """
    followers = [
        Follower(shop.feed, n, hint) for n, hint in ((4, 1000), (4, 1), (1, 7), (2, 50), (8, 20))
    ]
    written = threading.Event()
    with ThreadPoolExecutor(WRITERS + 8) as pool:
        reading = [pool.submit(each.run, written) for each in followers]
        by_id = pool.submit(follow_by_id, shop, written)
        writing = [pool.submit(write, shop, number, busy) for number in range(WRITERS)]
        try:
            for each in writing:
                each.result()
        finally:
            written.set()
        for each in reading:
            each.result()
        missed = {key for key, _, _ in shop.rows("id")} - set(by_id.result())
    expected = [key for key, _, _ in shop.rows("id")]
    assert [expected] * len(followers) == [each.ids for each in followers]
    assert [[]] * len(followers) == [each.backwards for each in followers]
    assert missed, "the control is worth nothing: no transaction overtook another one"
    control = Follower(shop.feed, 1, 0)
    control.got[0] = [
        {"id": key, "key": order, "version": version}
        for key, order, version in shop.rows("own, id")
    ]
    assert control.backwards, "the control is worth nothing: no transaction waited for another one"


def test_order_does_not_change(shop: Shop) -> None:
    """A batch that is read again is the same, byte for byte, also if late commits came between."""
    with shop.connect() as early, shop.connect() as late:
        shop.change(early, 1)
        shop.change(late, 2)
        late.commit()
        before = _bodies(shop.feed())
        shop.change(early, 3)
        early.commit()
        after = _bodies(shop.feed())
    with shop.connect() as other:
        shop.change(other, 4)
    assert [b"", 3] == [before, after.count(b"\n")]
    assert _bodies(shop.feed()).startswith(after)


def _bodies(feed: SqlTableFeed) -> bytes:
    return b"".join(block.lines for block in feed.page({0: "_first"}, 1, None))


def test_rows_of_an_open_transaction_come_when_it_commits(shop: Shop) -> None:
    """A late commit is late, not lost; what was written after it began waits for it."""
    feed = shop.feed()
    with shop.connect() as early:
        shop.change(early, 1)
        with shop.connect() as late:
            shop.change(late, 2)
        (block,) = feed.page({0: "_first"}, 1, None)
        waiting = block.lines
    found = [json.loads(line)["data"]["key"] for line in _bodies(feed).splitlines()]
    assert (b"", [1, 2]) == (waiting, sorted(found))
