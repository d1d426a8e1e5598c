"""How much a request for chunks may ask for: more is refused by name, and tasks ask for less."""

import json
from contextlib import closing

import pytest
import requests

from tests.scratch_store import ScratchStore
from zeh_spark.client.http import direct_client
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.service.reads import direct_plans, direct_reads
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire import direct_reads as wire

RANGES, BYTES = 10_000, 8 << 20
"""The limits that the description of the API names."""


@pytest.fixture(scope="module")
def feed():
    """A publisher's address, and a range of one event."""
    with closing(ScratchStore(orders=1)) as store:
        publish(store, "orders", [1])
        plan = direct_plans.plan(store, "orders", wire.PlanRequest(1, {"0": "_first"}))[1]
        with running_publisher(store) as base:
            yield base, plan.ranges[0]


def ask(feed, what, body):
    return requests.post(f"{feed[0]}/orders/{what}", data=body, timeout=30)


def chunks_body(feed, count):
    """A request for chunks of so many ranges."""
    each = {"partition": 0, "from": feed[1].from_, "to": feed[1].to}
    return json.dumps({"n": 1, "ranges": [each] * count}).encode()


@pytest.mark.parametrize("count", [19, 20])
def test_as_many_ranges_as_are_allowed_are_sent(feed, monkeypatch, count):
    """One less than the limit, and the limit; here it is low, because a range takes its time."""
    monkeypatch.setattr(direct_reads, "MAX_RANGES", 20)
    answer = ask(feed, "chunks", chunks_body(feed, count))
    assert 200 == answer.status_code
    ends = [part for part in wire.parse_answer([answer.content]) if isinstance(part, wire.RangeEnd)]
    assert [*range(count)] == [each.range for each in ends]


@pytest.mark.parametrize(
    ("count", "remedy"), [(0, ""), (RANGES + 1, ". Ask for the others in another request")]
)
def test_another_number_of_ranges_is_refused_by_name(feed, count, remedy):
    """An own client learns how many it may ask for, and what to do with the others."""
    answer = ask(feed, "chunks", chunks_body(feed, count))
    problem = answer.json()
    assert (400, "urn:zeroeventhub:problem:bad-ranges") == (answer.status_code, problem["type"])
    assert f"there are {count} ranges; allowed are 1 to {RANGES}{remedy}" == problem["detail"]


@pytest.mark.parametrize("what", ["chunks", "plan"])
def test_a_larger_body_is_refused_by_name(feed, what):
    """It is refused by its length, before it is read, and the problem says the limit."""
    body = json.dumps({"n": 1, "cursors": {"0": "_first"}}).encode()
    if what == "chunks":
        body = chunks_body(feed, 1)
    assert 200 == ask(feed, what, body.ljust(BYTES)).status_code
    answer = ask(feed, what, body.ljust(BYTES + 1))
    problem = answer.json()
    assert (413, BYTES) == (answer.status_code, problem["maximum"])
    assert "urn:zeroeventhub:problem:body-too-large" == problem["type"]


def test_a_task_of_more_ranges_than_are_allowed_asks_for_fewer_at_a_time(relay):
    """However many small ranges a task has, it gets each chunk once, and is not refused."""
    count = RANGES + 1
    with closing(ScratchStore(orders=3)) as store:
        for partition in range(3):
            publish(store, "orders", [partition], partition=partition)
        first = {str(each): "_first" for each in range(count)}
        plan = direct_plans.plan(store, "orders", wire.PlanRequest(count, first))[1]
        by_partition = {each.partition: each for each in plan.ranges}
        nothing = wire.Totals().hex
        ranges = [
            by_partition.get(each)
            or wire.PlannedRange(each, plan.ends[str(each)], plan.ends[str(each)], digest=nothing)
            for each in range(count)
        ]
        with running_publisher(store) as relay.base:
            transport = Transport(parse(ClientOptions, {"url": relay.url}))
            found = list(direct_client.fetch(transport, count, ranges))
    asked = [len(each.ranges) for each in relay.asked]
    assert [0, 1, 2] == [each.partition for each in found]
    assert count == sum(asked)
    assert max(asked) <= RANGES
