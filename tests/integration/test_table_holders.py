"""What keeps committed rows of a table from being read; databases that lag, die, come back."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import psycopg
import pytest
import requests

from tests import postgresql
from tests.fix_log_texts import check_documented
from tests.fix_shop import Shop, opened_shop
from tests.integration.test_table_restores import events
from tests.integration.test_table_writers import Follower, read_while, write
from tests.patience import eventually
from zeh_spark.publisher import Block, SqlTableFeed
from zeh_spark.service.outbox import blockers
from zeh_spark.service.store.interface import StoreBusyError
from zeh_spark.service.store.problems import Problem
from zeh_spark.testing import running_publisher


@pytest.fixture(scope="module")
def server() -> Iterator[postgresql.Server]:
    """One that has prepared transactions, and that a test may kill or copy."""
    postgresql.needed()
    server = postgresql.Server("max_prepared_transactions=4")
    yield server
    server.remove()


@pytest.fixture
def own_shop(server: postgresql.Server) -> Iterator[Shop]:
    with opened_shop(server) as shop:
        yield shop


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked for every second is looked for each time, and told at once."""
    monkeypatch.setattr(blockers, "LOOK_SECONDS", 0)
    monkeypatch.setattr(blockers, "HELD_SECONDS", 0)


def test_writer_in_another_database_is_named(
    own_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Events are late because of somebody else's transaction: I learn whose, and they come."""
    other = own_shop.server.create_database()
    own_shop.server.execute("CREATE TABLE a (b int)", other)
    url = own_shop.server.url(other).replace("+psycopg", "")
    feed = own_shop.feed()
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO a VALUES (1)")
        own_shop.sell(1)
        waiting = events(feed)[0]
        held = feed.state().held
        process = connection.info.backend_pid
    assert held
    assert ([], process, other) == (waiting, held.pid, held.database)
    told = f"wait for the transaction of process {process} in database '{other}'"
    assert told in caplog.text
    check_documented(caplog.records, "committed rows wait for")
    assert ([1], None) == (events(feed)[0], feed.state().held)


def test_transaction_that_only_reads_holds_nothing(own_shop: Shop) -> None:
    """Long reports do not delay events."""
    with own_shop.connect() as report:
        report.execute("SELECT * FROM orders")
        own_shop.sell(1)
        assert [1] == events(own_shop.feed())[0]


def test_prepared_transaction_is_named(own_shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """One that was forgotten keeps events back for ever, and no process shows it."""
    feed = own_shop.feed()
    own_shop.execute("DROP TRIGGER zeroeventhub_notify ON outbox")  # who notifies cannot prepare
    with own_shop.connect(autocommit=True) as connection:
        connection.execute("BEGIN")
        own_shop.change(connection, 1)
        connection.execute("PREPARE TRANSACTION 'forgotten'")
        own_shop.sell(2)
        waiting, held = events(feed)[0], feed.state().held
        connection.execute("COMMIT PREPARED 'forgotten'")
    assert held
    assert ([], None, "forgotten") == (waiting, held.pid, held.prepared)
    assert "wait for the prepared transaction 'forgotten' in database" in caplog.text
    assert [1, 2] == sorted(events(feed)[0])


def test_role_that_may_only_read_sees_who_holds(own_shop: Shop) -> None:
    """The grants that are printed are enough to serve, and to name a process."""
    own_shop.execute("CREATE ROLE feeds LOGIN")
    for statement in own_shop.feed().ddl(grant_to="feeds"):
        own_shop.execute(statement)
    mine = Shop(own_shop.server, own_shop.database, "feeds")
    served = mine.feed()
    with own_shop.connect() as connection:
        own_shop.change(connection, 1)
        own_shop.sell(2)
        waiting, held = events(served)[0], served.state().held
        process = connection.info.backend_pid
    assert held
    assert ([], process) == (waiting, held.pid)
    assert [1, 2] == sorted(events(served)[0])
    mine.engine.dispose()
    own_shop.execute("DROP OWNED BY feeds")
    own_shop.execute("DROP ROLE feeds")


@pytest.fixture
def copy(own_shop: Shop) -> Iterator[Shop]:
    """The shop's, in a standby."""
    replica = postgresql.Replica(own_shop.server)
    shop = Shop(replica, own_shop.database)
    yield shop
    shop.engine.dispose()
    replica.remove()


def test_replica_that_lags_is_read_without_a_gap(own_shop: Shop, copy: Shop) -> None:
    """I serve from a standby: what it has not got yet comes later, also of transactions that
    overtook each other, and a cursor that it has not come to is asked for again, not refused.
    """
    feed = copy.feed()
    own_shop.sell(1)
    until_replayed(own_shop.server, copy.server)
    pages = [events(feed)[0]]
    with own_shop.connect() as early:
        own_shop.change(early, 2)
        own_shop.sell(3)
        until_replayed(own_shop.server, copy.server)
        pages.append(events(feed)[0])
        copy.server.execute("SELECT pg_wal_replay_pause()")
    own_shop.sell(4)
    _, ahead = events(own_shop.feed())
    with pytest.raises(Problem, match="replica, which may lag"):
        events(feed, ahead)
    pages.append(events(feed)[0])
    copy.server.execute("SELECT pg_wal_replay_resume()")
    until_replayed(own_shop.server, copy.server)
    assert [[1]] * 3 == pages
    assert (4, []) == (len(events(feed)[0]), events(feed, ahead)[0])


def test_reader_that_waits_at_a_replica_is_woken(own_shop: Shop, copy: Shop) -> None:
    """Nothing is notified there; a poll finds what has arrived."""
    with running_publisher({"orders": copy.feed()}) as base:
        timer = threading.Timer(0.3, own_shop.sell, [1])
        timer.start()
        answer = requests.get(f"{base}/orders?n=1&cursor0=_first&wait=20", timeout=30)
        timer.join()
    assert (200, 1) == (answer.status_code, answer.text.count('"data"'))


@pytest.mark.slow
def test_replica_is_followed_while_many_write(own_shop: Shop, copy: Shop) -> None:
    """Nothing is skipped or doubled on a standby either."""
    follower = Follower(copy.feed, 4, 100)
    writers = [partial(write, own_shop, number) for number in range(12)]
    read_while([follower.run], writers, partial(until_replayed, own_shop.server, copy.server))
    assert ([key for key, _, _ in own_shop.rows("id")], []) == (follower.ids, follower.backwards)


def until_replayed(primary: postgresql.Server, replica: postgresql.Server) -> None:
    """All that was written until now; `pg_wal_replay_wait` is of later versions."""
    ((now,),) = primary.execute("SELECT pg_logical_emit_message(true, 'tests', '')")
    arrived = f"SELECT pg_last_wal_replay_lsn() >= '{now}'::pg_lsn"
    eventually(lambda: replica.execute(arrived) == [(True,)])


@pytest.mark.kill
@pytest.mark.slow
def test_database_that_is_killed_is_read_on(server: postgresql.Server, own_shop: Shop) -> None:
    """Three times, under load: readers ask again, and have each commit once and in order."""
    feed = Persistent(own_shop.feed())
    followers = [Follower(lambda: feed, n, hint) for n, hint in ((4, 50), (1, 5))]
    ended, written = threading.Event(), threading.Event()

    def sell(number: int) -> None:
        choice = random.Random(number)
        while not ended.is_set():
            with suppress(psycopg.OperationalError):
                own_shop.sell(*(choice.randint(1, 20) for _ in range(5)))

    with ThreadPoolExecutor(10) as pool:
        running = [pool.submit(each.run, written) for each in followers]
        writing = [pool.submit(sell, number) for number in range(8)]
        try:
            for _ in range(3):
                more_is_sold(own_shop)
                server.kill()
                eventually(lambda told=feed.told: feed.told > told)
                server.start()
            more_is_sold(own_shop)
        finally:
            ended.set()
            for each in writing:
                each.result()
            written.set()
        for each in running:
            each.result()
    ids = [key for key, _, _ in own_shop.rows("id")]
    assert [(ids, [])] * 2 == [(each.ids, each.backwards) for each in followers]


class Persistent:
    """A feed that is asked again as long as it says so, as readers over HTTP do."""

    def __init__(self, feed: SqlTableFeed) -> None:
        self._feed = feed
        self.told = 0

    def page(self, asked: Mapping[int, str], n: int, hint: int) -> list[Block]:
        while True:
            try:
                return list(self._feed.page(asked, n, hint))
            except StoreBusyError:
                self.told += 1


def more_is_sold(shop: Shop) -> None:
    before = shop.count()
    eventually(lambda: shop.count() > before + 50)
