"""The command line: in this process, as most tests run it, and as a process of its own."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from inspect import signature
from pathlib import Path

import pytest
from click.testing import CliRunner

from zeh_spark.publisher import open_store
from zeh_spark.testing import running_publisher
from zeh_spark.tools.cli.main import zeh_spark

_APART = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
"""For click 8.1, whose runner has no standard error of its own otherwise."""

COMMAND = [sys.executable, "-m", "zeh_spark"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def call(
    *words: str, stdin: str = "", folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, in a folder if one is given.

    Raises what would be a traceback in a process of its own, which is always a bug.
    """
    log = logging.getLogger("zeh_spark")
    level = log.level
    with pytest.MonkeyPatch.context() as patch:
        if folder:
            patch.chdir(folder)
        try:
            done = CliRunner(env=environment, **_APART).invoke(
                zeh_spark, words, stdin, catch_exceptions=False, prog_name="zeh-spark"
            )
        finally:
            log.setLevel(level)  # -v has set it
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def succeed(*words: str, stdin: str = "") -> str:
    """Run a command that has to succeed; return what it printed."""
    done = call(*words, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def published(url: str) -> Iterator[str]:
    """Serve a store from this process; gives the base URL. `serve` is tested in a process."""
    with closing(open_store(url)) as store, running_publisher(store) as base:
        yield base


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'feeds.db'}"


@pytest.fixture
def env(store_url: str) -> dict[str, str]:
    """For processes: the store of the test is the one that every command uses."""
    here, more = str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")
    path = f"{here}{os.pathsep}{more}" if more else here
    return {**os.environ, "ZEH_STORE": store_url, "PYTHONPATH": path}


@pytest.fixture
def run(tmp_path: Path, store_url: str) -> Run:
    """`run("create", "orders")`: a command in this process, in the test's folder and store."""
    return partial(call, folder=tmp_path, ZEH_STORE=store_url)


def checkpoint(
    folder: Path,
    partitions: Sequence[int],
    *,
    n: int = 4,
    feed: str = "http://h/orders",
    id: str = "5f0c",
    planned: int = 3,
) -> None:
    """The checkpoint of a query whose batch 3 is committed."""
    places = {str(each): {"cursor": f"{each}.x", "events": 0, "bytes": 0} for each in partitions}
    version = 3 if len(partitions) == n else 4
    offset = {"version": version, "feed": feed, "id": id, "partitionCount": n, "partitions": places}
    for log in ("commits", "offsets"):
        (folder / log).mkdir(parents=True)
        (folder / log / "3").write_text(f"v1\n{{}}\n{json.dumps(offset)}")
    (folder / "offsets" / str(planned)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
