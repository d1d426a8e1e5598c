"""The fixtures of the contract's tests. They need the fixture `new_site`, the class of a Site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store_contract.site import Opened, Site, StoppedClock
from tests.store_contract.world import World
from tests.store_contract.writers import FEED
from zeh_spark.publisher import Store
from zeh_spark.service.store.batches import RECEIPTS


@pytest.fixture
def clock() -> StoppedClock:
    """Return the clock of the stores of the test's site."""
    return StoppedClock()


@pytest.fixture
def receipts() -> int:
    """Return how many receipts of a producer the stores of the test's site keep."""
    return RECEIPTS


@pytest.fixture
def site(
    new_site: type[Site], tmp_path: Path, clock: StoppedClock, receipts: int
) -> Iterator[Site]:
    """Make an empty site in the test's directory."""
    site = new_site(tmp_path, clock, receipts)
    yield site
    site.close()


@pytest.fixture
def opened(site: Site) -> Opened:
    """Return what opens the test's store, as often as the test wants."""
    return site.open


@pytest.fixture
def store(opened: Opened) -> Store:
    """Open the test's store, with an empty feed of two partitions."""
    store = opened()
    store.create(FEED, 2)
    return store


@pytest.fixture
def world(site: Site) -> World:
    """Make a world around the test's site, with an empty feed of two partitions."""
    site.open().create(FEED, 2)
    return World(site)
