"""The source on a standalone cluster: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
from collections import Counter

from tests.fix_spark import Job
from zeh_spark.publisher import MemoryStore
from zeh_spark.testing import publish, running_publisher


def test_a_cluster_reads_each_event_once_through_a_crash(cluster, tmp_path):
    """Executors in other processes decode what the driver fetched; a killed driver goes on."""
    store = MemoryStore()
    store.create("orders", 4)
    for begin in range(0, 1000, 100):
        publish(store, "orders", [{"i": i} for i in range(begin, begin + 100)])

    with running_publisher(store) as base:
        job = Job(tmp_path, {"url": f"{base}/orders", "maxEventsPerTrigger": "400"}, cluster)
        job.run(crash=(1, "tasks"))
        job.run()

    assert job.table.numbers() == Counter(range(1000))


def test_large_batches_stay_far_below_the_limit_of_a_task(cluster, tmp_path):
    """160 MiB that hardly compress, in one batch: no task comes near Spark's 128 MiB."""
    store = MemoryStore()
    store.create("large", 2)
    for begin in range(0, 4000, 500):
        publish(
            store,
            "large",
            [{"i": i, "x": os.urandom(20_000).hex()} for i in range(begin, begin + 500)],
        )

    with running_publisher(store) as base:
        job = Job(tmp_path, {"url": f"{base}/large", "maxBytesPerTrigger": "400m"}, cluster)
        done = job.run()

    assert job.table.numbers() == Counter(range(4000))
    assert "exceeds max allowed" not in done.stderr
