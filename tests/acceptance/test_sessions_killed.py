"""Sessions that are put in order, and processed, in a driver that is killed."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.fix_killed import run_until_killed
from tests.fix_lake import why_absent
from tests.fix_sessions import needs_batches, rows_of
from tests.programs.several_queries import PLACES, run
from zeh_spark.publish import Producer

pytest.importorskip("delta", reason=why_absent())
pytest.importorskip("google.protobuf", reason="protobuf is not installed")

DEATHS = [
    {"order": "0 ordered", "process": "handler"},
    {"order": "2 dead", "process": "0 written"},
]


@pytest.mark.kill
@pytest.mark.slow
@needs_batches
def test_nothing_is_lost_or_doubled_when_the_driver_is_killed(orders, spark, tmp_path):
    """Two queries, of which one puts sessions in order and one processes them. The driver dies
    after the first writer and within a handler; then after both writers and after the commit of
    the verdicts, before Spark has committed these batches. A task's process is killed, too.
    """
    places = {
        kind: tuple(each[kind].split()[-1] for each in DEATHS) for kind in ("order", "process")
    }
    assert places == {kind: PLACES[kind] for kind in places}
    url = orders.create("line", 1)
    present = add_shuffled(replace(orders, url=url, producer=Producer(url, "shop")))
    orders.add(*(("a", step) for step in range(4)), *(("b", step) for step in range(4)))
    calls, table = tmp_path / "calls", str(tmp_path / "processed")
    ordering = {"kind": "order", "url": url, "limit": "1", "tables": str(tmp_path)}
    processing = {"kind": "process", "url": orders.url, "table": table, "calls": str(calls)}
    processing["master"] = "local[8,4]"  # the task of a killed process is tried again
    jobs = [{**each, "checkpoint": str(tmp_path / each["kind"])} for each in (ordering, processing)]

    for lost, deaths in zip((None, "worker"), DEATHS, strict=True):
        killed = [{**job, "place": deaths[job["kind"]], "lost": lost} for job in jobs]
        run_until_killed(tmp_path, killed)
    orders.add(*(("c", step) for step in range(4)))
    for job in jobs:
        run(spark, job)

    check_in_order(present, rows_of(tmp_path, "ordered"), rows_of(tmp_path, "dead"))
    columns = ("session", "number", "status", "attempt", "result")
    rows = spark.read.format("delta").load(table).select(*columns).collect()
    assert sorted(map(tuple, rows)) == [
        (order, step, "ok", 1, f"{order}{step}") for order in "abc" for step in range(4)
    ]
    called = [line.split() for line in calls.read_text().splitlines()]
    times = Counter((order, int(step)) for order, step, _, _ in called)
    assert [1] * 4 == [times["c", step] for step in range(4)]
    assert max(times["a", 2], times["b", 2]) >= 2
    began = [order for order, *_ in called].index("c")
    assert {"c"} == {order for order, *_ in called[began:]}  # what was committed is not called
    assert 12 == len({key for *_, key in called})
    assert {"1"} == {attempt for _, _, attempt, _ in called}


def add_shuffled(line):
    """Steps to a feed of one partition, of which two are missing; returns the others."""
    chance = random.Random(3)
    steps = [(f"s{session}", step) for session in range(6) for step in range(10)]
    chance.shuffle(steps)
    present = [each for each in steps if each not in {("s2", 4), ("s5", 0)}]
    for begin in range(0, len(present), 20):
        line.add(*present[begin : begin + 20], at=begin)
    line.add(("end", 0), at=10_000)
    line.add(("end", 1), at=10_001)
    return present


def check_in_order(present, ordered, dead):
    assert Counter(present) == Counter(each for each in ordered + dead if each[0] != "end")
    for session in range(6):
        found = [step for name, step in ordered if name == f"s{session}"]
        whole = {2: [0, 1, 2, 3], 5: []}.get(session, list(range(10)))
        assert whole == found
