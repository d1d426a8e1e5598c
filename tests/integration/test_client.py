"""The client against a server that sends exactly what a test scripts: what is asked, what the end
of a body proves, what is tried again, who gets the credentials.
"""

from __future__ import annotations

import email.utils
import gzip
import json
import socket
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fix_raw_server import (
    Answer,
    chunked,
    chunked_cut,
    chunked_without_end,
    gzipped,
    head,
    ok,
    redirect,
    refused,
    reset,
    short,
    until_close,
)
from zeh_spark.client import FeedClient, PageRequest
from zeh_spark.decode import Decoder
from zeh_spark.errors import (
    AccessError,
    CursorGoneError,
    MalformedLineError,
    OptionError,
    PublisherError,
    UnavailableError,
    ZeroEventHubError,
)
from zeh_spark.options import ClientOptions, parse
from zeh_spark.source.batch import BatchReader
from zeh_spark.source.options import SourceOptions
from zeh_spark.transport import Patience, backoff

HUSH = "hush-secret"


class Restless(FeedClient):
    """Does not sleep between tries."""

    def patience(self):
        return Patience(super().patience().timeout, sleep=lambda seconds: None)


def client(server, kind=Restless, max_interval=1 << 62, **given):
    url = given.pop("url", None) or server.url
    options = {"url": url, "retryTimeout": "20s", **given}
    return kind(parse(ClientOptions, options), max_interval=max_interval)


def ask(cursor="c0", **more):
    return PageRequest(0, cursor, 2, 100, **more)


def event(number):
    return b'{"partition":0,"data":%d}\n' % number


def checkpoint(cursor):
    return b'{"partition":0,"cursor":%b}\n' % json.dumps(cursor).encode()


def read(page):
    """The numbers of a page's events."""
    return [int(json.loads(line)["data"]) for each in page for line in each.lines.splitlines()]


BODY = event(1) + checkpoint("c1") + event(2) + checkpoint("c2")


# What is asked


def test_a_request_has_what_the_specification_names(raw_server):
    """A publisher gets n, cursorN, pagesizehint, headers and wait, each once."""
    raw_server.script(ok(BODY))

    read(client(raw_server).page(ask(headers=("a", "b"), wait=5)))

    expected = {"n": "2", "cursor0": "c0", "pagesizehint": "100", "headers": "a,b", "wait": "5"}
    assert expected == raw_server.requests[0].query


def test_what_is_not_wanted_is_not_sent(raw_server):
    """Without headers and waiting, a publisher that knows neither sees neither."""
    raw_server.script(ok(BODY))

    read(client(raw_server).page(ask()))

    assert {"n": "2", "cursor0": "c0", "pagesizehint": "100"} == raw_server.requests[0].query


@pytest.mark.parametrize("cursor", ["a+b", "/", "=", "&n=9", "a;b", "%41", "#x", '"', "a b", "ü"])
def test_a_cursor_arrives_as_it_was(raw_server, cursor):
    """Whatever a publisher makes its cursors of, it gets them back."""
    raw_server.script(ok(BODY))

    read(client(raw_server).page(ask(cursor)))

    assert cursor == raw_server.requests[0].query["cursor0"]
    assert not set('+;#" ') & set(raw_server.requests[0].target)


def test_the_urls_own_query_stays(raw_server):
    """A feed's address may have parameters of its own."""
    raw_server.script(ok(BODY))

    read(client(raw_server, url=f"{raw_server.url}?tenant=a%2Fb").page(ask()))

    assert raw_server.requests[0].target.startswith("/feed/v1?tenant=a%2Fb&n=2&")


def test_a_request_says_who_asks_and_what_it_understands(raw_server):
    """A publisher's log tells who reads, and no body is packed unasked."""
    raw_server.script(ok(BODY))

    read(client(raw_server).page(ask()))

    headers = raw_server.requests[0].headers
    assert "application/x-ndjson" == headers["accept"]
    assert "identity" == headers["accept-encoding"]
    assert headers["user-agent"].startswith("zeh-spark/")


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


@pytest.mark.parametrize("answer", WHOLE.values(), ids=WHOLE)
def test_a_whole_body_is_known_to_be_whole(raw_server, answer):
    """A page that came whole is asked for once."""
    raw_server.script(answer)
    page = client(raw_server, compression="gzip").page(ask())

    assert ([1, 2], "c2", 2, True) == (read(page), page.cursor, page.events, page.complete)
    assert 1 == len(raw_server.requests)


@pytest.mark.parametrize("answer", CUT.values(), ids=CUT)
def test_a_cut_body_is_never_the_end_of_a_page(raw_server, answer):
    """However an answer breaks off, I get each event once, and no hole."""
    feed = {
        "c0": ok(BODY + event(3) + checkpoint("c3")),
        "c1": ok(event(2) + checkpoint("c2") + event(3) + checkpoint("c3")),
        "c2": ok(event(3) + checkpoint("c3")),
    }
    raw_server.respond = lambda request: (
        feed[request.query["cursor0"]] if len(raw_server.requests) > 1 else answer
    )
    page = client(raw_server).page(ask())

    assert ([1, 2, 3], "c3", True) == (read(page), page.cursor, page.complete)
    assert 1 == page.statistics.retries


def test_what_came_before_the_cut_is_not_asked_for_again(raw_server):
    """A long page over a bad line gets on: it goes on from its last checkpoint."""
    raw_server.script(short(BODY + event(3), missing=9), ok(event(3) + checkpoint("c3")))

    read(client(raw_server).page(ask()))

    assert ["c0", "c2"] == [request.query["cursor0"] for request in raw_server.requests]


def test_a_retry_does_not_wait(raw_server):
    """After a break there may be events already; the publisher need not hold the answer."""
    raw_server.script(reset(), ok(BODY))

    read(client(raw_server).page(ask(wait=10)))

    assert ["10", None] == [request.query.get("wait") for request in raw_server.requests]


def test_a_body_that_only_the_connection_ends_proves_nothing(raw_server):
    """Its events count up to the last checkpoint, its end does not mean that there is no more."""
    raw_server.script(until_close(BODY + event(3)))
    page = client(raw_server).page(ask())

    assert ([1, 2], False, event(3)) == (read(page), page.complete, page.tail)


def test_a_head_that_breaks_off_proves_nothing(raw_server):
    """An answer without a proven end and without lines is not the end of the feed."""
    raw_server.script(Answer((b"HTTP/1.1 200 OK\r\nX-Other: 1\r\n\r\n",), "close"))
    page = client(raw_server).page(ask())

    assert ([], "c0", False) == (read(page), page.cursor, page.complete)


@pytest.mark.parametrize("answer", [Answer((head(204),)), ok(), ok(b"\n"), ok(b"\r\n\r\n")])
def test_an_empty_answer_is_a_page_without_events(raw_server, answer):
    """No news is no error, and the cursor stays."""
    raw_server.script(answer)
    page = client(raw_server).page(ask())

    assert ([], "c0", 0, True) == (read(page), page.cursor, page.events, page.complete)


def _numbered(count, each):
    """Lines, and the rest of them behind each cursor."""
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


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from(sorted(FRAMINGS)), st.integers(1, 12), st.integers(1, 5))
def test_every_event_comes_once_wherever_the_answer_is_cut(raw_server, data, framing, count, each):
    """Law: cut the first body at any byte, in any framing, and serve the rest from the cursor that
    is asked for: every event comes once, in order.
    """
    body, rest = _numbered(count, each)
    cut = data.draw(st.integers(0, len(body)))
    answers = [FRAMINGS[framing](body, cut)]
    raw_server.respond = lambda request: (
        answers.pop() if answers else ok(rest[request.query["cursor0"]])
    )
    one, request, numbers = client(raw_server), ask(), []
    while True:
        page = one.page(request)
        numbers += read(page)
        if page.complete and not page.events:
            break
        request = replace(request, cursor=page.cursor)

    assert list(range(count)) == numbers


# What is tried again, and for how long


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(raw_server, status):
    """A publisher that restarts, or is busy, stops no query."""
    raw_server.script(refused(status), refused(status), ok(BODY))
    page = client(raw_server).page(ask())

    assert ([1, 2], 2) == (read(page), page.statistics.retries)


@pytest.mark.parametrize("kind", ["seconds", "date"])
def test_retry_after_is_heeded(raw_server, kind):
    """A publisher says when to come again, in seconds or as a date."""
    in_an_hour = email.utils.formatdate(time.time() + 3600, usegmt=True)
    value = "3600" if kind == "seconds" else in_an_hour
    raw_server.script(refused(429, retry_after=value), ok(BODY))
    pauses = []

    class Listening(FeedClient):
        def patience(self):
            return Patience(7200, sleep=pauses.append)

    read(client(raw_server, Listening).page(ask()))

    (pause,) = pauses
    assert 3500 < pause <= 3600


@pytest.mark.parametrize("value", ["soon", "-1", "", "1.5", "²"])
def test_a_retry_after_that_says_nothing_is_ignored(raw_server, value):
    """Odd headers of a proxy do not stop my query."""
    raw_server.script(refused(503, retry_after=value), ok(BODY))

    assert [1, 2] == read(client(raw_server).page(ask()))


def test_trying_again_has_an_end(raw_server):
    """A publisher that stays away stops the query after retryTimeout, with its last words."""
    raw_server.script(refused(503, "maintenance until noon"))

    with pytest.raises(UnavailableError, match=r"answered 503: maintenance until noon"):
        read(client(raw_server, FeedClient, retryTimeout="300ms").page(ask()))

    assert 2 <= len(raw_server.requests) <= 4


def test_a_pause_that_is_longer_than_the_patience_is_not_waited_for(raw_server):
    """Retry-After: 1 hour, with 20 seconds of patience, is an error at once."""
    raw_server.script(refused(429, "quota", retry_after=3600))

    with pytest.raises(UnavailableError, match="429: quota"):
        read(client(raw_server).page(ask()))


def test_progress_renews_the_patience(raw_server):
    """A line that breaks all the time, but brings something each time, is good enough."""
    now = [0.0]

    class Timed(FeedClient):
        def patience(self):
            return Patience(10, clock=lambda: now[0], sleep=lambda pause: now.append(pause))

    def respond(request):
        now[0] += 6
        number = int(request.query["cursor0"][1:]) + 1
        body = event(number) + checkpoint(f"c{number}")
        return ok(body) if number == 5 else short(body)

    raw_server.respond = respond

    assert [1, 2, 3, 4, 5] == read(client(raw_server, Timed).page(ask()))


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_pauses_grow_to_ten_seconds_and_no_further(attempt, jitter):
    """Retries neither hammer a publisher nor sleep for ever."""
    assert 0.1 <= backoff(attempt, jitter) <= 10.0


def test_a_silent_publisher_is_tried_again(raw_server):
    """A connection that hangs does not hang the query: readTimeout."""
    never = threading.Event()
    answers = [Answer((head(content_length=9), never)), ok(BODY)]
    raw_server.respond = lambda request: answers.pop(0)

    assert [1, 2] == read(client(raw_server, readTimeout="200ms").page(ask()))
    never.set()


def test_a_closed_port_is_named():
    """An address where nothing listens gives one clear error."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/feed"

    with pytest.raises(UnavailableError, match=r"/feed does not answer.*refused.*retryTimeout"):
        read(client(None, FeedClient, url=url, retryTimeout="0s").page(ask()))


# What is final


@pytest.mark.parametrize(
    ("status", "kind", "remedy"),
    [
        (400, PublisherError, ""),
        (401, AccessError, "check 'token' or 'tokenFile'"),
        (403, AccessError, "this token may not read the feed"),
        (404, PublisherError, "check the feed's address in 'url'"),
        (410, CursorGoneError, ""),
        (418, PublisherError, ""),
    ],
)
def test_other_refusals_are_final(raw_server, status, kind, remedy):
    """What asking again cannot change stops the query at once, with what the publisher said."""
    raw_server.script(refused(status, "no, because"))

    with pytest.raises(kind, match=f"{status}: no, because.*{remedy}") as caught:
        read(client(raw_server).page(ask()))

    assert (kind, status, "no, because") == (
        type(caught.value),
        caught.value.status,
        caught.value.body,
    )
    assert 1 == len(raw_server.requests)


def test_a_problem_documents_detail_is_shown(raw_server):
    """RFC 9457: the publisher's explanation, not its JSON."""
    raw_server.script(refused(400, '{"type":"x","detail":"cursor 17 is unknown"}'))

    with pytest.raises(PublisherError, match=r"answered 400: cursor 17 is unknown$"):
        read(client(raw_server).page(ask()))


def test_a_web_page_is_not_a_feed(raw_server):
    """A login page in place of the feed is called what it is."""
    raw_server.script(ok(b"<html>", content_type="text/html; charset=utf-8"))

    with pytest.raises(PublisherError, match="HTML page"):
        read(client(raw_server).page(ask()))


def test_a_packing_nobody_asked_for_is_refused(raw_server):
    """What cannot be unpacked is named."""
    raw_server.script(ok(BODY, content_encoding="br"))

    with pytest.raises(PublisherError, match="Content-Encoding 'br'"):
        read(client(raw_server).page(ask()))


def test_a_line_of_another_partition_is_refused(raw_server):
    """A publisher that mixes partitions up is named; what came before stays."""
    raw_server.script(ok(BODY + b'{"partition":1,"cursor":"x"}\n'))
    numbers = []

    with pytest.raises(PublisherError, match="not asked for"):
        numbers.extend(iter(client(raw_server).page(ask())))

    assert ["c1", "c2"] == [each.cursor for each in numbers] or not numbers


def test_a_checkpoint_named_last_is_refused(raw_server):
    """Going on from `_last` would skip events."""
    raw_server.script(ok(event(1) + checkpoint("_last")))

    with pytest.raises(MalformedLineError, match="special cursor"):
        read(client(raw_server).page(ask()))


# Events that nothing closes


def test_events_without_a_checkpoint_are_asked_for_with_twice_the_hint(raw_server):
    """A checkpoint may lie behind the page's end: the page is made longer until it has one."""
    raw_server.respond = lambda request: ok(
        BODY if int(request.query["pagesizehint"]) >= 400 else event(1)
    )

    assert [1, 2] == read(client(raw_server).page(ask()))
    assert ["100", "200", "400"] == [each.query["pagesizehint"] for each in raw_server.requests]


@pytest.mark.parametrize("body", [event(1), event(1) + checkpoint("c0")], ids=["none", "the same"])
def test_events_that_never_get_a_checkpoint_are_an_error(raw_server, body):
    """A publisher without checkpoints, or with one that does not move, is named, and nothing of it
    is delivered.
    """
    raw_server.script(ok(body))
    got = []

    with pytest.raises(PublisherError, match=r"partition 0: behind cursor 'c0'.*6400 events"):
        got.extend(iter(client(raw_server).page(ask())))

    assert [] == got
    assert "6400" == raw_server.requests[-1].query["pagesizehint"]


def test_the_head_of_a_feed_may_wait_for_its_checkpoint(raw_server):
    """Events whose checkpoint comes only with later ones are read once it does."""
    raw_server.script(*[ok(event(1))] * 9, ok(BODY))

    assert [1, 2] == read(client(raw_server).page(ask()))


def test_a_checkpoint_that_repeats_the_cursor_without_events_is_fine(raw_server):
    """That is how a publisher says that there is nothing new."""
    raw_server.script(ok(checkpoint("c0")))
    page = client(raw_server).page(ask())

    assert ([], "c0", True) == (read(page), page.cursor, page.complete)


def test_an_interval_that_does_not_fit_is_an_error(raw_server):
    """Memory is bounded: a publisher that sends on without a checkpoint is stopped by name."""
    raw_server.script(chunked(*[event(number) for number in range(100)], checkpoint("c1")))

    with pytest.raises(PublisherError, match=r"partition 0, cursor 'c0'.*'maxBytesPerTrigger'"):
        read(client(raw_server, max_interval=1000).page(ask()))


# Redirects and credentials


def test_a_redirect_on_the_same_origin_keeps_the_credentials(raw_server):
    """A feed that moved within its server is read as before."""
    raw_server.script(redirect("/elsewhere?x=1"), ok(BODY))
    options = {"token": HUSH, "http.header.X-Tenant": "a"}

    assert [1, 2] == read(client(raw_server, **options).page(ask()))
    headers = raw_server.requests[1].headers
    assert (f"Bearer {HUSH}", "a") == (headers["authorization"], headers["x-tenant"])
    assert "/elsewhere?x=1" == raw_server.requests[1].target


def test_another_origin_gets_no_credentials(raw_server, start_raw_server):
    """My token goes to the feed that I named, and to no one it points at."""
    other = start_raw_server()
    other.script(ok(BODY))
    raw_server.script(redirect(other.url))
    options = {"token": HUSH, "http.header.X-Tenant": "a", "http.secret.header.X-Key": HUSH}

    assert [1, 2] == read(client(raw_server, **options).page(ask()))
    assert not {"authorization", "x-tenant", "x-key"} & other.requests[0].headers.keys()


def test_a_circle_of_redirects_ends(raw_server):
    """Two servers that point at each other are an error, not a loop."""
    raw_server.script(redirect("/feed/v1"))

    with pytest.raises(PublisherError, match="more than 10 redirects"):
        read(client(raw_server).page(ask()))


def test_a_redirect_to_nowhere_is_an_error(raw_server):
    """What is no address of the web is not followed."""
    raw_server.script(redirect("ftp://example.org/feed"))

    with pytest.raises(PublisherError, match="invalid address"):
        read(client(raw_server).page(ask()))


def test_a_token_is_sent_as_bearer(raw_server):
    """RFC 6750."""
    raw_server.script(ok(BODY))

    read(client(raw_server, token=HUSH).page(ask()))

    assert f"Bearer {HUSH}" == raw_server.requests[0].headers["authorization"]


@pytest.mark.parametrize("prefix", ["http.header.", "http.secret.header."])
def test_headers_of_mine_are_sent(raw_server, prefix):
    """Gateways want headers of their own."""
    raw_server.script(ok(BODY))

    read(client(raw_server, **{f"{prefix}X-Api-Key": "k"}).page(ask()))

    assert "k" == raw_server.requests[0].headers["x-api-key"]


def test_a_rotated_token_is_read_again(raw_server, tmp_path):
    """Tokens expire while a query runs; the file's new one is used without a restart."""
    file = tmp_path / "token"
    file.write_text("old\n")
    good = {"Bearer new"}
    raw_server.respond = lambda request: (
        ok(BODY) if request.headers["authorization"] in good else refused(401, "expired")
    )
    one = client(raw_server, tokenFile=str(file))
    file.write_text("new\n")

    assert [1, 2] == read(one.page(ask()))
    assert ["Bearer old", "Bearer new"] == [
        each.headers["authorization"] for each in raw_server.requests
    ]


def test_the_same_token_again_is_refused_for_good(raw_server, tmp_path):
    """A token that nobody renewed is an error at once."""
    file = tmp_path / "token"
    file.write_text("old")
    raw_server.script(refused(401, "expired"))

    with pytest.raises(AccessError, match="401: expired; check 'token' or 'tokenFile'"):
        read(client(raw_server, tokenFile=str(file)).page(ask()))

    assert 1 == len(raw_server.requests)


def test_a_new_token_that_is_refused_too_ends_it(raw_server, tmp_path):
    """One renewal for a request, no loop."""
    file = tmp_path / "token"
    file.write_text("old")
    raw_server.script(refused(401, "expired"))
    one = client(raw_server, tokenFile=str(file))
    file.write_text("new")

    with pytest.raises(AccessError):
        read(one.page(ask()))

    assert 2 == len(raw_server.requests)


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"], ids=str)
def test_a_token_file_without_a_token_is_an_option_error(raw_server, tmp_path, content):
    """A wrong path shows before anything is asked."""
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(OptionError, match="'tokenFile'"):
        client(raw_server, tokenFile=str(file))


def test_a_token_that_cannot_be_sent_is_refused_without_showing_it(raw_server, tmp_path):
    """HTTP libraries print what they refuse; this one is a secret."""
    file = tmp_path / "token"
    file.write_text(f"{HUSH}\n{HUSH}")
    raw_server.script(ok(BODY))

    with pytest.raises(OptionError, match="'tokenFile'") as caught:
        read(client(raw_server, tokenFile=str(file)).page(ask()))

    assert HUSH not in str(caught.value)


def test_a_netrc_never_decides(raw_server, tmp_path, monkeypatch):
    """What lies in a home directory of the driver is not sent to a publisher."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine localhost login me password mine\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    raw_server.script(ok(BODY))

    read(client(raw_server).page(ask()))
    read(client(raw_server, token="t").page(ask()))

    assert [None, "Bearer t"] == [each.headers.get("authorization") for each in raw_server.requests]


# TLS


def test_an_unknown_authority_is_refused_at_once(start_raw_server, authority):
    """A certificate nobody vouches for is an error that names the option for it."""
    server = start_raw_server(authority.server_context())

    with pytest.raises(PublisherError, match=r"TLS: .*certificate.*'caFile'"):
        read(client(server).page(ask()))


def test_an_authority_of_my_own_is_trusted(start_raw_server, authority):
    """Companies have their own authorities: caFile."""
    server = start_raw_server(authority.server_context())
    server.script(ok(BODY))

    assert [1, 2] == read(client(server, caFile=authority.ca_file).page(ask()))


def test_a_certificate_of_another_host_is_refused(start_raw_server, authority):
    """Who answers has to be who I asked."""
    server = start_raw_server(authority.server_context(host="other.example"))

    with pytest.raises(PublisherError, match=r"TLS: .*localhost"):
        read(client(server, caFile=authority.ca_file).page(ask()))


def test_a_client_certificate_opens_the_door(start_raw_server, authority):
    """Mutual TLS: clientCertFile, with the key in the same file."""
    server = start_raw_server(authority.server_context(ask_client=True))
    server.script(ok(BODY))
    options = {"caFile": authority.ca_file, "clientCertFile": authority.client_cert_file}

    assert [1, 2] == read(client(server, **options).page(ask()))


def test_a_missing_client_certificate_is_named(start_raw_server, authority):
    """A publisher that wants a certificate refuses in words, where the network lets them pass."""
    server = start_raw_server(authority.server_context(ask_client=True))

    with pytest.raises(ZeroEventHubError, match=r"'clientCertFile'|broke off"):
        read(client(server, caFile=authority.ca_file, retryTimeout="0s").page(ask()))


def test_https_to_a_plain_port_is_named_at_once(publisher):
    """`https:` where the publisher speaks HTTP."""
    url = publisher.url.replace("http:", "https:")

    with pytest.raises(PublisherError, match=r"should begin with http:"):
        read(client(None, url=url).page(ask()))


def test_http_to_a_tls_port_ends(start_raw_server, authority):
    """`http:` where the publisher wants TLS: it breaks off, and the error says where."""
    server = start_raw_server(authority.server_context())
    url = server.url.replace("https:", "http:")

    with pytest.raises(UnavailableError, match="does not answer, or broke off"):
        read(client(server, url=url, retryTimeout="0s").page(ask()))


@pytest.mark.parametrize("option", ["caFile", "clientCertFile"])
def test_a_missing_file_is_named(raw_server, option):
    """A wrong path shows before anything is asked."""
    with pytest.raises(OptionError, match=f"'{option}': cannot read the file '/nowhere'"):
        client(raw_server, **{option: "/nowhere"})


# The partition count


def test_the_partition_count_is_learned_from_the_problem_document(raw_server):
    """A publisher that tells its partition count spares me the option."""
    raw_server.script(refused(400, '{"detail":"n is missing","partitionCount":7}'))

    assert 7 == client(raw_server).partition_count()
    assert "/feed/v1" == raw_server.requests[0].target


def test_our_publisher_tells_its_partition_count(publisher):
    """Both halves of the package agree."""
    assert 2 == client(None, url=publisher.url).partition_count()


@pytest.mark.parametrize(
    "answer",
    [
        refused(400, "handshake error: partition count missing\n"),
        refused(400, '{"detail":"Parameter n not found"}'),
        refused(422, '{"detail":[{"loc":["query","n"],"msg":"field required"}]}'),
        refused(400, '{"partitionCount":"7"}'),
        refused(400, '{"partitionCount":true}'),
        refused(400, '{"partitionCount":0}'),
        ok(b'{"token":"t","partitions":[{"id":"0"}]}'),
    ],
    ids=["Go", "Python", "FastAPI", "text", "bool", "zero", "FeedAPI 2"],
)
def test_a_publisher_that_does_not_tell_leaves_it_to_the_option(raw_server, answer):
    """The error names the option that is needed then."""
    raw_server.script(answer)

    with pytest.raises(OptionError, match="'partitionCount'"):
        client(raw_server).partition_count()


def test_asking_for_the_partition_count_is_tried_again(raw_server):
    """A query can be started while its publisher restarts."""
    raw_server.script(refused(503), reset(), refused(400, '{"partitionCount":7}'))

    assert 7 == client(raw_server).partition_count()


@pytest.mark.parametrize(("status", "kind"), [(401, AccessError), (404, PublisherError)])
def test_what_is_wrong_with_the_address_shows_here_first(raw_server, status, kind):
    """A wrong URL is not mistaken for a publisher that tells no partition count."""
    raw_server.script(refused(status, "no"))

    with pytest.raises(kind, match=f"{status}: no"):
        client(raw_server).partition_count()


def test_a_refused_cursor_is_named(raw_server):
    """Which partition and cursor a publisher will not have: in words and as facts."""
    raw_server.script(refused(400, "unknown cursor"))

    with pytest.raises(PublisherError, match=r"partition 0, cursor 'c0': .*unknown") as caught:
        read(client(raw_server).page(ask()))

    assert (0, "c0", 400) == (caught.value.partition, caught.value.cursor, caught.value.status)


# Secrets

FAULTS = {
    "refused": refused(401, "no"),
    "busy": refused(503, "later"),
    "reset": reset(),
    "cut": short(event(1)),
    "redirect": redirect("/feed/v1"),
    "away": redirect("nonsense://[::1"),
    "html": ok(b"<html>", content_type="text/html"),
    "bad line": ok(b'{"partition":9,"cursor":"x"}\n'),
}


@pytest.mark.parametrize("answer", FAULTS.values(), ids=FAULTS)
def test_no_error_and_no_log_shows_a_secret(raw_server, caplog, answer):
    """Tokens, secret headers and the URL's query stay out of whatever somebody may paste."""
    caplog.set_level("DEBUG", "zeh_spark")
    caplog.set_level("WARNING", "urllib3")
    raw_server.script(answer)
    given = {"url": f"{raw_server.url}?key={HUSH}", "token": HUSH, "retryTimeout": "0s"}
    given |= {"http.secret.header.X-Key": HUSH, "partitionCount": "1"}
    reader = BatchReader(parse(SourceOptions, given), Decoder(("data",), "c", False))

    with pytest.raises(ZeroEventHubError) as caught:
        reader.partitions()

    assert HUSH not in caplog.text + str(caught.value) + repr(caught.value) + repr(reader._options)


def test_a_closed_ports_error_shows_no_secret(caplog):
    """Libraries print whole addresses into their errors; ours does not pass them on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/feed?key={HUSH}"
    caplog.set_level("DEBUG", "zeh_spark")
    options = parse(SourceOptions, {"url": url, "retryTimeout": "0s", "partitionCount": "1"})

    with pytest.raises(UnavailableError) as caught:
        BatchReader(options, Decoder(("data",), "c", False)).partitions()

    assert HUSH not in caplog.text + str(caught.value)
