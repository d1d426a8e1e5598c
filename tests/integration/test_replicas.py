"""A store served from a hot standby, which may lag: an answer is true, or to be asked for again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pytest
import requests
from sqlalchemy import Connection, Engine, event

from tests import postgresql
from tests.fix_datasource import read_plainly
from tests.fix_metrics import Scrape
from tests.fix_shop import Shop, opened_shop
from tests.integration.test_openapi import check
from tests.integration.test_table_holders import until_replayed
from tests.integration.test_table_restores import events
from tests.patience import eventually
from tests.store_contract.packs import EVER
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.retention.pruner import Pruner
from zeh_spark.service.store.problems import Problem
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire.direct_reads import Group, RangeEnd, parse_answer

FIRST = {"0": "_first", "1": "_first"}
PLANNED = "partition", "from", "to"


@dataclass
class Pair:
    """A primary and its standby, of which a publisher serves each."""

    server: postgresql.Server
    standby: postgresql.Replica
    store: Store
    copy: Store
    primary: str
    replica: str
    database: str

    def arrive(self) -> None:
        """Have the standby replay all that was committed."""
        self.standby.execute("SELECT pg_wal_replay_resume()")
        until_replayed(self.server, self.standby)

    def lag(self) -> None:
        """Have the standby replay nothing more."""
        self.standby.execute("SELECT pg_wal_replay_pause()")
        state = "SELECT pg_get_wal_replay_pause_state()"
        eventually(lambda: self.standby.execute(state) == [("paused",)])

    def cursors(self) -> dict[str, str]:
        """The cursors after all that the primary has."""
        ends = plan(self.primary, FIRST).json()["ends"]
        return {partition: str(cursor) for partition, cursor in ends.items()}


def plan(base: str, cursors: dict[str, str], **more: object) -> requests.Response:
    asked = {"n": 2, "cursors": cursors, **more}
    return requests.post(f"{base}/orders/plan", json=asked, timeout=30)


def page(base: str, query: str, path: str = "") -> requests.Response:
    return requests.get(f"{base}/orders{path}?n=2&{query}", timeout=30)


@pytest.fixture(scope="module")
def server() -> Iterator[Pair]:
    postgresql.needed()
    with ExitStack() as stack:
        server = postgresql.Server()
        stack.callback(server.remove)
        database = server.create_database()
        store = stack.enter_context(closing(open_store(server.url(database))))
        store.create("orders", 2)
        publish(store, "orders", [0, 1])
        standby = postgresql.Replica(server)
        stack.callback(standby.remove)
        copy = stack.enter_context(closing(open_store(standby.url(database))))
        primary, replica = (stack.enter_context(running_publisher(each)) for each in (store, copy))
        yield Pair(server, standby, store, copy, primary, replica, database)


@pytest.fixture
def pair(server: Pair) -> Pair:
    """The standby has all that was committed."""
    server.arrive()
    return server


def is_again(answer: requests.Response, path: str = "", method: str = "GET") -> bool:
    """Whether a client asks again, by the name, and is not told to begin again."""
    check(f"/{{feed}}{path}", method, answer)
    told = answer.json()
    assert "_first" not in told["detail"]
    return (503, "replica-behind") == (answer.status_code, told["type"].rpartition(":")[2])


def test_a_cursor_that_the_standby_has_not_come_to_is_asked_for_again(pair: Pair) -> None:
    """A reader that comes from the primary is asked to retry until the standby has caught up. It
    has no commit of a later time yet either, so it cannot tell what comes after it.
    """
    pair.lag()
    publish(pair.store, "orders", [0, 1])
    ahead = pair.cursors()
    query = f"cursor0={ahead['0']}&cursor1={ahead['1']}"
    before = plan(pair.replica, FIRST).json()
    ranges = [{"partition": 0, "from": before["ends"]["0"], "to": ahead["0"]}]
    chunks = {"url": f"{pair.replica}/orders/chunks", "json": {"n": 2, "ranges": ranges}}
    time = f"time={pair.store.feed('orders').time}"
    assert is_again(page(pair.replica, query))
    assert is_again(plan(pair.replica, ahead), "/plan", "POST")
    assert is_again(requests.post(**chunks, timeout=30), "/chunks", "POST")
    assert is_again(page(pair.replica, time, "/cursors"), "/cursors")

    pair.arrive()

    assert [200] * 3 == [
        page(pair.replica, query).status_code,
        plan(pair.replica, ahead).status_code,
        requests.post(**chunks, timeout=30).status_code,
    ]
    there, here = (page(each, time, "/cursors").json() for each in (pair.primary, pair.replica))
    assert there == here


def test_what_a_standby_cannot_know_is_not_of_another_history(pair: Pair) -> None:
    """Only the primary says for certain that my checkpoint is of another history."""
    other = {"0": "1.00000000", "1": "_first"}
    query = f"cursor0={other['0']}&cursor1=_first"
    assert is_again(page(pair.replica, query))
    assert is_again(plan(pair.replica, other), "/plan", "POST")
    assert is_again(plan(pair.replica, FIRST, upto="1.00000000"), "/plan", "POST")
    assert 409 == page(pair.primary, query).status_code


@pytest.mark.parametrize("query", ["cursor0=_first", "resume=0"])
def test_a_standby_keeps_no_cursors(pair: Pair, query: str) -> None:
    """It cannot write, and the primary's may be further: I am told so, and do not ask for ever."""
    assert page(pair.primary, "cursor0=_first&cursorset=mine&pagesizehint=0").ok
    pair.arrive()
    answer = page(pair.replica, f"{query}&cursorset=mine")
    check("/{feed}", "GET", answer)
    assert "cursorset-unsupported" in answer.text and "replica" in answer.text
    head = requests.head(answer.url, timeout=30)
    assert (400, 400) == (answer.status_code, head.status_code)
    awaited = f"{pair.replica}/orders/cursors?await={pair.cursors()['0']}&cursorset=mine"
    assert "cursorset-unsupported" in requests.get(awaited, timeout=30).text


def test_discovery_and_plans_claim_nothing_that_a_standby_does_not_have(pair: Pair) -> None:
    """It is a replica: I am not told that it has all, nor that I have read all there is."""
    told = []
    for base in (pair.primary, pair.replica):
        answer = requests.get(f"{base}/orders", timeout=30)
        check("/{feed}", "GET", answer)
        told.append(answer.json()["feed"])
    known = [(each.get("replica", False), each.get("delivery")) for each in told]
    assert [(False, "exactly-once"), (True, None)] == known
    assert told[0]["epochs"] == told[1]["epochs"]
    ends = plan(pair.replica, pair.cursors()).json()
    assert ([], None) == (ends["ranges"], ends["lag"])
    assert plan(pair.primary, pair.cursors()).json()["lag"]


def test_publishing_to_a_standby_says_where_to_publish(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if I only ask for a producer's state, which waits for commits under way. The log tells
    of no outage.
    """
    answer = requests.get(f"{pair.replica}/orders/producers/test", timeout=30)
    check("/{feed}/producers/{producer}", "GET", answer)
    told = answer.json()
    assert (503, True) == (answer.status_code, "primary" in told["detail"])
    assert "replica-read-only" == told["type"].rpartition(":")[2]
    assert [] == [each for each in caplog.messages if "fails" in each]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_standby_serves_pages_and_direct_reads(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    """Pages, plans with their chunks, and a program that polls have all that was replayed, also of
    what is packed.
    """
    publish(pair.store, "orders", [2, 3, 4])
    if sealed:
        assert 2 == sealed_by_two(pair, monkeypatch)
    pair.arrive()
    both = pair.primary, pair.replica
    pages = [page(each, "cursor0=_first&cursor1=_first") for each in both]
    plans = [plan(each, FIRST).json()["ranges"] for each in both]
    ranges = [{name: each[name] for name in PLANNED} for each in plans[1]]
    chunks = [
        requests.post(f"{each}/orders/chunks", json={"n": 2, "ranges": ranges}, timeout=30)
        for each in both
    ]
    assert [200] * 4 == [each.status_code for each in (*pages, *chunks)]
    assert plans[0] == plans[1] and pages[0].content == pages[1].content
    assert told(chunks[0]) == told(chunks[1])


def told(answer: requests.Response) -> tuple[bytes, list[RangeEnd]]:
    """The headers of all chunks, and the ends of the ranges with their digests.

    In which frames the lines come may differ: what was asked for before a seal is kept.
    """
    parts = [*parse_answer([answer.content])]
    headers = b"".join(each.headers.tobytes() for each in parts if isinstance(each, Group))
    return headers, [each for each in parts if isinstance(each, RangeEnd)]


def sealed_by_two(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> int:
    """Pack the oldest chunks of the primary; return how many these were."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 2)
    return pair.store.seal("orders", before=EVER)


def test_a_standby_that_has_not_heard_of_a_seal_gives_the_same(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I go from one to the other with my cursors and my plans, whichever of them has packed what I
    read. A standby packs nothing itself.
    """
    for each in range(4):
        publish(pair.store, "orders", [each])
    pair.arrive()
    pair.lag()
    assert 2 == sealed_by_two(pair, monkeypatch)
    query = "cursor0=_first&cursor1=_first&headers=_all"
    both = pair.primary, pair.replica
    plans = [plan(each, FIRST).json() for each in both]
    for planned, other in zip(plans, both[::-1], strict=True):
        wanted = [{name: each[name] for name in PLANNED} for each in planned["ranges"]]
        assert requests.post(
            f"{other}/orders/chunks", json={"n": 2, "ranges": wanted}, timeout=30
        ).ok
    assert plans[0]["ends"] == plans[1]["ends"]
    assert page(pair.primary, query).content == page(pair.replica, query).content
    assert read_plainly(f"{pair.primary}/orders") == read_plainly(f"{pair.replica}/orders")
    with pytest.raises(StoreError):
        pair.copy.seal("orders", before=EVER)


def replica_lag(base: str) -> tuple[float, str]:
    """What the metric and /readyz say."""
    checks = requests.get(f"{base}/readyz", timeout=30).json()["checks"]
    return Scrape(base)("zeh_replica_lag_seconds"), checks.get("replica", {}).get("detail", "")


def test_the_lag_of_a_standby_is_told(pair: Pair) -> None:
    """While it replays nothing, it grows; when it has all that came, it is nothing."""
    assert (0, "") == replica_lag(pair.primary)
    pair.lag()
    publish(pair.store, "orders", [0])
    eventually(lambda: replica_lag(pair.replica)[0] > 1)
    eventually(lambda: not replica_lag(pair.replica)[1].startswith("0.0 s"))
    pair.arrive()
    eventually(lambda: replica_lag(pair.replica) == (0, "0.0 s behind its primary"))


@pytest.fixture
def impatient(pair: Pair) -> Iterator[Pair]:
    """The replay waits for no read."""

    def set_delay(value: str, shown: str) -> None:
        pair.standby.execute(f"ALTER SYSTEM SET max_standby_streaming_delay = {value}")
        pair.standby.execute("SELECT pg_reload_conf()")
        ask = "SHOW max_standby_streaming_delay"
        eventually(lambda: pair.standby.execute(ask) == [(shown,)])

    set_delay("0", "0")
    yield pair
    set_delay("DEFAULT", "30s")


def test_a_read_in_the_way_of_the_replay_is_asked_for_again(impatient: Pair) -> None:
    """The standby ends it: a client hears 503 and asks again; a reader of ours does by itself."""
    refused: list[object] = []

    def hold(connection: Connection, *_: object) -> None:
        """Come into the way of the replay before the next statement of a read, once."""
        if refused or connection.engine.url.port != impatient.standby.port:
            return
        refused.append(connection)
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute("SELECT 1 FROM zeroeventhub.blobs LIMIT 1")
        lock = "BEGIN; LOCK TABLE zeroeventhub.blobs IN ACCESS EXCLUSIVE MODE; COMMIT"
        impatient.server.execute(lock, impatient.database)
        impatient.arrive()

    asked = f"{impatient.replica}/orders?n=2&cursor0=_first&cursor1=_first"
    event.listen(Engine, "before_cursor_execute", hold)
    try:
        answer, again = (requests.get(asked, timeout=60) for _ in range(2))
        refused.clear()
        read = read_plainly(f"{impatient.replica}/orders")
    finally:
        event.remove(Engine, "before_cursor_execute", hold)
    check("/{feed}", "GET", answer)
    assert (503, True) == (answer.status_code, "conflict with recovery" in answer.text)
    assert (200, 1) == (again.status_code, len(refused))
    assert len(read) == impatient.store.feed("orders").events


def test_a_standby_is_not_tidied(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """The log has no failures of what the primary's publisher does, and /readyz names it."""
    with Pruner(pair.copy):
        ready = requests.get(f"{pair.replica}/readyz", timeout=30).json()
    assert "1 feed of a replica" == ready["checks"]["store"]["detail"]
    assert "stay for now" not in caplog.text


def test_a_table_on_a_standby_does_not_refuse_what_it_cannot_know(pair: Pair) -> None:
    """So it is with rows: after `new-history` the standby knows the old one for a while."""
    with opened_shop(pair.server) as shop, ExitStack() as stack:
        for statement in shop.feed().ddl(cursorsets=True):
            shop.execute(statement)
        shop.sell(1)
        pair.arrive()
        copy = Shop(pair.standby, shop.database)
        stack.callback(copy.engine.dispose)
        feed = copy.feed()
        assert [1] == events(feed)[0]
        pair.lag()
        shop.feed().new_history()
        _, new = events(shop.feed())
        with pytest.raises(Problem) as refused:
            events(feed, new)
        with pytest.raises(Problem, match="replica") as resumed:
            feed.load_cursors("mine", 4)
        pair.arrive()
        assert ("replica-behind", "cursorset-unsupported") == (
            refused.value.name,
            resumed.value.name,
        )
        assert [] == events(feed, new)[0]
