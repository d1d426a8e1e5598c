"""The whole pipeline, whose processes are killed at random; `make test-faults` runs longer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import postgresql
from tests.faults import lies
from tests.faults.disks import why_no_compiler
from tests.faults.run import run
from tests.fix_lake import why_absent
from tests.fix_sessions import needs_batches

pytest.importorskip("delta", reason=why_absent())
pytest.importorskip("google.protobuf", reason="protobuf is not installed")


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@needs_batches
@pytest.mark.parametrize(
    "store", ["sqlite", pytest.param("postgresql", marks=[pytest.mark.campaign])]
)
def test_each_event_is_there_once_whatever_is_killed(store: str, tmp_path: Path) -> None:
    """Producer, publisher, drivers, executors, workers and the database are killed, connections are
    cut, the disk is full or loses power. Then each number is once on the feed, on the copied feed
    and in the table.
    """
    if store == "postgresql":
        postgresql.needed()

    outcome = run(tmp_path, store, seed=7, kills=90, seconds=160)

    assert [] == outcome.anomalies
    assert outcome.kills > 10
    assert outcome.events > 0


NEEDS_COMPILER = pytest.mark.skipif(why_no_compiler() is not None, reason=f"no {why_no_compiler()}")


@pytest.mark.kill
@pytest.mark.slow
@NEEDS_COMPILER
def test_a_power_cut_undoes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Whatever the disk has of the pages that were not synced: nobody notices anything."""
    assert (Counter(), []) == lies.run(tmp_path, seed=1, rounds=5, lies=False)


@pytest.mark.kill
@pytest.mark.slow
@NEEDS_COMPILER
def test_a_disk_that_lies_is_noticed(tmp_path: Path) -> None:
    """The disk confirms syncs that it does not do, and a power cut undoes what was acknowledged.
    The reader and the writer get the documented errors. They do what these say, and then the feed
    has each number exactly once.
    """
    told, anomalies = lies.run(tmp_path, seed=1, rounds=5, lies=True)
    assert [] == anomalies
    assert {"writer: batch-gap", "reader: ZEH_CURSOR_OF_ANOTHER_HISTORY"} == {*told}
