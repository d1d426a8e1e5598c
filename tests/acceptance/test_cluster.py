"""Source and sink on a standalone cluster: a master and two workers, each a process of its own."""

from __future__ import annotations

import base64
import os
from collections import Counter

import pytest

from tests.fix_killed import into_files, run_to_the_end, run_until_killed
from tests.fix_lake import why_absent
from tests.fix_publisher import open_feeds
from tests.fix_raw_server import NO_IDENTITY, ok
from tests.fix_relay import TYPE, parts_of, without_last_chunk
from tests.fix_sink import CALLS, UPLOADING
from tests.fix_spark import Table, run_program
from tests.standalone import why_not_apart
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire import direct_reads, wire

pytestmark = pytest.mark.slow


@pytest.mark.kill
def test_a_cluster_reads_each_event_once_through_a_crash(cluster, tmp_path, publisher, raw_server):
    """Executors in other processes read what was planned or fetched; a killed driver continues.

    A batch of 200 MiB, 150 when compressed, has one cursor, so it cannot be two: no task of it
    comes near Spark's limit of 128 MiB.
    """
    for begin in range(0, 1000, 100):
        publisher.publish(*({"i": i} for i in range(begin, begin + 100)))
    lines = [wire.event_line(0, {}, b'{"i":%d,"x":"%s"}' % (i, noise())) for i in range(4000)]
    nothing = wire.checkpoint_line(0, "end") + b"\n"
    everything = b"\n".join([*lines, nothing])
    raw_server.discovery = NO_IDENTITY
    raw_server.respond = lambda request: ok(
        everything if request.query["cursor0"] == "_first" else nothing
    )
    small = into_files(tmp_path / "killed", publisher.url, maxEventsPerTrigger="400")
    large = {"partitionCount": "1", "maxBytesPerTrigger": "400m"}
    jobs = [small, into_files(tmp_path / "large", raw_server.url, **large)]
    jobs = [{**each, "master": cluster} for each in jobs]

    run_until_killed(tmp_path, [{**jobs[0], "place": "1 tasks"}])
    run_to_the_end(tmp_path, jobs)

    assert Table(tmp_path / "killed/table").numbers() == Counter(range(1000))
    table = Table(tmp_path / "large/table")
    assert ["batch=0"] == [each.name for each in table.folder.glob("batch=*")]
    assert table.numbers() == Counter(range(4000))
    assert "exceeds max allowed" not in (tmp_path / "driver.log").read_text()


@pytest.mark.kill
def test_a_cluster_publishes_each_row_once_through_a_crash(
    cluster, sink, inbox, spark, program, tmp_path
):
    """F1, F4, F10: each task spreads its rows over all partitions; a task fails when it has
    uploaded a part, and is repeated; the driver is killed after a commit, and the query continues
    elsewhere, in other tasks.
    """
    inbox.add(range(20_000), range(20_000, 21_000), range(21_000, 22_000), pad=200)
    conf = {"spark.speculation": "true", "spark.speculation.interval": "10ms"}
    conf["spark.sql.execution.arrow.maxRecordsPerBatch"] = "1000"
    uploaded, gateway = tmp_path / "uploaded", sink.target.gateway
    gateway.once("PUT .*/batches/0/.*[.]0[.][0-9]+[.]0$", after=uploaded.touch)
    driver = program(
        sink.target.url, master=cluster, tasks=4, conf=conf, clumsy=str(uploaded),
        options=UPLOADING,
    )  # fmt: skip

    driver.run_until_killed(gateway, [(CALLS["commit"], "after")])
    sink.run(inbox.rows(spark))

    sink.target.check_once(range(22_000))
    assert sink.target.batches() == [0, 1, 2]
    assert all(gateway.attempts(task) for task in range(4))
    assert len(gateway.attempts(task=0)) > 1


@pytest.mark.campaign
@pytest.mark.kill
def test_sessions_are_processed_once_though_an_executor_is_lost(cluster, orders, spark, tmp_path):
    """Its JVM is killed in a handler; the batch is processed elsewhere, and is there once."""
    pytest.importorskip("delta", reason=why_absent())
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    calls, table = tmp_path / "calls", str(tmp_path / "processed")
    orders.add(*((order, step) for order in "abcd" for step in range(4)))
    job = {"url": orders.url, "checkpoint": str(orders.checkpoint), "table": table}
    job = {**job, "kind": "process", "calls": str(calls), "lost": "executor", "master": cluster}

    run_to_the_end(tmp_path, [job])

    rows = spark.read.format("delta").load(table).select("session", "number", "status", "attempt")
    assert sorted(map(tuple, rows.collect())) == [
        (order, step, "ok", 1) for order in "abcd" for step in range(4)
    ]
    called = [line.split() for line in calls.read_text().splitlines()]
    assert 16 == len({key for *_, key in called})
    assert len(called) > 16


EVENTS, HALF = 800, 400
"""Events of each of the four partitions, about 0.8 MiB; half of the rows of a task."""


def test_a_direct_read_gives_its_rows_once_whatever_attempts_a_task_has(cluster, relay, tmp_path):
    """A batch and a stream read each row exactly once if two attempts fail. The first attempt loses
    its connection for longer than `retryTimeout`; in the second one the user's code raises an
    error. The same holds if Spark starts a second attempt while the first one hangs.
    """
    cut = Counter()

    def change(asked: direct_reads.ChunksRequest, body: bytes):
        cut[len(asked.ranges)] += 1
        if len(asked.ranges) == 4 and cut[4] % 3 == 1:  # the first attempt of each read
            return without_last_chunk(body, parts_of(body)[2].tables)  # in its second range
        return ok(body, **TYPE)

    relay.change = change
    options = {"url": relay.url, "fetch": "executors"}
    fails = {
        "options": {**options, "minPartitions": "1", "retryTimeout": "1ms"},
        "trouble": "fails",
    }
    hangs = {"options": {**options, "minPartitions": "2"}, "trouble": "hangs"}
    reads = {"batch": {**fails, "stream": False}, "stream": {**fails, "stream": True}}
    if why_not_apart() is None:
        reads["hangs"] = {**hangs, "stream": True}
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "10ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1",
    }
    job = {"reads": reads, "folder": str(tmp_path), "half": HALF, "master": cluster, "conf": conf}
    with open_feeds(tmp_path / "orders.db", orders=4) as store:
        for partition in range(4):
            numbers = range(partition * EVENTS, (partition + 1) * EVENTS)
            events = [{"i": i, "x": "x" * 1000} for i in numbers]
            publish(store, "orders", events, partition=partition)
        with running_publisher(store) as relay.base:
            run_program("read_by_attempts.py", job)

    for name in reads:
        assert Counter(range(4 * EVENTS)) == Table(tmp_path / name / "table").numbers(), name
    for name in ("batch", "stream"):
        found = passed(tmp_path / name)
        assert found.get((0, 0), 0) <= EVENTS  # it had come; whether it was passed on is Spark's
        assert HALF <= found[0, 1] < 4 * EVENTS
        assert 4 * EVENTS == found[0, 2]
    assert 6 == cut[4]
    if "hangs" in reads:
        found = passed(tmp_path / "hangs")
        assert 2 * EVENTS == found[0, 1]
        assert 0 < found[0, 0]
        two = Counter(each.ranges[0].partition for each in relay.asked if len(each.ranges) == 2)
        assert {0: 2, 2: 1} == two


def passed(folder):
    """Return how many rows each attempt (task, attempt) has passed on."""
    signs = (each for each in (folder / "signs").iterdir() if each.suffix != ".all")
    return {tuple(map(int, each.name.split("."))): int(each.read_text()) for each in signs}


def noise() -> bytes:
    """40,000 random bytes, as text that is a third longer and cannot be compressed below them."""
    return base64.b64encode(os.urandom(40_000))
