"""What a query asks its publisher for, and which way it reads."""

import json
import time

import pytest

from tests.fix_batch import batch_reader
from tests.fix_direct import (
    BEGIN,
    END,
    LINE,
    DirectFeed,
    Sent,
    begun,
    chunks_of,
    next_batch,
    plan_of,
    planned,
)
from tests.fix_raw_server import ok, refused
from tests.fix_stream import position
from tests.patience import eventually
from zeh_spark.errors import OptionError, PublisherError, ZeroEventHubError
from zeh_spark.spark.source.planned_source import _PATIENCE
from zeh_spark.wire.direct_reads import PlannedRange

MIDDLE = "7.0a1b2c3d"
PAGE = LINE + b'{"partition":0,"cursor":"c1"}\n'
OLDER = [404, 405, 501]
"""How a publisher answers that does not know direct reads."""


def full(begin, end, size=40):
    """A range that is claimed to have as many chunks as a plan may have."""
    return PlannedRange(0, begin, end, 50_000, 50_000, size, "0" * 32)


# How plans are asked for


def test_a_batch_goes_on_after_as_many_chunks_as_a_plan_may_have(direct_feed, start):
    """My batches are as large as I set, of however small chunks."""
    direct_feed.script(
        plan_of(full(BEGIN, MIDDLE, 1000), ends=[MIDDLE], more=True),
        plan_of(planned(Sent(8), begin=MIDDLE)),
    )
    run = begun(start, direct_feed, maxBytesPerTrigger="5000", maxEventsPerTrigger="60000")
    (task,) = next_batch(run)
    assert (BEGIN, END) == (task.ranges[0].from_, task.ranges[-1].to)
    assert (END, 50_001) == (position(run.offset)["cursor"], position(run.offset)["events"])
    first, second = direct_feed.asked()
    assert [{"0": BEGIN}, {"0": MIDDLE}] == [first["cursors"], second["cursors"]]
    assert [(5000, 60_000), (4000, 10_000)] == [
        (each["maxBytes"], each["maxEvents"]) for each in (first, second)
    ]


@pytest.mark.parametrize(
    "given", [{"maxBytesPerTrigger": "1000"}, {"maxEventsPerTrigger": "50000"}], ids=str
)
def test_a_limit_that_is_reached_exactly_ends_the_batch(direct_feed, start, given):
    """A plan for nothing more would be refused."""
    direct_feed.script(plan_of(full(BEGIN, MIDDLE, 1000), ends=[MIDDLE], more=True))
    assert next_batch(begun(start, direct_feed, **given))
    assert 1 == len(direct_feed.asked())


def test_a_read_ends_where_the_feed_ended_at_its_first_plan(direct_feed):
    """A feed that grows as fast as I read does not keep me."""
    head = "99.0a1b2c3d"
    direct_feed.script(
        plan_of(full(BEGIN, MIDDLE), ends=[MIDDLE], more=True, head=head),
        plan_of(full(MIDDLE, "8.0a1b2c3d"), ends=["8.0a1b2c3d"], more=True, head="100.00000000"),
        plan_of(planned(Sent(9), begin="8.0a1b2c3d"), head="101.00000000"),
    )
    start = json.dumps({"0": BEGIN})
    batch_reader(direct_feed.server.url, startingCursors=start).partitions()
    assert [None, head, head] == [each.get("upto") for each in direct_feed.asked()]


def test_while_there_is_nothing_to_read_the_publisher_is_asked_to_wait(direct_feed, start):
    """Long polling, not asking again and again. The first plan of a run does not wait."""
    direct_feed.plan = lambda asked: plan_of(ends=[BEGIN])
    run = begun(start, direct_feed, wait="7s")
    assert next_batch(run) is None
    eventually(lambda: next_batch(run) is not None or len(direct_feed.asked()) > 1)
    assert [0, 7] == [each.get("wait", 0) for each in direct_feed.asked()[:2]]


def test_a_batch_has_what_came_after_a_wait_had_ended(publisher, start):
    """Spark asks late, and gets all that is there by then."""
    run = start(url=publisher.url, fetch="executors", wait="30s")
    assert run.next() is None
    assert run.next() is None
    publisher.publish(1, partition=0)
    answered = run.reader.reportLatestOffset()["plans"] + 1
    eventually(lambda: run.reader.reportLatestOffset()["plans"] == answered)
    publisher.publish(2, 3, partition=0)
    late = time.monotonic() + _PATIENCE
    eventually(lambda: time.monotonic() > late)  # the answer is not of just now any more
    assert {0: [1, 2, 3]} == run.next()


# Which way


def offered(status):
    return lambda asked: refused(status, "no plans here")


@pytest.mark.parametrize("status", OLDER)
def test_a_publisher_that_refuses_the_first_plan_is_read_page_by_page(
    direct_feed, start, status, caplog
):
    """An older process behind the same address costs speed, and the log says so."""
    direct_feed.plan, direct_feed.page = offered(status), lambda request: ok(PAGE)
    run = start(url=direct_feed.server.url)
    assert [1] == run.until(1)
    assert "the driver fetches, because a plan was refused" in caplog.text
    assert 1 == len(direct_feed.asked())


@pytest.mark.parametrize(
    ("status", "fetch"),
    [*((each, "auto") for each in (400, 403, 409)), *((each, "executors") for each in OLDER)],
)
def test_another_refusal_of_the_first_plan_is_an_error(direct_feed, start, status, fetch):
    """No other way hides what is wrong, and executors that I asked for are not replaced."""
    direct_feed.plan = offered(status)
    with pytest.raises(ZeroEventHubError, match="no plans here"):
        next_batch(start(url=direct_feed.server.url, fetch=fetch))
    assert 0 == direct_feed.pages


@pytest.mark.parametrize("status", OLDER)
@pytest.mark.parametrize("first", [[planned(Sent(5))], []], ids=["with events", "without events"])
def test_an_older_publisher_later_is_an_error(direct_feed, start, status, first):
    """Not in the middle of a run, whose offsets stay of one kind, nor in a batch that was planned,
    nor in its tasks are pages read instead; and nothing waits for retries.
    """
    plans = iter([plan_of(*first, ends=[END if first else BEGIN])])
    direct_feed.plan = lambda asked: next(plans, None) or refused(status, "no plans here")
    direct_feed.chunks, direct_feed.page = offered(status), lambda request: ok(PAGE)
    run = begun(start, direct_feed, retryTimeout="1h")
    begin, tasks = run.offset, next_batch(run)
    again = begun(start, direct_feed, offset=begin)
    calls = [lambda: eventually(lambda: next_batch(run))]
    if first:
        calls.append(lambda: list(run.reader.read(tasks[0])))
        calls.append(lambda: again.reader.partitions(begin, run.offset))
    for call in calls:
        with pytest.raises(PublisherError, match="fetch=driver") as caught:
            call()
        assert (status, 0) == (caught.value.status, direct_feed.pages)


@pytest.mark.parametrize(
    "reads", [{"plan": 2, "chunks": 2}, {"plan": 1, "chunks": 3}, {"plan": 1}, {}, [1], None]
)
def test_an_offer_of_another_version_is_not_taken(direct_feed, start, reads):
    """A newer publisher is read page by page, which it still can."""
    other = DirectFeed(direct_feed.server, reads=reads)
    other.page = lambda request: ok(PAGE)
    assert [1] == start(url=direct_feed.server.url).until(1)
    assert [] == other.asked()
    with pytest.raises(OptionError, match="does not offer direct reads"):
        next_batch(start(url=direct_feed.server.url, fetch="executors"))


def test_with_a_file_of_tls_the_driver_fetches(start_raw_server, authority, start):
    """Executors may not have my files, so `auto` does not rely on them; but I may say so."""
    feed = DirectFeed(start_raw_server(authority.server_context()))
    feed.page = lambda request: ok(PAGE)
    assert [1] == start(url=feed.server.url, caFile=authority.ca_file).until(1)
    assert [] == [each for each in feed.asked() if "ends" not in each]  # plans of nothing tell lag

    feed.plan = lambda asked: plan_of(planned(Sent(5)))
    feed.chunks = lambda asked: chunks_of(Sent(5))
    assert {0: [1]} == begun(start, feed, caFile=authority.ca_file, fetch="executors").next()
