"""Ten thousand readers wait at one publisher: it has room for them, and wakes all of them."""

from __future__ import annotations

import sys
from contextlib import closing

import pytest

from benchmarks import fanout
from tests.fix_publisher import served
from zeh_spark.publisher import open_store
from zeh_spark.testing import publish

READERS = 10_000

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(600)]


def test_ten_thousand_readers_wait_and_all_are_woken(tmp_path):
    """Each of six events reaches all of them, and while there is none, they cost nearly nothing."""
    file = tmp_path / "feeds.db"
    store = f"sqlite:///{file}"
    with closing(open_store(store)) as made:
        made.create("flights", 4)
        publish(made, "flights", [{"i": 0}], partition=0)
    with served(file) as (base, process):
        command = [sys.executable, "-c", fanout.COMMIT, store]
        found = fanout.waiting(f"{base}/flights", process.pid, command, READERS)
    assert found.idle < 0.5  # of a core
    assert found.memory < READERS * 50_000
    assert max(found.last) < 30
