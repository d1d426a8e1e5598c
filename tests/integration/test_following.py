"""What readers say of publishers that skip or send odd lines, and of their own interrupts."""

from __future__ import annotations

import json

import pytest

from tests.fix_batch import cursor_of
from tests.fix_raw_server import ok, refused, reset
from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.client.http.tail import follow
from zeh_spark.errors import MalformedLineError, PublisherError, ZeroEventHubError
from zeh_spark.reading import reader


def line(cursor: object, *events: object) -> bytes:
    rows = [{"partition": 0, "data": {"id": each}} for each in events]
    return b"".join(
        json.dumps(each).encode() + b"\n" for each in [*rows, {"partition": 0, "cursor": cursor}]
    )


def started(server, *, start="_first", whole=False, endless=False):
    server.discovery = refused(400)  # it tells nothing of itself
    return follow(server.url, start, {}, whole=whole, endless=endless, partition_count=1)


def printed(server, **options):
    return [each for some in started(server, **options) for each in some]


def test_a_page_without_events_is_no_end_if_its_cursor_moved(raw_server):
    """A publisher may filter. What is printed is all that there is."""
    pages = {"_first": line("a", 1), "a": line("b"), "b": line("c", 2), "c": line("c")}
    raw_server.respond = lambda request: ok(pages[cursor_of(request)[1]])

    assert [b'{"id": 1}', b'{"id": 2}'] == printed(raw_server)


def test_a_cursor_that_moves_for_ever_is_no_end(raw_server):
    """I am told where to continue."""

    def page(request):
        _, at = cursor_of(request)
        return ok(line(str(int(at) + 1)) if at.isdigit() else line("0", 1))

    raw_server.respond = page
    with pytest.raises(PublisherError, match=r"1000 pages in a row.*--from 1000"):
        printed(raw_server)


def test_the_end_of_the_feed_is_the_one_of_the_first_answer(raw_server):
    """What a publisher commits after it restarted, while `tail` waited, is shown."""
    waited = []

    def answer(request):
        _, at = cursor_of(request)
        if "wait" in request.query and not waited:
            waited.append(at)
            return reset()
        if at == "_last":
            return ok(line("b" if waited else "a"))
        return ok(line("b", 1)) if at == "a" else refused(403, "no more")

    raw_server.respond = answer
    found = []
    with pytest.raises(PublisherError, match="no more"):
        for each in started(raw_server, start="_last", endless=True):
            found += each

    assert [b'{"id": 1}'] == found


def test_an_error_of_any_kind_ends_the_command(raw_server):
    """A name that is not UTF-8 can be skipped, and not be printed."""
    odd = b'{"partition":0,"data":{"id":1},"\xff":3}\n'
    pages = {"_first": odd + line("a"), "a": line("a")}
    raw_server.respond = lambda request: ok(pages[cursor_of(request)[1]])

    assert [b'{"id":1}'] == printed(raw_server)
    with pytest.raises(MalformedLineError, match=r"not UTF-8.*leave out --headers"):
        printed(raw_server, whole=True)


def test_a_reader_that_was_interrupted_does_not_seem_to_end(publisher, monkeypatch):
    """As in a notebook, whose cell is run again."""
    publisher.publish(*range(8))
    pages = reader(publisher.url, page_size_hint=2)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Decoder, "whole", interrupt)
        next(pages)
    with pytest.raises(ZeroEventHubError, match=r"was interrupted .* Begin a new one"):
        next(pages)
