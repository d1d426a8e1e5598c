"""Each row of a direct read is there once when Spark makes several attempts at a task."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from tests.fix_raw_server import ok
from tests.fix_relay import TYPE, parts_of, without_last_chunk
from tests.fix_spark import Table, check_killed, run_program
from tests.scratch_store import ScratchStore
from tests.standalone import why_not_apart
from zeh_spark.protocol import direct_reads as wire
from zeh_spark.testing import publish, running_publisher

pytestmark = [pytest.mark.slow, pytest.mark.spark]

EVENTS, HALF = 800, 400
"""Events of each of the four partitions, about 0.8 MiB; half of the rows of a task."""

NUMBERS = Counter(range(4 * EVENTS))
READS = ["batch", "stream"]


@pytest.fixture
def orders(relay):
    """Serve a feed through a relay. Its four partitions are read by two tasks."""
    with closing(ScratchStore()) as store:
        store.create("orders", 4)
        for partition in range(4):
            numbers = range(partition * EVENTS, (partition + 1) * EVENTS)
            publish(
                store, "orders", [{"i": i, "x": "x" * 1000} for i in numbers], partition=partition
            )
        with running_publisher(store) as base:
            relay.base = base
            yield relay


@pytest.fixture
def read(orders, tmp_path):
    """Return a function that reads the feed, with attempts that fail or hang; it returns the folder
    of the results.
    """

    def run(*, options=(), **job):
        given = {"url": orders.url, "fetch": "executors", "minPartitions": "2", **dict(options)}
        job = {"options": given, "folder": str(tmp_path), "read": READS, "half": HALF, **job}
        check_killed(run_program("read_by_attempts.py", job), killed=False)
        return tmp_path

    return run


def numbers(folder, name):
    """Return how often each event is in the table of a read."""
    return Table(folder / name / "table").numbers()


def passed(folder, name):
    """Return how many rows each attempt (task, attempt) has passed on."""
    signs = (folder / name / "signs").iterdir()
    counts = {each.name: int(each.read_text()) for each in signs if each.suffix != ".all"}
    return {tuple(map(int, key.split("."))): count for key, count in counts.items()}


def test_a_task_that_fails_twice_half_way_gives_its_rows_once(orders, read):
    """Each row is there once, in a batch and in a stream, although two attempts failed.

    The first one lost its connection for longer than `retryTimeout`. In the second one, the user's
    code raised an error.
    """
    cut = Counter()

    def change(asked: wire.ChunksRequest, body: bytes):
        cut[asked.ranges[0]] += 1
        if cut[asked.ranges[0]] % 3 == 1:  # the first attempt of each read
            return without_last_chunk(body, parts_of(body)[2].tables)  # in its second range
        return ok(body, **TYPE)

    orders.change = change
    options = {"retryTimeout": "1ms", "minPartitions": "1"}
    folder = read(trouble="fails", master="local[2,3]", options=options)

    for name in READS:
        assert NUMBERS == numbers(folder, name)
        found = passed(folder, name)
        assert found.get((0, 0), 0) <= EVENTS  # it had come; whether it was passed on is Spark's
        assert HALF <= found[0, 1] < 4 * EVENTS
        assert 4 * EVENTS == found[0, 2]
    assert [3 * len(READS)] == [*cut.values()]


@pytest.mark.skipif(why_not_apart() is not None, reason=f"no {why_not_apart()}")
def test_two_attempts_at_one_task_at_a_time_give_its_rows_once(cluster, orders, read):
    """Each row is there once although Spark starts a second attempt while the first one hangs."""
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "10ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1",
    }

    folder = read(trouble="hangs", master=cluster, conf=conf, read=["stream"])

    assert NUMBERS == numbers(folder, "stream")
    found = passed(folder, "stream")
    assert 2 * EVENTS == found[0, 1]
    assert 0 < found[0, 0]
    asked = Counter(each.ranges[0].partition for each in orders.asked)
    assert {0: 2, 2: 1} == asked
