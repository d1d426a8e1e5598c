"""Many readers and writers at once against the real process, and a store that fails under them:
nobody starves, nothing is torn, and neither memory nor log grows without bound.
"""

from __future__ import annotations

import http.client
import os
import resource
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import requests

from tests.fix_publish import Caller, Who, commit_of, events_of, rows
from tests.fix_publisher import served
from tests.patience import PATIENCE
from zeh_spark.publisher import open_store
from zeh_spark.wire.upload_format import StagedChunk, upload_body

MIB = 1 << 20


# Load


@dataclass
class Load:
    """64 writers and 64 readers, and what happened; each thread adds to its own places."""

    base: str
    batches: int
    commits: list[int] = field(default_factory=lambda: [0] * 64)
    seen: list[int] = field(default_factory=lambda: [0] * 64)
    faults: list[str] = field(default_factory=list)

    def is_enough(self) -> bool:
        """Whether each writer has published its batches, and each reader has seen events."""
        return bool(self.faults) or (min(self.commits) >= self.batches and min(self.seen) > 0)

    def write(self, number: int, chunks: list[StagedChunk]) -> None:
        """Batches of one upload, one after the other, until it is enough."""
        body, commit = upload_body(chunks), msgspec.json.encode(commit_of(chunks))
        with closing(self._connection()) as connection:
            while not self.is_enough():
                who = Who(self.commits[number], producer=f"p{number}")
                path = f"/orders{who.path}"
                self._sent(connection, "PUT", f"{path}/uploads/r1.0.0.0?{who.query()}", body)
                self._sent(connection, "POST", f"{path}/commit?{who.query(run='r1')}", commit)
                self.commits[number] += 1

    def read(self, number: int) -> None:
        """The feed's newest events, by long polls, until it is enough."""
        partition, cursor = number % 2, "_last"
        with closing(self._connection()) as connection:
            while not self.is_enough():
                query = f"n=2&cursor{partition}={cursor}&wait=1&pagesizehint=100"
                lines = self._sent(connection, "GET", f"/orders?{query}").split(b"\n")
                *events, last, _ = lines
                self.seen[number] += sum(b'"data"' in each for each in events)
                cursor = msgspec.json.decode(last)["cursor"]

    def run(self, chunks: list[list[StagedChunk]]) -> None:
        with ThreadPoolExecutor(128) as threads:
            running = [threads.submit(self.write, at, chunks[at]) for at in range(64)]
            running += [threads.submit(self.read, at) for at in range(64)]
        for each in running:
            each.result()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(self.base).netloc, timeout=PATIENCE)

    def _sent(
        self, connection: http.client.HTTPConnection, method: str, target: str, body: Any = None
    ) -> bytes:
        headers = {"Content-Type": "application/json"} if method == "POST" else {}
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 400:
            self.faults.append(text.decode())
        return text


def realistic(number: int, size: int) -> list[StagedChunk]:
    """Orders that a compressor makes a third of; their last event tells the writer."""
    row = {"writer": number, "status": "shipped", "note": "handle with care " * 3}
    events = [{**row, "id": at, "hash": os.urandom(80).hex()} for at in range(size // 300)]
    return rows(*events, partition=number % 2)


@contextmanager
def watched(log: Path) -> Iterator[list[int]]:
    """The sizes of the store's log, sampled meanwhile."""
    sizes, ended = [0], threading.Event()

    def sample() -> None:
        while not ended.wait(0.02):
            sizes.append(log.stat().st_size if log.exists() else 0)

    sampler = threading.Thread(target=sample)
    sampler.start()
    yield sizes
    ended.set()
    sampler.join()


def peak_memory(process: subprocess.Popen[str]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batches", "size"), [(2, MIB // 2), pytest.param(20, 2 * MIB, marks=pytest.mark.campaign)]
)
def test_many_readers_and_writers_all_make_progress(store_file, batches, size):
    """64 jobs and 64 consumers at once: each gets its turn, in bounded memory and log (B)."""
    chunks = [realistic(number, size) for number in range(64)]
    with (
        served(store_file) as (base, process),
        watched(store_file.with_name("feeds.db-wal")) as sizes,
    ):
        load = Load(base, batches)
        load.run(chunks)
        memory = peak_memory(process)
    assert [] == load.faults
    with closing(open_store(f"sqlite:///{store_file}")) as store:
        expected = {f"p{number}": count for number, count in enumerate(load.commits)}
        assert expected == {each.name: each.receipts for each in store.producers("orders")}
        events = sum(load.commits[at] * sum(c.events for c in chunks[at]) for at in range(64))
        assert events == store.feeds()[0].events == sum(1 for _ in events_of(store))
    assert max(sizes) < 128 * MIB
    assert memory < 300 * MIB


# Group commit


# A store that fails


def limit_files(process: subprocess.Popen[str], size: int) -> None:
    """No file of the process grows beyond this any more: as on a disk that is full."""
    hard = resource.RLIM_INFINITY
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))


def incompressible(size: int) -> list[StagedChunk]:
    return rows(*(os.urandom(30_000).hex() for _ in range(size // 30_000)))


def fill(caller: Caller, producer: str, size: int) -> None:
    """Uploads that nobody commits."""
    for number in range(size // (4 * MIB)):
        reply = caller.upload(Who(producer=producer), incompressible(4 * MIB), name=f"0.0.{number}")
        assert 201 == reply.status


def test_full_disk_publishes_nothing_by_halves(store_file):
    """Without room to write I hear that it failed; once there is some, my batch goes through."""
    with served(store_file) as (base, process), closing(Caller(f"{base}/orders")) as caller:
        caller.upload(Who(), rows(1, 2))
        limit_files(process, 0)
        refused = [caller.commit(Who(), rows(1, 2)).short for _ in range(2)]
        unknown = caller.receipt(Who()).short
        limit_files(process, resource.RLIM_INFINITY)
        done = caller.commit(Who(), rows(1, 2)).short
    with closing(open_store(f"sqlite:///{store_file}")) as store:
        assert [b"1", b"2"] == events_of(store)
    assert [(500, "store-failed")] * 2 == refused
    assert ((404, "unknown-batch"), (200, "committed")) == (unknown, done)


@pytest.mark.parametrize("is_started_again", [True, False])
def test_commit_that_fails_is_not_known_yet(store_file, is_started_again):
    """503 asks me to ask again; whatever I hear then, the batch is whole or absent (F5, EX-02)."""
    log = store_file.with_name("feeds.db-wal")
    with ExitStack() as stack:
        base, process = stack.enter_context(served(store_file))
        caller = stack.enter_context(closing(Caller(f"{base}/orders")))
        fill(caller, "filler", 4 * MIB)
        caller.upload(Who(), rows(1, 2))
        limit_files(process, log.stat().st_size)
        reply = caller.commit(Who(), rows(1, 2))
        limit_files(process, resource.RLIM_INFINITY)
        assert ((503, "not-known-yet"), "1") == (reply.short, reply.headers["Retry-After"])
        if is_started_again:
            stack.close()
            base, _ = stack.enter_context(served(store_file))
            caller = stack.enter_context(closing(Caller(f"{base}/orders")))
        known = caller.receipt(Who()).status
        done = caller.publish(Who(), 1, 2).document["status"]
    assert (known == 200) == (done == "already-committed")
    assert is_started_again or (404, "committed") == (known, done)
    with closing(open_store(f"sqlite:///{store_file}")) as store:
        assert [b"1", b"2"] == events_of(store)


def test_publisher_continues_where_its_log_cannot_be_emptied(store_file):
    """A disk that fills up delays me, and no longer than it is full."""
    log = store_file.with_name("feeds.db-wal")
    with (
        served(store_file) as (base, process),
        closing(Caller(f"{base}/orders", timeout=5)) as caller,
        closing(sqlite3.connect(store_file, isolation_level=None)) as reader,
    ):
        fill(caller, "first", 24 * MIB)
        reader.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM feeds").fetchone()  # the log cannot be emptied
        fill(caller, "second", 60 * MIB)
        reader.execute("COMMIT")
        limit_files(process, log.stat().st_size + 12 * MIB)
        for number in range(4):
            with suppress(requests.ConnectionError):
                caller.upload(Who(), incompressible(2 * MIB), name=f"0.0.{number}")
        limit_files(process, resource.RLIM_INFINITY)
        assert (200, "committed") == caller.publish(Who(producer="q"), 1).short
