"""Plans of streams: when they are asked for, and when their answers count."""

import threading
from contextlib import closing

import pytest
from starlette.responses import PlainTextResponse

from tests.fix_batch import batch_reader
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.errors import OptionError
from zeh_spark.publisher import create_app
from zeh_spark.testing import publish, running_publisher


class SlowStore(ScratchStore):
    """A store that takes a while to make a plan."""

    def before_read(self, what, feed):
        if what == "scan":
            threading.Event().wait(0.2)


@pytest.mark.parametrize("wait", ["0", "5s"])
def test_a_slow_plan_does_not_leave_events_to_the_next_trigger(start, wait):
    """With a trigger each hour, an event that is there comes in this hour."""
    with closing(SlowStore(orders=1)) as store:
        publish(store, "orders", [0])
        with running_publisher(store) as base:
            run = start(url=f"{base}/orders", fetch="executors", wait=wait)
            assert {0: [0]} == run.next()
            assert run.next() is None
            plans = run.reader.reportLatestOffset()["plans"]
            publish(store, "orders", [1])
            if wait != "0":  # the plan that waited was answered long before the trigger
                eventually(lambda: run.reader.reportLatestOffset()["plans"] > plans)

            assert {0: [1]} == run.next()


def test_the_largest_limits_are_no_limits(publisher, start):
    """Jobs write the largest LONG for "no limit"."""
    publisher.publish(0, 1, partition=0)
    limits = {"maxEventsPerTrigger": str(2**63 - 1), "maxBytesPerTrigger": "1000000t"}
    run = start(url=publisher.url, fetch="executors", **limits)

    assert {0: [0, 1]} == run.next()


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
    """A route that is missing for a moment, while a read begins, renames no feed, although the read
    asks which feed it is, because a new epoch has begun.
    """
    with closing(ScratchStore(orders=1)) as store:
        publish(store, "orders", [1])
        app, planned, left = create_app(store), [], [3]

        async def behind_a_proxy(scope, receive, send):
            if scope["path"].endswith("/plan"):
                store.begin_epoch("orders")
                planned.append(1)
            elif planned and left[0] and scope["method"] == "GET":
                left[0] -= 1
                await PlainTextResponse("no route", 404)(scope, receive, send)
                return
            await app(scope, receive, send)

        with running_publisher(store, behind_a_proxy) as base:
            headers = Decoder(("headers",), "_corrupt_record", False)
            reader = batch_reader(f"{base}/orders", headers, retryTimeout="20s")
            (partition,) = reader.partitions()

    assert (0, True) == (left[0], partition.feed.told)
