"""Streams that read directly: the publisher plans a batch, and tasks fetch what was planned."""

from __future__ import annotations

import json

import pytest

import zeh_spark
from tests.fix_log_texts import check_documented
from tests.fix_stream import Log, Run, position, wait_for
from zeh_spark.errors import CheckpointError, CursorGoneError, OptionError, ReplayError
from zeh_spark.publisher.feed_calls import FeedCalls
from zeh_spark.retention.rules import prune
from zeh_spark.source import stream_driver
from zeh_spark.store.interface import Retention


def directly(publisher, **given):
    return {"url": publisher.url, "fetch": "executors", **given}


def test_a_finite_run_reads_what_the_feed_held_when_it_began(publisher, start):
    """I get each event once, and the run ends although more is published meanwhile."""
    publisher.publish(*range(10))
    publisher.publish(*range(10, 15), partition=1)
    run = start(**directly(publisher, maxEventsPerTrigger="1"), finite=True)
    first = run.next()
    publisher.publish(99)
    assert sorted(run.to_the_end()) == list(range(15))
    assert first and len(run.batches) > 1


def test_offsets_say_that_executors_fetched(publisher, start):
    """An older package refuses the checkpoint by name, and never misreads it."""
    publisher.publish(*range(4), partition=0)
    run = start(**directly(publisher), finite=True)
    run.next()
    assert (2, 1) == (run.offset["version"], run.offset["direct"]["version"])
    assert (4, 32) == (position(run.offset)["events"], len(position(run.offset)["digest"]))
    assert "digest" not in position(run.offset, 1)
    assert not position(run.offset, 1)["cursor"].startswith("_")


def test_rows_are_those_of_the_drivers_way(publisher, start):
    """Who fetches changes no row."""
    publisher.publish(*range(50))
    ways = [start(url=publisher.url, fetch=way, finite=True) for way in ("driver", "executors")]
    rows = [run.to_the_end() for run in ways]
    assert sorted(rows[0]) == sorted(rows[1]) == list(range(50))


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_any_n_reads_every_event_once_in_its_order(publisher, start, n):
    """I work with fewer or more partitions than the feed has."""
    for number in range(20):
        publisher.publish(number, partition=number % 2)
    run = start(**directly(publisher, partitionCount=str(n)), finite=True)
    assert sorted(run.to_the_end()) == list(range(20))
    for rows in run.batches:
        assert all(part == sorted(part) for part in rows.values())


def test_a_stream_follows_what_is_published(publisher, start):
    """New events come while the query runs."""
    run = start(**directly(publisher, wait="5s"))
    assert run.next() is None
    for number in range(5):
        publisher.publish(number)
        assert list(range(number + 1)) == sorted(run.until(number + 1))


def test_nothing_new_gives_back_the_same_offset(publisher, start):
    """Spark makes no empty batches."""
    publisher.publish(1)
    run = start(**directly(publisher, wait="1s"))
    run.until(1)
    assert run.offset is run.reader.latestOffset(run.offset, run.limit)


def test_a_repeated_batch_is_planned_again_exactly(publisher, start):
    """After a restart Spark gets the same batch, whatever was published since."""
    publisher.publish(*range(10))
    run = start(**directly(publisher), finite=True)
    begin = run.offset
    rows = run.next()
    publisher.publish(*range(10, 20))
    again = start(**directly(publisher), offset=begin)
    assert rows == again.rows(begin, json.loads(json.dumps(run.offset)))


@pytest.mark.parametrize(("before", "after"), [("executors", "driver"), ("driver", "executors")])
def test_who_fetches_may_change_with_a_batch_pending(publisher, start, before, after):
    """I change the option at a restart, and the batch that was under way is the same."""
    publisher.publish(*range(10))
    run = start(url=publisher.url, fetch=before, finite=True)
    begin = run.offset
    rows = run.next()
    publisher.publish(*range(10, 20))
    again = start(url=publisher.url, fetch=after, offset=begin, finite=True)
    assert rows == again.rows(begin, json.loads(json.dumps(run.offset)))
    again.offset = json.loads(json.dumps(run.offset))
    assert sorted(again.to_the_end()) == list(range(10, 20))


@pytest.mark.parametrize("way", ["executors", "driver"])
def test_a_batch_whose_events_were_removed_is_refused(publisher, start, way):
    """Retention between two tries loses nothing in silence."""
    publisher.publish(*range(500), partition=0)
    run = start(**directly(publisher), finite=True)
    begin = run.offset
    run.next()
    publisher.publish(*range(500, 1000), partition=0)
    prune(publisher.store, "orders", Retention(bytes=1))
    again = start(url=publisher.url, fetch=way, offset=begin)
    with pytest.raises(ReplayError, match="replay=accept"):
        again.rows(begin, json.loads(json.dumps(run.offset)))


def test_replay_accept_takes_what_is_left(publisher, start):
    """I go on deliberately, once."""
    publisher.publish(*range(500), partition=0)
    run = start(**directly(publisher), finite=True)
    begin = run.offset
    run.next()
    publisher.publish(*range(500, 1000), partition=0)
    prune(publisher.store, "orders", Retention(bytes=1))
    again = start(**directly(publisher, replay="accept"), offset=begin)
    assert {} == again.rows(begin, json.loads(json.dumps(run.offset)))


def test_retention_between_plan_and_fetch_fails_the_task(publisher, start):
    """A task never gives fewer rows than were planned."""
    publisher.publish(*range(500), partition=0)
    run = start(**directly(publisher), finite=True)
    end = run.reader.latestOffset(run.offset, run.limit)
    publisher.publish(1, partition=0)
    prune(publisher.store, "orders", Retention(bytes=1))
    with pytest.raises(CursorGoneError, match=r"removed before it was read.*cursorSet"):
        run.rows(run.offset, end)


def test_unread_events_that_are_gone_stop_the_query(publisher, start):
    """I am told which partition lost events, and what to do."""
    publisher.publish(*range(500), partition=0)
    run = start(**directly(publisher), finite=True)
    run.next()
    publisher.publish(*range(500), partition=0)
    publisher.publish(7, partition=0)
    prune(publisher.store, "orders", Retention(bytes=1))
    again = start(**directly(publisher), offset=run.offset, finite=True)
    with pytest.raises(CursorGoneError, match=r"partition 0.*failOnDataLoss=false"):
        again.next()


def test_without_fail_on_data_loss_the_oldest_events_left_come_next(publisher, start, caplog):
    """I prefer to go on, and the log says where."""
    publisher.publish(*range(500), partition=0)
    run = start(**directly(publisher), finite=True)
    run.next()
    publisher.publish(*range(500), partition=0)
    publisher.publish(7, partition=0)
    prune(publisher.store, "orders", Retention(bytes=50))
    again = start(**directly(publisher, failOnDataLoss="false"), offset=run.offset, finite=True)
    assert [7] == again.to_the_end()
    assert "EVENTS ARE LOST: partition 0" in caplog.text


def test_a_start_at_the_end_gives_what_comes_then(publisher, start):
    """`startingCursors=last` delivers nothing old, and nothing that comes later is missed."""
    publisher.publish(1, 2, 3)
    run = start(**directly(publisher, startingCursors="last"))
    run.next()
    publisher.publish(4)
    assert [4] == run.until(1)


def test_other_headers_are_refused_while_a_batch_is_pending(publisher, start):
    """Rows of a repeated batch never differ."""
    publisher.publish(1)
    run = start(**directly(publisher), finite=True)
    begin = run.offset
    run.next()
    again = start(**directly(publisher, headers="none"), offset=begin)
    with pytest.raises(ReplayError, match="headers"):
        again.rows(begin, json.loads(json.dumps(run.offset)))


def test_executors_are_refused_where_the_publisher_does_not_offer_it(start, feed):
    """I see at once that this publisher cannot."""
    run = start(feed(Log(3)), fetch="executors")
    with pytest.raises(OptionError, match="does not offer direct reads"):
        run.next()


def test_staging_is_refused_beside_executors(start, publisher, tmp_path):
    with pytest.raises(OptionError, match="stagingLocation"):
        start(**directly(publisher, stagingLocation=str(tmp_path)))


def test_staging_makes_the_driver_fetch(start, publisher, tmp_path):
    """`auto` keeps what I asked for."""
    publisher.publish(1)
    run = start(url=publisher.url, stagingLocation=str(tmp_path), finite=True)
    run.next()
    assert 3 == run.offset["version"]


def test_a_lagging_copy_is_waited_for(publisher, start):
    """A cursor after the head is no other history at once; the error names both causes."""
    publisher.publish(1)
    run = start(**directly(publisher), finite=True)
    run.next()
    ahead = json.loads(json.dumps(run.offset))
    for each in ahead["partitions"].values():
        each["cursor"] = "999.0a1b2c3d"
    again = start(**directly(publisher, retryTimeout="1s"), offset=ahead, finite=True)
    with pytest.raises(Exception, match=r"lags, or its store was restored"):
        again.next()


def test_the_progress_tells_how_far_behind_it_is(publisher, start):
    """I see plans, and chunks that are not read yet."""
    for number in range(3):
        publisher.publish(number, partition=0)
    run = start(**directly(publisher, maxEventsPerTrigger="1"), finite=True)
    run.next()
    assert {"plans": 1, "chunksBehind": 2}.items() <= run.reader.reportLatestOffset().items()


def test_an_older_package_would_refuse_the_offset(publisher, start):
    """Versions are compared before anything else is."""
    publisher.publish(1)
    run = start(**directly(publisher), finite=True)
    run.next()
    unknown = {**run.offset, "version": 4}
    with pytest.raises(CheckpointError, match="format 4"):
        start(**directly(publisher), offset=unknown).next()


def test_waiting_ends_with_the_next_event(publisher, start):
    """A wait at the publisher is no delay."""
    run = start(**directly(publisher, wait="30s"))
    run.next()
    run.next()
    publisher.publish(5)
    wait_for(lambda: run.next() == {position_of(5): [5]} or run.all() == [5])


def position_of(number):
    return number % 2


@pytest.mark.parametrize("way", ["executors", "driver"])
def test_the_progress_tells_the_head_and_the_lag(publisher, start, way):
    """I see how many events are not read, in which partition, and how old they are."""
    publisher.publish(*range(6), partition=0)
    publisher.publish(*range(3), partition=1)
    run = start(url=publisher.url, fetch=way, maxEventsPerTrigger="1", finite=True)
    rows = run.next()  # of either partition: they are read side by side
    unread = [6 - len(rows.get(0, [])), 3 - len(rows.get(1, []))]
    told = run.reader.reportLatestOffset()

    assert unread in ([0, 3], [6, 0])
    lag = {"total": sum(unread), "min": 0, "mean": sum(unread) / 2, "max": max(unread)}
    assert lag == told["eventsBehind"]
    assert 0 == told["secondsBehind"]["min"] <= told["secondsBehind"]["max"] < 300
    assert json.loads(zeh_spark.last_cursors(publisher.url))["1"] == told["head"]
    assert unread == [each["eventsBehind"] for each in told["partitions"].values()]

    run.to_the_end()
    assert 0 == run.reader.reportLatestOffset()["eventsBehind"]["total"]


def test_an_unknown_lag_is_not_zero(feed, start):
    """Another publisher does not tell where its feed ends."""
    run = start(feed(Log(5)), finite=True)
    run.next()
    told = run.reader.reportLatestOffset()

    assert (None, None) == (told["eventsBehind"], told["secondsBehind"])
    assert "partitions" not in told


def test_an_older_publisher_tells_no_lag(publisher, start, monkeypatch):
    """My query goes on, and says that the lag is unknown."""
    monkeypatch.setattr(FeedCalls, "lag_after", lambda *_: None)
    publisher.publish(1)
    run = start(**directly(publisher), finite=True)

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


@pytest.mark.parametrize("way", ["executors", "driver"])
def test_the_first_batch_has_all_that_the_feed_held(publisher, start, caplog, way):
    """A run on Spark 4.0 has one batch, which may be four times as large as the limit."""
    for number in range(30):
        publisher.publish(number, partition=number % 2)
    run = OldSpark(start(url=publisher.url, fetch=way, maxBytesPerTrigger="2000").reader)
    run.next()

    assert list(range(30)) == sorted(run.all())
    assert {"more": False, "total": 0} == summary(run.offset)
    assert "drain" not in caplog.text


@pytest.mark.parametrize("way", ["executors", "driver"])
def test_what_the_only_batch_of_a_run_leaves_is_told(publisher, start, caplog, way):
    """I am warned once, with the number and what to do. A stream that goes on is not flooded."""
    for number in range(200):
        publisher.publish(number, partition=number % 2)
    run = OldSpark(start(url=publisher.url, fetch=way, maxBytesPerTrigger="1000").reader)
    run.next()
    left = 200 - len(run.all())

    assert 0 < left < 200
    assert {"more": True, "total": left} == summary(run.offset)
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

    assert {"more": True, "total": None} == summary(run.offset)
    assert "leaves events whose number is unknown" in caplog.text
    assert list(range(50)) == sorted(run.until(50))


@pytest.mark.parametrize("old", [True, False])
def test_a_run_that_only_repeats_a_batch_says_so(publisher, start, caplog, monkeypatch, old):
    """On Spark 4.0 a finite run that follows a crash reads nothing new, and not in silence."""
    monkeypatch.setattr(stream_driver, "HAS_ADMISSION_CONTROL", not old)
    publisher.publish(1, 2)
    run = start(**directly(publisher), finite=True)
    begin = run.offset
    rows = run.next()
    again = start(**directly(publisher), offset=begin)

    assert rows == again.rows(begin, json.loads(json.dumps(run.offset)))
    assert old == ("repeats the last batch" in caplog.text)


def summary(offset):
    told = offset["behind"]
    return {"more": told["more"], "total": (told["eventsBehind"] or {}).get("total")}
