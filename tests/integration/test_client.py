"""The client against a scripted server: what it asks, where a body ends, what nothing closes."""

import gzip
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fix_client import BODY, ask, checkpoint, client, event, read, read_whole
from tests.fix_raw_server import (
    Answer,
    chunked,
    chunked_cut,
    chunked_without_end,
    gzipped,
    head,
    ok,
    reset,
    short,
    until_close,
)
from zeh_spark.client.http import direct_client
from zeh_spark.client.http.discovery import discover, index
from zeh_spark.client.http.feed_client import PageEnd, Statistics
from zeh_spark.client.http.publish_client import PublishClient
from zeh_spark.client.http.tail import follow
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import PublisherError, ZeroEventHubError

# What is asked


def test_a_request_has_what_the_specification_names(raw_server):
    """A publisher gets n, cursorN, pagesizehint, headers and wait, each once (D9); without headers
    and waiting, one that knows neither sees neither (D13). A feed's address may have parameters of
    its own (D22). The log names the reader, and a body is only compressed on request.
    """
    raw_server.script(ok(BODY))

    read(client(raw_server).page(ask(headers=("a", "b"), wait=5)))
    read(client(raw_server, url=f"{raw_server.url}?tenant=a%2Fb").page(ask()))

    first, second = raw_server.requests
    expected = {"n": "2", "cursor0": "c0", "pagesizehint": "100"}
    assert {**expected, "headers": "a,b", "wait": "5"} == first.query
    assert {**expected, "tenant": "a/b"} == second.query
    assert second.target.startswith("/feed/v1?tenant=a%2Fb&n=2&")
    assert "application/x-ndjson" == first.headers["accept"]
    assert "identity" == first.headers["accept-encoding"]
    assert first.headers["user-agent"].startswith("zeh-spark/")


@pytest.mark.parametrize("cursor", ["a+b", "/", "=", "&n=9", "a;b", "%41", "#x", '"', "a b", "ü"])
def test_a_cursor_arrives_as_it_was(raw_server, cursor):
    """Whatever a publisher makes its cursors of, it gets them back (D14)."""
    raw_server.script(ok(BODY))

    read(client(raw_server).page(ask(cursor)))

    assert cursor == raw_server.requests[0].query["cursor0"]
    assert not set('+;#" ') & set(raw_server.requests[0].target)


def test_pages_share_a_connection(raw_server):
    """A feed is read over one connection, not one for each page."""
    raw_server.script(ok(BODY), chunked(BODY), gzipped(BODY), ok(), ok(BODY))
    one = client(raw_server)

    pages = [read(one.page(ask())) for _ in range(5)]

    assert [[1, 2], [1, 2], [1, 2], [], [1, 2]] == pages
    assert {0} == {request.connection for request in raw_server.requests}


# Where a body ends

WHOLE = {
    "content-length": ok(BODY),
    "chunked": chunked(BODY[:7], BODY[7:]),
    "one byte a chunk": chunked(*[BODY[i : i + 1] for i in range(len(BODY))]),
    "gzip": gzipped(BODY),
    "gzip of two members": ok(
        gzip.compress(BODY[:30]) + gzip.compress(BODY[30:]), content_encoding="gzip"
    ),
    "x-gzip in chunks": chunked(
        gzip.compress(BODY)[:9], gzip.compress(BODY)[9:], content_encoding="x-gzip"
    ),
}
CUT = {
    "short content-length": short(BODY, missing=1),
    "after an event without a checkpoint": short(BODY + event(3), missing=9),
    "chunked without end": chunked_without_end(BODY),
    "chunk cut": chunked_cut(BODY + event(3), len(BODY) + 4),
    "gzip without its last bytes": gzipped(BODY, cut=4),
    "gzip and nothing behind its head": gzipped(BODY, cut=len(gzip.compress(BODY)) - 10),
    "second gzip member cut": ok(
        gzip.compress(BODY) + gzip.compress(event(3))[:-2], content_encoding="gzip"
    ),
    "no gzip at all": ok(BODY, content_encoding="gzip"),
    "reset": reset(BODY, missing=100),
    "reset before the head": reset(),
    "closed before the head": Answer((), "close"),
    "error line": ok(BODY + b"Internal server error\n"),
    "error line without newline": ok(BODY + event(3) + b"Internal server error"),
}


QUIET = {
    "204": Answer((head(204),)),
    "no byte": ok(),
    "an empty line": ok(b"\n"),
    "empty lines": ok(b"\r\n\r\n"),
    "the same checkpoint": ok(checkpoint("c0")),
}
ENDS = [
    *((each, [1, 2], PageEnd("c0", "c2", 2, True, b"")) for each in WHOLE.values()),
    *((each, [], PageEnd("c0", "c0", 0, True, b"")) for each in QUIET.values()),
    (until_close(BODY + event(3)), [1, 2], PageEnd("c0", "c2", 3, False, event(3))),
]


@pytest.mark.parametrize(
    ("answer", "numbers", "end"), ENDS, ids=[*WHOLE, *QUIET, "the connection's end"]
)
def test_the_end_of_a_page_is_known(raw_server, answer, numbers, end):
    """A page that came whole is asked for once. No news is no error, and the cursor stays (D5,
    D23). Where only the connection ends a body, events count up to the last checkpoint, and its end
    does not mean that there is no more.
    """
    raw_server.script(answer)

    assert (numbers, end) == read_whole(client(raw_server, compression="gzip").page(ask()))
    assert 1 == len(raw_server.requests)


@pytest.mark.parametrize("answer", CUT.values(), ids=CUT)
def test_a_cut_body_is_never_the_end_of_a_page(raw_server, answer):
    """However an answer breaks off, I get each event once, and no hole (D2): it is asked again from
    its last checkpoint, and without waiting, because there may be events already.
    """
    feed = {
        "c0": ok(BODY + event(3) + checkpoint("c3")),
        "c1": ok(event(2) + checkpoint("c2") + event(3) + checkpoint("c3")),
        "c2": ok(event(3) + checkpoint("c3")),
    }
    raw_server.respond = lambda request: (
        feed[request.query["cursor0"]] if len(raw_server.requests) > 1 else answer
    )
    statistics = Statistics()

    numbers, end = read_whole(client(raw_server).page(ask(wait=10), statistics=statistics))

    assert ([1, 2, 3], "c3", True) == (numbers, end.cursor, end.complete)
    assert ["10", None] == [request.query.get("wait") for request in raw_server.requests]
    assert 1 == statistics.retries


def test_a_head_that_breaks_off_proves_nothing(raw_server):
    """An answer without a proven end and without lines is not the end of the feed."""
    raw_server.script(Answer((b"HTTP/1.1 200 OK\r\nX-Other: 1\r\n\r\n",), "close"))
    numbers, end = read_whole(client(raw_server).page(ask()))

    assert ([], "c0", False) == (numbers, end.cursor, end.complete)


def _numbered(count, each):
    """Lines, and the rest of them after each cursor."""
    rest, body = {}, b""
    for number in reversed(range(count)):
        if (number + 1) % each == 0 or number == count - 1:
            body = checkpoint(f"c{number + 1}") + body
            rest[f"c{number + 1}"] = body.partition(b"\n")[2]
        body = event(number) + body
    return body, {**rest, "c0": body}


FRAMINGS = {
    "length": lambda body, cut: short(body[:cut], missing=len(body) - cut + 1),
    "chunked": lambda body, cut: chunked_without_end(body[:cut]) if cut else chunked_cut(body, 0),
    "chunk": chunked_cut,
    "gzip": lambda body, cut: gzipped(body, cut=max(1, len(gzip.compress(body)) - cut - 1)),
    "close": lambda body, cut: until_close(body[:cut]),
    "reset": lambda body, cut: reset(body[:cut], missing=len(body) - cut + 1),
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from(sorted(FRAMINGS)), st.integers(1, 12), st.integers(1, 5))
def test_every_event_comes_once_wherever_the_answer_is_cut(raw_server, data, framing, count, each):
    """Law: after any cut in any framing, the rest from its cursor is each event once (ZE-01)."""
    body, rest = _numbered(count, each)
    cut = data.draw(st.integers(0, len(body)))
    answers = [FRAMINGS[framing](body, cut)]
    raw_server.respond = lambda request: (
        answers.pop() if answers else ok(rest[request.query["cursor0"]])
    )
    one, request, numbers = client(raw_server), ask(), []
    while True:
        more, end = read_whole(one.page(request))
        numbers += more
        if end.complete and not end.events:
            break
        request = replace(request, cursor=end.cursor)

    assert list(range(count)) == numbers


# Events that nothing closes


def test_events_without_a_checkpoint_are_asked_for_with_twice_the_hint(raw_server):
    """A checkpoint may lie after the page's end: the page is made longer until it has one (D23)."""
    raw_server.respond = lambda request: ok(
        BODY if int(request.query["pagesizehint"]) >= 400 else event(1)
    )

    assert [1, 2] == read(client(raw_server).page(ask()))
    assert ["100", "200", "400"] == [each.query["pagesizehint"] for each in raw_server.requests]


@pytest.mark.parametrize("body", [event(1), event(1) + checkpoint("c0")], ids=["none", "the same"])
def test_events_that_never_get_a_checkpoint_are_an_error(raw_server, body):
    """A publisher without checkpoints, or whose stands still, is named; nothing is delivered."""
    raw_server.script(ok(body))
    got = []

    with pytest.raises(PublisherError, match=r"0: after cursor 'c0'.*last answer had 1"):
        got.extend(iter(client(raw_server, retryTimeout="1s").page(ask())))

    assert [] == got
    assert "409600" == raw_server.requests[-1].query["pagesizehint"]


def test_the_head_of_a_feed_may_wait_for_its_checkpoint(raw_server):
    """Events whose checkpoint comes only with later ones are read once it does."""
    raw_server.script(*[ok(event(1))] * 9, ok(BODY))

    assert [1, 2] == read(client(raw_server).page(ask()))


def test_an_interval_that_does_not_fit_is_an_error(raw_server):
    """Memory is bounded: a publisher that sends on without a checkpoint is stopped by name."""
    raw_server.script(chunked(*[event(number) for number in range(100)], checkpoint("c1")))

    with pytest.raises(PublisherError, match=r"partition 0, cursor 'c0'.*'maxBytesPerTrigger'"):
        read(client(raw_server, max_interval=1000).page(ask()))


# What a small packed answer may become


def readers(server):
    options = {"url": server.url, "retryTimeout": "0"}
    transport = Transport(parse(ClientOptions, options))
    plan = direct_client.PlanRequest(1, {"0": "_first"})
    return {
        "tail": lambda: list(
            follow(server.url, "_first", {}, whole=True, endless=False, partition_count=1)
        ),
        "probe": lambda: read(client(server, retryTimeout="0").page(ask())),
        "plan": lambda: direct_client.plan(transport, plan),
        "producers": lambda: PublishClient(parse(ClientOptions, options)).producer("p"),
        "feeds": lambda: index(transport),
        "discovery": lambda: discover(Transport(parse(ClientOptions, options))),
    }


@pytest.mark.parametrize(
    ("reader", "status"),
    [
        *((each, 200) for each in ("tail", "probe", "plan", "producers", "feeds", "discovery")),
        ("probe", 400),
        ("producers", 503),
    ],
)
def test_a_packed_answer_that_grows_is_a_named_error(raw_server, reader, status, monkeypatch):
    """Whoever answers with a megabyte that unpacks to gigabytes does not fill my memory."""
    packed = ok(gzip.compress(bytes(100 << 20), 1), status, content_encoding="gzip")
    raw_server.respond = lambda request: packed
    monkeypatch.setattr("zeh_spark.client.http.transport.WHOLE_BYTES", 32 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ZeroEventHubError, match=r"bytes|400|503|no feeds|'partitionCount'"):
            readers(raw_server)[reader]()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 90 << 20
