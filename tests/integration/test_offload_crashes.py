"""A publisher that is killed at each point of moving packs to objects, and of deleting objects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests import postgresql
from tests.fix_publisher import HERE
from tests.programs import crash_offload as crash
from tests.programs.crash_publisher import FEED, url_of
from tests.store_contract.writers import data
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.retention.segments import take_inventory
from zeh_spark.service.segments.objects import Objects


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        (tmp_path / "stores").mkdir()
        yield str(tmp_path / "stores")
        return
    postgresql.needed()
    server = postgresql.shared()
    prefix = server.create_database()
    yield server.url(prefix)
    names = server.execute(f"SELECT datname FROM pg_database WHERE datname ~ '^{prefix}(_|$)'")
    for (name,) in names:
        server.drop_database(name)


def seen(store: Store) -> list[object]:
    """Return all that a feed has: its chunks, what was removed, and its events."""
    with store.snapshot(FEED) as log:
        chunks, anchors, state = log.scan(0, 99, 99), log.anchors, log.state
    return [[each[:-1] for each in chunks], anchors, state, data(store, chunks)]


@pytest.mark.kill
@pytest.mark.slow
def test_no_event_and_no_object_is_lost_wherever_a_publisher_dies(place, tmp_path, monkeypatch):
    """Wherever it is killed, the feed has the same events as one that moves nothing. The next round
    completes the work, and no unknown object is left.
    """
    for module, name in (
        (crash.packs, "PACK_CHUNKS"), (crash.packs, "BLOCK_BYTES"), (crash.packs, "OWN_BYTES"),
        (crash.tables, "_PACKS"), (crash.tables, "KEPT_MS"), (crash.commits, "KEPT_MS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, getattr(module, name))
    crash.shrink()
    folder = tmp_path / "cold"
    folder.mkdir()
    command = [sys.executable, "-m", "tests.programs.crash_offload", place, str(folder)]
    said = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True).stdout
    points = said.splitlines()
    assert "done" == points[-1]
    with closing(open_store(url_of(place, "made"))) as store:
        expected = [seen(store)]
        store.remove(FEED, crash.REMOVED)
        expected.append(seen(store))
    reached = set()
    for at, point in enumerate(points):
        objects = Objects(f"{folder}/{at}")
        with closing(open_store(url_of(place, at))) as store:
            found = seen(store)
            assert found in expected, f"killed {at}: {point}"
            reached.add((expected.index(found), len(store.segments(FEED))))
            crash.keep_tidy(store, objects)
            crash.moving.collect(store)
            assert expected[1] == seen(store), f"killed {at}: {point}"
            inventory = take_inventory(store)
            left = inventory.segments, inventory.lost, inventory.unknown
            assert (1, {}, {}) == left, f"killed {at}: {point}"
    assert {(0, 0), (0, 1), (0, 2), (1, 1)} == reached
