"""An administrative act and its record are one transaction, in each database."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection as Sender
from typing import Any

import pytest
from sqlalchemy import Connection, select, text

from tests.contract.sites import PostgresqlSite, SqliteSite
from tests.store_contract import acts as contract
from tests.store_contract.writers import FEED, call, commit, in_a_process
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.sql.schema import metadata
from zeh_spark.service.sql.store import SqlStore
from zeh_spark.service.store.acts import Action, Actor, Via

CHANGES: dict[str, Callable[[Store], object]] = {
    **{action.value: change for action, (change, _) in contract.CHANGES.items()},
    Action.CREATE_TOKEN.value: lambda store: store.add_token(contract.ANOTHER, by=contract.ALICE),
    Action.NEW_HISTORY.value: lambda store: store.begin_epoch(FEED, by=contract.ALICE),
    Action.ACCEPT_OVERRIDE.value: lambda store: commit(store, call(2, accept_gap="a@-1:2")),
}
_REFUSE = {
    SqliteSite: (
        "CREATE TRIGGER full BEFORE INSERT ON acts BEGIN SELECT RAISE(ABORT, 'no room'); END",
        "DROP TRIGGER full",
    ),
    PostgresqlSite: (
        "ALTER TABLE zeroeventhub.acts ADD CONSTRAINT full_ CHECK (false) NOT VALID",
        "ALTER TABLE zeroeventhub.acts DROP CONSTRAINT full_",
    ),
}


def _content(store: SqlStore) -> dict[str, list[Any]]:
    """Return all rows of a store, by table."""
    with store._reading() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(select(table))]
            for table in metadata.sorted_tables
        }


def _told(store: SqlStore, statement: str) -> None:
    def work(connection: Connection) -> None:
        connection.execute(text(statement))

    store._write(work)


def test_each_kind_of_act_is_tried_here():
    """A new kind of act is held against a failure between change and record, too.

    `migrate` and `restore` are tested where they are: an upgrade is one transaction as a whole, and
    a restored copy takes its place as a whole. `adopt-segments` changes no store, but a location.
    """
    elsewhere = {"migrate", "restore", "adopt-segments"}
    assert {each.value for each in Action} - elsewhere == CHANGES.keys()


@pytest.mark.parametrize("action", CHANGES)
def test_change_whose_act_cannot_be_kept_is_undone(site, action):
    """A change is undone if its act cannot be written. The next try succeeds."""
    store = site.open()
    assert isinstance(store, SqlStore)
    store.create(FEED, 2)
    contract.prepare(store)
    refuse, allow = _REFUSE[type(site)]
    _told(store, refuse)
    before = _content(store)
    with pytest.raises(Exception, match=r"no room|full_|exists already") as failed:
        CHANGES[action](store)
    assert before == _content(store), failed.value
    _told(store, allow)
    CHANGES[action](store)
    after = _content(store)
    assert action == store.acts(limit=1)[0].action
    assert len(before.pop("acts")) + 1 == len(after.pop("acts"))
    assert before != after


def test_killed_programs_leave_acts_for_all_that_they_did_and_no_others(site):
    """`kill -9` in the middle: what is changed and what the log says are the same."""
    done = 0
    site.open().close()
    for _ in range(6):
        told, tells = Pipe(duplex=False)
        program = in_a_process(_administer, site.url, done, tells)
        tells.close()
        finished = [told.recv()]
        threading.Timer(random.uniform(0, 0.3), program.kill).start()
        with suppress(EOFError):
            while True:
                finished.append(told.recv())
        program.join()
        store = site.open()
        acts = store.acts(limit=1 << 31)
        created = sorted(each.feed for each in acts if each.action == Action.CREATE_FEED.value)
        deleted = {each.feed for each in acts if each.action == Action.DELETE_PRODUCER.value}
        feeds = [each.name for each in store.feeds()]
        assert sorted(feeds) == created
        assert {feed for feed in feeds if store.producer(feed, "till").deleted} == deleted
        assert {f"feed{number}" for number in finished} <= deleted
        done = len(feeds)


def _administer(url: str, begin: int, tells: Sender) -> None:
    """Create feeds and delete their producers until it is killed; tell when both are done."""
    by = Actor("alice@host", Via.CLI)
    store = open_store(url)
    for number in count(begin):
        store.create(f"feed{number}", 1, by=by)
        store.delete_producer(f"feed{number}", "till", by=by)
        tells.send(number)
