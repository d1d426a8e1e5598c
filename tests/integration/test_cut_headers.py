"""Answers that end within their headers, or have others before them: always read whole."""

import pytest

from tests.cases import each_case
from tests.fix_batch import Feed, cursor_of
from tests.fix_client import BODY, ask, client, read
from tests.fix_raw_server import Answer, head, ok, refused, until_close
from zeh_spark.client.http.connections import PoolingAdapter
from zeh_spark.client.http.feed_client import Statistics
from zeh_spark.client.http.tail import follow

HEAD = head(200, content_type="application/x-ndjson", content_length=len(BODY))
BARE = Answer((head(200, content_type="text/plain"),), "close")
CUTS = [0, 1, 9, 15, 16, 17, 25, 40, 60, len(HEAD) - 4, len(HEAD) - 2, len(HEAD) - 1]


@pytest.mark.parametrize("cut", CUTS)
def test_a_page_whose_headers_are_cut_is_asked_for_again(raw_server, cut):
    """Wherever an answer is cut, it is not a page without events."""
    raw_server.script(Answer((HEAD[:cut],), "close"), ok(BODY))
    statistics = Statistics()

    assert [1, 2] == read(client(raw_server).page(ask(), statistics=statistics))
    assert 1 == statistics.retries


@each_case(
    ("answers", "timeout", "events", "waits"),
    [
        ([BARE], "0s", [], ["5", None]),
        ([BARE, ok(BODY)], "20s", [1, 2], ["5", None]),
        ([BARE, refused(503), BARE, ok(BODY)], "20s", [1, 2], ["5", None, None, None]),
        ([until_close(BODY)], "0s", [1, 2], ["5"]),
    ],
)
def test_only_two_empty_answers_without_framing_are_a_page(
    raw_server, answers, timeout, events, waits
):
    """A publisher of HTTP/1.0 closes the connection after an empty page, and a connection that
    broke after the headers looks the same: the answer right after it confirms it, with no fault
    between them. A body that only the close ends takes one request.
    """
    raw_server.requests.clear()
    raw_server.script(*answers)

    assert events == read(client(raw_server, retryTimeout=timeout).page(ask(wait=5)))
    assert waits == [each.query.get("wait") for each in raw_server.requests]


HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"
WHOLE = ok(BODY).pieces


@each_case(
    ("answers", "retries"),
    [
        ([Answer((HINTS, *WHOLE))], 0),
        ([Answer((PROCESSING, HINTS, PROCESSING, *WHOLE))], 0),
        ([Answer((HINTS[:-2],), "close"), ok(BODY)], 1),
        ([Answer((PROCESSING,), "close"), ok(BODY)], 1),
        ([Answer((SWITCHING,)), ok(BODY)], 1),
        ([Answer((PROCESSING * 101,)), ok(BODY)], 1),
    ],
)
def test_what_a_proxy_sends_before_the_answer_is_not_the_answer(raw_server, answers, retries):
    """It may tell that it still waits for the publisher (RFC 9110, 15.2). To switch the protocol,
    which nobody asked for, is a broken answer.
    """
    raw_server.script(*answers)
    statistics = Statistics()

    assert [1, 2] == read(client(raw_server).page(ask(), statistics=statistics))
    assert retries == statistics.retries


def test_a_tail_that_ends_prints_all_events_through_cut_answers(raw_server):
    """Its end is a page without events, not a connection that broke."""
    feed, seen = Feed(range(35), most=10), set()

    def respond(request):
        whole, place = feed(request), cursor_of(request)[1]
        if place in seen:
            return whole
        seen.add(place)
        return Answer((whole.pieces[0][:40],), "close")

    raw_server.discovery = refused(400, '{"partitionCount":1}')
    raw_server.respond = respond

    found = [
        line
        for lines in follow(raw_server.url, "_first", {}, whole=False, endless=False)
        for line in lines
    ]

    assert list(range(35)) == [int(line) for line in found]


def test_proxies_are_used_with_the_same_care(monkeypatch):
    """HTTP_PROXY changes the way to the publisher, and no promise."""
    manager = PoolingAdapter().proxy_manager_for("http://127.0.0.1:1")

    assert PoolingAdapter().poolmanager.pool_classes_by_scheme == (manager.pool_classes_by_scheme)
