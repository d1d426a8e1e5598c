"""The publisher and those who wait, or hang; feeds of any kind."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import requests

from tests.fix_publisher import Publisher
from zeh_spark.publisher import Block, Feed, Problem, open_store
from zeh_spark.service.app.long_polling import POLL_SECONDS
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire import problems, wire

FIRST = "n=2&cursor0=_first"


def test_wait_ends_with_the_first_event(publisher: Publisher) -> None:
    """Within about 20 ms, also of another process; what comes meanwhile is not skipped."""
    assert POLL_SECONDS <= 0.02
    publisher.publish("old", partition=0)
    cursor = publisher.get("n=2&cursor1=_last").cursors[1]
    with ThreadPoolExecutor(2) as pool, closing(open_store(publisher.store_url)) as other:
        here, new = (
            pool.submit(publisher.get, f"n=2&{each}&wait=20")
            for each in (f"cursor1={cursor}", "cursor0=_last")
        )
        while not new.done():
            publish(other, "orders", ["new"], partition=0)
        publish(other, "orders", ["here"], partition=1)
    assert ["here"] == here.result().data
    assert {"new"} == set(new.result().data)


def test_wait_without_events_ends_with_a_checkpoint(publisher: Publisher) -> None:
    """An idle feed keeps me where I am."""
    begun = time.monotonic()
    answer = publisher.get(f"{FIRST}&wait=0.2")
    waited = time.monotonic() - begun
    assert ([], [0], True) == (answer.data, list(answer.cursors), waited >= 0.2)


class Broken(Feed):
    """A feed that fails after its first block."""

    partitions = 1

    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str]
    ) -> Iterator[Block]:
        if asked[0] == "gone":
            raise Problem(problems.CURSOR_GONE, "removed", partition=0, cursor="gone", oldest="17")
        yield Block(0, (wire.event_line(0, {}, b'"%s"' % (b"x" * 300_000)) + b"\n"), "1")
        raise OSError("the disk is gone")

    def version(self) -> object:
        return 0


def test_fault_after_the_first_bytes_breaks_the_body(caplog: pytest.LogCaptureFixture) -> None:
    """A page that could not be finished never looks finished; the log says why."""
    with caplog.at_level(logging.ERROR), running_publisher({"broken": Broken()}) as base:
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            requests.get(f"{base}/broken?n=1&cursor0=x", timeout=30)
    assert "the answer of feed 'broken' is aborted: the disk is gone" in caplog.messages


def test_any_object_with_the_interface_is_a_feed() -> None:
    """My service serves its own table, problems included."""
    with running_publisher({"deep/name": Broken()}) as base:
        answer = requests.get(f"{base}/deep/name?n=1&cursor0=gone", timeout=30)
        described = requests.get(f"{base}/openapi.json", timeout=30).json()
    own = {"/", "/openapi.json", "/healthz", "/readyz", "/metrics"}
    assert {"/{feed}", *own} == described["paths"].keys()
    assert (410, "urn:zeroeventhub:problem:cursor-gone") == (
        answer.status_code,
        answer.json()["type"],
    )


def test_writers_that_wait_keep_no_reader_out(publisher: Publisher) -> None:
    """Somebody holds the store's write lock; who keeps cursors waits, who only reads does not."""
    publisher.publish("a", partition=0)
    path = publisher.store_url.removeprefix("sqlite:///")
    keep = f"{publisher.base}/orders?n=2&cursor0=_first&cursorset=job"
    with ThreadPoolExecutor(12) as pool, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = [pool.submit(requests.get, keep, timeout=60) for _ in range(12)]
        answers = [publisher.get(FIRST).data for _ in range(20)]
        assert not any(each.done() for each in waiting)
        other.rollback()
        assert [200] * 12 == [each.result().status_code for each in waiting]
    assert [["a"]] * 20 == answers
