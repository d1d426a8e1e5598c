"""Processes that tests kill, a publisher and a driver that publishes, and a Spark cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import class_archive, standalone
from tests.fix_publisher import store_url
from tests.fix_sink import Inbox, Target, Watched, lost, new_store
from tests.fix_spark import kill_program, start_program
from tests.patience import PATIENCE
from tests.ports import free_port


@dataclass
class Killable:
    """A publisher in a process of its own, always at the same port, with its store's folder."""

    folder: Path
    port: int
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        words = ["-m", "zeh_spark", "serve", "--store", store_url(self.folder)]
        command = [sys.executable, *words, "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout and "Serving" in self.process.stdout.readline()

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[tuple[Target, Killable]]:
    """As `target`, and its publisher, which can be killed and started again."""
    new_store(tmp_path / "killable")
    publisher = Killable(tmp_path / "killable", free_port())
    publisher.start()
    base = f"http://127.0.0.1:{publisher.port}"
    try:
        with closing(Watched(base)) as gateway:
            yield Target(base, gateway), publisher
    finally:
        publisher.kill()


@dataclass
class Publishing:
    """`stream_to_feed.py`: a driver in a process of its own."""

    job: dict[str, Any]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = start_program("stream_to_feed.py", self.job, self.log)

    def kill(self) -> None:
        assert self.process
        kill_program(self.process)

    def run_until_killed(self, gateway: Watched, places: Sequence[tuple[str, str]]) -> None:
        """Kill it when each of its queries is at its place, before or after a call."""
        all_are_there = threading.Barrier(len(places))

        def die() -> None:
            all_are_there.wait(PATIENCE)
            self.kill()
            lost()

        for call, moment in places:
            gateway.once(call, **{moment: die})
        self.start()
        self.wait(-signal.SIGKILL)

    def wait(self, code: int = 0) -> str:
        """What it said. Fails if it ended otherwise."""
        assert self.process
        ended = self.process.wait(PATIENCE)
        said = self.log.read_text()
        assert ended == code, said[-4000:]
        return said


@pytest.fixture
def program(tmp_path: Path, inbox: Inbox) -> Iterator[Callable[..., Publishing]]:
    """`program(url, …)`: a driver that publishes the inbox; `checkpoints` by their producers."""
    made: list[Publishing] = []

    def make(url: str, **job: Any) -> Publishing:
        usual = {"url": url, **job.pop("options", {})}
        given = job.pop("checkpoints", {"spark": tmp_path / "checkpoint"})
        queries = {str(folder): {"producerId": name, **usual} for name, folder in given.items()}
        log = tmp_path / f"program-{len(made)}.log"
        made.append(Publishing({"inbox": str(inbox.folder), "queries": queries, **job}, log))
        return made[-1]

    yield make
    for each in made:
        if each.process and each.process.poll() is None:
            each.kill()
            each.process.wait(30)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone cluster of a master and two workers, with speculation where that can be."""
    work, apart = tmp_path_factory.mktemp("cluster"), standalone.has_addresses()
    java_options = class_archive.SHARED
    with standalone.cluster(work, 2, apart=apart, java_options=java_options) as (master, _):
        yield master
