"""The stream source: a batch that is asked for again, from feed or stage (DESIGN 3.3)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from tests.fix_raw_server import ok, refused
from tests.fix_stream import Feed, Log, Run
from zeh_spark.errors import (
    ReplayError,
    StagingError,
)


@pytest.fixture
def repeated(feed, start):
    """A batch of 18 events from c2 of a feed, and a run after a crash that has to repeat it."""

    @dataclass
    class Repeated:
        feed: Feed
        done: Run
        run: Run

        def rows(self):
            return self.run.rows(self.done.start, self.done.offset)

    def make(log=None, between=lambda feed: None, **given):
        scripted = feed(log or Log(20))
        done = start(scripted, startingCursors='{"0": "c2"}', **given)
        done.until(18)
        done.reader.stop()
        between(scripted)
        run = start(scripted, done.offset, startingCursors='{"0": "c2"}', **given)
        return Repeated(scripted, done, run)

    return make


def test_a_batch_is_read_again(repeated):
    """The same rows, from the start cursor."""
    assert {0: list(range(2, 20))} == repeated().rows()


def test_later_events_are_not_in_a_repeated_batch(repeated):
    """The feed has grown since; the batch has not."""

    def grow(feed):
        feed.logs[0].count = 500

    case = repeated(between=grow)

    assert {0: list(range(2, 20))} == case.rows()
    assert list(range(20, 500)) == case.run.until(480)


def test_checkpoints_do_not_matter_for_a_repeated_batch(repeated):
    """They may come at other places, or not at all (ZE-07, D8)."""

    def change(feed):
        feed.logs[0].each, feed.logs[0].tag = 100_000, "x"

    assert {0: list(range(2, 20))} == repeated(between=change).rows()


def test_other_pages_do_not_matter_for_a_repeated_batch(repeated):
    """What came in one page may come in many (D12)."""

    def change(feed):
        feed.logs[0].page = 3

    assert {0: list(range(2, 20))} == repeated(between=change).rows()


def test_pages_without_events_do_not_matter_for_a_repeated_batch(repeated):
    """A publisher that filters may send many answers that only move the cursor."""

    def change(feed):
        steps = iter(range(1000, 1005))
        feed.before = lambda partition, cursor, query: (
            ok(Log().checkpoint(next(steps)))
            if cursor in {"c2", "c1000", "c1001", "c1002"}
            else feed.logs[0].body("c2", 100)
            if cursor == "c1003"
            else None
        )

    assert {0: list(range(2, 20))} == repeated(between=change).rows()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"count": 12}, "the feed gives 10 now"),
        ({"count": 2}, "the feed gives 0 now"),
        ({"gone_below": 5}, "the publisher no longer has them"),
    ],
    ids=str,
)
def test_a_batch_that_is_shorter_now_is_an_error(repeated, change, found):
    """It names partition, cursors, and the ways on."""

    def shrink(feed):
        for name, value in change.items():
            setattr(feed.logs[0], name, value)

    case = repeated(between=shrink)

    with pytest.raises(ReplayError, match=rf"'c2' to 'c20', but {found}") as caught:
        case.rows()

    assert "stagingLocation" in str(caught.value)
    assert "replay=accept" in str(caught.value)
    assert "failOnDataLoss" not in str(caught.value)  # it lets no repeated batch pass


def in_another_order(feed):
    """The events of the batch backwards, up to the same checkpoint."""
    feed.before = lambda partition, cursor, query: ok(
        b"".join(Log().event(n) for n in reversed(range(2, 20))) + Log().checkpoint(20)
    )


def test_the_order_between_checkpoints_does_not_matter(repeated):
    """The spec lets a publisher change it: the batch has the same events (D7)."""
    assert {0: list(range(19, 1, -1))} == repeated(between=in_another_order).rows()


def test_other_events_are_an_error(repeated):
    """As many, but not the same: never delivered in silence."""

    def change(feed):
        feed.before = lambda partition, cursor, query: ok(
            b"".join(Log().event(n) for n in range(100, 118)) + Log().checkpoint(20)
        )

    with pytest.raises(ReplayError, match="others now"):
        repeated(between=change).rows()


def test_accept_takes_what_is_there_now(repeated, caplog):
    """replay=accept: up to the end cursor, once, with a warning."""
    caplog.set_level(logging.WARNING, "zeh_spark")

    def change(feed):
        feed.before = lambda partition, cursor, query: (
            ok(Log().event(100) + Log().checkpoint(20) + Log().event(20) + Log().checkpoint(21))
            if cursor == "c2"
            else None
        )

    assert {0: [100]} == repeated(between=change, replay="accept").rows()
    assert "had 18 events, now it has 1" in caplog.text


@pytest.mark.parametrize(("gone_below", "rows"), [(5, list(range(5, 20))), (30, [])])
def test_accept_where_the_start_is_gone(repeated, gone_below, rows):
    """What is left of the batch; nothing, where all that is left lies after it."""

    def remove(feed):
        log = feed.logs[0]
        log.count, log.gone_below, log.first = 40, gone_below, gone_below

    got = repeated(between=remove, replay="accept").rows()

    assert rows == got.get(0, [])


@dataclass
class PageEnds:
    """Numbers whose only checkpoints are at the ends of pages, wherever those begin."""

    numbers: list[int]
    oldest: int = 0

    def __call__(self, partition, cursor, query):
        at = {"_first": self.oldest, "_last": self.numbers[-1] + 1}.get(cursor)
        at = int(cursor[1:]) if at is None else at
        if at < self.oldest:
            return refused(410, "removed")
        page = [each for each in self.numbers if each >= at][: int(query["pagesizehint"])]
        end = page[-1] + 1 if page else at
        return ok(b"".join(map(Log().event, page)) + Log().checkpoint(end))


@pytest.mark.parametrize(
    ("numbers", "oldest", "rows"),
    [
        ([*range(5), *range(8, 40)], 0, [2, 3, 4, *range(8, 20)]),
        (range(40), 10, range(10, 20)),
        (range(40), 0, range(2, 20)),
    ],
    ids=["compacted", "the start is gone", "the same"],
)
def test_accept_ends_where_the_batch_ended(repeated, numbers, oldest, rows):
    """Neither more nor less than what lies before the end cursor, also where that does not come
    again: the next batch begins there.
    """

    def change(feed):
        feed.before = PageEnds(list(numbers), oldest)

    case = repeated(between=change, replay="accept")

    assert list(rows) == case.rows().get(0, [])
    assert [each for each in numbers if each >= 20] == case.run.until(len(numbers) - 22)[:20]


@pytest.mark.parametrize("numbers", [[*range(19), *range(20, 40)], range(2)], ids=["one", "all"])
def test_accept_is_refused_where_the_batchs_end_is_unknown(repeated, numbers):
    """Better an error than events twice: the event before the end cursor went, and so did that."""

    def change(feed):
        feed.before = PageEnds(numbers)

    with pytest.raises(ReplayError, match="does not give the checkpoint 'c20'"):
        repeated(between=change, replay="accept").rows()


def test_a_batch_is_read_again_with_the_page_it_needs(repeated):
    """A publisher whose pages are half as long as I ask for, and end before their checkpoint."""

    def halve(partition, cursor, query):
        return Log(20, each=18).body(cursor, int(query["pagesizehint"]) // 2)

    def change(feed):
        feed.before = halve

    case = repeated(between=change, pageSizeHint="18")

    assert {0: list(range(2, 20))} == case.rows()


def test_a_replay_of_last_has_no_rows(feed, start):
    """Batch 0 of a query that starts at `last`."""
    scripted = feed(Log(5))
    run = start(scripted, startingCursors="last")
    run.next()
    scripted.logs[0].count = 9

    again = start(scripted, run.offset, startingCursors="last")

    assert {} == again.rows(run.start, run.offset)
    assert [5, 6, 7, 8] == again.until(4)


# Staging (DESIGN 3.3)


def names(folder):
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_a_staged_batch_needs_no_publisher(repeated, tmp_path):
    """What waits in the directory is delivered again as it was."""

    def lose(feed):
        feed.before = lambda partition, cursor, query: refused(404, "gone")

    assert {0: list(range(2, 20))} == repeated(between=lose, stagingLocation=str(tmp_path)).rows()


def test_a_staged_batch_carries_no_bytes(feed, start, tmp_path):
    """Tasks read them from the directory."""
    run = start(feed(Log(5)), stagingLocation=str(tmp_path))
    end = run.reader.latestOffset(run.offset, run.limit)

    (partition,) = run.reader.partitions(run.offset, end)

    assert (None, end["batch"]) == (partition.payload, partition.batch)
    assert [f"{end['stage']}/{end['batch']}/0"] == names(tmp_path)


def test_a_lost_segment_is_read_again(repeated, tmp_path):
    """Someone cleaned the directory: as without staging, with the same checks."""

    def lose(feed):
        for each in tmp_path.rglob("0"):
            each.unlink()

    assert {0: list(range(2, 20))} == repeated(between=lose, stagingLocation=str(tmp_path)).rows()


def test_commit_deletes_what_is_done(feed, start, tmp_path):
    """Spark has it: nothing piles up, and committing again does no harm."""
    scripted = feed(Log(5))
    run = start(scripted, stagingLocation=str(tmp_path))
    run.until(5)
    first = run.offset
    scripted.logs[0].count = 9
    run.until(9)

    run.reader.commit(first)
    run.reader.commit(first)

    assert [f"{run.offset['stage']}/{run.offset['batch']}/0"] == names(tmp_path)


def test_the_stage_is_the_checkpoints_for_life(repeated, tmp_path):
    """Batches of one query lie together, also after a restart."""

    def grow(feed):
        feed.logs[0].count = 30

    case = repeated(between=grow, stagingLocation=str(tmp_path))
    case.run.until(10)

    assert case.done.offset["stage"] == case.run.offset["stage"]
    assert case.done.offset["batch"] != case.run.offset["batch"]


def test_what_a_crash_left_is_deleted_and_nothing_else(repeated, tmp_path):
    """Batches that no offset names, under the own stage only."""
    other = tmp_path / "other-stage" / "batch" / "0"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"theirs")

    def leave(feed):
        (stage,) = (each for each in tmp_path.iterdir() if each.name != "other-stage")
        (stage / "left").mkdir()
        (stage / "left" / "0").write_bytes(b"ours")
        feed.logs[0].count = 30

    case = repeated(between=leave, stagingLocation=str(tmp_path))
    case.run.until(10)

    stage = case.done.offset["stage"]
    kept = {f"{stage}/{each.offset['batch']}/0" for each in (case.done, case.run)}
    assert {*kept, "other-stage/batch/0"} == set(names(tmp_path))


def test_a_location_that_cannot_be_written_fails_before_the_first_batch(feed, start, tmp_path):
    """The error names the option."""
    (tmp_path / "file").write_text("")
    run = start(feed(Log(5)), stagingLocation=str(tmp_path / "file"))

    with pytest.raises(StagingError, match="'stagingLocation': cannot write"):
        run.next()


def test_the_first_batch_is_repeated_from_where_it_began(feed, start):
    """Whatever startingCursors says by then: Spark does not write the first offset down."""
    run = start(feed(Log(5)), startingCursors='{"0": "c1"}')
    run.until(4)
    end = run.offset

    later = start(feed(Log(5)), startingCursors='{"0": "c5"}')
    rows = later.rows(later.reader.initialOffset(), end)

    assert {0: [1, 2, 3, 4]} == rows
