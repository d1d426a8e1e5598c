"""A standalone cluster: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fix_spark import Job
from zeh_spark.publisher import MemoryStore
from zeh_spark.testing import publish, running_publisher

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Start it; gives the master's URL."""
    import pyspark

    home = Path(pyspark.__file__).parent
    work = tmp_path_factory.mktemp("cluster")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }

    def start(name, *arguments):
        log = (work / f"{name}.log").open("w+")
        command = [str(home / "bin" / "spark-class"), *arguments]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log), log

    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    processes = [
        start(
            "master",
            f"{deploy}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        )
    ]
    for name in ("worker-1", "worker-2"):
        processes.append(
            start(
                name,
                f"{deploy}.worker.Worker",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                "--work-dir",
                str(work / name),
                master,
            )
        )
    try:
        for process, log in processes[1:]:
            wait_for(r"Successfully registered with master", process, Path(log.name))
        yield master
    finally:
        for process, log in reversed(processes):
            process.terminate()
            process.wait(30)
            log.close()


def wait_for(pattern, process, log):
    for _ in range(600):
        if re.search(pattern, log.read_text()):
            return
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(log.read_text())
    raise TimeoutError(log.read_text())


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
