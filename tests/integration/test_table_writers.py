"""A table that many write to while many read it as a feed, in a real PostgreSQL."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.fix_shop import KEYS, Shop
from tests.fix_table import read

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


def write(shop: Shop, number: int) -> None:
    """Transactions of random lengths over random orders, with savepoints, rollbacks and pauses."""
    choice = random.Random(number)
    with shop.connect() as connection:
        for _ in range(TRANSACTIONS):
            for key in sorted(choice.sample(range(1, KEYS + 1), choice.randint(1, 4))):
                with connection.transaction():
                    shop.change(connection, key)
                    if choice.random() < 0.2:
                        raise psycopg.Rollback
                seconds = choice.random() * (0.2 if choice.random() < 0.05 else 0.01)
                connection.execute("SELECT pg_sleep(%s)", [seconds])
            (connection.rollback if choice.random() < 0.1 else connection.commit)()


def follow_by_id(shop: Shop, got: list[int], written: threading.Event) -> None:
    """What a reader gets that goes by the id alone."""
    with shop.connect(autocommit=True) as connection:
        while True:
            done = written.is_set()
            last = got[-1] if got else 0
            found = connection.execute(
                "SELECT id FROM outbox WHERE id > %s ORDER BY id LIMIT 100", [last]
            ).fetchall()
            got += [key for (key,) in found]
            if done and not found:
                return


def read_while(
    readers: Sequence[Callable[[threading.Event], None]],
    writers: Sequence[Callable[[], None]],
    arrived: Callable[[], None] = lambda: None,
) -> None:
    """Let readers read until writers have written all, and it has arrived where they read."""
    written = threading.Event()
    with ThreadPoolExecutor(len(readers) + len(writers)) as pool:
        reading = [pool.submit(each, written) for each in readers]
        try:
            for each in [pool.submit(writer) for writer in writers]:
                each.result()
            arrived()
        finally:
            written.set()
        for each in reading:
            each.result()


@pytest.mark.slow
def test_every_row_comes_once_and_each_order_in_order_while_32_write(shop: Shop) -> None:
    """However long a transaction takes, I neither miss nor double its rows, and the versions of an
    order come as they were committed. Going by ids alone I would miss rows; with the transaction's
    own number versions would come in the wrong order.
    """
    followers = [
        Follower(shop.feed, n, hint) for n, hint in ((4, 1000), (4, 1), (1, 7), (2, 50), (8, 20))
    ]
    by_id: list[int] = []
    read_while(
        [*(each.run for each in followers), partial(follow_by_id, shop, by_id)],
        [partial(write, shop, number) for number in range(WRITERS)],
    )
    expected = [key for key, _, _ in shop.rows("id")]
    assert [(expected, [])] * 5 == [(each.ids, each.backwards) for each in followers]
    missed = {*expected} - {*by_id}
    assert missed, "the control is worth nothing: no transaction overtook another one"
    control = Follower(shop.feed, 1, 0)
    control.got[0] = [
        {"id": key, "key": order, "version": version}
        for key, order, version in shop.rows("own, id")
    ]
    assert control.backwards, "the control is worth nothing: no transaction waited for another one"


def test_rows_of_an_open_transaction_come_when_it_commits(shop: Shop) -> None:
    """A late commit is late, not lost; what was written after it began waits for it. A batch that
    is read again is the same, byte for byte, also if late commits came between.
    """
    feed = shop.feed()
    with shop.connect() as early, shop.connect() as late:
        shop.change(early, 1)
        shop.change(late, 2)
        late.commit()
        waiting = read(feed, n=1)
        shop.change(early, 3)
        early.commit()
        found = read(feed, n=1)
    with shop.connect() as other:
        shop.change(other, 4)
    again = read(shop.feed(), n=1)
    assert ([], [1, 2, 3]) == (waiting.lines, sorted(each["key"] for each in found.data))
    assert (found.lines, [4]) == (again.lines[:3], [each["key"] for each in again.data[3:]])
