"""What a page tells of its feed, if its reader asks for it."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from dataclasses import replace

import pytest
import requests

from tests.fix_client import BODY, ask, checkpoint, client, event
from tests.fix_publisher import Publisher
from tests.fix_raw_server import Answer, RawServer, ok
from tests.fix_table import Database, prepared, read
from tests.patience import PATIENCE, eventually
from tests.scratch_store import ScratchStore
from zeh_spark.service.app.openapi import document
from zeh_spark.service.retention.rules import prune
from zeh_spark.service.store.interface import Retention, StoreBusyError
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire import feed_identity
from zeh_spark.wire.direct_reads import PartitionLag
from zeh_spark.wire.feed_identity import Epoch
from zeh_spark.wire.page_headers import FEED, HEAD, LAG, ONLY, TELL, Standing, parse_fields

ASK = {TELL: "1"}
FROM_THE_FIRST = "n=2&cursor0=_first&cursor1=_first"


def standing(publisher: Publisher, query: str, **options: object) -> Standing:
    answer = publisher.get(query, headers=ASK, **options)
    assert 200 == answer.status
    return parse_fields(answer.headers)


def unread(found: Standing) -> dict[str, int]:
    return {each: lag.events for each, lag in (found.lags or {}).items()}


def test_a_page_tells_where_the_feed_stands(publisher: Publisher) -> None:
    """Its newest epoch and cursor, and what follows mine, whatever of it the page has."""
    publisher.publish(1, 2, 3, partition=0)
    publisher.publish(4, partition=1)
    epochs = feed_identity.parse(publisher.get().problem["feed"]).epochs

    answer = publisher.get(f"{FROM_THE_FIRST}&pagesizehint=1", headers=ASK)

    found = parse_fields(answer.headers)
    assert [1, 2, 3] == answer.data
    assert epochs[-1] == found.epoch
    assert {"0": 3, "1": 1} == unread(found)
    assert found.lags and 0 <= found.lags["0"].ms < PATIENCE * 1000
    after = f"n=2&cursor0={answer.cursors[0]}&cursor1={found.head}"
    assert Standing(epochs[-1], found.head, dict.fromkeys("01", PartitionLag(0, 0))) == standing(
        publisher, after
    )


@pytest.mark.parametrize(
    "options",
    [{"method": "HEAD"}, {"headers": {**ASK, "Accept-Encoding": "gzip"}}, {"headers": ASK}],
    ids=["HEAD", "gzip", "again"],
)
def test_every_answer_tells_it(publisher: Publisher, options: dict[str, object]) -> None:
    """Without a body, packed, and when its parts are kept for the next readers."""
    publisher.publish(1, 2, partition=0)
    expected = standing(publisher, FROM_THE_FIRST)
    found = parse_fields(publisher.get(FROM_THE_FIRST, **{"headers": ASK, **options}).headers)

    assert (expected.epoch, expected.head) == (found.epoch, found.head)
    assert {"0": 2, "1": 0} == unread(found)


def test_only_who_asks_is_told_and_no_refusal_tells_it(publisher: Publisher) -> None:
    """Other readers get what the specification says, and errors are no pages."""
    publisher.publish(1)
    for query, headers in ((FROM_THE_FIRST, {}), ("n=1&cursor0=8.0a1b2c3d", ASK)):
        told = publisher.get(query, headers=headers).headers
        assert [] == [each for each in (FEED, HEAD, LAG) if each in told]


def test_a_reader_that_has_waited_is_told_what_it_is_woken_by(publisher: Publisher) -> None:
    """`_last` means what it meant when I began to wait."""
    publisher.publish(1, 2, partition=0)
    query = "n=2&cursor0=_last&cursor1=_last&wait=30"
    found: list[Standing] = []
    waiting = threading.Thread(target=lambda: found.append(standing(publisher, query)))
    waiting.start()
    eventually(lambda: 'zeh_waiting_readers{feed="orders"} 1' in metrics(publisher))
    publisher.publish(3, partition=1)
    waiting.join(PATIENCE)

    assert {"0": 0, "1": 1} == unread(found[0])


def metrics(publisher: Publisher) -> str:
    return requests.get(f"{publisher.base}/metrics", timeout=30).text


def test_what_retention_removed_is_not_unread(publisher: Publisher) -> None:
    """`_first` is the oldest event that is left."""
    publisher.publish(1, 2, 3, partition=0)
    publisher.publish(4, partition=0)
    prune(publisher.store, "orders", Retention(bytes=40))

    assert {"0": 1, "1": 0} == unread(standing(publisher, FROM_THE_FIRST))


def test_a_new_epoch_is_told_with_the_next_page(publisher: Publisher) -> None:
    """Its id and time, with which a reader knows that it has to ask for the epochs."""
    before = standing(publisher, FROM_THE_FIRST).epoch
    begun = publisher.store.begin_epoch("orders").epochs[-1]

    assert isinstance(before, Epoch) and before != begun
    assert begun == standing(publisher, FROM_THE_FIRST).epoch
    planned = {"n": 2, "cursors": {"0": "_first", "1": "_first"}}
    plan = requests.post(f"{publisher.url}/plan", json=planned, timeout=30).json()
    assert {"id": begun.id, "time": begun.time} == plan["epoch"]


def test_many_partitions_have_no_lag(publisher: Publisher) -> None:
    """Their field would be longer than what some proxies let through."""
    publisher.publish(1)
    cursors = "&".join(f"cursor{each}=_first" for each in range(33))
    found = standing(publisher, f"n=33&{cursors}")

    assert found.epoch and found.head
    assert found.lags is None


def test_a_table_tells_which_feed_it_is(database: Database) -> None:
    """With many partitions that are asked for together, it tells nothing else."""
    cursors = "&".join(f"cursor{each}=_first" for each in range(33))
    with running_publisher({"outbox": prepared(database)}) as base:
        answer = requests.get(f"{base}/outbox?n=33&{cursors}", headers=ASK, timeout=30)

    assert Standing(Epoch(database.feed().identity().id)) == parse_fields(answer.headers)


BROKEN = {
    "postgresql": "CREATE FUNCTION broken() RETURNS timestamptz STABLE LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE 'the disk is gone'; END $$",
    "sqlite": "CREATE VIEW broken AS SELECT json_extract('{', '$') AS at",
}


def test_a_table_gives_its_page_also_if_it_cannot_tell_the_lag(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader gets its event, and which feed it is of; the log says what is wrong."""
    prepared(database, BROKEN[database.kind])
    at, tx = (
        ("broken()", "tx,") if database.kind == "postgresql" else ("(SELECT at FROM broken)", "")
    )
    database.execute(
        f"CREATE VIEW shown AS SELECT id, {tx} data, CASE WHEN id > 1 THEN {at} END AS at"
        f" FROM outbox"
    )
    feed = database.feed(table="shown", time="at")
    database.apply(feed.ddl())
    with running_publisher({"shown": feed}) as base:
        page = f"{base}/shown?n=1&cursor0=_first&pagesizehint=1"
        answer = requests.get(page, headers=ASK, timeout=30)

    assert (200, 2) == (answer.status_code, len(answer.text.splitlines())), answer.text
    assert Standing(Epoch(feed.identity().id)) == parse_fields(answer.headers)
    assert "table shown: how far readers are behind is not told" in caplog.text


def test_rows_that_are_deleted_after_a_page_was_read_are_no_error_of_it(database: Database) -> None:
    """A reader that continues after the page has missed nothing."""
    feed = prepared(database, retention=True)
    first = read(feed, hint=1).cursors
    page = read(feed, first)
    database.execute("DELETE FROM outbox")

    assert Standing(Epoch(feed.identity().id)) == feed.standing(first, 1)
    assert [2, 3] == page.data and [] == read(feed, page.cursors).data


class Busy(ScratchStore):
    """A store that has no time left once it was read `left` times.

    Attributes:
        left: None for any number.
    """

    left: int | None = None

    def before_read(self, what: str, feed: str) -> None:
        if what == "snapshot" and self.left is not None:
            if not self.left:
                raise StoreBusyError("the database has no time")
            self.left -= 1


def test_a_store_gives_pages_also_if_it_cannot_tell_the_lag(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its reader learns the rest."""
    with closing(Busy(orders=1)) as store, running_publisher(store) as base:
        publish(store, "orders", [1])
        store.left = 1
        answer = requests.get(f"{base}/orders?n=1&cursor0=_first", headers=ASK, timeout=30)

    found = parse_fields(answer.headers)
    assert (200, None) == (answer.status_code, found.lags), answer.text
    assert found.epoch and found.head
    assert "feed 'orders': how far readers are behind is not told" in caplog.text


def test_the_fields_are_described() -> None:
    """A client in any language finds them in the description of the API."""
    described = document()["paths"]["/{feed}"]["get"]["responses"]["200"]["headers"]
    assert {FEED, HEAD, LAG, ONLY, "ETag"} == described.keys()


def test_the_client_tells_the_lag_after_each_event(raw_server: RawServer) -> None:
    """Also in a page that breaks off and is continued: the newest answer counts."""
    first = event(1) + checkpoint("c1") + event(2) + checkpoint("c2")
    answers = [told(first, 7, cut=True), told(event(3) + checkpoint("c3"), 6), ok(BODY)]
    raw_server.script(*answers)
    one, found = client(raw_server), []
    page = one.page(ask(tell=True))
    for interval in page:
        found.append((interval.cursor, page.lag and page.lag.events))
    assert [("c1", 6), ("c2", 5), ("c3", 5)] == found
    assert page.lag and page.lag.ms >= 3400
    assert Epoch("9f86d081884c7d65") == page.standing.epoch
    another = one.page(ask(tell=True))
    assert 1 <= len(list(another))
    assert (None, Standing()) == (another.lag, another.standing)
    assert ["1"] * 3 == [each.headers.get("zeh-tell") for each in raw_server.requests]


def told(body: bytes, unread: int, *, cut: bool = False) -> Answer:
    fields = {
        "zeh_feed": "9f86d081884c7d65;since=0",
        "zeh_lag": json.dumps({"0": {"events": unread, "ms": 3400}}),
    }
    whole = ok(body, content_length=len(body) + cut, **fields)
    return replace(whole, end="close") if cut else whole
