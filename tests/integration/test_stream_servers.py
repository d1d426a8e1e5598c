"""The stream source reads other servers: the reference implementation, and our publisher."""

import json
import threading
import time
from collections import Counter

import pytest

from tests.fix_log_texts import check_documented
from tests.patience import PATIENCE, eventually
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention, StoreBusyError


def ids(run, start, end):
    """How often each event of a batch came, by partition and id."""
    return Counter(
        (row["partition"], json.loads(row["data"])["id"])
        for partition in run.reader.partitions(start, end)
        for batch in run.reader.read(partition)
        for row in batch.to_pylist()
    )


@pytest.mark.parametrize(
    ("given", "finite"),
    [
        ({"checkpoints": "event", "fail_after": 20, "failures": 3}, True),
        ({"checkpoints": "page"}, False),
    ],
    ids=["event", "page"],
)
def test_the_reference_server_is_read(start_reference_server, start, given, finite):
    """A checkpoint for each event or page; each event comes once, also if bodies are aborted."""
    url = start_reference_server(events=300, **given)
    run = start(url=url, partitionCount="2", pageSizeHint="70", finite=finite)
    got = Counter()
    deadline = time.monotonic() + PATIENCE
    while got.total() < 600 and time.monotonic() < deadline:
        end = run.reader.latestOffset(run.offset, run.limit)
        got += ids(run, run.offset, end)
        run.offset = end

    assert Counter((p, i) for p in (0, 1) for i in range(300)) == got


def test_our_publishers_last_is_where_new_events_come(publisher, start):
    """`last` on an empty partition, and on one with events."""
    publisher.publish(1, 2, partition=0)
    run = start(url=publisher.url, startingCursors="last")
    assert {} == run.next()

    publisher.publish(3, 4)

    assert [3, 4] == sorted(run.until(2))


def test_our_publisher_keeps_what_a_query_has_committed(publisher, start):
    """Retention can wait for my query: it learns what Spark has committed, and never more."""
    run, store = start(url=publisher.url, cursorSet="warehouse"), publisher.store
    publisher.publish(*range(10), partition=0)
    run.until(10)
    publisher.publish(*range(10, 15), partition=0)
    run.until(15)  # Spark asks for the second batch when it has committed the first one

    committed = run.start["partitions"]["0"]["cursor"]
    eventually(lambda: store.saved_cursors("orders", "warehouse").get(2, {}).get(0) == committed)
    assert 10 == prune(store, "orders", Retention(bytes=1, readers=("warehouse",))).events


def test_two_queries_with_one_cursor_set_are_told_apart(publisher, start, caplog):
    """The second one is refused by name, and retention goes on waiting for the first one."""
    publisher.publish(*range(10))
    options = {"url": publisher.url, "cursorSet": "warehouse", "finite": True}
    first, second = start(**options), start(**options)
    first.to_the_end()
    publisher.publish(*range(10, 20))
    second.to_the_end()  # it has read more

    assert "409 cursorset-taken" in caplog.text
    assert "zeh-spark cursor-sets orders --delete warehouse" in caplog.text
    (kept,) = publisher.store.cursor_sets("orders")
    assert f"spark:{first.offset['reader']}" == kept.consumer
    assert kept.cursors[2] == {int(p): at["cursor"] for p, at in first.offset["partitions"].items()}


@pytest.mark.parametrize("fetch", ["executors", "driver"])
def test_query_has_its_cursor_set_after_a_restart(publisher, start, caplog, fetch):
    """Its checkpoint knows who it is, also one of the time before it had a cursorSet."""
    publisher.publish(*range(10))
    old = start(url=publisher.url, finite=True, fetch=fetch)
    old.to_the_end()
    offset = old.offset
    assert "reader" not in offset
    for begin in (10, 20):
        publisher.publish(*range(begin, begin + 10))
        run = start(
            url=publisher.url, cursorSet="warehouse", finite=True, fetch=fetch, offset=offset
        )
        run.to_the_end()
        assert offset.get("reader", run.offset["reader"]) == run.offset["reader"]
        offset = run.offset

    (kept,) = publisher.store.cursor_sets("orders")
    assert kept.cursors[2] == {int(p): at["cursor"] for p, at in offset["partitions"].items()}
    assert "cannot be kept" not in caplog.text
    again = start(url=publisher.url, offset=offset, finite=True, fetch=fetch)
    publisher.publish(*range(30, 40))
    again.to_the_end()
    assert offset["reader"] == again.offset["reader"]


def test_query_that_starts_at_the_end_has_its_identity_at_once(publisher, start):
    """Its position is kept before it has read an event."""
    publisher.publish(*range(10))
    run = start(url=publisher.url, cursorSet="warehouse", startingCursors="last", finite=True)
    assert {} == run.next()
    assert run.next() is None
    (kept,) = publisher.store.cursor_sets("orders")
    assert f"spark:{run.offset['reader']}" == kept.consumer


def test_query_does_not_depend_on_its_cursors_being_kept(publisher, start, caplog):
    """A publisher that keeps none, or is away, stops nothing."""
    publisher.publish(*range(10))
    run = start(url=publisher.url, cursorSet="warehouse")
    run.until(10)
    publisher.store.save_cursors = refuse
    publisher.publish(*range(10, 20))
    assert 20 == len(run.until(20))
    eventually(lambda: "did not keep this reader's position" in caplog.text)
    check_documented(caplog.records, "the publisher did not keep this reader's position")


def test_a_position_is_reported_until_the_publisher_has_kept_it(publisher, start):
    """Programs wait for it: they learn what my query committed, also if its next trigger is far."""
    publisher.publish(*range(10), partition=0)
    run, store = start(url=publisher.url, cursorSet="warehouse"), publisher.store
    run.until(10)
    tried = Counter()
    store.save_cursors = lambda *_: refuse(tried.update(["once"]))
    publisher.publish(*range(10, 20), partition=0)
    run.until(20)
    eventually(lambda: tried["once"] > 2)
    del store.save_cursors
    committed = run.start["partitions"]["0"]["cursor"]
    eventually(lambda: store.saved_cursors("orders", "warehouse").get(2, {}).get(0) == committed)


def test_a_query_that_has_ended_reports_nothing_more(publisher, start):
    """Another run of it may be further by now."""
    before = {*threading.enumerate()}
    run, tried = start(url=publisher.url, cursorSet="warehouse"), Counter()
    publisher.store.save_cursors = lambda *_: refuse(tried.update(["once"]))
    for upto in (10, 20):
        publisher.publish(*range(upto - 10, upto), partition=0)
        run.until(upto)
    eventually(lambda: tried["once"])
    run.reader.stop()
    left = lambda: [each.name for each in {*threading.enumerate()} - before]  # noqa: E731
    eventually(lambda: "zeh-cursors" not in left())


def refuse(*_):
    raise StoreBusyError("not now")
