"""Queries of `several_queries.py`, which one SIGKILL ends, each at a place of its own."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fix_sink import Watched, lost
from tests.fix_spark import kill_program, start_program
from tests.patience import PATIENCE, eventually

PROGRAM = "several_queries.py"
Job = Mapping[str, Any]


def into_files(folder: Path, url: str, **options: str) -> dict[str, Any]:
    """A query with these options of the source, whose rows are in `Table(folder / "table")`."""
    given = {"url": url, "options": options, "folder": str(folder)}
    return {"kind": "into_files", "checkpoint": str(folder / "checkpoint"), **given}


def reached(folder: Path, number: int) -> Path:
    """The file that is there when a query is at its place."""
    return folder / f"reached-{number}"


def run_until_killed(folder: Path, jobs: Iterable[Job]) -> None:
    """Start each query when the one before is at its `place`, and then kill their driver."""
    given = [{**job, "reached": str(reached(folder, number))} for number, job in enumerate(jobs)]
    for job in given:
        Path(job["reached"]).unlink(missing_ok=True)
    log = folder / "driver.log"
    driver = start_program(PROGRAM, given, log)

    def there() -> bool:
        assert driver.poll() is None, log.read_text()[-4000:]
        return all(Path(job["reached"]).exists() for job in given)

    try:
        eventually(there, PATIENCE * len(given))
    finally:
        kill_program(driver)
    assert driver.wait(PATIENCE) == -signal.SIGKILL


def run_to_the_end(folder: Path, jobs: Collection[Job], python: str = sys.executable) -> None:
    """One after the other, in a driver of their own, by any Python."""
    log = folder / "driver.log"
    done = start_program(PROGRAM, list(jobs), log, python).wait(PATIENCE * len(jobs))
    assert done == 0, log.read_text()[-4000:]


@contextmanager
def stopped(gateway: Watched, pattern: str, there: Path) -> Iterator[None]:
    """Keep the first request that fits from the publisher; the file is made when it has come."""
    go = threading.Event()

    def stop() -> None:
        there.touch()
        go.wait(PATIENCE)
        lost()

    gateway.once(pattern, before=stop)
    try:
        yield
    finally:
        go.set()
