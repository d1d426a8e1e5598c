"""What a publisher exports for Prometheus, compared with what was really done."""

import pytest
import requests

from tests.fix_metrics import Scrape
from tests.fix_publish import Caller, Who, rows
from tests.fix_publisher import connected, served
from tests.integration.test_kept_answers import chunks
from tests.integration.test_waiting_readers import OwnFeed
from tests.patience import eventually
from zeh_spark.service.store.batches import UPLOAD_BYTES
from zeh_spark.service.telemetry import lag, store_gauges
from zeh_spark.service.telemetry.store_gauges import StoreGauges
from zeh_spark.testing import running_publisher
from zeh_spark.wire.upload_format import upload_body


@pytest.fixture
def caller(publisher):
    return Caller(publisher.url)


def test_what_is_published_and_read_is_counted_by_feed(publisher, caller):
    """Events and bytes, in and out, as they went over the wire."""
    chunks = rows(*range(7))
    size = len(upload_body(chunks))
    caller.upload(Who(), chunks)
    staged = Scrape(publisher.base)("zeh_staged_bytes", feed="orders")
    caller.commit(Who(), chunks)
    again = caller.commit(Who(), chunks)
    page = requests.get(f"{publisher.url}?n=2&cursor0=_first&cursor1=_first", timeout=30)
    requests.get(f"{publisher.url}?n=2&cursor0=_first&cursor1=_first", timeout=30)
    eventually(lambda: Scrape(publisher.base)("zeh_feed_head", feed="orders") == 1)
    seen = Scrape(publisher.base)

    assert again.short == (200, "already-committed")
    assert staged == UPLOAD_BYTES + sum(len(each.frame) for each in chunks)
    assert seen("zeh_staged_bytes", feed="orders") == 0
    assert seen("zeh_published_events_total", feed="orders") == 7
    assert seen("zeh_served_events_total", feed="orders") == 14
    assert seen("zeh_received_bytes_total", feed="orders") > size
    assert seen("zeh_sent_bytes_total", feed="orders") > 2 * len(page.content)
    assert seen("zeh_commit_seconds_count") == 2
    assert seen("zeh_repeated_batches_total", feed="orders") == 1


def test_direct_reads_are_counted(publisher):
    publisher.publish(*range(10))
    answer = chunks(publisher.base)
    seen = Scrape(publisher.base)

    assert (200, 10) == (answer.status_code, seen("zeh_served_events_total", feed="orders"))


def test_requests_are_counted_by_route(publisher, caller):
    caller.publish(Who(), 1)
    for _ in range(3):
        publisher.get("n=2&cursor0=_first")
    seen = Scrape(publisher.base)

    pages = {"route": "/{feed}", "method": "GET", "status": "200"}
    assert seen("zeh_requests_total", **pages) == 3
    assert seen("zeh_request_seconds_count", route="/{feed}") == 3
    path = "/{feed}/producers/{producer}/batches/{batch}/commit"
    assert seen("zeh_requests_total", route=path, method="POST", status="200") == 1


def test_refusals_are_counted_by_problem(publisher, caller):
    """Also those of a feed of which nothing but refusals was heard."""
    gap = caller.commit(Who(batch=7))
    seen = Scrape(publisher.base)
    assert (409, "batch-gap") == gap.short
    assert seen("zeh_refusals_total", feed="orders", problem="batch-gap") == 1

    caller.publish(Who(), 1)
    caller.publish(Who(1, run="r2"), 1)
    fenced = caller.commit(Who(2))
    seen = Scrape(publisher.base)
    assert (403, "fenced") == fenced.short
    assert seen("zeh_refusals_total", feed="orders", problem="fenced") == 1
    assert seen("zeh_fences_total", feed="orders") == 1


def test_what_strangers_choose_becomes_no_label(publisher, caller):
    """Nobody fills the memory of Prometheus with names that he makes up."""
    Scrape(publisher.base)
    for name in ("made-up", "made-up/producers", "made-up/producers/p/batches/0/commit", "x/y/z"):
        for method in ("GET", "POST", "PROPFIND"):
            requests.request(method, f"{publisher.base}/{name}", timeout=30)
    Caller(f"{publisher.base}/made-up").publish(Who(producer="made-up"), 1)
    seen = Scrape(publisher.base)

    assert seen("zeh_refusals_total", feed="(none)", problem="unknown-feed") > 0
    assert {"orders", "(none)"} == seen.labels("feed")
    assert {"GET", "POST", "PUT", "(other)"} == seen.labels("method")
    assert {"(none)"} == {each for each in seen.labels("route") if not each.startswith("/")}
    assert not any("made-up" in value for _, own in seen.samples for _, value in own)


def test_the_lag_of_each_consumer_is_told(publisher):
    """In events, and in seconds since the oldest of them was committed."""
    for _ in range(3):
        publisher.publish(*range(10))
    start = publisher.get("n=2&cursor0=_first&cursor1=_first&pagesizehint=1").cursors
    cursors = "&".join(f"cursor{each}={cursor}" for each, cursor in start.items())
    publisher.get("n=1&cursor0=_last&cursorset=fast")
    publisher.get(f"n=2&{cursors}&cursorset=slow")
    first = Scrape(publisher.base)
    seen = {name: first("zeh_consumer_lag_events", cursorset=name) for name in ("fast", "slow")}

    left = publisher.get(f"n=2&{cursors}").data
    assert {"fast": 0, "slow": len(left)} == seen
    assert 0 == first("zeh_consumer_lag_seconds", cursorset="fast")
    assert 0 < first("zeh_consumer_lag_seconds", cursorset="slow", n="2") < 300

    publisher.publish(1)
    eventually(lambda: Scrape(publisher.base)("zeh_consumer_lag_events", cursorset="fast") == 1)


def test_a_long_feed_is_counted_in_parts(publisher, monkeypatch):
    """No look at the store takes long, and the lag is told once it is known."""
    for number in range(5):
        publisher.publish(number, partition=0)
    publisher.store.save_cursors("orders", "slow", 1, {0: "0.00000000"})
    monkeypatch.setattr(lag, "SCAN_CHUNKS", 2)
    monkeypatch.setattr(store_gauges, "FEED_SECONDS", 0.0)
    gauges = StoreGauges(publisher.store, dict, None)

    def lags():
        gauges.look()
        return [
            sample.value
            for family in gauges.collect()
            for sample in family.samples
            if sample.name == "zeh_consumer_lag_events"
        ]

    assert [] == lags()
    monkeypatch.setattr(store_gauges, "FEED_SECONDS", 30)
    assert [5] == lags()
    publisher.publish(5, partition=0)
    assert [6] == lags()


def test_open_connections_are_told(publisher):
    with served(publisher.store_url) as (base, _):
        before = Scrape(base)("zeh_open_connections")
        with connected(base):
            eventually(lambda: Scrape(base)("zeh_open_connections") > before, 30)


def test_publishers_of_one_store_say_the_same_of_its_feeds(publisher):
    """Each counts its own requests; heads and lags come from the store."""
    publisher.publish(1, 2, 3, partition=0)
    publisher.get("n=1&cursor0=_first&cursorset=warehouse")
    with running_publisher(publisher.store) as other:
        mine, theirs = Scrape(publisher.base), Scrape(other)

    for name in ("zeh_feed_head", "zeh_consumer_lag_events"):
        assert 0 < mine(name, feed="orders") == theirs(name, feed="orders")
    assert (3, 0) == tuple(
        each("zeh_served_events_total", feed="orders") for each in (mine, theirs)
    )


def test_tables_are_counted_too():
    """Events of a feed of any other kind."""
    feed = OwnFeed()
    feed.version_now = 1
    with running_publisher({"orders": feed}) as base:
        requests.get(f"{base}/orders?n=1&cursor0=_first", timeout=30)
        seen = Scrape(base)

    assert seen("zeh_served_events_total", feed="orders") == 1
