"""A real nginx that keeps pages, as `conf/nginx.conf` configures it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

import pytest
import requests

from tests.fix_middlemen import Proxy
from tests.fix_nginx import Nginx
from tests.fix_publisher import serving_app, token_of
from tests.integration.test_kept_answers import Replaceable
from tests.patience import eventually
from zeh_spark.publisher import Gate, Store, create_app, open_store
from zeh_spark.reading import reader
from zeh_spark.service.access.gate import Right
from zeh_spark.service.app.server import Running, listen
from zeh_spark.service.store.token_rights import Grant
from zeh_spark.testing import publish
from zeh_spark.wire.page_headers import TELL

StartNginx = Callable[..., Nginx]
CODINGS = ("identity", "gzip")
BATCHES, HINT = 12, 20
"""Batches of 10 events, alternately in two partitions; a page has those of two batches."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Replaceable]:
    opened = open_store(f"sqlite:///{tmp_path}/feeds.db")
    opened.create("orders", 2)
    fill(opened)
    yield Replaceable(opened)
    opened.close()


def fill(store: Store) -> None:
    for number in range(BATCHES):
        events = [{"i": each, "text": "x" * 100} for each in range(10)]
        publish(store, "orders", events, partition=number % 2)


@contextmanager
def publishing(store: Replaceable, **how: Gate) -> Iterator[int]:
    """A publisher that knows its proxy; gives its port."""
    app = create_app(store, **how)  # type: ignore[arg-type]  # it is one by delegation
    running = Running(forwarded_allow_ips=["127.0.0.1"])
    with serving_app(app, app.state.stop, listen("127.0.0.1", 0), running) as port:
        yield port


@pytest.fixture
def port(store: Replaceable) -> Iterator[int]:
    with publishing(store) as port:
        yield port


def get(base: str, query: str, coding: str = "identity", **headers: str) -> requests.Response:
    with requests.get(
        f"{base}/orders?{query}",
        headers={"Accept-Encoding": coding, **headers},
        stream=True,
        timeout=60,
    ) as answer:
        answer._content = answer.raw.read(decode_content=False)  # as it was sent
    return answer


def of(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def last_cursors(answer: requests.Response) -> dict[int, str]:
    lines = map(json.loads, answer.content.splitlines())
    return {each["partition"]: each["cursor"] for each in lines if "cursor" in each}


def full_pages(base: str, n: int, **headers: str) -> list[str]:
    """Queries for the pages that their hint ends, from concrete cursors."""
    cursors, found = dict.fromkeys(range(n), "_first"), []
    while True:
        given = "&".join(f"cursor{each}={cursor}" for each, cursor in cursors.items())
        query = f"n={n}&{given}&pagesizehint={HINT}&headers=_all"
        answer = get(base, query, **headers)
        assert 200 == answer.status_code, answer.content
        if "ETag" in answer.headers:
            found.append(query)
        if '"data"' not in answer.text:
            return found
        cursors.update(last_cursors(answer))


def begin_of_second() -> int:
    """Wait for the begin of a second, and return it."""
    begin = int(time.time()) + 1
    time.sleep(begin + 0.02 - time.time())
    return begin


def check_kept_until(end: int, nginx: Nginx, query: str, kept: requests.Response) -> None:
    """Until this time nginx answers with the page that it kept. Return once the time is over."""
    coding = kept.headers.get("Content-Encoding", "identity")
    while (found := get(nginx.url, query, coding)) and time.time() < end:
        assert kept.content == found.content
    time.sleep(max(0.0, end + 0.02 - time.time()))


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "does not ask"])
def test_readers_through_nginx_get_the_publisher_s_bytes(
    start_nginx: StartNginx, port: int, asks: bool
) -> None:
    """For each n and coding, from the publisher, from the cache, and after it was asked again."""
    nginx = start_nginx(port, asks=asks)
    ways = [
        (query, coding, tell)
        for n, coding, tell in product((1, 2), CODINGS, ({}, {TELL: "1"}))
        for query in full_pages(of(port), n)
    ]
    assert len(ways) > 30
    expected = [get(of(port), query, coding, **tell) for query, coding, tell in ways]
    for _ in range(3):
        begin_of_second()
        found = [get(nginx.url, query, coding, **tell) for query, coding, tell in ways]
        assert [each.content for each in expected] == [each.content for each in found]
        for name in ("Content-Encoding", "Content-Type", "ETag"):
            untold = [each for each, (_, _, tell) in enumerate(ways) if not tell]
            assert [expected[each].headers.get(name) for each in untold] == [
                found[each].headers.get(name) for each in untold
            ]
    begin_of_second()
    twice = [get(nginx.url, *ways[0][:2]) for _ in range(2)]
    assert twice[0].headers["X-Request-Id"] == twice[1].headers["X-Request-Id"]
    statuses = nginx.statuses(3 * len(ways) + 2)
    assert {"MISS"} == {*statuses[: len(ways)]}
    assert "REVALIDATED" in statuses[len(ways) :] and "HIT" == statuses[-1]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("n", [1, 2])
def test_a_restore_is_outlived_by_a_second_at_most(
    start_nginx: StartNginx, store: Replaceable, port: int, tmp_path: Path, n: int, coding: str
) -> None:
    """Readers learn by 409 that their cursors are of another history, though pages are kept."""
    nginx = start_nginx(port, asks=False)
    query = full_pages(of(port), n)[-1]
    restored = open_store(f"sqlite:///{tmp_path}/restored.db")
    restored.create("orders", 2)
    fill(restored)
    begin = begin_of_second()
    kept = get(nginx.url, query, coding)
    store.inner, before = restored, store.inner
    check_kept_until(begin + 1, nginx, query, kept)
    refused = get(nginx.url, query, coding)
    assert 409 == refused.status_code
    assert "cursor-of-another-history" in refused.json()["type"]
    before.close()


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("n", [1, 2])
def test_what_was_removed_is_outlived_by_a_second_at_most(
    start_nginx: StartNginx, store: Replaceable, port: int, n: int, coding: str
) -> None:
    """A reader that missed events is told so by 410."""
    nginx = start_nginx(port, asks=False)
    query = full_pages(of(port), n)[0]
    begin = begin_of_second()
    kept = get(nginx.url, query, coding)
    store.inner.remove("orders", BATCHES - 1)
    check_kept_until(begin + 1, nginx, query, kept)
    refused = get(nginx.url, query, coding)
    assert 410 == refused.status_code
    assert "cursor-gone" in refused.json()["type"]


def test_each_request_needs_a_token_although_the_page_is_kept(
    start_nginx: StartNginx, store: Replaceable
) -> None:
    """A stranger gets nothing, nor does a token of another feed, nor one that was revoked."""
    grants = [Grant(Right.READ, "orders")], [Grant(Right.READ, "others")]
    mine, other = (
        {"Authorization": f"Bearer {token_of(store.inner, *each, name=str(number))}"}
        for number, each in enumerate(grants)
    )
    with publishing(store, gate=Gate(store.inner)) as port:
        nginx = start_nginx(port)
        query = full_pages(of(port), 1, **mine)[0]

        begin_of_second()
        kept = [get(nginx.url, query, **mine) for _ in range(2)]
        answers = [get(nginx.url, query, **each) for each in ({}, other, mine)]
        assert [401, 403, 200] == [each.status_code for each in answers]
        assert "a token is needed" in answers[0].json()["detail"]  # the publisher's own words
        assert "does not have the right read" in answers[1].json()["detail"]
        assert 1 == len({each.content for each in (*kept, answers[2])})
        assert 2 == nginx.statuses(5).count("HIT")
        store.inner.revoke_token("0")
        eventually(lambda: 401 == get(nginx.url, query, **mine).status_code, 3)
        assert [401] * 20 == [get(nginx.url, query, **mine).status_code for _ in range(20)]


@pytest.mark.parametrize(
    "more",
    [
        "cursor0=_first&pagesizehint=20",
        "cursor0=_last",
        "cursor0={}&pagesizehint=1000",
        "cursor0={}&pagesizehint=20&cursorset=mine",
    ],
)
def test_what_may_change_is_never_kept(start_nginx: StartNginx, port: int, more: str) -> None:
    """New events come at once, and cursorsets move with every request."""
    nginx = start_nginx(port, asks=False)
    cursor = last_cursors(get(of(port), "n=1&cursor0=_first&pagesizehint=1"))[0]
    answers = [get(nginx.url, f"n=1&{more.format(cursor)}") for _ in range(5)]
    assert {200} == {each.status_code for each in answers}
    assert 5 == len({each.headers["X-Request-Id"] for each in answers})
    assert ["MISS"] * 5 == nginx.statuses(5)


def test_a_head_moves_no_cursorset(start_nginx: StartNginx, port: int, store: Replaceable) -> None:
    """nginx would make a GET of it by default."""
    nginx = start_nginx(port, asks=False)
    cursor = last_cursors(get(of(port), "n=1&cursor0=_first&pagesizehint=1"))[0]
    assert 200 == get(nginx.url, f"n=1&cursor0={cursor}&cursorset=mine").status_code
    later = last_cursors(get(of(port), "n=1&cursor0=_last"))[0]
    url = f"{nginx.url}/orders?n=1&cursor0={later}&cursorset=mine"
    assert 200 == requests.head(url, timeout=30).status_code
    assert {0: cursor} == store.inner.load_cursors("orders", "mine", 1)


def test_an_audit_reads_the_store_and_not_the_cache(start_nginx: StartNginx, port: int) -> None:
    nginx = start_nginx(port, asks=False)
    query = full_pages(of(port), 1)[0]
    begin_of_second()
    answers = [get(nginx.url, query) for _ in range(2)]
    answers.append(get(nginx.url, query, **{"Cache-Control": "no-cache"}))
    assert ["MISS", "HIT", "BYPASS"] == nginx.statuses(3)
    assert 1 == len({each.content for each in answers})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("proxy_set_header ZEH-Proxy-Time $msec;", ""),
        ("proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;", ""),
        ("proxy_http_version 1.1;", ""),
    ],
)
def test_an_nginx_that_is_configured_otherwise_keeps_nothing(
    start_nginx: StartNginx, port: int, old: str, new: str
) -> None:
    """Such as one that keeps pages by default, and asks nobody whether a reader may have them."""

    def changed(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    nginx = start_nginx(port, asks=False, taken=changed)
    query = full_pages(of(port), 1)[0]
    assert 1 == len({get(nginx.url, query).content for _ in range(5)})
    assert ["MISS"] * 5 == nginx.statuses(5)


@pytest.mark.parametrize("reset", [False, True])
def test_a_page_that_was_cut_is_not_kept(
    start_nginx: StartNginx,
    start_proxy: Callable[[int], Proxy],
    store: Replaceable,
    port: int,
    reset: bool,
) -> None:
    """The next reader gets all of it."""
    proxy = start_proxy(port)
    nginx = start_nginx(int(proxy.address.rpartition(":")[2]), asks=False)
    query = full_pages(of(port), 1)[0]
    whole = get(of(port), query).content
    proxy.cut_after(len(whole) // 2, reset=reset)
    for _ in range(3):
        cut = requests.get(
            f"{nginx.url}/orders?{query}",
            headers={"Accept-Encoding": "identity"},
            timeout=30,
            stream=True,
        )
        with cut, pytest.raises(requests.RequestException):
            assert len(cut.content) == len(whole)
            raise AssertionError("a cut page passed for a whole one")
    proxy.restart()
    assert [whole] * 2 == [get(nginx.url, query).content for _ in range(2)]


def test_a_reader_through_nginx_gets_all_events_once(
    start_nginx: StartNginx, store: Replaceable, port: int
) -> None:
    """Also two readers one after the other, and with events that come meanwhile."""
    nginx = start_nginx(port)
    for n in (1, 2):
        counts = []
        for _ in range(2):
            pages = reader(f"{nginx.url}/orders", partition_count=n, page_size_hint=HINT)
            counts.append(sum(events.num_rows for events, _ in pages))
        expected = store.inner.feed("orders").events
        assert [expected] * 2 == counts
        publish(store.inner, "orders", [{"i": each} for each in range(50)])
    assert not {"HIT", "REVALIDATED"}.isdisjoint(nginx.statuses(8))


def test_a_request_with_a_body_changes_no_page_of_others(
    start_nginx: StartNginx, port: int
) -> None:
    """It may have a request in its body, which must not pass for the one that follows it."""
    first, *_, later = full_pages(of(port), 1)
    nginx = start_nginx(port)
    expected = get(of(port), first).content
    now, pad = f"{time.time():.3f}", "a" * 100
    sent = (  # what nginx asks for
        f"GET /orders?{first} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: 127.0.0.1\r\n"
        f"X-Forwarded-Proto: http\r\nZEH-Proxy-Time: {now}\r\nContent-Length: 000\r\n"
        f"A: {pad}\r\n\r\n"
    )
    smuggled = (
        f"GET /orders?{later} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: 1.2.3.4\r\n"
        f"ZEH-Proxy-Time: {now}\r\nX: "
    )
    body = smuggled + "x" * (len(sent) - len(smuggled) - 4) + "\r\n\r\n"
    head = f"GET /orders?{first} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", nginx.port), 30) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\nA: {pad}\r\n\r\n{body}".encode())
        client.settimeout(1)
        with suppress(OSError):
            while client.recv(1 << 16):
                pass
    assert expected == get(nginx.url, first).content
