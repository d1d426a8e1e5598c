"""Queries of `several_queries.py`, which one SIGKILL ends, each at a place of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.fix_sink import Watched, lost
from tests.fix_spark import ENVIRONMENT
from tests.patience import PATIENCE, eventually

PROGRAM = Path(__file__).parent / "programs" / "several_queries.py"
Job = Mapping[str, Any]


def reached(folder: Path, number: int) -> Path:
    """The file that is there when a query is at its place."""
    return folder / f"reached-{number}"


def run_until_killed(folder: Path, jobs: Iterable[Job]) -> None:
    """Start each query when the one before is at its `place`, and then kill their driver."""
    given = [{**job, "reached": str(reached(folder, number))} for number, job in enumerate(jobs)]
    for job in given:
        Path(job["reached"]).unlink(missing_ok=True)
    log = folder / "driver.log"
    driver = _started(given, log)

    def there() -> bool:
        assert driver.poll() is None, log.read_text()[-4000:]
        return all(Path(job["reached"]).exists() for job in given)

    try:
        eventually(there, PATIENCE * len(given))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)  # the JVM, too
    assert driver.wait(PATIENCE) == -signal.SIGKILL


def run_to_the_end(folder: Path, jobs: Iterable[Job], python: str = sys.executable) -> None:
    """In a driver of their own, by any Python."""
    log = folder / "driver.log"
    done = _started(list(jobs), log, python).wait(PATIENCE)
    assert done == 0, log.read_text()[-4000:]


def _started(
    jobs: Sequence[Job], log: Path, python: str = sys.executable
) -> subprocess.Popen[bytes]:
    pythons = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    with log.open("w") as out:
        return subprocess.Popen(
            [python, "-W", "ignore", str(PROGRAM), json.dumps(jobs)],
            env={**os.environ, **ENVIRONMENT, **pythons},
            start_new_session=True,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


@contextmanager
def stopped(gateway: Watched, pattern: str, there: Path, moment: str = "before") -> Iterator[None]:
    """Keep the first request that fits from the publisher, or its answer from the sink, and lose it
    at the end. The file is made when it has come.
    """
    go = threading.Event()

    def stop() -> None:
        there.touch()
        go.wait(PATIENCE)
        lost()

    gateway.once(pattern, **{moment: stop})
    try:
        yield
    finally:
        go.set()
