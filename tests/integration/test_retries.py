"""The client against a server that fails: what is tried again, for how long, and what is final."""

import email.utils
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fix_batch import batch_reader, rows_of
from tests.fix_client import BODY, ask, checkpoint, client, event, read
from tests.fix_raw_server import NO_IDENTITY, Answer, chunked_without_end, head, ok, refused, short
from tests.fix_stream import DECODER, Run
from tests.patience import PATIENCE
from zeh_spark.client.http.feed_client import Statistics
from zeh_spark.client.http.retry import PAUSES, Pauses, Retry
from zeh_spark.client.http.tail import follow
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import AccessError, CursorGoneError, PublisherError, UnavailableError
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.stream import StreamReader
from zeh_spark.tools.audit.reading import FeedReader
from zeh_spark.wire import wire

# What is tried again, and for how long


PASSING = {
    **{str(each): refused(each) for each in (408, 425, 429, 500, 502, 503, 504)},
    **{
        f"Retry-After: {each}": refused(503, retry_after=each)
        for each in ("soon", "-1", "", "1.5", "²", "Mon, 01 Jan 99999 00:00:00 GMT")
    },
    **{each.decode(): ok(each) for each in (b"{}", b'{"error":"backend timeout"}')},
}


@pytest.mark.parametrize("answer", PASSING.values(), ids=PASSING)
def test_what_may_pass_is_tried_again(raw_server, answer):
    """A restart stops no query, nor do odd headers of a proxy; an error is not the feed's end."""
    raw_server.script(answer, answer, ok(BODY))
    statistics = Statistics()

    assert [1, 2] == read(client(raw_server).page(ask(), statistics=statistics))
    assert 2 == statistics.retries


@pytest.mark.parametrize("kind", ["seconds", "date"])
def test_retry_after_is_heeded(raw_server, kind):
    """A publisher says when to come again, in seconds or as a date."""
    in_an_hour = email.utils.formatdate(time.time() + 3600, usegmt=True)
    value = "3600" if kind == "seconds" else in_an_hour
    raw_server.script(refused(429, retry_after=value), ok(BODY))
    pauses = []

    def listening(_timeout):
        return Retry(7200, sleep=stop_at_once)

    def stop_at_once(pause):
        pauses.append(pause)
        return True

    with pytest.raises(UnavailableError, match="429"):
        read(client(raw_server, listening, token=kind).page(ask()))

    (pause,) = pauses
    assert 3500 < pause <= 3600


@pytest.mark.parametrize("status", [500, 503])
def test_trying_again_has_an_end(raw_server, status):
    """A publisher that stays away stops the query after retryTimeout, with its last words (D3)."""
    raw_server.script(refused(status, "maintenance until noon"))

    with pytest.raises(UnavailableError, match=f"answered {status}: maintenance until noon"):
        read(client(raw_server, retry=None, retryTimeout="300ms").page(ask()))

    assert 2 <= len(raw_server.requests) <= 4


def test_a_429_pauses_all_requests_to_that_server(raw_server, monkeypatch):
    """Another partition, of another query in this process, sends nothing before the time."""
    begun, begin = threading.Event(), PAUSES.begin
    monkeypatch.setattr(PAUSES, "begin", lambda *how: (begin(*how), begun.set()))
    raw_server.script(refused(429, retry_after=1), ok(BODY))
    first, second = (client(raw_server, retry=None) for _ in range(2))
    arrived = []
    answer = raw_server.respond

    def respond(request):
        arrived.append(time.monotonic())
        return answer(request)

    raw_server.respond = respond
    with ThreadPoolExecutor() as pool:
        one = pool.submit(lambda: read(first.page(ask())))
        assert begun.wait(PATIENCE)
        two = pool.submit(lambda: read(second.page(ask())))

        assert [1, 2] == one.result() == two.result()
    refused_at, *later = arrived
    assert 2 == len(later)
    assert all(0.9 < each - refused_at for each in later)


def test_a_429_does_not_pause_other_tokens_and_servers(raw_server, start_raw_server):
    """A limit is that of a client; others go on."""
    other = start_raw_server()
    for server in (raw_server, other):
        server.respond = lambda request: (
            refused(429, retry_after=3600)
            if request.headers.get("authorization") == "Bearer busy"
            else ok(BODY)
        )
    with pytest.raises(UnavailableError, match="429"):
        read(client(raw_server, token="busy").page(ask()))

    assert [1, 2] == read(client(raw_server, token="other").page(ask()))
    assert [1, 2] == read(client(other).page(ask()))


def test_a_pause_without_time_for_it_names_the_429(raw_server):
    """An error at once; and the query that did not see the 429 itself says why it ends."""
    raw_server.script(refused(429, "quota", retry_after=60))
    for match in ("answered 429: quota", "answered 429 to another request.*ends in (60|59)"):
        with pytest.raises(UnavailableError, match=match):
            read(client(raw_server, token="named").page(ask()))

    assert 1 == len(raw_server.requests)


def test_a_pause_ends_by_itself_after_five_minutes_at_most():
    """A server that asks for a year does not stop this process for a year."""
    now = [1000.0]
    pauses, busy = Pauses(clock=lambda: now[0]), (("http", "a", 80), None)
    pauses.begin(busy, 1e9)
    pauses.begin(busy, 1)

    assert 300 == pauses.left(busy)
    now[0] += 300
    assert 0 == pauses.left(busy)


def test_progress_renews_the_patience(raw_server):
    """A line that breaks all the time, but brings something each time, is good enough."""
    now = [0.0]

    def timed(_timeout):
        return Retry(10, clock=lambda: now[0], sleep=lambda pause: now.append(pause))

    def respond(request):
        now[0] += 6
        number = int(request.query["cursor0"][1:]) + 1
        body = event(number) + checkpoint(f"c{number}")
        return ok(body) if number == 5 else short(body)

    raw_server.respond = respond

    assert [1, 2, 3, 4, 5] == read(client(raw_server, timed).page(ask()))


STANDS = checkpoint("c0")
"""What brings nothing to a client that asked with c0."""


@pytest.mark.parametrize(
    "answers",
    [
        {"c0": short(STANDS)},
        {"c0": chunked_without_end(STANDS)},
        {"c0": ok(STANDS + b"internal error\n")},
        {"c0": ok(STANDS + event(1))},
        {"c0": short(checkpoint("c1")), "c1": short(STANDS)},
        {"c0": short(event(1) + checkpoint("c1")), "c1": short(event(1) + STANDS)},
    ],
    ids=["cut", "no last chunk", "error", "no checkpoint after events", "circle", "same events"],
)
def test_a_cursor_that_stands_is_no_progress(raw_server, answers):
    """A publisher whose answers break off at the cursor that they were asked with, or lead back to
    it, is asked at growing pauses, and the query ends after retryTimeout.
    """
    raw_server.respond = lambda request: answers[request.query["cursor0"]]
    now, pauses = [0.0], []

    def timed(_timeout):
        return Retry(60, clock=lambda: now[0], sleep=sleep, random=lambda: 1.0)

    def sleep(pause):
        assert len(pauses) < 20
        pauses.append(pause)
        now[0] += pause

    with pytest.raises((UnavailableError, PublisherError)):
        read(client(raw_server, timed).page(ask()))

    grow = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10]
    assert grow == pytest.approx(pauses[-len(grow) :])


def batch(url):
    reader = batch_reader(url, partitionCount="1", retryTimeout="300ms")
    return list(rows_of(reader, reader.partitions()))


def stream(url):
    given = {"url": url, "partitionCount": "1", "retryTimeout": "300ms"}
    return Run(StreamReader(parse(SourceOptions, given), DECODER)).until(1)


def tail(url):
    patience = {"retryTimeout": "300ms"}
    return list(follow(url, "_first", patience, whole=False, endless=True, partition_count=1))


def audit(url):
    options = parse(ClientOptions, {"url": url, "retryTimeout": "300ms"})
    return list(FeedReader(options, 1).pieces(5))


@pytest.mark.parametrize("reader", [batch, stream, tail, audit])
def test_each_reader_of_a_feed_ends_at_a_cursor_that_stands(raw_server, reader):
    """A query, a command or an audit does not wait for ever for a publisher that is broken."""
    raw_server.discovery = NO_IDENTITY
    stands = short(checkpoint("1.0a1b2c3d"))
    raw_server.respond = lambda request: (
        stands if len(raw_server.requests) < 30 else refused(404, "asked for ever")
    )

    with pytest.raises(UnavailableError, match="does not answer"):
        reader(raw_server.url)


def test_an_answer_of_nothing_but_unknown_lines_is_shown(raw_server):
    """Where it does not pass, I see what the publisher says."""
    raw_server.script(ok(b'{"error":"backend timeout"}'))

    with pytest.raises(PublisherError, match=r"neither events nor checkpoints: .*backend timeout"):
        read(client(raw_server, retry=None, retryTimeout="0s").page(ask()))


def test_a_silent_publisher_is_tried_again(raw_server):
    """A connection that hangs does not hang the query: readTimeout."""
    never = threading.Event()
    answers = [Answer((head(content_length=9), never)), ok(BODY)]
    raw_server.respond = lambda request: answers.pop(0)

    assert [1, 2] == read(client(raw_server, readTimeout="200ms").page(ask()))
    never.set()


# What is final


@pytest.mark.parametrize(
    ("status", "kind", "remedy"),
    [
        (202, PublisherError, "no page of a feed"),
        (206, PublisherError, "no page of a feed"),
        (400, PublisherError, ""),
        (401, AccessError, "check 'token' or 'tokenFile'"),
        (403, AccessError, "this token may not do that"),
        (404, PublisherError, "check the feed's address in 'url'"),
        (410, CursorGoneError, ""),
        (418, PublisherError, ""),
    ],
)
def test_other_refusals_are_final(raw_server, status, kind, remedy):
    """What asking again cannot change stops the query, with what the publisher said (D4)."""
    raw_server.script(refused(status, "no, because"))

    with pytest.raises(kind, match=f"{status}: no, because.*{remedy}") as caught:
        read(client(raw_server).page(ask()))

    error = caught.value
    assert (kind, status, "no, because") == (type(error), error.status, error.body)
    place = (0, "c0") if status in {400, 410} else (None, None)
    assert place == (error.partition, error.cursor)
    assert (error.cursor is not None) == ("partition 0, cursor 'c0': " in str(error))
    assert 1 == len(raw_server.requests)


FINAL = {
    # with partitionCount set, the answer of FeedAPI 2 is not taken for an empty feed
    "the protocol's successor": (ok(b'{"token":"t","partitions":[]}\n'), "speaks FeedAPI 2 here"),
    "a problem document": (
        refused(400, '{"type":"x","detail":"cursor 17 is unknown"}'),
        r"answered 400: cursor 17 is unknown \(request ",
    ),
    "a login page": (ok(b"<html>", content_type="text/html; charset=utf-8"), "HTML page"),
    # without that nginx it would be an empty page, as of a feed without events
    "a body that an nginx should fetch": (ok(b"", x_accel_redirect="/1"), "X-Accel-Redirect"),
    "a packing that nobody asked for": (ok(BODY, content_encoding="br"), "Content-Encoding 'br'"),
    "a line of another partition": (ok(BODY + b'{"partition":1,"cursor":"x"}\n'), "not asked for"),
    "_first (events twice)": (ok(event(1) + checkpoint("_first")), "special cursor '_first'"),
    "_last (events skipped)": (ok(event(1) + checkpoint("_last")), "special cursor '_last'"),
    "a checkpoint that leads back": (
        ok(event(1) + checkpoint("c1") + checkpoint("c0")),
        "the cursor it was asked for, 'c0'",
    ),
}


@pytest.mark.parametrize(("answer", "match"), FINAL.values(), ids=FINAL)
def test_what_is_no_page_of_the_feed_is_refused(raw_server, answer, match):
    """It is called what it is, in the publisher's own words (RFC 9457, D4), and not tried again."""
    raw_server.script(answer)

    with pytest.raises(PublisherError, match=match):
        read(client(raw_server).page(ask()))
    assert 1 == len(raw_server.requests)


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "text/plain; charset=iso-8859-1", "application/octet-stream"]
)
def test_the_content_type_of_events_does_not_matter(raw_server, kind):
    """The Go server answers text/plain: events are UTF-8, whatever the answer says (D1)."""
    sent = '{"partition":0,"data":"ä€"}\n'.encode()
    body = sent + checkpoint("c1")
    headers = {"content_length": len(body), **({"content_type": kind} if kind else {})}
    raw_server.script(Answer((head(200, **headers) + body,)))

    (interval,) = client(raw_server).page(ask())

    found = wire.parse_event(bytes(interval.lines).rstrip(), 0)
    assert found and "ä€" == json.loads(bytes(found.data))


def test_an_empty_feed_may_stay_at_first(raw_server):
    """Where there is nothing, `_first` goes nowhere."""
    raw_server.script(ok(checkpoint("_first")))

    assert [] == read(client(raw_server).page(ask("_first")))
