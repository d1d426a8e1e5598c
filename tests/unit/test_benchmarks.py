"""The arithmetic of the benchmarks."""

import subprocess
import sys
from pathlib import Path

from benchmarks import cpu, feeds
from benchmarks.cpu import Cost, Seen
from tests.cases import each_case
from zeh_spark.publisher import open_store
from zeh_spark.service.reads.feed import ChunkFeed


def test_the_parts_are_listed():
    """`python -m benchmarks --help` loads all of them."""
    command = [sys.executable, "-m", "benchmarks", "--help"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "throughput" in listed
    assert "backfill" in listed


def test_cpu_time_is_counted_by_part():
    """I see what the JVM takes and what Python takes; processes that have ended are not lost."""
    seen = [
        Seen(1, 0, java=False, own=1, ended=0),  # the program
        Seen(2, 1, java=True, own=10, ended=5),  # its JVM, which has waited for a reader
        Seen(3, 2, java=False, own=2, ended=0.5),  # a daemon, which has waited for a worker
        Seen(4, 3, java=False, own=4, ended=0),
        Seen(9, 0, java=False, own=7, ended=1),  # the publisher
        Seen(99, 0, java=True, own=1000, ended=1000),  # somebody else's
    ]
    assert {
        "driver: program": 1,
        "driver: JVM": 10,
        "driver: Python": 11.5,
        "publisher": 8,
    } == cpu.by_part(seen, {"driver": [1], "publisher": [9]})


@each_case(
    ("small", "large", "events", "expected"),
    [
        # starting a query does not look like a cost of events
        ({"a": 3.0, "b": 1.0}, {"a": 5.0, "b": 1.0, "new": 1.0}, (1_000_000, 2_000_000),
         {"a": Cost(2.0, 1.0), "b": Cost(0.0, 1.0), "new": Cost(1.0, 0.0)}),
        # noise gives no negative costs
        ({"a": 3.0}, {"a": 2.5}, (1, 2), {"a": Cost(0.0, 3.0)}),
    ],
)  # fmt: skip
def test_a_run_s_own_cost_is_no_cost_of_its_events(small, large, events, expected):
    assert expected == cpu.costs(small, large, events)


def test_cpu_time_between_two_looks_counts_new_parts():
    """A part that began meanwhile is counted from nothing."""
    assert {"a": 1.0, "b": 4.0} == cpu.spent({"a": 2.0}, {"a": 3.0, "b": 4.0})


def test_a_feed_that_was_filled_row_by_row_reads_like_any_other(tmp_path: Path):
    """Cursors of its chunks are taken, and lead on to its events."""
    chunks = [feeds.filling(each % 2, [each, each + 1]) for each in range(5)]
    store = open_store(feeds.fill(tmp_path, "filled", 2, chunks))
    feed = ChunkFeed(store, "flights")

    first = list(feed.page({0: "_first", 1: "_first"}, 2, 3))
    rest = list(feed.page({each.partition: each.cursor for each in first}, 2, 100))
    store.close()

    assert [2, 2, 2, 2, 2] == [each.lines.count(b"\n") for each in first + rest]
    assert [0, 0, 2, 2, 4] == [each.sequence for each in first + rest]


@each_case("events", [4000, 150_000])
def test_flights_are_as_many_as_were_asked_for(events: int):
    """A large feed is made of the same chunks again and again."""
    made = list(feeds.flights(events))

    assert events == sum(each.events for each in made)
    assert set(range(feeds.PARTITIONS)) == {each.partition for each in made}
