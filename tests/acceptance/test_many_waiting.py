"""Thousands of readers wait at one publisher: it has room for them, and wakes all of them."""

import logging
import sys

import pytest

from benchmarks import fanout
from tests.fix_publisher import open_feeds, served
from zeh_spark.testing import publish

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "readers, idle, resident, last", [(1_000, 0.1, 150 << 20, 1.0), (10_000, 0.5, 600 << 20, 30.0)]
)
def test_readers_wait_and_all_are_woken(tmp_path, readers, idle, resident, last):
    """Each of six events reaches all of them, and while there is none, they cost nearly nothing."""
    file = tmp_path / "feeds.db"
    store = f"sqlite:///{file}"
    with open_feeds(store, flights=4) as made:
        publish(made, "flights", [{"i": 0}], partition=0)
    with served(file) as (base, process):
        command = [sys.executable, "-c", fanout.COMMIT, store]
        found = fanout.waiting(f"{base}/flights", process.pid, command, readers)
    logging.getLogger(__name__).info("%s", found)  # shown with --log-cli-level info
    assert found.idle < idle  # of a core
    assert found.resident < resident
    assert sorted(found.last)[len(found.last) // 2] < last
