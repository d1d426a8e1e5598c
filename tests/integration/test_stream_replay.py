"""The stream source: a batch that is asked for again, from feed or stage (DESIGN 3.3)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import pytest

from tests.fix_raw_server import ok, refused
from tests.fix_stream import Feed, Log, Run
from zeh_spark.errors import ReplayError, StagingError


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

    def make(between=lambda feed: None, **given):
        scripted = feed(Log(20))
        done = start(scripted, startingCursors='{"0": "c2"}', **given)
        done.until(18)
        done.reader.stop()
        between(scripted)
        run = start(scripted, done.offset, startingCursors='{"0": "c2"}', **given)
        return Repeated(scripted, done, run)

    return make


def changed(before=None, **log):
    """What a feed has become: answers otherwise, or has another log."""

    def change(feed):
        feed.before = before
        feed.logs = [replace(feed.logs[0], **log)]

    return change


def skipping(partition, cursor, query):
    steps = ["c2", "c1000", "c1001", "c1002"]
    if cursor == "c1003":
        return Log(20).body("c2", 100)
    return ok(Log().checkpoint(1000 + steps.index(cursor))) if cursor in steps else None


def halving(partition, cursor, query):
    return Log(20, each=18).body(cursor, int(query["pagesizehint"]) // 2)


def of_events(*numbers):
    """An answer with these events, up to the batch's last checkpoint."""
    answer = ok(b"".join(map(Log().event, numbers)) + Log().checkpoint(20))
    return lambda partition, cursor, query: answer


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (changed(), {}),
        (changed(count=500), {}),
        (changed(each=100_000, tag="x"), {}),
        (changed(page=3), {}),
        (changed(skipping), {}),
        (changed(halving), {"pageSizeHint": "18"}),
    ],
    ids=["the same", "grown", "other checkpoints", "pages", "pages without events", "half pages"],
)
def test_a_batch_is_read_again(repeated, change, given):
    """The same rows, from the start cursor: without later events, wherever checkpoints come, or not
    at all (ZE-07, D8), and in however many pages, with events or without (D12).
    """
    case = repeated(change, **given)

    assert {0: list(range(2, 20))} == case.rows()
    count = case.feed.logs[0].count
    assert list(range(20, count)) == case.run.until(count - 20)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (changed(count=12), "the feed gives 10 now"),
        (changed(count=2), "the feed gives 0 now"),
        (changed(gone_below=5), "the publisher no longer has them"),
        (changed(of_events(*range(100, 118))), "the feed gives others now"),
    ],
    ids=["shorter", "empty", "gone", "others"],
)
def test_a_batch_that_is_another_now_is_an_error(repeated, change, found):
    """The error names the partition, the cursors and what to do. No row is delivered."""
    with pytest.raises(ReplayError, match=rf"'c2' to 'c20', but {found}") as caught:
        repeated(change).rows()

    assert "stagingLocation" in str(caught.value)
    assert "replay=accept" in str(caught.value)
    assert "failOnDataLoss" not in str(caught.value)  # it lets no repeated batch pass


def test_the_order_between_checkpoints_does_not_matter(repeated):
    """The spec lets a publisher change it: the batch has the same events (D7)."""
    backwards = range(19, 1, -1)
    assert {0: list(backwards)} == repeated(changed(of_events(*backwards))).rows()


def test_accept_takes_what_is_there_now(repeated, caplog):
    """replay=accept: up to the end cursor, once, with a warning."""
    caplog.set_level(logging.WARNING, "zeh_spark")
    log = Log()
    answer = ok(log.event(100) + log.checkpoint(20) + log.event(20) + log.checkpoint(21))
    change = changed(lambda partition, cursor, query: answer if cursor == "c2" else None)

    assert {0: [100]} == repeated(change, replay="accept").rows()
    assert "had 18 events, now it has 1" in caplog.text


@pytest.mark.parametrize(("oldest", "rows"), [(5, list(range(5, 20))), (30, [])])
def test_accept_where_the_start_is_gone(repeated, oldest, rows):
    """What is left of the batch; nothing, where all that is left lies after it."""
    change = changed(count=40, gone_below=oldest, first=oldest)

    assert rows == repeated(change, replay="accept").rows().get(0, [])


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
    """All before the end cursor, also where that does not come again: the next begins there."""
    case = repeated(changed(PageEnds(list(numbers), oldest)), replay="accept")

    assert list(rows) == case.rows().get(0, [])
    assert [each for each in numbers if each >= 20] == case.run.until(len(numbers) - 22)[:20]


@pytest.mark.parametrize("numbers", [[*range(19), *range(20, 40)], range(2)], ids=["one", "all"])
def test_accept_is_refused_where_the_batchs_end_is_unknown(repeated, numbers):
    """Better an error than events twice: the event before the end cursor went, and so did that."""
    with pytest.raises(ReplayError, match="does not give the checkpoint 'c20'"):
        repeated(changed(PageEnds(numbers)), replay="accept").rows()


def test_a_replay_of_last_has_no_rows(feed, start):
    """Batch 0 of a query that starts at `last`."""
    scripted = feed(Log(5))
    run = start(scripted, startingCursors="last")
    run.next()
    scripted.logs[0].count = 9

    again = start(scripted, run.offset, startingCursors="last")

    assert {} == again.rows(run.start, run.offset)
    assert [5, 6, 7, 8] == again.until(4)


def test_the_first_batch_is_repeated_from_where_it_began(feed, start):
    """Whatever startingCursors says by then: Spark does not write the first offset down."""
    run = start(feed(Log(5)), startingCursors='{"0": "c1"}')
    run.until(4)

    later = start(feed(Log(5)), startingCursors='{"0": "c5"}')

    assert {0: [1, 2, 3, 4]} == later.rows(later.reader.initialOffset(), run.offset)


# Staging (DESIGN 3.3)


def names(folder):
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}


def staged(offset):
    return f"{offset['stage']}/{offset['batch']}/0"


@pytest.mark.parametrize("lost", ["publisher", "segment"])
def test_a_staged_batch_is_delivered_again_as_it_was(repeated, tmp_path, lost):
    """Without a publisher; if the directory was cleaned, it is read again, with all checks."""

    def lose(feed):
        if lost == "publisher":
            feed.before = lambda partition, cursor, query: refused(404, "gone")
        else:
            for each in tmp_path.rglob("0"):
                each.unlink()

    assert {0: list(range(2, 20))} == repeated(lose, stagingLocation=str(tmp_path)).rows()


def test_a_staged_batch_has_the_columns_that_it_was_read_for(feed, start, tmp_path):
    """Others would be NULL in its rows, as if the events had none."""
    scripted, given = feed(Log(20)), {"stagingLocation": str(tmp_path), "startingCursors": "first"}
    done = start(scripted, **given)
    done.until(20)
    done.reader.stop()
    other = start(scripted, done.offset, headers="type", **given)
    with pytest.raises(ReplayError, match="planned with another option 'headers' or 'stamps'"):
        other.rows(done.start, done.offset)
    for each in tmp_path.rglob("0"):
        each.write_bytes(b"not to be read")
    accepting = start(scripted, done.offset, headers="type", replay="accept", **given)
    assert {0: list(range(20))} == accepting.rows(done.start, done.offset)


def test_commit_deletes_what_is_done(feed, start, tmp_path):
    """Tasks read from the directory. What Spark has is deleted; committing again does no harm."""
    scripted = feed(Log(5))
    run = start(scripted, stagingLocation=str(tmp_path))
    run.until(5)
    first = run.offset
    (partition,) = run.reader.partitions(run.start, first)
    assert first["batch"] == partition.batch
    assert {staged(first)} == names(tmp_path)
    scripted.logs[0].count = 9
    run.until(9)

    run.reader.commit(first)
    run.reader.commit(first)

    assert {staged(run.offset)} == names(tmp_path)


def test_what_a_crash_left_is_deleted_and_nothing_else(repeated, tmp_path):
    """Batches that no offset names, under the own stage only, which the checkpoint has for life."""
    other = tmp_path / "other-stage" / "batch" / "0"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"theirs")

    def leave(feed):
        (stage,) = (each for each in tmp_path.iterdir() if each.name != "other-stage")
        (stage / "left").mkdir()
        (stage / "left" / "0").write_bytes(b"ours")
        feed.logs[0].count = 30

    case = repeated(leave, stagingLocation=str(tmp_path))
    case.run.until(10)

    before, after = case.done.offset, case.run.offset
    assert (True, False) == (before["stage"] == after["stage"], before["batch"] == after["batch"])
    assert {staged(before), staged(after), "other-stage/batch/0"} == names(tmp_path)


def test_a_location_that_cannot_be_written_fails_before_the_first_batch(feed, start, tmp_path):
    """The error names the option, the location, and what it has to be."""
    (tmp_path / "file").write_text("")
    run = start(feed(Log(0)), stagingLocation=str(tmp_path / "file"))

    said = r"'stagingLocation': cannot write to '.*/file'.*all exec"
    with pytest.raises(StagingError, match=said):
        run.next()
