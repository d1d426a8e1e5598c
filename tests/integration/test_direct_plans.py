"""Plans of streams: when they are asked for, and when their answers count."""

from __future__ import annotations

import json
import threading
from contextlib import closing

import pytest
from starlette.responses import PlainTextResponse

from tests.fix_raw_server import ok, refused
from tests.fix_stream import wait_for
from tests.scratch_store import ScratchStore
from zeh_spark.client import direct_client
from zeh_spark.client.transport import Transport
from zeh_spark.decoding.lines import Decoder
from zeh_spark.errors import CursorGoneError, OptionError, PublisherError
from zeh_spark.options.client_options import ClientOptions
from zeh_spark.options.given import parse
from zeh_spark.protocol.direct_reads import PlanRequest
from zeh_spark.publisher import create_app
from zeh_spark.retention.rules import prune
from zeh_spark.source.batch import BatchReader
from zeh_spark.source.options import SourceOptions
from zeh_spark.store.interface import Retention
from zeh_spark.testing import publish, running_publisher


class SlowStore(ScratchStore):
    """A store that takes a while to make a plan."""

    def scan(self, *args):
        threading.Event().wait(0.2)
        return super().scan(*args)


@pytest.mark.parametrize("wait", ["0", "5s"])
def test_a_slow_plan_does_not_leave_events_to_the_next_trigger(start, wait):
    """With a trigger each hour, an event that is there comes in this hour."""
    with closing(SlowStore()) as store:
        store.create("orders", 1)
        publish(store, "orders", [0])
        with running_publisher(store) as base:
            run = start(url=f"{base}/orders", fetch="executors", wait=wait)
            assert {0: [0]} == run.next()
            assert run.next() is None
            plans = run.reader.reportLatestOffset()["plans"]
            publish(store, "orders", [1])
            if wait != "0":  # the plan that waited was answered long before the trigger
                wait_for(lambda: run.reader.reportLatestOffset()["plans"] > plans)

            assert {0: [1]} == run.next()


def test_the_largest_limits_are_no_limits(start):
    """Jobs write the largest LONG for "no limit"."""
    with closing(ScratchStore()) as store:
        store.create("orders", 1)
        publish(store, "orders", [0, 1])
        limits = {"maxEventsPerTrigger": str(2**63 - 1), "maxBytesPerTrigger": "1000000t"}
        with running_publisher(store) as base:
            run = start(url=f"{base}/orders", fetch="executors", **limits)

            assert {0: [0, 1]} == run.next()


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_publisher_without_plans_is_named_at_once(raw_server, status):
    """After an upgrade was undone I am told what to set, and do not wait for retries."""
    raw_server.respond = lambda request: refused(status, "no such thing")
    transport = Transport(parse(ClientOptions, {"url": raw_server.url, "retryTimeout": "1h"}))

    with pytest.raises(PublisherError, match="fetch=driver") as caught:
        direct_client.plan(transport, PlanRequest(1, {"0": "_first"}))

    assert (status, 1) == (caught.value.status, len(raw_server.requests))


class PrunedStore(ScratchStore):
    """A store whose old chunks are removed just while a plan is made."""

    keep: int | None = None

    def scan(self, *args):
        if self.keep is not None:
            keep, self.keep = self.keep, None
            prune(self, "orders", Retention(bytes=keep))
        return super().scan(*args)


@pytest.fixture
def pruned():
    """A feed of two stored partitions, each with old events and a new one."""
    with closing(PrunedStore()) as store:
        store.create("orders", 2)
        for partition in range(2):
            publish(store, "orders", list(range(500)), partition=partition)
        for partition in range(2):
            publish(store, "orders", [1000 + partition], partition=partition)
        with running_publisher(store) as base:
            yield store, f"{base}/orders"


@pytest.mark.parametrize("n", ["1", "2"])
def test_events_removed_during_a_plan_are_told_by_my_partitions(start, pruned, n):
    """With fewer partitions than the feed has, an error names those that I read."""
    store, url = pruned
    run = start(url=url, fetch="executors", partitionCount=n, finite=True, maxEventsPerTrigger="1")
    run.next()
    store.keep = 100
    with pytest.raises(
        CursorGoneError, match=r"partition [01], cursor '\d+\.[0-9a-f]{8}'"
    ) as caught:
        run.to_the_end()
    assert caught.value.partition < int(n)


@pytest.mark.parametrize("n", ["1", "2"])
def test_without_fail_on_data_loss_a_plan_goes_on_with_what_is_left(start, pruned, n):
    """Retention that runs while I plan is like retention before it."""
    store, url = pruned
    options = {"partitionCount": n, "maxEventsPerTrigger": "1", "failOnDataLoss": "false"}
    run = start(url=url, fetch="executors", finite=True, **options)
    first = [row for rows in run.next().values() for row in rows]
    store.keep = 100

    assert [1000, 1001] == sorted(set(run.to_the_end()) - set(first))


def test_a_task_of_many_ranges_asks_for_some_at_a_time(start, monkeypatch):
    """A batch of many small partitions is no request that the publisher refuses."""
    monkeypatch.setattr(direct_client, "_RANGES", 3)
    with closing(ScratchStore()) as store:
        store.create("orders", 10)
        for partition in range(10):
            publish(store, "orders", [partition], partition=partition)
        with running_publisher(store) as base:
            run = start(url=f"{base}/orders", fetch="executors", finite=True)

            assert list(range(10)) == sorted(run.to_the_end())


def test_a_column_that_only_executors_fill_is_refused_for_a_batch_of_the_driver(publisher, start):
    """A batch that was pending when I added the column never has NULL in it."""
    publisher.publish(1)
    run = start(url=publisher.url, fetch="driver", finite=True)
    begin = run.offset
    run.next()
    again = start(url=publisher.url, offset=begin)
    options = again.reader._options
    object.__setattr__(options, "columns", ("partition", "data", "position"))

    with pytest.raises(OptionError, match="'position'"):
        again.rows(begin, run.offset)


def test_a_proxy_between_does_not_change_the_feeds_identity():
    """A route that is missing for a moment, while a read begins, renames no feed."""
    with closing(ScratchStore()) as store:
        store.create("orders", 1)
        publish(store, "orders", [1])
        app, planned, left = create_app(store), [], [3]

        async def behind_a_proxy(scope, receive, send):
            if scope["path"].endswith("/plan"):
                planned.append(1)
            elif planned and left[0] and scope["method"] == "GET":
                left[0] -= 1
                await PlainTextResponse("no route", 404)(scope, receive, send)
                return
            await app(scope, receive, send)

        with running_publisher(store, behind_a_proxy) as base:
            options = parse(SourceOptions, {"url": f"{base}/orders", "retryTimeout": "20s"})
            reader = BatchReader(options, Decoder(("headers",), "_corrupt_record", False))
            (partition,) = reader.partitions()

    assert (0, True) == (left[0], partition.feed.told)


def test_a_plan_of_nothing_that_says_more_is_refused(raw_server):
    """Such a publisher would be asked for its next plan for ever."""
    nothing = {"ends": {"0": "1.0a1b2c3d"}, "more": True, "head": "9.0a1b2c3d"}
    raw_server.script(ok(json.dumps({**nothing, "time": 0, "behind": 8, "ranges": []}).encode()))
    transport = Transport(parse(ClientOptions, {"url": raw_server.url}))
    request = PlanRequest(1, {"0": "1.0a1b2c3d"})

    with pytest.raises(PublisherError, match="says that there is more, but plans nothing"):
        direct_client.plan(transport, request)
