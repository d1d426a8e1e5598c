"""The source on a standalone cluster: a master and two workers, each a process of its own."""

from __future__ import annotations

import base64
import os
from collections import Counter

import pytest

from tests.fix_killed import run_to_the_end
from tests.fix_lake import why_absent
from tests.fix_raw_server import NO_IDENTITY, ok
from tests.fix_spark import Job
from tests.scratch_store import ScratchStore
from zeh_spark.protocol import wire
from zeh_spark.testing import publish, running_publisher

pytestmark = pytest.mark.slow


@pytest.mark.kill
def test_a_cluster_reads_each_event_once_through_a_crash(cluster, tmp_path):
    """Executors in other processes decode what the driver fetched; a killed driver continues."""
    store = ScratchStore()
    store.create("orders", 4)
    for begin in range(0, 1000, 100):
        publish(store, "orders", [{"i": i} for i in range(begin, begin + 100)])

    with running_publisher(store) as base:
        job = Job(tmp_path, {"url": f"{base}/orders", "maxEventsPerTrigger": "400"}, cluster)
        job.run(crash=(1, "tasks"))
        job.run()

    assert job.table.numbers() == Counter(range(1000))


@pytest.mark.campaign
@pytest.mark.kill
def test_sessions_are_processed_once_though_an_executor_is_lost(cluster, orders, spark, tmp_path):
    """Its JVM is killed in a handler; the batch is processed elsewhere, and is there once."""
    pytest.importorskip("delta", reason=why_absent())
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    calls, table = tmp_path / "calls", str(tmp_path / "processed")
    orders.add(*((order, step) for order in "abcd" for step in range(4)))
    job = {"url": orders.url, "checkpoint": str(orders.checkpoint), "table": table}
    job = {**job, "kind": "process", "calls": str(calls), "lost": "executor", "master": cluster}

    run_to_the_end(tmp_path, [job])

    rows = spark.read.format("delta").load(table).select("session", "number", "status", "attempt")
    assert sorted(map(tuple, rows.collect())) == [
        (order, step, "ok", 1) for order in "abcd" for step in range(4)
    ]
    called = [line.split() for line in calls.read_text().splitlines()]
    assert 16 == len({key for *_, key in called})
    assert len(called) > 16


def test_large_batches_stay_far_below_the_limit_of_a_task(cluster, tmp_path, raw_server):
    """200 MiB, 150 when compressed, in one batch: no task comes near Spark's 128 MiB.

    There is one cursor for all of it, so it cannot be two batches.
    """
    lines = [wire.event_line(0, {}, b'{"i":%d,"x":"%s"}' % (i, noise())) for i in range(4000)]
    everything = b"\n".join([*lines, wire.checkpoint_line(0, "end"), b""])
    nothing = wire.checkpoint_line(0, "end") + b"\n"
    raw_server.discovery = NO_IDENTITY
    raw_server.respond = lambda request: ok(
        everything if request.query["cursor0"] == "_first" else nothing
    )
    options = {"url": raw_server.url, "partitionCount": "1", "maxBytesPerTrigger": "400m"}

    done = Job(tmp_path, options, cluster).run()

    table = Job(tmp_path, options).table
    assert ["batch=0"] == [each.name for each in table.folder.glob("batch=*")]
    assert table.numbers() == Counter(range(4000))
    assert "exceeds max allowed" not in done.stderr


def noise() -> bytes:
    """40,000 random bytes, as text that is a third longer and cannot be compressed below them."""
    return base64.b64encode(os.urandom(40_000))
