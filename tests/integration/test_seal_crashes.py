"""A publisher that is killed at each point of a seal, and of a removal across packs."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine

from tests.fix_crashes import crashed, reopened
from tests.programs import crash_publisher as crash
from tests.store_contract.packs import answers
from tests.store_contract.writers import data
from zeh_spark.publisher import Store
from zeh_spark.service.store import packs

TABLES = "packs", "recent_chunks", "blobs"


def rows_of(url: str) -> list[int]:
    """Return how many rows each of TABLES has."""
    engine = create_engine(url)
    schema = "zeroeventhub." if engine.dialect.name == "postgresql" else ""
    counts = ", ".join(f"(SELECT count(*) FROM {schema}{table})" for table in TABLES)
    try:
        with engine.connect() as connection:
            return [*connection.exec_driver_sql(f"SELECT {counts}").one()]
    finally:
        engine.dispose()


def trimmed(store: Store) -> list[Any]:
    """Return what readers get of a store: as it is, and after each of the removals."""
    found = [answers(store, 2)]
    for upto in crash.REMOVED:
        store.remove(crash.FEED, upto)
        found.append(answers(store, 2))
    return found


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize(
    "crash_place", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
def test_a_seal_and_a_removal_are_whole_or_absent_wherever_they_die(crash_place, monkeypatch):
    """Killed anywhere, the feed has the events, cursors, tags and digests of one that was never
    sealed. What was begun is then done, and leaves nothing behind.
    """
    for name, size in crash.SIZES.items():
        monkeypatch.setattr(packs, name, size)
    stores = crashed("seal and remove", crash_place)
    whole = rows_of(stores[-1][1])
    assert [1, 2, 4] == whole
    with reopened(crash.url_of(crash_place, "before")) as store:  # it was never sealed
        expected = trimmed(store)
        kept = data(store)
    reached = []
    for point, url in stores:
        sealed, *_ = rows_of(url)
        with reopened(url) as store:
            found = answers(store, 2)
            assert found in expected, f"killed {point}"
            reached.append((expected.index(found), sealed))
            crash.keep_tidy(store)
            assert kept == data(store), f"killed {point}"
            assert whole == rows_of(url), f"killed {point}"
            store.remove(crash.FEED, store.feed(crash.FEED).head)
            assert [0, 0, 0] == rows_of(url), f"killed {point}"
    assert [(0, 0), (0, 1), (0, 2), (1, 2), (2, 1)] == [*dict.fromkeys(reached)]
