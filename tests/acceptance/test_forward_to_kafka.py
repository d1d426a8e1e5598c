"""A feed in a Kafka topic (002: "forwarding to Event Hubs"), on a real broker."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from benchmarks import kafka
from tests.fix_spark import check_killed, run_program
from zeh_spark.publish import Producer


@pytest.mark.campaign
@pytest.mark.skipif(not shutil.which("mvn"), reason="Maven, which fetches Kafka, is not installed")
def test_a_feed_is_in_a_topic_in_order_per_key_and_doubles_can_be_dropped(publisher, tmp_path):
    """A crash repeats a batch; consumers recognize it by the headers."""
    keys = [f"order {n}" for n in range(7)]
    with Producer(publisher.url, "shop").batch() as batch:
        for n in range(70):
            data = {"n": n, "long": "x" * 60_000}  # a feed partition is read by several tasks
            batch.add(data, key=keys[n % 7], headers={"order": keys[n % 7]})

    jars = kafka.connector_jars()
    with kafka.broker(tmp_path) as address:
        job = {"url": publisher.url, "broker": address, "jars": jars, "folder": str(tmp_path)}
        done = run_program("forward_to_kafka.py", job)
    check_killed(done, killed=False)
    found = json.loads(done.stdout.splitlines()[-1])

    for key in keys:
        expected = [n for n in range(70) if keys[n % 7] == key]
        assert expected + expected == [n for name, n in found["all"] if name == key]
    once = Counter((name, n) for name, n in found["once"])
    assert {(keys[n % 7], n): 1 for n in range(70)} == once
