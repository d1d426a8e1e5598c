"""What the contract's tests use, given `new_site`, which makes a Site in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zeh_spark.publisher import Store
from zeh_spark.store.batches import RECEIPTS
from zeh_spark.testing.site import Opened, Site, StoppedClock
from zeh_spark.testing.world import World
from zeh_spark.testing.writers import FEED


@pytest.fixture
def clock() -> StoppedClock:
    """Of the stores of the test's site."""
    return StoppedClock()


@pytest.fixture
def receipts() -> int:
    """How many the stores of the test's site keep of a producer."""
    return RECEIPTS


@pytest.fixture
def site(
    new_site: type[Site], tmp_path: Path, clock: StoppedClock, receipts: int
) -> Iterator[Site]:
    site = new_site(tmp_path, clock, receipts)
    yield site
    site.close()


@pytest.fixture
def shared_site(site: Site) -> Site:
    """One that other processes reach."""
    if site.opener() is None:
        pytest.skip("only this process reaches the store")
    return site


@pytest.fixture
def opened(site: Site) -> Opened:
    """Opens the store of the test, as often as it wants."""
    return site.open


@pytest.fixture
def store(opened: Opened) -> Store:
    store = opened()
    store.create(FEED, 2)
    return store


@pytest.fixture
def world(site: Site) -> World:
    site.open().create(FEED, 2)
    return World(site)
