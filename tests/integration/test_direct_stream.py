"""Streams that read directly: the publisher plans a batch, and tasks fetch what was planned."""

import json

import pytest

import zeh_spark
from tests.fix_log_texts import check_documented
from tests.fix_stream import Log, Run, position
from zeh_spark.errors import CursorGoneError, OptionError, ReplayError
from zeh_spark.service.app.feed_calls import FeedCalls
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention
from zeh_spark.spark.source import older_spark

BOTH = pytest.mark.parametrize("way", ["executors", "driver"])


@pytest.fixture
def query(publisher, start):
    """`query(…)`: a run with these options in which executors fetch."""
    return lambda **given: start(**{"url": publisher.url, "fetch": "executors", **given})


def test_a_finite_run_reads_what_the_feed_held_when_it_began(publisher, query):
    """I get each event once, and the run ends although more is published meanwhile."""
    publisher.publish(*range(10))
    publisher.publish(*range(10, 15), partition=1)
    run = query(maxEventsPerTrigger="1", finite=True)
    first = run.next()
    publisher.publish(99)
    assert sorted(run.to_the_end()) == list(range(15))
    assert first and len(run.batches) > 1


def test_offsets_say_that_executors_fetched(publisher, query):
    """An older package refuses the checkpoint by name, and never misreads it."""
    publisher.publish(*range(4), partition=0)
    run = query(finite=True)
    run.next()
    assert (2, 1) == (run.offset["version"], run.offset["direct"]["version"])
    assert (4, 32) == (position(run.offset)["events"], len(position(run.offset)["digest"]))
    assert "digest" not in position(run.offset, 1)
    assert not position(run.offset, 1)["cursor"].startswith("_")


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_any_n_reads_every_event_once_in_its_order(publisher, query, n):
    """I work with fewer or more partitions than the feed has."""
    for number in range(20):
        publisher.publish(number, partition=number % 2)
    run = query(partitionCount=str(n), finite=True)
    assert sorted(run.to_the_end()) == list(range(20))
    for rows in run.batches:
        assert all(part == sorted(part) for part in rows.values())


def test_a_stream_follows_what_is_published(publisher, query):
    """New events come while the query runs. Nothing new is the same offset: no empty batch."""
    run = query(wait="5s")
    assert run.next() is None
    for number in range(5):
        publisher.publish(number)
        assert list(range(number + 1)) == sorted(run.until(number + 1))
    assert run.offset is run.reader.latestOffset(run.offset, run.limit)


@pytest.mark.parametrize(
    ("before", "after"),
    [("executors", "executors"), ("executors", "driver"), ("driver", "executors")],
)
def test_who_fetches_may_change_with_a_batch_pending(publisher, query, before, after):
    """With a restart or without: the batch under way stays the same, whatever came since."""
    publisher.publish(*range(10))
    run = query(fetch=before, finite=True)
    rows = run.next()
    publisher.publish(*range(10, 20))
    again = query(fetch=after, offset=run.start, finite=True)
    assert rows == again.rows(run.start, run.offset)
    again.offset = run.offset
    assert sorted(again.to_the_end()) == list(range(10, 20))


def test_retention_between_plan_and_fetch_fails_the_task(publisher, query):
    """A task never gives fewer rows than were planned."""
    publisher.publish(*range(500), partition=0)
    run = query(finite=True)
    end = run.reader.latestOffset(run.offset, run.limit)
    publisher.publish(1, partition=0)
    prune(publisher.store, "orders", Retention(bytes=1))
    with pytest.raises(CursorGoneError, match=r"removed before it was read.*cursorSet"):
        run.rows(run.offset, end)


def test_other_headers_are_refused_while_a_batch_is_pending(publisher, query):
    """Rows of a repeated batch never differ."""
    publisher.publish(1)
    run = query(finite=True)
    run.next()
    with pytest.raises(ReplayError, match="headers"):
        query(headers="none", offset=run.start).rows(run.start, run.offset)


def test_staging_makes_the_driver_fetch(publisher, query, tmp_path):
    """`auto` keeps what I asked for; executors cannot."""
    publisher.publish(1)
    run = query(fetch="auto", stagingLocation=str(tmp_path), finite=True)
    run.next()
    assert 3 == run.offset["version"]
    with pytest.raises(OptionError, match="stagingLocation"):
        query(stagingLocation=str(tmp_path))


def test_a_lagging_copy_is_waited_for(publisher, query):
    """A cursor after the head is no other history at once; the error names both causes."""
    publisher.publish(1)
    run = query(finite=True)
    run.next()
    for each in run.offset["partitions"].values():
        each["cursor"] = "999.0a1b2c3d"
    with pytest.raises(Exception, match=r"lags, or its store was restored"):
        query(retryTimeout="1s", offset=run.offset, finite=True).next()


def test_a_stream_goes_on_page_by_page_and_directly_again(publisher, relay, start):
    """After the downgrade of a publisher `auto` repeats the pending batch exactly, and reads on
    from pages; after the upgrade tasks fetch again. Each event comes once. If I said that executors
    fetch, I am told that this publisher does not offer it.
    """
    publisher.publish(*range(10))
    relay.base = publisher.base
    run = start(url=relay.url, finite=True)
    rows = run.next()
    asked = len(relay.asked)
    publisher.publish(*range(10, 20))

    relay.older = True
    with pytest.raises(OptionError, match="it is another publisher, or serves a table"):
        start(url=relay.url, fetch="executors", offset=run.offset, finite=True).next()
    again = start(url=relay.url, offset=run.start, finite=True)
    assert rows == again.rows(run.start, run.offset)
    again.offset = run.offset
    assert [*range(10, 20)] == sorted(again.to_the_end())
    assert 0 < asked == len(relay.asked)

    relay.older = False
    publisher.publish(*range(20, 30))
    upgraded = start(url=relay.url, offset=again.offset, finite=True)
    assert [*range(20, 30)] == sorted(upgraded.to_the_end())
    assert asked < len(relay.asked)


@BOTH
def test_the_progress_tells_the_head_and_the_lag(publisher, query, way):
    """How many events of which partition are not read, and how old they are; plans and chunks."""
    publisher.publish(*range(6), partition=0)
    publisher.publish(*range(3), partition=1)
    run = query(fetch=way, maxEventsPerTrigger="1", finite=True)
    rows = run.next()  # of either partition: they are read side by side
    unread = [6 - len(rows.get(0, [])), 3 - len(rows.get(1, []))]
    told = run.reader.reportLatestOffset()

    if way == "executors":
        assert (1, 1) == (told["plans"], told["chunksBehind"])
    assert unread in ([0, 3], [6, 0])
    lag = {"total": sum(unread), "min": 0, "mean": sum(unread) / 2, "max": max(unread)}
    assert lag == told["eventsBehind"]
    assert 0 == told["secondsBehind"]["min"] <= told["secondsBehind"]["max"] < 300
    assert json.loads(zeh_spark.last_cursors(publisher.url))["1"] == told["head"]
    assert unread == [each["eventsBehind"] for each in told["partitions"].values()]

    run.to_the_end()
    assert 0 == run.reader.reportLatestOffset()["eventsBehind"]["total"]


def test_an_older_publisher_tells_no_lag(publisher, query, monkeypatch):
    """My query goes on, and says that the lag is unknown."""
    monkeypatch.setattr(FeedCalls, "lag_after", lambda *_: None)
    publisher.publish(1)
    run = query(finite=True)

    assert [1] == run.to_the_end()
    assert run.reader.reportLatestOffset()["eventsBehind"] is None


class OldSpark(Run):
    """Spark 4.0 and 4.1: no limits, and nothing says that a run is finite."""

    def next(self):
        end = self.reader.latestOffset()
        rows = self.rows(self.offset, end) if end != self.offset else None
        self.offset = json.loads(json.dumps(end))
        self.batches += [rows] if rows else []
        return rows

    @property
    def behind(self):
        told = self.offset["behind"]
        return {"more": told["more"], "total": (told["eventsBehind"] or {}).get("total")}


@BOTH
def test_the_first_batch_has_all_that_the_feed_held(publisher, query, caplog, way):
    """A run on Spark 4.0 has one batch, which may be four times as large as the limit."""
    for number in range(30):
        publisher.publish(number, partition=number % 2)
    run = OldSpark(query(fetch=way, maxBytesPerTrigger="2000").reader)
    run.next()

    assert list(range(30)) == sorted(run.all())
    assert {"more": False, "total": 0} == run.behind
    assert "drain" not in caplog.text


@BOTH
def test_what_the_only_batch_of_a_run_leaves_is_told(publisher, query, caplog, way):
    """I am warned once, with the number and what to do. A stream that goes on is not flooded."""
    for number in range(200):
        publisher.publish(number, partition=number % 2)
    run = OldSpark(query(fetch=way, maxBytesPerTrigger="1000").reader)
    run.next()
    left = 200 - len(run.all())

    assert 0 < left < 200
    assert {"more": True, "total": left} == run.behind
    (warning,) = [each.getMessage() for each in caplog.records if "drain" in each.getMessage()]
    assert f"leaves {left} events of {publisher.url} unread" in warning
    check_documented(caplog.records, "the first batch of this run leaves")

    run.until(200)
    publisher.publish(200)
    assert list(range(201)) == sorted(run.until(201))
    assert caplog.text.count("drain") == 1


def test_a_remainder_of_unknown_size_is_told(feed, start, caplog):
    """Another publisher's feed is never left in silence, either."""
    run = OldSpark(start(feed(Log(50)), maxEventsPerTrigger="10").reader)
    run.next()

    assert {"more": True, "total": None} == run.behind
    assert "leaves events whose number is unknown" in caplog.text
    assert list(range(50)) == sorted(run.until(50))


@pytest.mark.parametrize("old", [True, False])
def test_a_run_that_only_repeats_a_batch_says_so(publisher, query, caplog, monkeypatch, old):
    """On Spark 4.0 a finite run that follows a crash reads nothing new, and not in silence."""
    monkeypatch.setattr(older_spark, "HAS_ADMISSION_CONTROL", not old)
    publisher.publish(1, 2)
    run = query(finite=True)
    rows = run.next()

    assert rows == query(offset=run.start).rows(run.start, run.offset)
    assert old == ("repeats the last batch" in caplog.text)
