"""The job of `conf/docker`, as its image runs it: a process, files for secrets, and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow.dataset
import pytest

from tests.fix_cli import call
from tests.fix_publisher import open_feeds, served
from tests.patience import PATIENCE, eventually
from zeh_spark.testing import publish

JOB = Path(__file__).parents[2] / "conf" / "docker" / "job.py"

pytestmark = pytest.mark.spark


@contextmanager
def job(tmp_path: Path, warm: dict[str, str], **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The job with these variables. Killed at the end."""
    env = {**os.environ, **warm, "TRIGGER": "1 second", **variables}
    log = (tmp_path / "job.log").open("a+")
    with log, subprocess.Popen([sys.executable, str(JOB)], env=env, stderr=log) as process:
        try:
            yield process
        finally:
            process.kill()


def stored(folder: Path) -> list[tuple[int, object]]:
    """The events in the files that Spark has committed: their partitions, and their data."""
    logs = folder.glob("events/_spark_metadata/[0-9]*")
    lines = [line for log in logs for line in log.read_text().splitlines() if line[0] == "{"]
    files = sorted({json.loads(line)["path"].removeprefix("file://") for line in lines})
    if not files:
        return []
    rows = pyarrow.dataset.dataset(files).to_table(["partition", "data"]).to_pylist()
    return sorted((row["partition"], json.loads(row["data"])) for row in rows)


def ended_or_stored(
    process: subprocess.Popen[str], folder: Path, expected: list[tuple[int, object]]
) -> bool:
    return process.poll() is not None or stored(folder) == expected


@pytest.mark.slow
def test_the_job_streams_a_feed_until_it_is_stopped(tmp_path: Path, warm: dict[str, str]) -> None:
    """`docker compose up` and `stop` as often as I like: each event is in the files once."""
    store, token, folder = tmp_path / "feeds.db", tmp_path / "job_token", tmp_path / "lake"
    with open_feeds(store, orders=2) as opened, served(store) as (base, _):
        words = ["token", "create", "job", "--read", "orders", "--store", f"sqlite:///{store}"]
        token.write_text(call(*words).stdout)
        variables = {
            "FEED_URL": f"{base}/orders", "TOKEN_FILE": str(token), "FOLDER": str(folder),
        }  # fmt: skip

        for first in (0, 10):
            for partition in (0, 1):
                publish(opened, "orders", range(first, first + 10), partition=partition)
            expected = [(partition, n) for partition in (0, 1) for n in range(first + 10)]
            with job(tmp_path, warm, **variables) as process:
                eventually(partial(ended_or_stored, process, folder, expected))
                process.send_signal(signal.SIGTERM)
                assert 0 == process.wait(PATIENCE), (tmp_path / "job.log").read_text()
            assert expected == stored(folder)


@pytest.mark.campaign
def test_a_job_that_is_refused_ends_with_the_error(tmp_path: Path, warm: dict[str, str]) -> None:
    """The container's log tells why, and Docker starts it again."""
    store = tmp_path / "feeds.db"
    with open_feeds(store, orders=1), served(store) as (base, _):
        call("token", "create", "other", "--read", "other", "--store", f"sqlite:///{store}")
        variables = {"FEED_URL": f"{base}/orders", "FOLDER": str(tmp_path / "lake")}
        with job(tmp_path, warm, **variables) as process:
            assert 1 == process.wait(PATIENCE)

    assert "[ZEH_UNAUTHORIZED]" in (tmp_path / "job.log").read_text()
