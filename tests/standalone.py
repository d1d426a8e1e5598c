"""A standalone Spark cluster on this machine: a master and workers of one core, from pip's Spark.

For tests and benchmarks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

_DEPLOY = "org.apache.spark.deploy"


@contextmanager
def cluster(work: Path, workers: int, *, java_options: str = "") -> Iterator[tuple[str, list[int]]]:
    """Such a cluster; gives the master's URL, and the process ids of the workers.

    `java_options` are of the master and the workers, not of the executors.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": java_options,
    }
    port = str(free_port())
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = work / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), *arguments]
        command += ["--host", "127.0.0.1", "--webui-port", "0"]
        with log.open("w") as file:
            started = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        running.append(started)
        return log

    master = f"spark://127.0.0.1:{port}"
    try:
        start("master", f"{_DEPLOY}.master.Master", "--port", port)
        logs = [
            start(
                f"worker-{number}",
                f"{_DEPLOY}.worker.Worker",
                *("--cores", "1", "--memory", "1g", "--work-dir", str(work / f"{number}")),
                master,
            )
            for number in range(1, workers + 1)
        ]
        for process, log in zip(running[1:], logs, strict=True):
            _wait_for(r"Successfully registered with master", process, log)
        yield master, [each.pid for each in running[1:]]
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)


def _wait_for(pattern: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if re.search(pattern, log.read_text()):
            return
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(log.read_text())
    raise TimeoutError(log.read_text())
