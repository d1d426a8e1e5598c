"""Who may do what at a publisher: each route, with each right, and what web pages may do."""

import asyncio
import functools
import random
import re
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import requests

from tests.cases import each_case
from tests.fix_publisher import token_of
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.errors import StoreError
from zeh_spark.publisher import create_app
from zeh_spark.service.access.gate import FRESH_SECONDS, PATIENCE_SECONDS, Gate, own_hosts
from zeh_spark.service.store.interface import StoreBusyError
from zeh_spark.service.store.token_rights import ADMIN, Grant, Right, new_token, parse_grant
from zeh_spark.testing import running_publisher

FEED = "orders"
PAGE = "/orders?n=2&cursor0=_first"
PARAMETERS = {
    "feed": FEED,
    "producer": "till-1",
    "batch": "0",
    "upload": "run.0.0.0",
    "partition": "0",
}
ENOUGH = {
    "finds_cursors": {Right.READ},
    "reads": {Right.READ},
    "publishes": {Right.PUBLISH},
    "sees_producer": {Right.PUBLISH, Right.AUDIT},
    "sees_producers": {Right.AUDIT},
    "sees_feed": {Right.READ, Right.AUDIT},
    "watches": {Right.AUDIT},
    "knows_anything": set(Right),
    "administers": set(),
}
"""By what a route needs, the rights each of which is enough."""
PUBLIC = {
    "/openapi.json",
    "/healthz",
    "/readyz",
    "/console/sign-in",
    "/console/sign-out",
    "/console/style.css",
    "/console/icon.svg",
}


@functools.cache
def all_routes():
    """The routes of the app: method, path with values, and what it needs."""
    found = []
    for route in create_app(ScratchStore(), console=True).routes:
        path = re.sub(r"\{(\w+)(:\w+)?\}", lambda found: PARAMETERS[found[1]], route.path)
        found += [(method, path, route.name) for method in sorted(route.methods)]
    return found


def guarded_routes():
    return [each for each in all_routes() if each[1] not in PUBLIC]


@contextmanager
def asked(*grants, is_open=False, hosts=None, tokens=True):
    """A publisher with two feeds, and what asks it with a token of these rights."""
    store = ScratchStore(orders=2, other=2)
    text, token = new_token("test", grants, store.now())
    if tokens:
        store.add_token(token)
    app = create_app(store, gate=Gate(store, is_open=is_open, hosts=hosts), console=True)
    with running_publisher(store, app) as base:

        def ask(method, path, token=text, **headers):
            if token:
                headers["Authorization"] = f"Bearer {token}"
            return requests.request(method, f"{base}{path}", headers=headers, timeout=30)

        ask.store, ask.token, ask.text = store, token, text
        ask.address = "127.0.0.1", int(base.rpartition(":")[2])
        yield ask


def refusal(response):
    """The name of the problem if it is one of access, else None."""
    return (
        response.json()["type"].rpartition(":")[2] if response.status_code in (401, 403) else None
    )


def test_every_route_is_guarded():
    """A new route has to say what it needs."""
    names = {each[2] for each in guarded_routes()}

    assert names == set(ENOUGH)
    assert {each[1] for each in all_routes() if each[2] == "nothing"} == PUBLIC


def test_a_request_without_a_token_is_refused():
    with asked(*ADMIN) as ask:
        for token in (None, "zeh_00000000_wrong", f"{ask.token.id}", "x"):
            answers = {route: ask(*route[:2], token) for route in guarded_routes()}

            assert {401} == {each.status_code for each in answers.values()}, token
            told = {each.headers["WWW-Authenticate"] for each in answers.values()}
            assert {'Bearer realm="zeh-spark"'} == told


@each_case("right", Right)
def test_a_right_is_enough_for_its_routes_alone(right):
    """Whoever may only read cannot publish, and so on, for each route and each right."""
    refused, elsewhere = {}, {}
    with asked(Grant(right, FEED)) as of_feed, asked(Grant(right, "*")) as of_all:
        for route in guarded_routes():
            method, path, needs = route
            ask = of_all if needs == "watches" else of_feed
            refused[route] = ask(method, path).status_code == 403
            if needs != "knows_anything":
                elsewhere[route] = of_feed(method, path.replace(FEED, "other")).status_code

    assert refused == {route: right not in ENOUGH[route[2]] for route in guarded_routes()}
    assert {403} == {*elsewhere.values()}, elsewhere


def test_whether_a_feed_exists_is_not_told():
    """The answer is the same for a feed that is there and one that is not."""
    same = {"X-Request-ID": "same"}
    with asked(Grant(Right.READ, "mine"), Grant(Right.PUBLISH, "mine")) as ask:
        for method, path, needs in guarded_routes():
            if needs != "knows_anything":
                here = ask(method, path, **same)
                nowhere = ask(method, path.replace(FEED, "nowhere"), **same)
                expected = (403, nowhere.text), (method, path)
                found = here.status_code, here.text.replace(FEED, "nowhere")
                assert expected == (found, (method, path))


@each_case(
    "grant, producer, may",
    [
        ("orders/till-*", "till-7", True),
        ("orders/till-*", "till-7%23day", True),
        ("orders/till-7", "till-7%23day", True),
        ("orders/till-7", "till-77", False),
        ("orders/till-*", "backfill", False),
        ("o*/till-7", "till-7", True),
        ("other/till-7", "till-7", False),
        ("orders", "anybody", True),
    ],
)
def test_publishing_is_bound_to_the_names_of_producers(grant, producer, may):
    """A token for one producer publishes neither as another producer nor in its named batches."""
    with asked(parse_grant(Right.PUBLISH, grant)) as ask:
        response = ask("GET", f"/orders/producers/{producer}")

    assert (response.status_code == 403) is not may


@each_case(
    "query, may",
    [
        ("", True),
        ("&cursorset=warehouse", True),
        ("&cursorset=another", False),
        ("&cursorset=warehouse&cursorset=another", False),
        ("&%63ursorset=another", False),
        ("&cursorset=", False),
    ],
)
def test_a_position_is_kept_only_under_names_that_the_token_has(query, may):
    """A reader cannot move another one's position, for which retention waits."""
    grants = Grant(Right.READ, FEED), Grant(Right.CONSUME, FEED, "warehouse")
    with asked(*grants) as ask:
        response = ask("GET", f"/orders?n=2&cursor0=_last{query}")
        kept = [each.name for each in ask.store.cursor_sets(FEED)]

    assert (response.status_code == 403) is not may
    assert set(kept) <= {"warehouse"}


def test_a_token_counts_at_once_and_is_refused_within_seconds_once_it_is_revoked():
    """Also at a publisher that was quiet."""
    with asked(*ADMIN) as ask:
        assert ask("GET", PAGE).status_code == 200
        text = token_of(ask.store, *ADMIN, name="new")
        eventually(lambda: ask("GET", PAGE, text).status_code == 200)
        assert ask.store.revoke_token("test") == [ask.token.id]

        eventually(lambda: ask("GET", PAGE).status_code == 401)


def test_an_expired_token_is_refused():
    with asked(Grant(Right.READ, FEED)) as ask:
        text, token = new_token("old", ask.token.grants, 0, expires=ask.store.now() - 1)
        ask.store.add_token(token)

        assert "expired" in ask("GET", PAGE, text).json()["detail"]


def test_a_publisher_stays_closed_when_its_last_token_is_revoked():
    """Otherwise revoking a token would open the publisher to everybody."""
    with asked(*ADMIN, is_open=True) as ask:
        ask.store.revoke_token("test")

        assert ask("GET", PAGE, None).status_code == 401


def test_without_tokens_an_open_publisher_asks_nobody():
    with asked(tokens=False, is_open=True, hosts=own_hosts("127.0.0.1", [])) as ask:
        assert ask("GET", PAGE, None).status_code == 200
        assert refusal(ask("DELETE", "/orders/producers/p/batches/0/uploads?run=r", None)) is None


@pytest.mark.parametrize(
    "headers, named",
    [
        ({"Host": "evil.example"}, "evil.example"),
        ({"Origin": "http://evil.example"}, "evil.example"),
        ({"Origin": "null"}, "null"),
        ({"Origin": "http://["}, "no address"),
        ({"Host": "["}, "no address"),
        ({"Sec-Fetch-Site": "cross-site"}, "another origin"),
    ],
)
def test_web_pages_cannot_use_an_open_publisher(headers, named, caplog):
    """A page that I look at in a browser on this machine neither reads nor publishes."""
    with asked(is_open=True, hosts=own_hosts("127.0.0.1", []), tokens=False) as ask:
        caplog.clear()  # of the making of the feeds
        answers = {route: ask(*route[:2], None, **headers) for route in guarded_routes()}

        assert (caplog.records, {403}) == ([], {each.status_code for each in answers.values()})
    for route, answer in answers.items():
        if route[0] != "HEAD":
            found = refusal(answer), named in answer.text
            assert ("foreign-origin", True) == found, route


def test_a_proxys_host_can_be_allowed():
    with asked(tokens=False, is_open=True, hosts=own_hosts("::1", ["Feeds.example"])) as ask:
        for host in ("feeds.example:443", "localhost", "[::1]:8080", "127.0.0.1"):
            assert ask("GET", PAGE, None, Host=host).status_code == 200, host


def test_a_batch_is_committed_by_json_alone():
    """What a form of a web page can send is refused also by browsers that tell no origin."""
    with asked(tokens=False, is_open=True) as ask:
        path = "/orders/producers/p/batches/0/commit?incarnation=i&run=r&n=2"

        assert ask("POST", path, None, **{"Content-Type": "text/plain"}).status_code == 415


def test_no_address_redirects():
    """A redirect would lead to any host that the request names."""
    with asked(*ADMIN) as ask:
        response = ask("GET", "/orders/", Host="evil.example")

    assert (response.status_code, "Location" in response.headers) == (404, False)


# The tokens that a gate knows


class Failing(ScratchStore):
    """A store whose tokens cannot be read."""

    def tokens(self):
        raise StoreBusyError("connection to server at 10.0.0.5 failed")


class Noting(ScratchStore):
    """A store that notes when its tokens were asked for."""

    def tokens(self):
        self.asked = time.monotonic()
        return super().tokens()


def test_a_store_that_fails_opens_nothing():
    """Also in the moments between a read that failed and the next one."""
    gate, passed = Gate(Failing(), is_open=True), []

    async def ask():
        for _ in range(50):
            await asyncio.sleep(random.random() * 0.003)
            try:
                await gate._refresh(gate._store)
            except StoreBusyError:
                continue
            passed.append(1)

    async def ask_at_once():
        await asyncio.gather(*(ask() for _ in range(30)))

    asyncio.run(ask_at_once())
    assert passed == []


def test_a_stranger_learns_nothing_of_a_database_that_fails(caplog):
    """Only the log has the address of the database: the client has not shown a token yet."""

    store = Failing()
    with running_publisher(store, create_app(store, gate=Gate(store))) as base:
        response = requests.get(f"{base}/orders?n=1", timeout=30)

    assert 503 == response.status_code
    assert "cannot read its tokens now; its log says why" in response.json()["detail"]
    assert "10.0.0.5" not in response.text
    assert "10.0.0.5" in caplog.text


def test_tokens_are_as_old_as_the_beginning_of_their_reading():
    store = Noting()
    gate = Gate(store)
    asyncio.run(gate._refresh(store))

    assert gate._read_at <= store.asked


def test_a_store_that_is_slow_delays_requests_once():
    """They make do with the tokens that were read before, however many come meanwhile."""
    answers = threading.Event()

    class Slow(ScratchStore):
        def tokens(self):
            answers.wait()
            return super().tokens()

    store = Slow()
    gate = Gate(store)

    async def seconds():
        answers.set()
        await gate._refresh(store)
        answers.clear()
        gate._read_at -= FRESH_SECONDS
        begun = time.monotonic()
        await asyncio.gather(*(gate._refresh(store) for _ in range(1000)))
        for _ in range(15):
            await gate._refresh(store)
        answers.set()
        return time.monotonic() - begun

    assert asyncio.run(seconds()) < 10 * PATIENCE_SECONDS


@each_case("text", ["orders/", "orders/till-7#day", "a/b/c", ""])
def test_a_right_that_says_nothing_is_refused(text):
    """An empty variable in a script does not grant every producer."""
    with pytest.raises(StoreError, match="cannot be granted"):
        parse_grant(Right.PUBLISH, text)


def test_a_trailer_is_no_header():
    """Headers that a client sends after the body are ignored, because proxies do not check them."""
    with asked(*ADMIN) as ask, socket.create_connection(ask.address, timeout=30) as connection:
        connection.sendall(
            b"GET /orders?n=2&cursor0=_first HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
            b"Authorization: Bearer %b\r\n\r\n" % ask.text.encode()
        )

        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401")


def test_a_service_that_mounts_the_app_decides_about_origins():
    with running_publisher(ScratchStore()) as base:
        response = requests.get(
            f"{base}/x?n=1", headers={"Origin": "https://app.example"}, timeout=9
        )

    assert response.status_code == 404
