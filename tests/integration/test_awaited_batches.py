"""Waiting until a reader has committed a batch, over HTTP: exact, or refused by name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
import requests

from tests.cases import each_case
from tests.fix_backup import DumpedDatabase, Place
from tests.fix_publisher import open_feeds, served, token_of
from tests.integration.test_kept_answers import Replaceable
from tests.patience import PATIENCE, eventually
from tests.scratch_store import ScratchStore
from zeh_spark.client.producer import Producer
from zeh_spark.publisher import Store, create_app, open_store
from zeh_spark.service.access.gate import Gate
from zeh_spark.service.app import read_requests
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention
from zeh_spark.service.store.token_rights import Grant, Right
from zeh_spark.testing import publish, running_publisher

FIRST = "cursor0=_first&cursor1=_first&cursor2=_first"
N = 3


def published(base: str, *partitions: int, producer: str = "shop") -> str:
    """Publish a batch with an event in each of these partitions; the cursor in its receipt."""
    with Producer(f"{base}/orders", producer).batch() as batch:
        for partition in partitions:
            batch.add({"of": partition}, partition=partition)
    cursor = batch.receipt.cursor
    assert cursor
    return cursor


def ends(base: str, n: int = N) -> dict[int, str]:
    """The reader's cursors after all that there is."""
    wanted = "&".join(f"cursor{each}=_last" for each in range(n))
    lines = requests.get(f"{base}/orders?n={n}&{wanted}&pagesizehint=0", timeout=30).text
    return {each["partition"]: each["cursor"] for each in map(json.loads, lines.splitlines())}


def keep(base: str, cursors: dict[int, str], n: int = N, name: str = "lake") -> None:
    """What a reader does that has committed all before these cursors."""
    given = "&".join(f"cursor{partition}={cursor}" for partition, cursor in cursors.items())
    kept = f"{base}/orders?n={n}&{given}&cursorset={name}&pagesizehint=0"
    assert 200 == requests.get(kept, timeout=30).status_code


def ask(base: str, cursor: str, name: str = "lake", wait: float = 0) -> requests.Response:
    query = f"await={cursor}&cursorset={name}&wait={wait}"
    return requests.get(f"{base}/orders/cursors?{query}", timeout=PATIENCE)


def is_committed(base: str, cursor: str) -> bool:
    answer = ask(base, cursor)
    assert 200 == answer.status_code, answer.text
    assert cursor == answer.json()["cursor"]
    return bool(answer.json()["committed"])


def problem(answer: requests.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


@pytest.fixture
def opened(place: Place) -> Iterator[Store]:
    with closing(open_store(place.url)) as store:
        yield store


@pytest.fixture
def base(opened: Store) -> Iterator[str]:
    """A publisher of the feed `orders` with three partitions, on SQLite and on PostgreSQL."""
    with running_publisher(opened) as base:
        yield base


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    monkeypatch.setattr(read_requests, "MAX_WAIT", PATIENCE)  # longer than a test
    with ThreadPoolExecutor(64) as pool:
        yield pool


def test_a_batch_is_committed_when_the_last_partition_has_passed_it(base, pool):
    """WV-02: my order is in the lake when all of it is, and I am told so at once."""
    keep(base, ends(base))
    begin = ends(base)
    cursor = published(base, 0, 2)
    after = ends(base)
    waits = pool.submit(ask, base, cursor, wait=PATIENCE)
    keep(base, {**begin, 2: after[2]})
    assert not is_committed(base, cursor)
    assert not waits.done()
    keep(base, {**after, 1: begin[1]})  # nothing came in partition 1
    assert {"cursor": cursor, "cursorset": "lake", "committed": True, "lag": None} == (
        waits.result(PATIENCE).json()
    )


@each_case("n", [1, 2, 5])
def test_a_reader_may_work_with_another_number_of_partitions(n):
    """It has the batch if it has read every stored partition up to there."""
    store = ScratchStore(orders=3)
    with running_publisher(store) as base:
        keep(base, (begin := ends(base, n)), n)
        cursor = published(base, 0, 1, 2)
        after = ends(base, n)
        for each in range(n):
            assert (each >= min(n, 3)) is is_committed(base, cursor)
            keep(base, {**begin, each: after[each]}, n)
            begin[each] = after[each]
        assert is_committed(base, cursor)


def test_events_before_the_batch_count_too(base):
    """A reader that jumped over an earlier event of another partition has not committed it."""
    keep(base, ends(base))
    begin = ends(base)
    published(base, 1)
    cursor = published(base, 0)
    keep(base, {**ends(base), 1: begin[1]})
    assert not is_committed(base, cursor)
    keep(base, ends(base))
    assert is_committed(base, cursor)


def test_partitions_without_a_position_are_not_committed(base):
    """A cursor set that has only some of its partitions says nothing of the others."""
    cursor = published(base, 0, 1)
    keep(base, {0: ends(base)[0]})
    assert not is_committed(base, cursor)


def test_who_waits_too_short_learns_how_far_the_reader_is(base):
    keep(base, ends(base))
    cursor = published(base, 0, 1)
    published(base, 1, producer="other")
    told = ask(base, cursor, wait=0.3).json()
    assert (False, 3, False) == (told["committed"], told["lag"]["events"], told["lag"]["more"])
    assert told["lag"]["ms"] >= 0


@each_case(
    "query, expected",
    [
        ("await=1.0a1b2c3d&cursorset=lake", (409, "receipt-of-another-history")),
        ("await=99.0a1b2c3d&cursorset=lake", (409, "receipt-of-another-history")),
        ("await={}&cursorset=sea", (400, "unknown-cursorset")),
        ("await={}", (400, "cursorset-missing")),
        ("await={}&cursorset=", (400, "bad-cursorset")),
        ("await={}&cursorset=lake&wait=x", (400, "bad-wait")),
        ("await=shop/1&cursorset=lake", (400, "bad-await")),
        ("await=&cursorset=lake", (400, "bad-await")),
        ("await={0}&await={0}&cursorset=lake", (400, "duplicate-parameter")),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(query, expected):
    """A call that can never succeed is refused at once."""
    with running_publisher(ScratchStore(orders=3)) as base:
        keep(base, ends(base))
        url = f"{base}/orders/cursors?{query.format(published(base, 0))}"
        assert expected == problem(requests.get(url, timeout=30))


def test_a_receipt_of_another_feed_is_refused():
    """Their positions are the same, their histories are not."""
    store = ScratchStore(orders=3, returns=3)
    with running_publisher(store) as base:
        publish(store, "returns", ["same"], partition=0)
        publish(store, "orders", ["same"], partition=0)
        keep(base, ends(base))
        state = store.feed("returns")
        other = f"{state.head}.{state.history[:4].hex()}"
        assert (409, "receipt-of-another-history") == problem(ask(base, other))
        unknown = f"{base}/nowhere/cursors?await={other}&cursorset=lake"
        assert (404, "unknown-feed") == problem(requests.get(unknown, timeout=30))


@each_case("grown", [False, True])
def test_a_restore_that_undid_the_batch_is_told_at_once(place, grown):
    """WV-03: my order is not in the feed any more: I publish it again, instead of waiting."""
    with served(place.url) as (base, _):
        keep(base, ends(base))
        backup = place.back_up()
        cursor = published(base, 0)
        keep(base, ends(base))
        assert is_committed(base, cursor)
    place.restore(backup)
    with served(place.url) as (base, _):
        if grown:
            published(base, 1, producer="another")
            keep(base, ends(base))
        assert (409, "receipt-of-another-history") == problem(ask(base, cursor, wait=PATIENCE))


def test_a_restore_while_i_wait_is_told_too(pool):
    """What the reader has committed since is another batch at the same place."""
    before, after = CountingStore(), ScratchStore(orders=3)
    for _ in range(2):
        publish(after, "orders", ["another"], partition=0)
    with running_publisher(after) as base:
        keep(base, ends(base))
    store = Replaceable(before)
    with running_publisher(store) as base:
        keep(base, ends(base))
        cursor = published(base, 0)
        waits = pool.submit(ask, base, cursor, wait=PATIENCE)
        assert not is_committed(base, cursor)
        looks = before.asked["lake"]
        eventually(lambda: before.asked["lake"] > looks + 2)  # it waits
        store.inner = after
        assert (409, "receipt-of-another-history") == problem(waits.result(PATIENCE))


def test_a_batch_that_survives_a_restore_is_awaited_as_before(place):
    """Also if the feed has begun a new epoch since."""
    with served(place.url) as (base, _):
        keep(base, ends(base))
        cursor = published(base, 0)
        backup = place.back_up()
        published(base, 1)
    place.restore(backup)
    with closing(open_store(place.url)) as store:
        store.begin_epoch("orders")
    with served(place.url) as (base, _):
        assert not is_committed(base, cursor)
        keep(base, ends(base))
        assert is_committed(base, cursor)


def test_a_batch_that_retention_removed_is_refused(base, opened):
    """The publisher cannot know any more whether it is in this history; nor, of the last one,
    whether the reader has read it or begun behind it.
    """
    keep(base, ends(base))
    begin, cursor = ends(base), published(base, 0)
    published(base, 0)
    last = published(base, 0)
    prune(opened, "orders", Retention(bytes=1))
    assert (410, "receipt-gone") == problem(ask(base, cursor))
    assert (409, "receipt-of-another-history") == problem(ask(base, f"{last[:-8]}00000000"))
    keep(base, {**begin, 0: last})
    assert (410, "receipt-gone") == problem(ask(base, last))  # its tag is still known


def test_what_retention_removed_before_it_was_read_is_not_committed(base, opened):
    """The reader has lost an event before my batch: it did not commit everything up to there."""
    keep(base, ends(base))
    published(base, 1)
    cursor = published(base, 0)
    after = ends(base)
    keep(base, {0: after[0], 2: after[2]})
    opened.remove("orders", 1)
    assert not is_committed(base, cursor)
    keep(base, after)
    assert is_committed(base, cursor)


def test_a_reader_that_begins_while_i_wait_is_waited_for(base, opened, pool):
    """My service and the query may start in any order. Without one there is an error in the end."""
    cursor = published(base, 0)
    waits = pool.submit(ask, base, cursor, wait=PATIENCE)
    assert (400, "unknown-cursorset") == problem(ask(base, cursor, wait=0.3))
    keep(base, ends(base))
    assert waits.result(PATIENCE).json()["committed"]
    opened.delete_cursor_set("orders", "lake")
    assert (400, "unknown-cursorset") == problem(ask(base, cursor))


@pytest.mark.parametrize("place", [DumpedDatabase], indirect=True, ids=["postgresql"])
def test_several_publishers_serve_one_store(place, pool):
    """The reader reports at one, I wait at another."""
    with ExitStack() as stack:
        stores = [stack.enter_context(open_feeds(place.url)) for _ in range(2)]
        one, other = [stack.enter_context(running_publisher(each)) for each in stores]
        keep(one, ends(one))
        cursor = published(one, 0)
        waits = pool.submit(ask, other, cursor, wait=PATIENCE)
        assert not is_committed(other, cursor)
        keep(one, ends(one))
        assert waits.result(PATIENCE).json()["committed"]


class CountingStore(ScratchStore):
    """A store that counts what is asked about cursor sets."""

    def __init__(self) -> None:
        super().__init__(orders=3)
        self.asked: Counter[str] = Counter()

    def saved_cursors(self, feed: str, name: str) -> dict[int, dict[int, str]]:
        self.asked[name] += 1
        return super().saved_cursors(feed, name)


def test_all_who_wait_for_a_reader_share_the_looks_at_it(pool):
    """A shop whose orders all wait costs its database no more than one of them."""
    waiters, store = 60, CountingStore()
    with running_publisher(store) as base:
        keep(base, ends(base))
        cursor = published(base, 0)
        waits: Sequence[Future[Any]] = [
            pool.submit(ask, base, cursor, wait=PATIENCE) for _ in range(waiters)
        ]
        eventually(lambda: store.asked["lake"] > waiters / 10)
        before = store.asked["lake"]
        eventually(lambda: store.asked["lake"] > before + 4)  # all of them wait by now
        before = store.asked["lake"]
        keep(base, ends(base))
        assert all(each.result(PATIENCE).json()["committed"] for each in waits)
        assert store.asked["lake"] - before < waiters / 4
        quiet = store.asked["lake"]
        published(base, 0)
        keep(base, ends(base), name="another")
        assert quiet == store.asked["lake"]


@each_case("right, may", [(Right.READ, True), (Right.AUDIT, True), (Right.PUBLISH, False)])
def test_who_may_read_or_audit_the_feed_may_await(right, may):
    """My service needs no right to move the reader's position, and gets none by this call."""
    store = ScratchStore(orders=3)
    with running_publisher(store) as base:
        keep(base, ends(base))
        cursor = published(base, 0)
    token = token_of(store, Grant(right, "orders"))
    app = create_app(store, gate=Gate(store))
    with running_publisher(store, app) as base:
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{base}/orders/cursors?await={cursor}&cursorset=lake"
        answer = requests.get(url, headers=headers, timeout=30)
        assert (200 if may else 403) == answer.status_code
