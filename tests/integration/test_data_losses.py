"""Retention overtakes a stream: what failOnDataLoss=false continues with, once and for good."""

import json
from contextlib import closing

import pytest

from tests.fix_log_texts import check_documented
from tests.fix_stream import Log, position
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.errors import CursorGoneError, ReplayError
from zeh_spark.service.reads import direct_plans
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention
from zeh_spark.spark.source import planned_batch
from zeh_spark.testing import publish, running_publisher

WAYS = ["driver", "executors"]
ON = {"failOnDataLoss": "false"}


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


def overtaken(publisher, start, way, left, also=()):
    """Where a reader of both partitions is that retention overtook in partition 0, and in `also`.

    `left` are the events of partition 0 that are still there.
    """
    publisher.publish(*range(500), partition=0)
    publisher.publish(1, partition=1)
    run = start(url=publisher.url, fetch=way, finite=True)
    assert 501 == len(run.to_the_end())
    for partition in (0, *also):
        publisher.publish(*range(500, 1000), partition=partition)
    if left:
        publisher.publish(*left, partition=0)
    prune(publisher.store, "orders", Retention(bytes=50 * len(left)))
    return run.offset


def test_unread_events_that_are_gone_stop_the_query(publisher, start, way):
    """I am told which partition lost events, and what to do."""
    behind = overtaken(publisher, start, way, [7])
    with pytest.raises(CursorGoneError, match=r"partition 0.*cursor-gone.*'failOnDataLoss'"):
        start(url=publisher.url, fetch=way, offset=behind, finite=True).next()


@pytest.mark.parametrize("after", WAYS)
def test_a_batch_after_a_loss_is_repeated_as_it_was(publisher, start, way, after):
    """After a crash I get the same rows, whoever fetches them, and then need no option."""
    behind = overtaken(publisher, start, way, [7, 8])
    run = start(url=publisher.url, fetch=way, offset=behind, finite=True, **ON)
    rows = run.next()
    publisher.publish(9, partition=0)
    again = start(url=publisher.url, fetch=after, offset=behind, finite=True)

    assert {0: [7, 8]} == rows
    assert rows == again.rows(behind, run.offset) == again.rows(behind, run.offset)
    again.offset = run.offset
    assert [9] == again.to_the_end()


def test_a_batch_after_a_loss_is_repeated_on_older_versions_of_spark(publisher, start, way):
    """Spark 4.0 and 4.1 restore the offset, and then ask without one."""
    behind = overtaken(publisher, start, way, [7, 8])
    reader = start(url=publisher.url, fetch=way, **ON).reader
    assert [] == reader.partitions(behind, behind)
    end = json.loads(json.dumps(reader.latestOffset()))
    rows = [start(url=publisher.url, fetch=way).rows(behind, end) for _ in range(2)]

    assert [{0: [7, 8]}] * 2 == rows
    assert not end["behind"]["more"]


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("also", [[], [1]], ids=["one", "all"])
def test_the_position_passes_a_loss_although_nothing_new_came(
    publisher, start, way, also, finite, caplog
):
    """I can remove the option again: nothing is lost a second time."""
    behind = overtaken(publisher, start, way, [], also)
    run = start(url=publisher.url, fetch=way, offset=behind, finite=finite, **ON)
    assert {} == run.next()
    passed = run.offset
    assert [None] * 3 == [run.next() for _ in range(3)]
    assert 1 + len(also) == caplog.text.count("LOST")  # a stream that waits does not repeat it

    strict = start(url=publisher.url, fetch=way, offset=behind, finite=True)
    assert {} == strict.rows(behind, passed)
    strict.offset = passed
    assert strict.next() is None
    publisher.publish(9, partition=0)
    publisher.publish(9, partition=1)
    assert [9, 9] == start(url=publisher.url, fetch=way, offset=passed, finite=True).to_the_end()


def test_a_stream_passes_a_loss_while_another_partition_goes_on(publisher, start, way):
    """The partition that lost events moves together with the one that has new ones."""
    behind = overtaken(publisher, start, way, [])
    publisher.publish(2, partition=1)
    run = start(url=publisher.url, fetch=way, offset=behind, finite=True, **ON)
    rows = run.next()
    again = start(url=publisher.url, fetch=way, offset=behind)

    assert {1: [2]} == rows == again.rows(behind, run.offset)
    assert position(behind)["cursor"] != position(run.offset)["cursor"]
    publisher.publish(9, partition=0)
    assert [9] == start(url=publisher.url, fetch=way, offset=run.offset, finite=True).to_the_end()


def test_one_warning_tells_a_loss_whoever_fetches(publisher, start, way, caplog):
    """My alert looks for one text, and finds it once."""
    behind = overtaken(publisher, start, way, [7])
    run = start(url=publisher.url, fetch=way, offset=behind, finite=True, **ON)
    run.to_the_end()
    cursor = position(behind)["cursor"]

    check_documented(caplog.records, "EVENTS ARE LOST")
    (said,) = [each.getMessage() for each in caplog.records if "LOST" in each.getMessage()]
    code = CursorGoneError("").code
    assert said.startswith(f"[{code}] EVENTS ARE LOST: partition 0, cursor {cursor!r}: ")
    assert position(run.offset)["from"] in said


def test_a_batch_after_a_loss_whose_own_events_are_removed_is_refused(publisher, start, way):
    """Retention moved on between the crash and the restart: I am told, and nothing is skipped."""
    behind = overtaken(publisher, start, way, range(500))
    run = start(url=publisher.url, fetch=way, offset=behind, finite=True, **ON)
    run.next()
    publisher.publish(9, partition=0)
    prune(publisher.store, "orders", Retention(bytes=50))
    again = start(url=publisher.url, fetch=way, offset=behind, **ON)

    with pytest.raises(ReplayError, match=r"partition 0.*500 events.*no longer has them"):
        again.rows(behind, run.offset)


def test_events_before_and_after_a_loss_are_in_batches_of_their_own(feed, start):
    """So each batch begins at one cursor, and can be repeated."""
    scripted = feed(Log(9, page=3))
    run = start(scripted, startingCursors='{"0": "c0"}', finite=True, **ON)

    def overtake(partition, cursor, query):
        if cursor == "c3":
            scripted.logs[0].gone_below = scripted.logs[0].first = 5

    scripted.before = overtake
    batches = [run.next(), run.next(), run.next()]
    offsets = run.start, run.offset

    assert [{0: [0, 1, 2]}, {0: [5, 6, 7, 8]}, None] == batches
    assert "_first" == position(run.offset)["from"]
    again = start(scripted, startingCursors='{"0": "c0"}')
    assert {0: [5, 6, 7, 8]} == again.rows(*offsets)


def test_a_feed_without_anything_left_is_continued_from_its_beginning(feed, start):
    """Another publisher tells no cursor of what is left: what comes next is not lost."""
    scripted = feed(Log(5, gone_below=5, first=5))
    run = start(scripted, startingCursors='{"0": "c2"}', **ON)
    eventually(lambda: run.next() is not None)
    strict = start(scripted, run.offset)
    assert strict.next() is None
    scripted.logs[0].count = 7
    assert [5, 6] == strict.until(2)


def test_retention_between_two_plans_of_a_batch_joins_nothing_across_the_hole(start, monkeypatch):
    """A batch of many small chunks is planned in parts; it has what is left, and nothing else."""
    monkeypatch.setattr(planned_batch, "PLAN_CHUNKS", 2)
    monkeypatch.setattr(direct_plans, "PLAN_CHUNKS", 2)
    with closing(ScratchStore(orders=1)) as store:
        for number in range(8):
            publish(store, "orders", [number])
        size = store.feed("orders").size // 8
        with running_publisher(store) as base:
            options = {"url": f"{base}/orders", "fetch": "executors", "finite": True}
            looks = iter([None, Retention(bytes=4 * size)])  # the second one is after retention

            def before_read(what, feed):
                if what == "snapshot" and (kept := next(looks, None)):
                    prune(store, feed, kept)

            monkeypatch.setattr(store, "before_read", before_read)
            run = start(**options, **ON)
            begin = run.offset
            rows = run.next()

            assert {0: [4, 5, 6, 7]} == rows
            assert rows == start(**options).rows(begin, run.offset)
