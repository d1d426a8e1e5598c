"""A service's table as readers meet it: over HTTP, from our publisher or within the service."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import requests
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.fix_client import client, read
from tests.fix_shop import Shop
from tests.scratch_store import ScratchStore
from zeh_spark.client.http.feed_client import PageRequest
from zeh_spark.errors import PublisherError, PublishError
from zeh_spark.publish import Producer
from zeh_spark.publisher import create_app
from zeh_spark.testing import running_publisher


@pytest.fixture
def url(shop: Shop) -> Iterator[str]:
    """The shop's feed, with 4 partitions."""
    with running_publisher({"orders": shop.feed()}) as base:
        yield f"{base}/orders"


def lines(url: str, **query: Any) -> list[dict[str, Any]]:
    response = requests.get(url, params=query, timeout=30)
    assert 200 == response.status_code, response.text
    return [json.loads(line) for line in response.content.splitlines()]


def ids(answer: list[dict[str, Any]]) -> list[int]:
    return [line["data"]["id"] for line in answer if "data" in line]


def woken(url: str, act: Callable[[], object], seconds: float = 0.05) -> list[int]:
    """The ids that a reader gets who waits when this is done: longer than its request may take."""
    (at,) = lines(url, n=1, cursor0="_last")
    timer = threading.Timer(seconds, act)
    timer.start()
    found = ids(lines(url, n=1, cursor0=at["cursor"], wait=50))
    timer.join()
    return found


def test_waiting_reader_is_woken_by_a_commit(
    shop: Shop, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What my service commits reaches readers that wait at once, and not with the next poll."""
    monkeypatch.setattr("zeh_spark.service.outbox.feed.POLL_SECONDS", 600)
    assert [[1], [2], [3]] == [woken(url, partial(shop.sell, 1)) for _ in range(3)]


def test_waiting_reader_is_woken_without_a_trigger(shop: Shop) -> None:
    """Where nothing notifies, a poll finds it."""
    shop.execute("DROP TRIGGER zeroeventhub_notify ON outbox")
    with running_publisher({"orders": shop.feed()}) as base:
        assert [1] == woken(f"{base}/orders", partial(shop.sell, 1))


def test_row_that_was_held_back_wakes_a_reader(shop: Shop, url: str) -> None:
    """It comes when the transaction before it ends, which notifies of nothing."""
    with shop.connect() as other:
        other.execute("CREATE TABLE unrelated (a int)")
        shop.sell(1)
        assert [1] == woken(url, other.commit, 0.2)


def test_readers_choose_their_partitions_and_page_size(shop: Shop, url: str) -> None:
    """With any n and hint I get each row once, in the same order."""
    shop.sell(*range(1, 21), *range(1, 21))
    rows = [key for key, _, _ in shop.rows("id")]
    for n, hint in ((1, 7), (2, 1), (3, 7), (4, 1000), (7, 7), (7, 1000)):
        got = []
        for partition in range(n):
            cursor, found, mine = "_first", [0], []
            while found:
                query = {"n": n, f"cursor{partition}": cursor, "pagesizehint": hint}
                answer = lines(url, **query)
                found, cursor = ids(answer), answer[-1]["cursor"]
                assert len(found) <= hint
                mine += found
            assert mine == sorted(mine)
            got += mine
        assert (n, hint, rows) == (n, hint, sorted(got))


def test_feed_is_mounted_in_a_service(shop: Shop) -> None:
    """My service serves its table itself, beside its own routes."""
    shop.sell(1)
    app = Starlette(routes=[Mount("/feed", app=create_app(shop.feed(headers=["key"])))])
    with running_publisher({}, app) as base:
        direct = lines(f"{base}/feed/", n=1, cursor0="_first", headers="_all")
        redirected = lines(f"{base}/feed", n=1, cursor0="_first", headers="_all")
        refused = requests.get(f"{base}/feed/", params={"cursor0": "_first"}, timeout=30).json()
    assert ({"key": "1"}, [1], 4) == (direct[0]["headers"], ids(direct), refused["partitionCount"])
    assert direct == redirected


def test_who_publishes_to_a_table_is_told(shop: Shop) -> None:
    """A sink with the wrong address hears why nobody takes its rows."""
    tables = {"orders": shop.feed()}
    for app in (create_app(tables), create_app(ScratchStore(), tables)):
        with (
            running_publisher({}, app) as base,
            pytest.raises(
                PublishError, match=r"'orders' is a table feed: .* takes no batches"
            ) as told,
        ):
            _ = Producer(f"{base}/orders", "till").last
        assert ("table-feed", 404) == (told.value.problem, told.value.status)
        assert "zeh-spark create" not in str(told.value)


def test_bad_row_stops_its_partition_by_name(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """What lies before it comes; then I am told which it is, at once, and no log is filled."""
    shop.sell(1, 1)
    shop.execute("ALTER TABLE outbox ADD COLUMN body text DEFAULT '{}'")
    shop.execute("UPDATE outbox SET body = '{' WHERE id = 2")
    with running_publisher({"orders": shop.feed(data="body")}) as base:
        before = lines(f"{base}/orders", n=1, cursor0="_first")
        cursor = before[-1]["cursor"]
        stopped = requests.get(f"{base}/orders?n=1&cursor0={cursor}", timeout=30)
        reader = client(None, retry=None, url=f"{base}/orders", retryTimeout="1h")
        for _ in range(3):
            with pytest.raises(PublisherError, match=r"500 bad-row: .* with id 2") as told:
                read(reader.page(PageRequest(0, cursor, 1, 10)))
    assert (2, 500, "bad-row", 2) == (
        len(before),
        stopped.status_code,
        stopped.json()["type"].rpartition(":")[2],
        stopped.json()["id"],
    )
    assert ("ZEH_BAD_ROW", 500) == (told.value.code, told.value.status)
    assert 1 == sum("with id 2 cannot be an event" in each.message for each in caplog.records)
