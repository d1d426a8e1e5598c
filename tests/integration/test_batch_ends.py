"""The batch reader: when a read has reached its end, whatever the publisher."""

import itertools
import json
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fix_batch import Feed, cursor_of
from tests.fix_raw_server import Answer, head, ok, refused
from zeh_spark.client.polling import finite_read
from zeh_spark.errors import PublisherError, UnavailableError
from zeh_spark.wire import wire


@pytest.mark.parametrize("every", [1, 7], ids=["the target comes", "the target never comes"])
@pytest.mark.parametrize("equal", [False, True])
def test_a_batch_read_ends_on_a_feed_that_never_goes_quiet(read, every, equal):
    """More events with every answer do not keep a read going. Nor do heartbeats, which are all
    alike, end it early: an event that looks like the first new one is not the end.
    """
    feed = Feed([7] * 33 if equal else range(33))
    (events,) = feed.partitions

    def respond(request):
        if cursor_of(request)[1] != wire.LAST:
            events.extend(7 if equal else len(events) + i for i in range(10))
            feed.every = every
        return feed(request)

    (numbers,) = read(respond, 1)

    assert events[: len(numbers)] == numbers
    assert 33 <= len(numbers) <= 40


def test_a_target_that_was_passed_before_there_was_anything_after_it(read):
    """A feed may begin to grow while the page is read that holds its end, and never be quiet."""
    feed = Feed(range(20), every=1000)
    asked = []

    def respond(request):
        asked.append(cursor_of(request)[1])
        if asked[-1] not in {wire.LAST, "20"} or len(asked) > 2:
            feed.partitions[0] += range(len(feed.partitions[0]), len(feed.partitions[0]) + 2)
        return feed(request)

    (numbers,) = read(respond, 1, pageSizeHint="1000")

    assert list(range(len(numbers))) == numbers
    assert 20 <= len(numbers) <= 30
    assert "20" == asked[1]


def test_a_target_that_was_not_passed_yet_ends_no_read(read):
    """A feed that begins to grow while its first page is read has more pages before its end."""
    feed = Feed(range(20))

    def respond(request):
        answer = feed(request)
        if cursor_of(request)[1] == wire.FIRST:
            feed.partitions[0].append(len(feed.partitions[0]))
        return answer

    (numbers,) = read(respond, 1, pageSizeHint="10")

    assert list(range(20)) == numbers[:20]


@pytest.mark.parametrize("quiet_every", [1, 2, 5])
def test_a_feed_without_a_target_ends_at_a_quiet_moment(read, quiet_every):
    """If `_last` tells nothing, it is read until it has no more, also under a writer."""
    feed = Feed(range(20))
    (events,) = feed.partitions
    asked = iter(range(1000))

    def respond(request):
        if cursor_of(request)[1] == wire.LAST:
            return ok()
        if next(asked) % quiet_every > 1:
            events.append(len(events))
        return feed(request)

    (numbers,) = read(respond, 1, pageSizeHint="1000")

    assert events[: len(numbers)] == numbers
    assert 20 <= len(numbers) <= 40


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 60),
    st.lists(st.integers(0, 12), max_size=30),
    st.booleans(),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(0, 3),
    st.booleans(),
)
@example(7, [12] * 5, False, 5, 8, 0, True)  # what was passed still waits for its checkpoint
@example(0, [0, 1, 0, 0, 0, 1], False, 2, 1, 0, False)  # the feed grows between read and probe
def test_a_batch_read_holds_all_that_was_there(
    read, there, growth, equal, every, most, surplus, open
):
    """However fast it grows and much alike events are: a beginning, no less than it held."""
    pages = {"every": every, "most": max(every, most), "surplus": surplus, "open": open}
    feed = Feed([7] * there if equal else range(there), **pages)
    (events,) = feed.partitions
    more = iter(growth)

    def respond(request):
        if cursor_of(request)[1] != wire.LAST:
            events.extend(7 if equal else len(events) + i for i in range(next(more, 0)))
        return feed(request)

    (numbers,) = read(respond, 1)

    assert events[: len(numbers)] == numbers
    assert len(numbers) >= there


@pytest.mark.parametrize(
    "answer",
    [
        ok(),
        ok(b"{}"),
        ok(b'{"error":"backend timeout"}'),
        Answer((head(status=202, content_length=0),)),
        Answer((head(status=204),)),
        Answer((head(content_length="?"),), "close"),
        Answer((head(transfer_encoding="xchunked"),), "close"),
    ],
    ids=["empty", "{}", "error", "202", "204", "broken length", "broken encoding"],
)
def test_one_odd_answer_does_not_end_a_batch_read_early(read, answer):
    """A hiccup on the way is not the end of the feed: all of it, or an error."""
    feed = Feed(range(35), every=4)
    hiccups = iter([answer])

    def respond(request):
        odd = next(hiccups, None) if cursor_of(request)[1] == "20" else None
        return odd or feed(request)

    try:
        assert [list(range(35))] == read(respond, 1)
    except PublisherError as exc:
        assert exc.status == 202


@pytest.mark.parametrize(
    ("feed", "cursor"),
    [(Feed(range(9)), "99"), (Feed(range(35), every=100, surplus=3), "13")],
    ids=["it is not there", "within an interval"],
)
def test_an_ending_cursor_that_never_comes_is_named(read, feed, cursor):
    """Less would look like all of it; and more is never read, if no page ends there."""
    ends = {"endingCursors": json.dumps({"0": cursor}), "pageSizeHint": "30"}

    with pytest.raises(PublisherError, match=f"'{cursor}' of 'ending.*rs' did not come"):
        read(feed, **ends)


@pytest.mark.parametrize("most", [15, 100], ids=["it still waits for one", "within an interval"])
def test_an_ending_cursor_that_does_not_come_by_itself_is_asked_for(read, most):
    """Exactly up to mine, where the publisher sets its checkpoints elsewhere."""
    feed = Feed(range(35), every=most // 10 * 10, most=most, open=True)
    ends = {"endingCursors": json.dumps({"0": "13"}), "pageSizeHint": "30"}

    assert [list(range(13))] == read(feed, **ends)


def test_a_target_beyond_the_partitions_last_event(read):
    """Where `_last` is of all partitions: the error names the way on, as lag looks the same."""
    feed = Feed(range(9), answers={wire.LAST: ok(wire.checkpoint_line(0, "50"))})

    with pytest.raises(UnavailableError, match=r"at '50' when .* set 'ending.*' to 'quiet'"):
        read(feed)
    assert [list(range(9))] == read(feed, endingCursors="quiet")


def test_answers_that_lag_behind_are_waited_for(read):
    """`_last` comes from a primary, pages from its replica."""
    whole, lagging = Feed(range(33)), Feed(range(20))
    quiet = iter(range(2))

    def respond(request):
        cursor = cursor_of(request)[1]
        if cursor == "20" and next(quiet, None) is None:
            lagging.partitions = whole.partitions
        return (whole if cursor == wire.LAST else lagging)(request)

    assert [list(range(33))] == read(respond, 1)


@pytest.mark.parametrize("quiet", [ok(), ok(wire.checkpoint_line(0, "_first"))], ids=["", "cursor"])
def test_a_replica_that_lags_at_the_beginning_is_waited_for(read, quiet):
    """A few answers without events do not show that a partition is empty."""
    feed, asked = Feed(range(33), every=4), itertools.count()

    def respond(request):
        lags = cursor_of(request)[1] == wire.FIRST and next(asked) < 4
        return quiet if lags else feed(request)

    assert [list(range(33))] == read(respond, 1, retryTimeout="20s")


def test_a_target_that_was_removed_ends_no_read(read, monkeypatch):
    """A table loses single rows: what is before such a row is still there. A cursor that I have
    named cannot be replaced; the error says what to do.
    """
    monkeypatch.setattr(finite_read, "SETTLED", 0)
    feed = Feed(range(60), most=5, answers={"60": refused(410, "removed")})

    assert [list(range(60))] == read(feed)
    with pytest.raises(PublisherError, match=r"removed what is after '60'.*last_cursors"):
        read(feed, endingCursors='{"0": "60"}')


def test_the_feed_is_asked_for_another_target(read):
    """A busy feed ends, too, whose first target was removed while it was read."""
    feed = Feed(range(60), every=7, most=7, answers={"60": refused(410, "removed")})

    def respond(request):
        if cursor_of(request)[1] not in (wire.LAST, wire.FIRST, "60"):
            feed.partitions[0] += [len(feed.partitions[0])]
        return feed(request)

    (rows,) = read(respond, 1)

    assert list(range(len(rows))) == rows
    assert 60 <= len(rows) <= 80


def test_a_replica_that_does_not_know_the_target_is_an_error(read):
    """It refuses what it does not have yet; that is no proof of an end."""
    answers = {wire.LAST: ok(wire.checkpoint_line(0, "33")), "33": refused(409, "unknown cursor")}

    with pytest.raises(UnavailableError, match=r"nothing after cursor '20'.*at '33'"):
        read(Feed(range(20), answers=answers))


def test_a_batch_read_continues_after_pages_without_events(read):
    """A publisher may skip far over what it filters; what comes after is read."""

    def respond(request):
        at = cursor_of(request)[1]
        number = 9 if at == wire.LAST else 0 if at == wire.FIRST else int(at)
        event = b'{"data":7}\n' if number == 5 else b""
        return ok(event + b'{"cursor":"%d"}\n' % min(number + 1, 9))

    assert [[7]] == read(respond, 1)


def test_a_cursor_that_moves_for_ever_without_events_is_an_error(read):
    """Less than what was there would look like all of it."""
    with pytest.raises(PublisherError, match=r"moved the cursor without an event.*availableNow"):
        read(lambda request: ok(wire.checkpoint_line(0, str(time.monotonic_ns()))), 1)


@pytest.mark.parametrize("target", ["k9", None])
def test_cursors_that_go_round_end_a_batch_read(read, target):
    """k1, k2, k1, … each with events: the read names the fault instead of going on for ever."""
    leads_to = {"_first": "k1", "k1": "k2", "k2": "k1"}

    def respond(request):
        cursor = cursor_of(request)[1]
        if cursor not in leads_to:
            return ok(wire.checkpoint_line(0, target) if target and cursor == wire.LAST else b"")
        return ok(wire.event_line(0, {}, b"1") + b"\n" + wire.checkpoint_line(0, leads_to[cursor]))

    with pytest.raises(PublisherError, match=r"partition 0: .* form a loop: .*'k2' is 'k1' again"):
        read(respond, 1)
