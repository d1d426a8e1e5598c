"""A program reads a feed without Spark: what its pages hold, and what their cursors mean.

Where a read ends, and what it makes of wrong answers, is in `test_batch_ends`, which reads in both
ways.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from itertools import chain

import pytest

from tests.fix_batch import Feed
from tests.fix_raw_server import NO_IDENTITY, Answer, ok, refused
from tests.fix_stream import Feed as LoggedFeed
from tests.fix_stream import Log
from tests.integration.test_stream_identity import COPY, A, B, Stamped, tells
from tests.patience import eventually
from zeh_spark.client.polling import position_reporter
from zeh_spark.errors import (
    AccessError,
    CheckpointError,
    CursorGoneError,
    MalformedLineError,
    OptionError,
    PublisherError,
    UnknownOptionError,
)
from zeh_spark.reading import reader
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention
from zeh_spark.wire.wire import checkpoint_line


def numbers(page):
    return [int(event["data"]) for event in page.to_pylist()]


def read_all(*args, **options):
    """All events in one list, and the last cursors."""
    found, cursors = [], None
    for page, cursors in reader(*args, **options):  # noqa: B007 - the last ones are returned
        found += numbers(page)
    return found, cursors


def next_events(pages):
    """The next page of a reader that follows, but for those without events."""
    return next(page for page, _ in pages if page.num_rows)


def test_pages_hold_what_lies_between_their_cursors(publisher):
    """Wherever my program was killed, I continue after the page that I kept last."""
    for begin in range(0, 40, 8):
        publisher.publish(*range(begin, begin + 8))
    pages = list(reader(publisher.url, page_size_hint=4))
    each = [numbers(page) for page, _ in pages]

    assert sorted(chain(*each)) == list(range(40))
    assert len(each) >= 10
    for place, (_, cursors) in enumerate(pages):
        assert sorted(read_all(publisher.url, cursors)[0]) == sorted(chain(*each[place + 1 :]))


def test_a_page_has_the_columns_of_the_source(publisher):
    """I get an event's partition, headers and JSON, byte for byte."""
    publisher.publish({"order": 17}, partition=1)
    (page, cursors), *_ = [each for each in reader(publisher.url) if each[0].num_rows]
    (event,) = page.to_pylist()
    headers = dict(event["headers"])

    assert ["partition", "headers", "data"] == page.schema.names == list(event)
    assert (1, '{"order": 17}') == (event["partition"], event["data"])
    assert {"zeh-producer": "test", "zeh-partition": "1", "zeh-sequence": "0"}.items() <= (
        headers.items()
    )
    assert json.loads(cursors)["feed"] == headers["zeh-feed"]


def test_stamps_may_be_columns(publisher):
    publisher.publish(5)
    pages = [page for page, _ in reader(publisher.url, stamps="columns") if page.num_rows]
    (event,) = pages[0].to_pylist()

    assert ("test", 0, []) == (event["producer"], event["sequence"], event["headers"])


def test_an_empty_feed_has_no_events(publisher):
    found, cursors = read_all(publisher.url)
    publisher.publish(1)

    assert [] == found
    assert [1] == read_all(publisher.url, cursors)[0]


def test_a_reader_that_begins_at_the_end_can_keep_that_place(publisher):
    """What is published before I read again is not lost."""
    publisher.publish(*range(10))
    found, cursors = read_all(publisher.url, "last")
    publisher.publish(*range(10, 20))

    assert [] == found
    assert list(range(10, 20)) == sorted(read_all(publisher.url, cursors)[0])


def test_a_reader_begins_at_a_time_if_nothing_was_kept(publisher):
    publisher.publish(*range(10))
    found, cursors = read_all(publisher.url, starting_timestamp="0")
    publisher.publish(*range(10, 20))

    assert list(range(10)) == sorted(found)
    again, _ = read_all(publisher.url, cursors, starting_timestamp="0")
    assert list(range(10, 20)) == sorted(again)


@pytest.mark.parametrize("form", [json.dumps, lambda cursors: cursors], ids=["JSON", "dict"])
def test_a_reader_begins_at_cursors_by_partition(raw_server, form):
    raw_server.respond, raw_server.discovery = Feed(range(5), range(5)), NO_IDENTITY

    assert [3, 4, *range(5)] == read_all(raw_server.url, form({0: "3", 1: "_first"}))[0]


def test_cursors_by_partition_are_those_of_all_partitions(publisher):
    """Read as those of a feed with fewer partitions, they would skip events."""
    with pytest.raises(
        OptionError, match=r"'cursors' has cursors for 1 partition \(0\), but.* has 2"
    ):
        next(reader(publisher.url, {0: "_first"}))


class Long(Log):
    """Events of about 50 kB."""

    def event(self, number, partition=0):
        return b'{"partition":%d,"data":%b%d}\n' % (partition, b" " * 50_000, number)


@pytest.mark.parametrize(("each", "pages"), [(1, 3), (60, 1)])
def test_a_page_ends_at_the_first_checkpoint_after_a_megabyte(raw_server, each, pages):
    """A publisher that ignores my page size does not fill my memory, and an event is in the page of
    its cursor however far checkpoints lie apart.
    """
    LoggedFeed(raw_server, [Long(60, each=each)])
    found = [numbers(page) for page, _ in reader(raw_server.url, partition_count=1)]

    assert pages == len(found)
    assert list(range(60)) == [*chain(*found)]


@pytest.mark.parametrize("checkpoints", ["event", "page"])
def test_the_reference_publisher_is_read_exactly(start_reference_server, checkpoints):
    """Its answers break off in their middle, and nothing is lost or doubled."""
    url = start_reference_server(events=300, checkpoints=checkpoints, fail_after=70, failures=3)
    pages = list(reader(url, partition_count=2, page_size_hint=100))
    ids = [
        (event["partition"], json.loads(event["data"])["id"])
        for page, _ in pages
        for event in page.to_pylist()
    ]

    assert [(partition, number) for partition in (0, 1) for number in range(300)] == sorted(ids)
    assert len(ids) == len(set(ids))
    middle = pages[len(pages) // 2][1]
    rest, _ = read_all_ids(url, middle)
    assert len(rest) == sum(page.num_rows for page, _ in pages[len(pages) // 2 + 1 :])


def read_all_ids(url, cursors):
    pages = list(reader(url, cursors, partition_count=2))
    return [event["data"] for page, _ in pages for event in page.to_pylist()], pages


def test_a_reader_that_follows_gets_what_is_published(publisher):
    """It tells me that I have all, and waits for more in any partition."""
    publisher.publish(1, partition=0)
    with_news = reader(publisher.url, follow=True, wait="20s")
    assert [1] == numbers(next_events(with_news))
    for number in (2, 3):
        next(page for page, _ in with_news if page.num_rows == 0)
        publisher.publish(number, partition=number % 2)
        assert [number] == numbers(next_events(with_news))
    with_news.close()


def test_one_request_waits_for_all_partitions(raw_server):
    feed = LoggedFeed(raw_server, [Log(2), Log(3)])
    pages = reader(raw_server.url, follow=True, partition_count=2, wait="7s", poll_interval="10ms")
    while next(pages)[0].num_rows:
        pass
    next(pages)
    pages.close()
    (waited,) = [each.query for each in raw_server.requests if "wait" in each.query]

    assert ("7", "c2", "c3") == (waited["wait"], waited["cursor0"], waited["cursor1"])
    assert 2 == len(feed.logs)


def test_a_publisher_that_does_not_wait_is_asked_now_and_then(raw_server):
    """I do not keep it busy: after an answer at once there is a pause."""
    feed = LoggedFeed(raw_server, [Log(1)])
    pages = reader(raw_server.url, follow=True, partition_count=1, poll_interval="300ms")
    began = time.monotonic()
    while time.monotonic() - began < 1:
        next(pages)
    feed.logs[0].count = 2

    assert [1] == numbers(next_events(pages))
    assert len(raw_server.requests) < 30
    pages.close()


def test_a_publisher_that_moves_its_cursor_for_ever_is_not_kept_busy(raw_server):
    """Each answer has another cursor and no event: after some time there are pauses."""
    raw_server.discovery = NO_IDENTITY
    moves = itertools.count()
    raw_server.respond = lambda request: ok(checkpoint_line(0, f"c{next(moves)}"))
    pages = reader(raw_server.url, follow=True, partition_count=1, poll_interval="30d")
    page, cursors = next(pages)  # which says that it waits from now on
    pages.close()

    assert (0, "c99") == (page.num_rows, json.loads(cursors)["0"])


@pytest.mark.parametrize("start", [{}, {"starting_timestamp": "0"}])
def test_a_page_without_events_comes_only_when_all_was_read(publisher, start):
    """Of a partition without events only the cursor moves, and the others have events to come."""
    publisher.publish(*range(10), partition=1)
    pages = reader(publisher.url, follow=True, page_size_hint=4, **start)
    found = list(itertools.takewhile(lambda page: page.num_rows, (page for page, _ in pages)))
    pages.close()

    assert [*range(10)] == [*chain(*map(numbers, found))]


def test_the_page_after_all_was_read_has_the_cursors_that_moved(raw_server):
    """What a partition without events has skipped is not read again."""
    raw_server.discovery = NO_IDENTITY
    after = {"_first": "c1", "c1": "c1"}
    raw_server.respond = lambda request: ok(checkpoint_line(0, after[request.query["cursor0"]]))
    pages = reader(raw_server.url, follow=True, partition_count=1)
    page, cursors = next(pages)
    pages.close()

    assert (0, "c1") == (page.num_rows, json.loads(cursors)["0"])


def test_a_publisher_whose_cursors_form_a_loop_is_not_followed_for_ever(raw_server):
    """I do not get the same events again and again without being told."""
    raw_server.discovery = NO_IDENTITY
    after = {"_first": "k1", "k1": "k2", "k2": "k1"}

    def respond(request):
        event = Long().event(1)
        return ok(event + checkpoint_line(0, after[request.query["cursor0"]]))

    raw_server.respond = respond
    pages = reader(raw_server.url, follow=True, partition_count=1)
    for _ in range(2):  # nor does the reader seem to end if I ask again
        with pytest.raises(PublisherError, match=r"partition 0: .* form a loop: .*'k2' is 'k1' ag"):
            next_events(itertools.islice(pages, 2, 50))


def test_events_before_a_cursor_that_comes_again_are_not_lost(raw_server):
    raw_server.discovery = NO_IDENTITY
    body = b"".join(
        [*[Long().event(number) for number in range(30)], checkpoint_line(0, "c1"),
         Long().event(30), checkpoint_line(0, "c1")]
    )  # fmt: skip
    raw_server.respond = lambda request: ok(body if request.query["cursor0"] == "_first" else b"")
    pages = reader(raw_server.url, partition_count=1, ending_cursors="quiet")

    assert list(range(31)) == list(chain(*(numbers(page) for page, _ in pages)))


@pytest.mark.parametrize("answer", [refused(400, "one cursor at a time"), refused(503)])
def test_a_publisher_that_cannot_wait_for_several_partitions_is_followed(raw_server, answer):
    feed = LoggedFeed(raw_server, [Log(1), Log(1)])
    feed.before = lambda partition, cursor, query: answer if "wait" in query else None
    pages = reader(raw_server.url, follow=True, partition_count=2, poll_interval="10ms")
    assert [0] == numbers(next_events(pages)) == numbers(next_events(pages))
    next(pages)
    feed.logs[1].count = 2

    assert [1] == numbers(next_events(pages))
    pages.close()


def test_events_that_were_removed_are_an_error_that_says_how_to_go_on(publisher):
    """I never miss events without being told."""
    publisher.publish(*range(10), partition=0)
    _, cursors = read_all(publisher.url)
    publisher.publish(*range(10, 500), partition=0)
    publisher.publish(7, partition=0)
    prune(publisher.store, "orders", Retention(bytes=50))

    with pytest.raises(CursorGoneError, match=r"partition 0.*cursor-gone") as raised:
        list(reader(publisher.url, cursors))
    assert "begin at 'cursors' with the error's `oldest`" in str(raised.value)
    assert not {"startingCursors", "checkpointLocation"} & {*re.findall(r"\w+", str(raised.value))}

    moved = json.loads(cursors) | {str(raised.value.partition): raised.value.oldest}
    assert [7] == read_all(publisher.url, moved)[0]


def test_cursors_of_another_feed_are_refused(raw_server):
    """The same address may serve another feed, in which my cursors mean other events."""
    raw_server.discovery = tells((A, 0))
    LoggedFeed(raw_server, [Stamped(3)])
    _, cursors = read_all(raw_server.url)
    raw_server.discovery = tells((B, 0))
    with pytest.raises(CheckpointError, match=rf"belong to the feed '{A}'.*serves '{B}'"):
        next(reader(raw_server.url, cursors))
    raw_server.discovery = NO_IDENTITY
    with pytest.raises(CheckpointError, match="sends no id"):
        next(reader(raw_server.url, cursors))

    raw_server.discovery = COPY  # whose epochs name the feed that it was copied from
    assert [] == read_all(raw_server.url, cursors)[0]


def test_cursors_of_a_feed_without_an_id_belong_to_its_name(raw_server, start_raw_server):
    moved = start_raw_server()
    for server in (raw_server, moved):
        LoggedFeed(server, [Log(3)])
    _, cursors = read_all(raw_server.url, partition_count=1)

    with pytest.raises(CheckpointError, match="feed_id="):
        next(reader(moved.url, cursors))
    name = json.loads(cursors)["feed"]
    assert [] == read_all(moved.url, cursors, feed_id=name)[0]


class Telling(Stamped):
    """Tells the newest epoch with its pages, as our publisher does."""

    newest = f"{A};since=0"

    def body(self, cursor, hint, partition=0):
        (answer,) = super().body(cursor, hint, partition).pieces
        field = f"\r\nZEH-Feed: {self.newest}".encode()
        return Answer((answer.replace(b"\r\n", field + b"\r\n", 1),))


def test_events_of_an_epoch_that_begins_while_i_follow_have_its_id(raw_server):
    """A producer's numbers begin again after a restore: I can tell its events apart."""
    raw_server.discovery = tells((A, 0))
    feed = LoggedFeed(raw_server, [Telling(2)])
    pages = reader(raw_server.url, follow=True, wait="0", poll_interval="10ms")
    old = next_events(pages)
    raw_server.discovery = tells((A, 0), (f"{A}~1", 2))
    feed.logs[0].newest = f"{A}~1;since=2"
    feed.logs[0].count = 4
    new = next_events(pages)
    pages.close()

    feeds = [dict(event["headers"])["zeh-feed"] for event in [*old.to_pylist(), *new.to_pylist()]]
    assert [A, A, f"{A}~1", f"{A}~1"] == feeds


def test_a_proxy_that_keeps_the_epoch_back_costs_one_more_request(raw_server):
    """The feed is asked at the end whether it is still the same one."""
    raw_server.discovery = tells((A, 0))
    LoggedFeed(raw_server, [Stamped(20)])
    pages = list(reader(raw_server.url, page_size_hint=1))

    assert (20, 2) == (len(pages), raw_server.discovered)


@pytest.mark.parametrize("follow", [False, True])
def test_events_that_may_have_the_id_of_a_wrong_epoch_are_told(raw_server, follow):
    raw_server.discovery = tells((A, 0))
    LoggedFeed(raw_server, [Stamped(20)])
    pages = reader(raw_server.url, page_size_hint=1, follow=follow)
    next(pages)
    raw_server.discovery = tells((A, 0), (f"{A}~1", 2))

    with pytest.raises(PublisherError, match=rf"a new epoch began.*{A}~1.*Read again"):
        list(pages)


def test_a_list_of_headers_is_asked_for(raw_server):
    raw_server.discovery = NO_IDENTITY
    LoggedFeed(raw_server, [Log(1)])
    list(reader(raw_server.url, partition_count=1, headers=["kind", "zeh-time"]))

    assert {"kind,zeh-time"} == {each.query["headers"] for each in raw_server.requests[1:]}


def test_the_publisher_keeps_a_position_that_i_have_kept(publisher):
    """Retention waits for me: a page counts when I ask for the next one."""
    publisher.publish(*range(10), partition=0)
    publisher.publish(*range(10), partition=1)
    pages = reader(publisher.url, cursor_set="service")
    _, first = next(pages)
    _, second = next(pages)

    def kept(partition):
        saved = publisher.store.saved_cursors("orders", "service").get(2, {})
        return saved.get(partition)

    eventually(lambda: kept(0) == json.loads(first)["0"])
    assert kept(1) != json.loads(second)["1"]
    assert [] == list(pages)
    eventually(lambda: kept(1) == json.loads(second)["1"])
    assert json.loads(first)["reader"] == json.loads(second)["reader"]


def test_positions_that_the_publisher_lost_are_reported_again(publisher, monkeypatch):
    """After a restore, or if my name was deleted, retention knows my quiet partitions again."""
    for partition in (0, 1, 1):
        publisher.publish(*range(4), partition=partition)
    pages = reader(publisher.url, cursor_set="service", page_size_hint=4)
    _, (_, second) = next(pages), next(pages)
    at = {int(each): json.loads(second)[each] for each in "01"}

    def kept():
        return publisher.store.saved_cursors("orders", "service").get(2, {})

    eventually(lambda: kept().get(0) == at[0])
    publisher.store.delete_cursor_set("orders", "service")
    monkeypatch.setattr(position_reporter, "_KEPT_SECONDS", 0.0)
    next(pages)
    eventually(lambda: kept().get(1) == at[1])
    assert at == kept()


def threads():
    return {*threading.enumerate()}


def test_a_reader_leaves_no_thread_behind(publisher, monkeypatch):
    """A service may make a reader every minute."""
    monkeypatch.setattr(position_reporter, "_IDLE_SECONDS", 0.05)
    publisher.publish(*range(10), partition=0)
    pages = reader(publisher.url, cursor_set="service", page_size_hint=1)
    next(pages)
    before = threads()
    for _ in range(2):
        next(pages, None)
        eventually(lambda: not [each for each in threads() - before if "cursors" in each.name])

    assert publisher.store.saved_cursors("orders", "service")


def test_a_second_reader_with_one_cursor_set_is_told(publisher, caplog):
    publisher.publish(*range(10))
    for _ in range(2):
        _, cursors = read_all(publisher.url, cursor_set="service")
    assert "409 cursorset-taken" in caplog.text
    caplog.clear()
    (kept,) = publisher.store.cursor_sets("orders")
    publisher.publish(*range(10, 20))
    read_all(publisher.url, json.dumps(json.loads(cursors) | {"reader": kept.consumer[6:]}),
             cursor_set="service")  # fmt: skip
    assert "cursorset-taken" not in caplog.text


def test_a_line_that_is_no_event_is_an_error(raw_server):
    raw_server.discovery = NO_IDENTITY
    feed = LoggedFeed(raw_server, [Log(1)])
    feed.logs[0].event = lambda number, partition: b'{"partition":0,"data":1,"headers":[]}\n'

    with pytest.raises(MalformedLineError, match="partition 0"):
        list(reader(raw_server.url, partition_count=1))


def test_a_token_is_sent_and_never_shown(raw_server):
    raw_server.discovery = refused(401, "go away")

    with pytest.raises(AccessError) as raised:
        next(reader(raw_server.url, token="s3cret-t0ken"))

    assert "s3cret-t0ken" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"page_size": 10}, UnknownOptionError, "page_size_hint"),
        ({"cursors": '{"1": "c0"}'}, OptionError, "'cursors'"),
        ({"cursors": "nowhere"}, OptionError, "'cursors'"),
        ({"cursors": "7"}, OptionError, "'cursors'"),
        ({"cursors": '{"feed": "a"}'}, OptionError, "'cursors'"),
        ({"cursors": '{"0": "c0"}', "partition_count": 2}, OptionError, "'cursors'"),
        ({"cursors": '{"0": "c0", "n": "2"}'}, OptionError, "'cursors'"),  # one was lost
        (
            {"headers": "['kind', 'zeh-time']"},
            OptionError,
            "'headers' must be _all, none, or different names",
        ),
        ({"follow": True, "ending_cursors": "quiet"}, OptionError, "ending_cursors"),
        ({"follow": True, "read_timeout": 5}, OptionError, "'read_timeout'"),
        ({"max_events_per_trigger": 5}, UnknownOptionError, "maxeventspertrigger"),
    ],
)
def test_a_wrong_option_is_refused_before_any_request(given, error, said):
    with pytest.raises(error, match=said):
        reader("http://127.0.0.1:9/orders", **given)
