"""A standalone Spark cluster on this machine: a master and workers of one core, from pip's Spark.

For tests and benchmarks.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import PATIENCE
from tests.ports import free_port

_DEPLOY = "org.apache.spark.deploy"


def why_not_apart() -> str | None:
    """Why workers cannot be apart: macOS has 127.0.0.1 only."""
    return None if has_addresses() else "address 127.0.0.2, without which Spark does not speculate"


def has_addresses() -> bool:
    """Whether workers can be apart."""
    try:
        socket.create_server(("127.0.0.2", 0)).close()
    except OSError:
        return False
    return True


@contextmanager
def cluster(
    work: Path, workers: int, *, apart: bool = False, java_options: str = ""
) -> Iterator[tuple[str, list[int]]]:
    """Such a cluster; gives the master's URL, and the process ids of the workers.

    Workers that are `apart` have addresses of their own, 127.0.0.1, 127.0.0.2 and so on, which
    Linux has all. Spark never runs two attempts at a task at a time on one host, so without this
    there is no speculation. `java_options` are not those of the executors.
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

    def start(name: str, *arguments: str, host: str = "127.0.0.1") -> Path:
        log = work / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), *arguments]
        command += ["--host", host, "--webui-port", "0"]
        own = {**environment, "SPARK_LOCAL_IP": host}
        with log.open("w") as file:
            started = subprocess.Popen(command, env=own, stdout=file, stderr=file)
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
                host=f"127.0.0.{number if apart else 1}",
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
    for _ in range(10 * PATIENCE):
        if re.search(pattern, log.read_text()):
            return
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(log.read_text())
    raise TimeoutError(log.read_text())
