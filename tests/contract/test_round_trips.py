"""What a batch costs: messages to PostgreSQL and statements of SQLite, of transactions, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.conftest import Trace
from tests.contract.sites import SqliteSite
from tests.store_contract.site import Site
from tests.store_contract.writers import FEED, call, chunk, commit, declared, upload
from zeh_spark.publisher import Store

MOST = {
    "sqlite": {"admit": 1, "stage": 11, "commit": 17, "commit of 100 tasks": 23},
    "postgresql": {"admit": 3, "stage": 7, "commit": 13, "commit of 100 tasks": 17},
}
"""How many there may be of each call. Small chunks of several tasks are packed, which takes three
more; and SQLite has a statement for each partition.
"""
ONE = upload(chunk(0, b"1"))
TASKS = [upload(chunk(task % 2, b"%d" % task), task=task) for task in range(100)]


@pytest.fixture
def most(site: Site) -> dict[str, int]:
    return MOST["sqlite" if isinstance(site, SqliteSite) else "postgresql"]


@pytest.fixture
def busy(sent: Trace, store: Store) -> Store:
    """A store in which the producer has published, on connections that are there."""
    commit(store, call(0), ONE)
    store.admit(FEED, call(1))
    sent()
    return store


def begun(taken: list[str]) -> int:
    return sum(each.lstrip(' "').startswith("BEGIN") for each in taken)


def test_a_batch_of_one_event_takes_few_round_trips(
    busy: Store, most: dict[str, int], sent: Trace
) -> None:
    """An upload and a commit are one transaction each, and read the feed and the producer once."""
    calls: dict[str, Callable[[], object]] = {
        "admit": lambda: busy.admit(FEED, call(1)),
        "stage": lambda: busy.stage(FEED, call(1), ONE, quota=1 << 20),
        "commit": lambda: busy.commit(FEED, call(1), declared(ONE)),
    }
    for name, work in calls.items():
        work()
        taken = sent()
        assert len(taken) <= most[name], taken
        assert begun(taken) == (0 if taken[0].startswith("SELECT") else 1)


def test_a_commit_of_many_tasks_takes_as_many_as_one_of_one(
    busy: Store, most: dict[str, int], sent: Trace
) -> None:
    """Their number does not grow with the tasks of a batch."""
    for each in TASKS:
        busy.stage(FEED, call(1), each, quota=1 << 20)
    assert len(sent()) <= len(TASKS) * most["stage"]
    busy.commit(FEED, call(1), declared(*TASKS))
    taken = sent()
    assert len(taken) <= most["commit of 100 tasks"], taken
    assert 1 == begun(taken)
