"""The ids that our clients send with their requests, by which they are found in other logs."""

from __future__ import annotations

import logging
import re

import pytest

from tests.fix_client import BODY, ask, client, event, read
from tests.fix_raw_server import ok, redirect, refused, reset, short
from zeh_spark.client.http.publish_client import BatchCall, PublishClient, TaskDone
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import OptionError, PublisherError, UnavailableError

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BATCH = BatchCall("till-1", "i", "r", 0)


def ids(server) -> list[str]:
    return [each.headers["x-request-id"] for each in server.requests]


def named_in(caplog) -> list[str]:
    """The requests that the warnings about another try name."""
    lines = [each.getMessage() for each in caplog.records if "trying again" in each.getMessage()]
    return [re.search(r"\(request (\S+)\)", line)[1] for line in lines]


def test_each_try_has_an_id_of_its_own_which_the_log_names(raw_server, caplog):
    """The publisher's operator finds the very request that my log complains about."""
    caplog.set_level(logging.DEBUG, "zeh_spark.client.http")
    failures = refused(503), reset(), short(event(1)), reset(event(1))
    raw_server.script(*failures, redirect("/feed/v2"), ok(BODY))

    assert [1, 2] == read(client(raw_server).page(ask()))
    sent = ids(raw_server)
    assert 6 == len(set(sent))
    assert [f"-{number}" for number in range(1, 7)] == [each[8:] for each in sent]
    assert 1 == len({each[:8] for each in sent})
    assert sent[:4] == named_in(caplog)
    assert f"answered 200 (request {sent[5]})" in caplog.text


def test_calls_of_writers_have_ids_too(raw_server, caplog):
    raw_server.script(refused(503), ok(b'{"status":"staged"}'), refused(502))
    writer = PublishClient(parse(ClientOptions, {"url": raw_server.url, "retryTimeout": "400ms"}))

    writer.upload(BATCH, 1, 0, 0, 0, b"x")
    with pytest.raises(UnavailableError) as lost:
        writer.commit(BATCH, 1, [TaskDone(0, 0, 1)])
    sent = ids(raw_server)
    assert len(sent) == len(set(sent))
    assert sent[0] in named_in(caplog)
    assert f"(request {sent[-1]})" in str(lost.value)


@pytest.mark.parametrize(
    "answer, error, options, named",
    [
        (refused(500), UnavailableError, {}, None),
        (reset(), UnavailableError, {}, None),
        (refused(404), PublisherError, {}, None),
        (refused(500, x_request_id="theirs-1"), UnavailableError, {}, "theirs-1"),
        (reset(), UnavailableError, {"http.header.X-Request-ID": "mine"}, "mine"),
    ],
)
def test_the_error_names_the_request(raw_server, answer, error, options, named):
    """Of any publisher or proxy: by the id of the answer, or else by the one that was sent."""
    raw_server.script(answer)

    with pytest.raises(error) as raised:
        read(client(raw_server, retryTimeout="0s", **options).page(ask()))
    (sent,) = ids(raw_server)
    assert f"(request {named or sent})" in str(raised.value)
    assert sent == options.get("http.header.X-Request-ID", sent)


def test_a_secret_in_place_of_an_id_is_not_shown(raw_server):
    raw_server.script(reset())
    options = {"http.secret.header.X-Request-ID": "s3cret-value", "retryTimeout": "0s"}

    with pytest.raises(UnavailableError) as raised:
        read(client(raw_server, **options).page(ask()))
    assert ["s3cret-value"] == ids(raw_server)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("where", ["option", "environment"])
def test_each_request_is_a_span_of_the_trace(raw_server, monkeypatch, where):
    """My tracing shows the requests of a query, or of a command, below what started it."""
    given = f"00-{TRACE}-{SPAN}-01"
    options = {"traceparent": given} if where == "option" else {}
    monkeypatch.setenv(
        "TRACEPARENT", given if where == "environment" else f"00-{SPAN * 2}-{SPAN}-00"
    )
    raw_server.script(refused(503), ok(BODY))

    read(client(raw_server, **options).page(ask()))
    sent = [each.headers["traceparent"] for each in raw_server.requests]
    spans = {re.fullmatch(rf"00-{TRACE}-([0-9a-f]{{16}})-01", each)[1] for each in sent}
    assert 2 == len(spans - {SPAN})


@pytest.mark.parametrize("given", [None, "", "00-1-2-01"])
def test_no_trace_is_invented(raw_server, monkeypatch, caplog, given):
    """A variable that is not valid does not stop me; the log tells it."""
    if given is None:
        monkeypatch.delenv("TRACEPARENT", raising=False)
    else:
        monkeypatch.setenv("TRACEPARENT", given)
    raw_server.script(ok(BODY))

    read(client(raw_server).page(ask()))
    assert "traceparent" not in raw_server.requests[0].headers
    assert bool(given) == ("TRACEPARENT is ignored: it must be a traceparent" in caplog.text)


def test_an_option_that_is_no_traceparent_is_refused():
    with pytest.raises(OptionError, match=r"'traceparent'.*must be a traceparent"):
        Transport(
            parse(ClientOptions, {"url": "http://x", "traceparent": f"00-{'0' * 32}-{SPAN}-01"})
        )
