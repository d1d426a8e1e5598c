"""Every test of this folder runs against each store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.sites import SHARED, SITES, SharedSite, Site
from tests.contract.world import World
from tests.contract.writers import FEED
from zeh_spark.publisher import Store

Opened = Callable[[], Store]


@pytest.fixture(params=list(SITES))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    site = SITES[request.param](tmp_path)
    yield site
    site.close()


@pytest.fixture(params=SHARED)
def shared_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SharedSite]:
    """Only those that other processes reach by a URL."""
    site = SHARED[request.param](tmp_path)
    yield site
    site.close()


@pytest.fixture
def opened(site: Site) -> Opened:
    """Opens the store of the test, as often as it wants."""
    return site.open


@pytest.fixture
def store(opened: Opened) -> Store:
    store = opened()
    store.create("orders", 2)
    return store


class Clock:
    """What the store takes for the time, in ms."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now

    def pass_hours(self, hours: float) -> None:
        self.now += int(hours * 3_600_000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    set_clock(monkeypatch, clock)
    return clock


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], int]) -> None:
    set_everywhere(monkeypatch, "now_ms", clock)


def set_everywhere(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    """In all modules of the publisher that know the name."""
    for at, module in list(sys.modules.items()):
        if at.startswith("zeh_spark.publisher") and hasattr(module, name):
            monkeypatch.setattr(module, name, value)


@pytest.fixture
def world(site: Site) -> World:
    site.open().create(FEED, 2)
    return World(site)
