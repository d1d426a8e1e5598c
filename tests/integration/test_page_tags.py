"""Pages that caches may keep: which have an ETag, what it stands for, and 304 without rendering."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import requests

from tests.fix_publisher import serving_app, token_of
from tests.integration.test_kept_answers import Replaceable, filled
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import Gate, Store, create_app, open_store
from zeh_spark.service.access.gate import Right
from zeh_spark.service.app.server import Running, listen
from zeh_spark.service.reads import pages
from zeh_spark.service.store.token_rights import Grant
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire.page_headers import LAG, PROXY_TIME, TELL

EVENTS = [{"i": each} for each in range(6)]


@pytest.fixture
def store() -> Replaceable:
    return Replaceable(filled(ScratchStore(), *EVENTS))


@pytest.fixture
def base(store: Replaceable) -> Iterator[str]:
    with running_publisher(store) as base:  # type: ignore[arg-type]  # it is one by delegation
        yield base


def ask(base: str, query: str, **headers: str) -> requests.Response:
    """The request, with underscores of header names as hyphens, and no coding by default."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named.setdefault("Accept-Encoding", "identity")
    return requests.get(f"{base}/orders?{query}", headers=named, timeout=30)


def cursors(base: str, n: int = 1, hint: int = 1) -> dict[int, str]:
    """Those after the first chunks."""
    first = "&".join(f"cursor{each}=_first" for each in range(n))
    lines = ask(base, f"n={n}&{first}&pagesizehint={hint}").text.splitlines()
    found = [json.loads(line) for line in lines]
    return {each["partition"]: each["cursor"] for each in found if "cursor" in each}


def after(base: str, n: int = 1, hint: int = 3) -> str:
    """A query for a page that its hint ends."""
    given = "&".join(f"cursor{each}={cursor}" for each, cursor in cursors(base, n, hint=6).items())
    return f"n={n}&{given}&pagesizehint={hint}"


def tag(answer: requests.Response) -> str:
    assert 200 == answer.status_code
    assert "no-cache" == answer.headers["Cache-Control"]
    return answer.headers["ETag"]


def test_a_page_that_its_hint_ends_is_answered_304_without_reading_events(
    store: Replaceable, base: str
) -> None:
    """My cache asks whether its page still is the feed's, and that costs a look at the index."""
    query = after(base)
    first = ask(base, query)
    store.reads.clear()
    for known in (tag(first), f'"0", W/{tag(first)}'):
        again = ask(base, query, If_None_Match=known, Cache_Control="no-cache")
        assert (304, b"") == (again.status_code, again.content)
        assert first.headers["ETag"] == again.headers["ETag"]
        assert "no-cache" == again.headers["Cache-Control"]
    assert {"snapshot", "packed", "scan"} == {name for name, _ in store.reads}
    assert first.content == ask(base, query, If_None_Match='"another"').content


def test_an_etag_stays_while_the_feed_goes_on(store: Replaceable, base: str) -> None:
    query = after(base)
    known = tag(ask(base, query))
    publish(store.inner, "orders", EVENTS)
    assert known == tag(ask(base, query))


def test_every_way_of_asking_has_an_etag_of_its_own(base: str) -> None:
    """No cache gives me what somebody else asked for, also one that keys by too little."""
    lines = ask(base, "n=1&cursor0=_first").text.splitlines()
    every = [json.loads(line)["cursor"] for line in lines if '"cursor"' in line]
    one = every[0]
    ways = [
        (after(base), {}),
        (after(base, n=2), {}),
        (after(base, hint=4), {}),
        (f"n=1&cursor0={one}&pagesizehint=3", {}),
        (f"n=2&cursor0={one}&cursor1={every[1]}&pagesizehint=1", {}),
        (f"n=2&cursor0={one}&cursor1={every[3]}&pagesizehint=1", {}),  # with the same chunk
        (f"{after(base)}&headers=_all", {}),
        (f"{after(base)}&headers=zeh-time", {}),
        (after(base), {"Accept_Encoding": "gzip"}),
        (after(base), {TELL: "1"}),
    ]
    answers = [ask(base, query, **headers) for query, headers in ways]
    assert len(ways) == len({tag(each) for each in answers})
    assert {"Accept-Encoding, ZEH-Tell"} == {each.headers["Vary"] for each in answers}


def test_where_the_feed_stands_is_a_part_of_the_page(store: Replaceable, base: str) -> None:
    """A cache that answers 304 does not hold back how far behind I am."""
    query = after(base)
    told = ask(base, query, **{TELL: "1"})
    publish(store.inner, "orders", EVENTS)
    again = ask(base, query, If_None_Match=tag(told), **{TELL: "1"})
    assert 200 == again.status_code
    assert told.headers[LAG] != again.headers[LAG]
    untold = tag(ask(base, query))
    assert LAG in ask(base, query, If_None_Match=untold, **{TELL: "1"}).headers
    assert tag(told) != tag(again)


def test_a_new_epoch_and_another_time_change_the_etag(tmp_path: Path) -> None:
    """The same events at the same cursors, published again after a restore, are another page."""
    times = [1_700_000_000_000, 1_700_000_000_001]
    found, bodies = [], []
    filled(open_store(f"sqlite:///{tmp_path}/made.db")).close()
    for time in times:
        copy = tmp_path / f"{time}.db"
        copy.write_bytes((tmp_path / "made.db").read_bytes())
        with closing(open_store(f"sqlite:///{copy}", clock=lambda time=time: time)) as store:  # type: ignore[misc]
            for each in EVENTS:
                publish(store, "orders", [each], partition=0)
            with running_publisher(store) as base:
                query = f"n=1&cursor0={cursors(base)[0]}&pagesizehint=1"
                page = ask(base, f"{query}&headers=_all")
                found.append(tag(page))
                bodies.append(page.content)
                if time == times[-1]:
                    store.begin_epoch("orders")
                    page = ask(base, f"{query}&headers=_all")
                    found.append(tag(page))
                    bodies.append(page.content)
    assert 3 == len({*found})
    assert bodies[0] != bodies[1] == bodies[2]


@pytest.mark.parametrize(
    "more",
    [
        "pagesizehint=100",  # the feed ends it
        "pagesizehint=0",
        "pagesizehint=3&cursorset=mine",
        "resume",
        "_first",
        "_last",
        "HEAD",
    ],
)
def test_no_cache_keeps_a_page_that_may_be_another_one_later(base: str, more: str) -> None:
    """A reader at the end of the feed gets new events as soon as they are there."""
    cursor = cursors(base)[0]
    query = f"n=1&cursor0={cursor}&{more}"
    if more.startswith("_"):
        query = f"n=1&cursor0={more}&pagesizehint=3"
    if more == "resume":
        assert 200 == ask(base, f"n=1&cursor0={cursor}&cursorset=mine").status_code
        query = "n=1&resume=0&cursorset=mine&pagesizehint=3"
    method = "HEAD" if more == "HEAD" else "GET"
    if more == "HEAD":
        query = after(base)
    url = f"{base}/orders?{query}"
    answer = requests.request(method, url, headers=proxied(), timeout=30)
    assert 200 == answer.status_code
    assert "no-store" == answer.headers["Cache-Control"]
    assert answer.headers.keys().isdisjoint({"ETag", "X-Accel-Expires"})


def test_a_page_that_waited_is_not_kept(store: Replaceable, base: str) -> None:
    """Nor one of the request that came while it waited; one that had no need to wait is."""
    query = "n=1&cursor0={}&pagesizehint=1&wait=30"
    ended = json.loads(ask(base, "n=1&cursor0=_last").text.splitlines()[-1])["cursor"]
    with requests.get(f"{base}/orders?{query.format(cursors(base)[0])}", timeout=30) as at_once:
        tag(at_once)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(ask, base, query.format(ended))
        eventually(lambda: store.reads["snapshot", "orders"] > 3)
        publish(store.inner, "orders", EVENTS)
        waited = waits.result(60)
    assert "no-store" == waited.headers["Cache-Control"]
    assert "ETag" not in waited.headers


def test_a_page_of_very_many_chunks_is_not_kept(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have to be looked up as a whole before its first byte. It is whole all the same."""
    monkeypatch.setattr(pages, "_LOOKED_UP", 3)
    query = f"n=1&cursor0={cursors(base)[0]}&pagesizehint="
    kept, many = ask(base, f"{query}9"), ask(base, f"{query}10")  # of chunks of three events
    tag(kept)
    assert "no-store" == many.headers["Cache-Control"]
    assert [9, 12] == [each.text.count('"data"') for each in (kept, many)]


def proxied(now: str = "1700000000.123") -> dict[str, str]:
    return {PROXY_TIME: now, "X-Forwarded-For": "203.0.113.7"}


def served(store: Store, proxies: list[str], **how: Gate):  # type: ignore[no-untyped-def]
    app = create_app(store, **how)
    running = Running(forwarded_allow_ips=proxies)
    return serving_app(app, app.state.stop, listen("127.0.0.1", 0), running)


def test_only_a_declared_proxy_that_says_so_may_answer_by_itself(store: Replaceable) -> None:
    """And it may until its second is over: one whose clock is ahead does not keep pages longer."""
    shown = []
    for proxies in (["127.0.0.1"], []):
        with served(store.inner, proxies) as port:
            base = f"http://127.0.0.1:{port}"
            query = after(base)
            for headers in (
                proxied(),
                {PROXY_TIME: "1700000000.123"},
                {"X-Forwarded-For": "203.0.113.7"},
                proxied("never"),
                proxied("99999999999.9"),
            ):
                answer = ask(base, query, **headers)
                shown.append(answer.headers.get("X-Accel-Expires"))
                tag(answer)
    *first, ahead = shown[:5]
    assert ["@1700000000", None, None, None] == first
    assert 1_700_000_000 < int(str(ahead)[1:]) < 99_999_999_999
    assert [None] * 5 == shown[5:]


def test_a_proxy_that_asks_twice_in_a_second_costs_one_look(store: Replaceable) -> None:
    """Sixteen readers of a page ask at once. What was removed is refused at once if somebody else
    asks, and to the proxy when the second is over, by its clock or by mine.
    """
    with served(store.inner, ["127.0.0.1"]) as port:
        base = f"http://127.0.0.1:{port}"
        lines = ask(base, "n=1&cursor0=_first").text.splitlines()
        every = [json.loads(line)["cursor"] for line in lines if '"cursor"' in line]
        queries = [f"n=1&cursor0={each}&pagesizehint=1" for each in (every[0], every[2])]
        tags = [tag(ask(base, query)) for query in queries]

        def status(page: int, now: str) -> int:
            return ask(base, queries[page], If_None_Match=tags[page], **proxied(now)).status_code

        def costs_nothing(page: int) -> bool:
            store.reads.clear()
            assert 304 == status(page, "1700000000.001")
            return not store.reads

        eventually(lambda: costs_nothing(0))
        store.inner.remove("orders", 2)
        assert 410 == ask(base, queries[0], If_None_Match=tags[0]).status_code
        eventually(lambda: 410 == status(0, "1700000000.999"))
        eventually(lambda: costs_nothing(1))
        store.inner.remove("orders", 5)
        assert 410 == status(1, "1700000001.001")


def test_with_tokens_pages_are_private_and_access_can_be_asked(store: Replaceable) -> None:
    """What my token may read is kept for nobody else, and a proxy can ask whether it may."""
    token = token_of(store.inner, Grant(Right.READ, "orders"))
    other = token_of(store.inner, Grant(Right.READ, "others"), name="other")
    with running_publisher(store.inner, create_app(store.inner, gate=Gate(store.inner))) as base:
        mine = {"Authorization": f"Bearer {token}"}
        first = ask(base, "n=1&cursor0=_first&pagesizehint=3", **mine)
        cursor = json.loads(first.text.splitlines()[-1])["cursor"]
        page = ask(base, f"n=1&cursor0={cursor}&pagesizehint=3", **mine)
        assert "private, no-cache" == page.headers["Cache-Control"]
        answers = [
            requests.get(f"{base}/orders/access", headers=headers, timeout=30)
            for headers in (mine, {"Authorization": f"Bearer {other}"}, {})
        ]
    assert [204, 403, 401] == [each.status_code for each in answers]
    assert {"no-store"} == {each.headers["Cache-Control"] for each in answers}
