"""OAuth2 client credentials: tokens are asked for, kept, renewed, and never shown."""

from __future__ import annotations

import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import quote

import pytest

from tests.cases import each_case
from tests.fix_client import BODY, ask, client, read
from tests.fix_oauth import CLIENT, SECRET, TokenServer
from tests.fix_raw_server import ok, refused
from tests.patience import eventually
from zeh_spark.client.http.credentials import masked
from zeh_spark.client.http.responses import TransientError
from zeh_spark.client.http.tokens import Tokens
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import AccessError, OptionError, UnavailableError
from zeh_spark.publish import Producer
from zeh_spark.spark.sink.options import SinkOptions

URL = "http://127.0.0.1:8080/orders"
QUOTED = quote(SECRET, safe="")
BASIC = b64encode(f"{quote(CLIENT, safe='')}:{QUOTED}".encode()).decode()
"""The secret as it is sent."""


def options(server: TokenServer, url: str = URL, **given: str) -> ClientOptions:
    return parse(ClientOptions, {"url": url, **server.options, **given})


def test_a_producer_publishes_with_a_token_of_the_token_server(token_server, guarded):
    """I give the credentials of my service, and no token."""
    with Producer(f"{guarded}/orders", "till-7", **token_server.options).batch() as batch:
        batch.add({"order": 17})

    assert [{"grant_type": "client_credentials"}] == token_server.asked


def test_all_transports_of_a_process_share_a_token(token_server, guarded):
    """The token server is not asked for each request, thread or query."""
    transports = [
        Transport(options(token_server, f"{guarded}/orders", **{"oauth.scope": "feeds"}))
        for _ in range(4)
    ]

    def ask_for(each: Transport) -> None:
        each.request("GET", query="n=1&cursor0=_first").close()

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask_for, transports * 3))

    assert [{"grant_type": "client_credentials", "scope": "feeds"}] == token_server.asked


@pytest.mark.parametrize(
    ("lifetime", "age", "asked"),
    [(300, 269, 1), (300, 271, 2), (10, 7, 1), (10, 8.5, 2), (None, 10**6, 1)],
)
def test_a_token_is_renewed_shortly_before_it_expires(token_server, lifetime, age, asked):
    """30 s before, or after four fifths of a shorter life."""
    now = [1000.0]
    token_server.lifetime = lifetime
    tokens = Tokens(options(token_server), clock=lambda: now[0])
    tokens.token()
    now[0] += age

    tokens.token()

    assert asked == len(token_server.asked)


def test_a_token_is_used_to_its_end_while_the_token_server_is_down(token_server):
    """A short outage of it stops no query."""
    now = [1000.0]
    tokens = Tokens(options(token_server), clock=lambda: now[0])
    first = tokens.token()
    token_server.script = [(503, {})]
    now[0] += 290

    assert [first, first] == [tokens.token(), tokens.token()]
    now[0] += 5
    assert first != tokens.token()
    assert 3 == len(token_server.asked)


def test_a_silent_token_server_does_not_delay_who_has_a_token(token_server):
    """One thread asks for the next token; the others go on with theirs."""
    now = [1000.0]
    tokens = Tokens(options(token_server), clock=lambda: now[0])
    first = tokens.token()
    token_server.silence = threading.Event()
    now[0] += 290
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(tokens.token)
        eventually(lambda: len(token_server.asked) == 2)

        assert [first] * 8 == [tokens.token() for _ in range(8)]
        token_server.silence.set()
        assert first != asking.result(30)


@pytest.mark.parametrize("how", [Tokens.token, lambda tokens: tokens.instead_of("old")])
def test_threads_share_the_failure_for_which_they_wait(token_server, how):
    """A server that is silent for a minute does not hold up the last of 32 threads for 32."""
    tokens = Tokens(options(token_server))
    token_server.silence, token_server.script = threading.Event(), [(503, {})] * 8
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(how, tokens) for _ in range(8)]
        eventually(lambda: all(each.running() for each in asking) and token_server.asked)
        token_server.silence.set()
        failed = [each.exception(30) for each in asking]

    assert {TransientError} == {type(each) for each in failed}
    assert len(token_server.asked) < 8


def test_a_token_that_is_given_again_stays_hidden(token_server):
    """Token servers give the same token until shortly before it expires."""
    document = {"access_token": "the-same-token-as-before", "token_type": "Bearer"}
    token_server.script = [(200, document)] * 15
    tokens = Tokens(options(token_server))
    for _ in range(15):
        tokens.instead_of("the-same-token-as-before")

    assert 15 == len(token_server.asked)
    assert "the-same" not in masked("401 invalid token: the-same-token-as-before")


def test_a_refused_token_is_renewed(token_server, raw_server):
    """It was revoked, or the issuer has other keys now."""
    raw_server.script(refused(401, "expired"), ok(BODY))

    assert [1, 2] == read(client(raw_server, **token_server.options).page(ask()))

    sent = [each.headers["authorization"] for each in raw_server.requests]
    assert 2 == len(set(sent)) == len(token_server.asked)


def test_a_task_gets_a_token_of_its_own_when_the_drivers_has_expired(token_server, guarded):
    """A stage may take longer than a token lives."""
    for_task = replace(options(token_server, f"{guarded}/orders"), token="expired-token")
    transport = Transport(for_task)
    assert token_server.asked == []

    for _ in range(2):
        transport.request("GET", query="n=1&cursor0=_first").close()

    assert 1 == len(token_server.asked)


def test_a_refusal_of_a_new_token_is_final(token_server, raw_server):
    """The token is good, and has no rights."""
    raw_server.respond = lambda request: refused(401, "no")

    with pytest.raises(AccessError, match="answered 401"):
        read(client(raw_server, **token_server.options).page(ask()))
    assert 2 == len(raw_server.requests)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, {"error": "invalid_client"}), "it answered 401: invalid_client"),
        ((400, {"error": "invalid_scope", "error_description": f"not for {SECRET}"}),
         r"it answered 400: invalid_scope: not for \(hidden\)"),
        ((400, {"error": "bad", "error_description": f"{QUOTED} {BASIC}"}),
         r"it answered 400: bad: \(hidden\) \(hidden\)"),
        ((302, {}), "it answered 302"),
        ((200, b"<html>"), "its answer has no valid access_token"),
        ((200, {"access_token": "a\nb"}), "its answer has no valid access_token"),
        ((200, {"access_token": "a", "token_type": "mac"}), "'mac' instead of 'Bearer'"),
        ((200, {"access_token": "a", "expires_in": "soon"}), "no valid access_token and expires"),
    ],
)  # fmt: skip
def test_what_the_token_server_refuses_is_told_at_once(token_server, raw_server, answer, said):
    """I see what it says, and which options to check; never the secret."""
    token_server.script = [answer]

    with pytest.raises(AccessError, match=rf"/token gives no token: .*{said}.*oauth.clientSecret"):
        read(client(raw_server, **token_server.options).page(ask()))
    assert raw_server.requests == []


def test_an_outage_of_the_token_server_is_retried(token_server, raw_server):
    """As one of the publisher is."""
    token_server.script = [(503, {}), (429, {})]
    raw_server.script(ok(BODY))

    assert [1, 2] == read(client(raw_server, **token_server.options).page(ask()))


def test_a_token_server_that_stays_away_is_named(token_server, raw_server):
    token_server.script = [(503, {"error": "maintenance"})]

    with pytest.raises(UnavailableError, match=r"/token does not answer \(it answered 503: maint"):
        read(client(raw_server, retryTimeout="0s", **token_server.options).page(ask()))


@each_case(
    ("given", "said"),
    [
        ({"oauth.clientId": CLIENT}, "'oauth.tokenUrl' is missing"),
        ({"oauth.scope": "x"}, "'oauth.tokenUrl' is missing"),
        ({"oauth.tokenUrl": "https://x/t", "oauth.clientId": "a"}, "'oauth.clientSecret' is miss"),
        ({"oauth.tokenUrl": "http://login.example/token"}, "must begin with https:"),
        ({"oauth.tokenUrl": "https://u:p@login.example/token"}, "without a user"),
        ({"oauth.tokenUrl": "login.example"}, "must be a whole address"),
        (
            {
                "oauth.tokenUrl": "https://x/t",
                "oauth.clientId": "a",
                "oauth.clientSecret": "b",
                "token": "c",
            },
            "exclude each other",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(given, said):
    """The secret goes over TLS alone, and one way of access is enough."""
    with pytest.raises(OptionError, match=said):
        parse(ClientOptions, {"url": URL, **given})


def test_the_secret_is_not_shown(token_server):
    """Neither options nor an error about them hold it."""
    assert SECRET not in repr(options(token_server))
    with pytest.raises(OptionError, match="hidden") as caught:
        parse(ClientOptions, {"url": URL, **token_server.options, "oauth.clientSecret": "a b"})
    assert "a b" not in str(caught.value)


def test_a_dead_letter_feed_elsewhere_gets_no_token(token_server):
    """Credentials are for the origin of `url`."""
    given = {"url": URL, "producerId": "p", **token_server.options}
    elsewhere = parse(SinkOptions, {**given, "deadLetterUrl": "http://127.0.0.1:9/letters"})
    own = parse(SinkOptions, {**given, "deadLetterUrl": f"{URL}-letters", "deadLetterToken": "t"})

    assert elsewhere.dead_letters and own.dead_letters
    assert elsewhere.dead_letters.oauth_token_url is None
    assert ("t", None) == (own.dead_letters.token, own.dead_letters.oauth_client_secret)
