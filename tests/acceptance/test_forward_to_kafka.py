"""A feed in a Kafka topic (002: "forwarding to Event Hubs"), on a real broker."""

import json
from collections import Counter

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from benchmarks import kafka
from tests.fix_spark import run_program
from zeh_spark.publish import Producer


def not_above_the_highest(records, *, by_kafka_partition):
    """The rule of the guide for consumers without Spark: the events that it passes."""
    highest, passed = {}, []
    for kafka_partition, *stored, sequence, n in records:
        place = (kafka_partition if by_kafka_partition else None, *stored)
        if int(sequence) > highest.get(place, -1):
            highest[place] = int(sequence)
            passed.append(n)
    return sorted(passed)


@pytest.fixture(scope="module")  # one process runs both tests, so that the jars are fetched once
def jars():
    return kafka.connector_jars()


@pytest.mark.slow
@pytest.mark.skipif(kafka.why_absent() is not None, reason=str(kafka.why_absent()))
@pytest.mark.parametrize("tasks", [1, 3])
def test_a_feed_is_in_a_topic_in_order_per_key_and_doubles_can_be_dropped(
    publisher, tmp_path, jars, tasks
):
    """A crash repeats a batch; consumers recognize it by the headers, in each Kafka partition for
    itself, because the keys of a feed partition are in several. One task or several write. [ZE-12]
    """
    keys = [f"order {n}" for n in range(7)]
    with Producer(publisher.url, "shop").batch() as batch:
        for n in range(70):
            data = {"n": n, "long": "x" * 60_000}  # a feed partition is read by several tasks
            batch.add(data, key=keys[n % 7], headers={"order": keys[n % 7]})

    with kafka.broker(tmp_path) as (address, _):
        job = {"url": publisher.url, "broker": address, "jars": jars, "folder": str(tmp_path)}
        job["tasks"] = tasks
        done = run_program("forward_to_kafka.py", job)
    found = json.loads(done.stdout.splitlines()[-1])

    for key in keys:
        expected = [n for n in range(70) if keys[n % 7] == key]
        assert expected + expected == [n for name, n in found["all"] if name == key]
    once = Counter((name, n) for name, n in found["once"])
    assert {(keys[n % 7], n): 1 for n in range(70)} == once
    assert 140 == len(found["records"])
    assert list(range(70)) == not_above_the_highest(found["records"], by_kafka_partition=True)
    assert 70 > len(not_above_the_highest(found["records"], by_kafka_partition=False))
