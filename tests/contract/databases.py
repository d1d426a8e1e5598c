"""Stores in PostgreSQL, and what happens to them, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.sites import PostgresqlSite
from tests.patience import Halt
from tests.postgresql import Server
from tests.store_contract.site import StoppedClock
from tests.store_contract.writers import FEED, declared
from zeh_spark.service.sql import commits as sql_commits
from zeh_spark.service.sql import uploads as sql_uploads
from zeh_spark.service.sql.store import SqlStore
from zeh_spark.service.store.batches import Call, Upload


class EmptyDatabase(PostgresqlSite):
    """One in which no store was opened yet."""

    @staticmethod
    def template() -> str:
        return "template1"


@pytest.fixture
def site(
    tmp_path: Path, postgresql_server: Server, clock: StoppedClock
) -> Iterator[PostgresqlSite]:
    site = EmptyDatabase(tmp_path, clock)
    yield site
    site.close()


@pytest.fixture
def store(site: PostgresqlSite) -> SqlStore:
    store = site.open()
    assert isinstance(store, SqlStore)
    store.create(FEED, 2)
    return store


def in_threads(count: int, work: Callable[[int], object]) -> list[BaseException]:
    """What they raised."""
    with ThreadPoolExecutor(count) as threads:
        running = [threads.submit(work, number) for number in range(count)]
    return [raised for each in running if (raised := each.exception())]


@contextmanager
def stopped_at(step: str, work: Callable[[], object]) -> Iterator[None]:
    """Work in a thread that stands before a step of a commit or an upload, until the block ends."""
    halt = Halt()
    module = next(each for each in (sql_commits, sql_uploads) if hasattr(each, step))
    real = getattr(module, step)

    def held(*given: Any) -> None:
        halt()
        real(*given)

    with ThreadPoolExecutor(1) as thread:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, step, held)
            working = thread.submit(work)
            assert halt.reached.wait(20)
        try:
            yield
        finally:
            halt.go.set()
    working.result()


def commit_under_way(store: SqlStore, by: Call, sent: Upload) -> AbstractContextManager[None]:
    """One that has written all but its receipt."""
    return stopped_at("write_receipts", lambda: store.commit(FEED, by, declared(sent)))
