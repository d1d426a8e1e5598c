"""Several attempts at one task, which Spark makes after failures and by speculation: an attempt
depends on its partition alone, and on nothing that another one, or one publisher, has done.
"""

import sqlite3
from contextlib import closing
from functools import partial
from itertools import zip_longest

import pytest

from tests.fix_batch import batch_reader, rows_of
from tests.fix_publisher import open_feeds
from tests.fix_raw_server import ok
from tests.fix_relay import TYPE, parts_of
from zeh_spark.testing import publish, running_publisher

ROWS = [(partition, number) for partition in range(4) for number in range(100)]


@pytest.fixture
def twins(relay, tmp_path):
    """`twins()` begins another attempt at one task; the store; the relay that they read through."""
    with open_feeds(tmp_path / "feed.db", orders=4) as store:
        for partition in range(4):
            publish(store, "orders", list(range(100)), partition=partition)
        with running_publisher(store) as base:
            relay.base = base
            reader = batch_reader(relay.url, fetch="executors")
            (task,) = reader.partitions()
            yield partial(rows_of, reader, [task]), store, relay


def contents(tmp_path):
    with closing(sqlite3.connect(tmp_path / "feed.db")) as database:
        return list(database.iterdump())


def test_two_attempts_at_a_time_give_the_same_rows_and_leave_nothing(twins, tmp_path):
    """Row by row in turns: both get all, in one order, and the publisher keeps nothing of them."""
    attempt, _, relay = twins
    before = contents(tmp_path)
    pairs = list(zip_longest(attempt(), attempt()))
    assert [(row, row) for row in ROWS] == pairs
    first, second = relay.asked
    assert first == second
    assert before == contents(tmp_path)


@pytest.mark.parametrize("rows", [0, 1, 150, 400])
def test_an_attempt_that_is_stopped_changes_nothing_for_the_other(twins, rows):
    """Spark kills the attempt that is late, wherever it is."""
    attempt, _, _ = twins
    late, other = attempt(), attempt()
    assert ROWS[:rows] == [next(late) for _ in range(rows)]
    assert ROWS[:50] == [next(other) for _ in range(50)]
    late.close()
    assert ROWS[50:] == list(other)
    assert ROWS == list(attempt())


def test_events_that_come_between_two_attempts_are_in_neither(twins):
    """The feed grows while the first attempt is half way; the second one gives the same rows."""
    attempt, store, _ = twins
    first = attempt()
    assert ROWS[:50] == [next(first) for _ in range(50)]
    publish(store, "orders", list(range(100, 200)), partition=3)
    assert ROWS == list(attempt())
    assert ROWS[50:] == list(first)


def test_another_process_of_the_publisher_continues_an_answer(twins):
    """A load balancer, or a restart, may send the rest of my task to another instance."""
    attempt, store, relay = twins

    def broken(asked, body):
        end = parts_of(body)[2].end  # the first range, and the group of the second
        relay.change = lambda asked, body: ok(body, **TYPE)
        return ok(body[:end], **TYPE)

    relay.change = broken
    run = attempt()
    assert ROWS[:1] == [next(run)]
    with running_publisher(store) as relay.base:
        assert ROWS[1:] == list(run)
    assert [4, 3] == [len(each.ranges) for each in relay.asked]
