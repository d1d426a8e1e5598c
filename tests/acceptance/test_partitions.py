"""A feed is divided among queries, and brought together again: each event comes once."""

import json
from collections import Counter

import pytest

from tests.cases import each_case
from tests.fix_cli import call, checkpoint
from tests.fix_killed import into_files, run_to_the_end, run_until_killed
from tests.fix_publisher import open_feeds
from tests.fix_spark import Table
from zeh_spark.testing import publish, running_publisher

HALVES = {"0-1": "executors", "2-3": "driver"}


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.spark
def test_a_query_is_split_and_merged_without_a_loss(tmp_path):
    """ZE-10: one stream becomes two, whose driver is killed twice, and then one again, by the
    cursors that a command prints. It refuses while a batch is pending.
    """
    with open_feeds(tmp_path / "orders.db", orders=4) as store, running_publisher(store) as base:
        url, sent = f"{base}/orders", 0

        def add():
            nonlocal sent
            for each in range(sent, sent + 300, 10):
                publish(store, "orders", [{"i": i} for i in range(each, each + 10)])
            sent += 300

        def job(name, **options):
            return into_files(tmp_path / name, url, maxEventsPerTrigger="60", **options)

        def cursors(names, *words):
            return call("cursors", *(str(tmp_path / each / "checkpoint") for each in names), *words)

        add()
        run_to_the_end(tmp_path, [job("whole")])
        split = cursors(["whole"], *(word for half in HALVES for word in ("--partitions", half)))
        jobs = {
            half: job(half, partitions=half, fetch=fetch, startingCursors=starts)
            for (half, fetch), starts in zip(HALVES.items(), split.stdout.splitlines(), strict=True)
        }
        for places in (("0 planned", "0 tasks"), ("1 written", "1 planned")):
            add()
            killed = zip(jobs.values(), places, strict=True)
            run_until_killed(tmp_path, ({**each, "place": place} for each, place in killed))
            pending = cursors(HALVES)
            assert "was planned, and is not committed. Start the query" in pending.stderr
        run_to_the_end(tmp_path, jobs.values())
        add()
        merged = cursors(HALVES)
        run_to_the_end(tmp_path, [job("merged", startingCursors=merged.stdout)])

    found = {each: Table(tmp_path / each / "table").rows() for each in ("whole", *HALVES, "merged")}
    assert Counter(json.loads(data)["i"] for rows in found.values() for _, data in rows) == Counter(
        range(sent)
    )
    assert [{0, 1}, {2, 3}] == [{partition for partition, _ in found[half]} for half in HALVES]
    assert 300 == len(found["whole"]) == len(found["merged"])


@pytest.fixture
def checkpoints(tmp_path):
    checkpoint(tmp_path / "whole", range(4))
    checkpoint(tmp_path / "low", (0, 1))
    checkpoint(tmp_path / "high", (2, 3))
    checkpoint(tmp_path / "middle", (1, 2))
    checkpoint(tmp_path / "pending", (2, 3), planned=4)
    checkpoint(tmp_path / "other", (2, 3), feed="http://h/bills")
    checkpoint(tmp_path / "moved", (2, 3), id="9f86")
    checkpoint(tmp_path / "larger", (2, 3), n=8)
    return tmp_path


@each_case(
    ("words", "starts"),
    [
        ("whole", [range(4)]),
        ("low high", [range(4)]),
        ("high low --partitions 0-2 --partitions 3", [range(3), [3]]),
        ("low --partitions 1 --partitions 0", [[1], [0]]),
    ],
)
def test_the_cursors_of_new_queries_are_printed(checkpoints, words, starts):
    """A line for each, as the option startingCursors takes it; programs get the partitions, too."""
    expected = [{str(each): f"{each}.x" for each in start} for start in starts]

    shown = call("cursors", *words.split(), folder=checkpoints)
    document = json.loads(call("cursors", *words.split(), "--json", folder=checkpoints).stdout)

    assert expected == [json.loads(line) for line in shown.stdout.splitlines()], shown.stderr
    assert ("http://h/orders", 4) == (document["feed"], document["partitionCount"])
    assert expected == [each["startingCursors"] for each in document["queries"]]


@each_case(
    ("words", "code", "said"),
    [
        ("low", 1, "have the partitions 0-1 of 4, and the new queries 0-3"),
        ("low high --partitions 0-2", 1, "partitions 0-3 of 4, and the new queries 0-2"),
        ("low high --partitions 0-2 --partitions 2-3", 1, "and the new queries 0-2,2-3"),
        ("low middle", 1, "partition 1 is in middle, and in another of the checkpoints"),
        ("low pending", 1, "batch 4 of pending was planned, and is not committed. Start the query"),
        ("low other", 1, "reads 'http://h/orders' (5f0c) in 4 partitions, and other reads"),
        ("low moved", 1, "Give checkpoints of one feed"),
        ("low larger", 1, "in 8. Give checkpoints of one feed"),
        ("low nowhere", 1, "nowhere is no checkpoint that can be read here"),
        ("low --feed http://h/bills", 1, "low has no committed offsets of 'http://h/bills'"),
        ("low --partitions 1-0", 2, "--partitions must be partitions and ranges of them"),
        ("", 2, "Missing argument 'CHECKPOINT...'"),
    ],
)
def test_cursors_that_would_lose_or_double_events_are_refused(checkpoints, words, code, said):
    """I see what is wrong, with the values, before a query is started."""
    done = call("cursors", *words.split(), folder=checkpoints)

    assert (code, "") == (done.returncode, done.stdout)
    assert said in done.stderr
