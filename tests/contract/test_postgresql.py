"""What only PostgreSQL does: how its tables are made, and how publishers notice commits."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests import postgresql
from tests.cases import each_case
from tests.contract.databases import in_threads, site, store
from tests.contract.sites import PostgresqlSite
from tests.fix_log_texts import check_documented
from tests.fix_publish import Caller, Who, rows
from tests.fix_publisher import open_feeds
from tests.patience import eventually
from tests.store_contract.writers import FEED, call, chunk, commit, data, publish, upload
from zeh_spark.errors import StoreError
from zeh_spark.publisher import open_store
from zeh_spark.service.postgresql import database_clock
from zeh_spark.service.postgresql import store as dialect
from zeh_spark.service.retention.pruner import Pruner
from zeh_spark.service.sql.store import SqlStore
from zeh_spark.service.store.interface import StoreBusyError, UnknownFeedError
from zeh_spark.testing import running_publisher

__all__ = ["site", "store"]


AN_HOUR_LATER = text(
    "SELECT (extract(epoch FROM clock_timestamp() + interval '1 hour') * 1000)::bigint"
)

# Its tables


def test_publishers_that_start_at_once_make_the_tables_once(site):
    """I start five publishers on an empty database."""
    assert [] == in_threads(5, lambda _: open_store(site.url).close())


def test_tables_are_asked_for_by_who_must_not_make_them(site):
    """`serve` on the wrong database makes nothing there."""
    with pytest.raises(StoreError, match=r"Make it.* with zeh-spark create FEED"):
        open_store(site.url, must_exist=True)
    with closing(open_store(site.url)):
        open_store(site.url, must_exist=True).close()


def test_a_database_that_may_lose_what_it_acknowledged_is_named(site, caplog):
    """As those of tests may."""
    for _ in range(2):
        open_store(site.url).close()
    check_documented(caplog.records, "fsync is off")


def test_times_are_those_of_the_database(site):
    """My publishers agree on the time, also if one machine's clock is a month ahead."""
    with closing(open_store(site.url)) as store:
        ((now,),) = site._server.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000")
        assert abs(store.now() - int(now)) < 5000
        assert abs(store.skew()) < 5000  # one machine: the same clock


def test_clock_is_read_again_though_nobody_waits(site, monkeypatch):
    """I correct the database's clock, and publishers at which no reader waits follow it, too."""
    with closing(open_store(site.url)) as store:
        began = store.now()
        monkeypatch.setattr(database_clock, "_NOW", AN_HOUR_LATER)
        with Pruner(store, every_seconds=0.01):
            eventually(lambda: store.now() - began >= 3_600_000)


def test_skew_is_that_of_now(site, monkeypatch):
    """I see on /readyz that the clocks differ, though they did not when the publisher started."""
    with closing(open_store(site.url)) as store:
        monkeypatch.setattr(database_clock, "_NOW", AN_HOUR_LATER)
        assert abs(store.skew() + 3_600_000) < 5000


def test_tables_of_others_are_not_in_the_way(site):
    """My own tables `feeds` and `chunks` stay mine."""
    site.execute("CREATE TABLE feeds (x int)")
    with closing(open_store(site.url)) as store:
        store.create(FEED, 2)
    assert [] == site.execute("SELECT x FROM feeds")


def test_frames_are_stored_as_they_are(site, store):
    """PostgreSQL does not compress what is compressed."""
    assert [("e",)] == site.execute(
        "SELECT attstorage FROM pg_attribute "
        "WHERE attrelid = 'zeroeventhub.blobs'::regclass AND attname = 'frame'"
    )


def test_commits_are_durable_whatever_the_database_says(store):
    """What is acknowledged is on disk; uploads need not be."""

    def ask(db: Connection) -> Any:
        return db.scalar(text("SELECT current_setting('synchronous_commit')"))

    def told_not_to(db: Connection) -> None:
        db.execute(text(f"ALTER ROLE {postgresql.USER} SET synchronous_commit = off"))

    store._write(told_not_to)
    store._database.close()
    try:
        modes = [store._database.writes.write(ask, durable=durable) for durable in (True, False)]
    finally:
        reset = text(f"ALTER ROLE {postgresql.USER} RESET synchronous_commit")
        store._write(lambda db: db.execute(reset))
    assert ["on", "off"] == modes


def test_owner_of_the_schema_needs_no_more(site):
    """My role may not create schemas; the administrator has made this one for it."""
    for statement in (
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk LOGIN",
        f"REVOKE CREATE ON DATABASE {site.database} FROM public",
        "CREATE SCHEMA zeroeventhub AUTHORIZATION clerk",
    ):
        site.execute(statement)
    with open_feeds(site.url.replace("//zeh@", "//clerk@"), orders=2) as store:
        publish(store, chunk(0, b"1"))
        assert [b"1"] == data(store)


def test_databases_of_any_kind_will_do(site):
    """However it was made, and whatever its defaults are."""
    server = site._server
    server.execute("DROP DATABASE IF EXISTS odd")
    server.execute("CREATE DATABASE odd TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    for setting in (
        "default_transaction_isolation = 'serializable'",
        "search_path = 'nowhere'",
        "client_encoding = 'SQL_ASCII'",
        "bytea_output = 'escape'",
    ):
        server.execute(f"ALTER DATABASE odd SET {setting}")
    with open_feeds(server.url("odd"), orders=2) as store:
        commit(store, call(0), upload(chunk(0, '"ä"'.encode())))
        assert ['"ä"'.encode()] == data(store)
    server.drop_database("odd")


def test_several_hosts_may_be_given(site):
    """Behind a failover the second one answers."""
    hosts = f"host=127.0.0.1:1&host=127.0.0.1:{site._server.port}"
    with closing(open_store(f"postgresql+psycopg://zeh@/{site.database}?{hosts}")) as store:
        store.create(FEED, 2)


@each_case(
    "url, expected",
    [
        ("postgresql://u:geheim@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:ge@he:im@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@h/d?Password=geheim&x=1", "postgresql://u@h/d?Password=***&x=1"),
        ("postgresql://h/d?sslpassword=geheim", "postgresql://h/d?sslpassword=***"),
        ("postgresql://h/d", "postgresql://h/d"),
    ],
)
def test_passwords_are_not_shown(url, expected):
    """However wrongly I have written them."""
    assert expected == dialect.shown(url)


def test_url_that_is_not_understood_shows_no_password():
    """I am told how to write it."""
    with pytest.raises(StoreError, match="In a password, write @ as %40") as raised:
        open_store("postgresql://u:pa@ss:geheim@db/feeds")
    assert "geheim" not in str(raised.value)


def test_events_keep_the_document_that_a_version_has_after_a_failover(site, store):
    """The standby lacked my newest schema. The publisher runs on, and I set another one (CN-01)."""
    store.set_schema(FEED, b'{"type": "integer"}')
    with running_publisher(store) as base, closing(Caller(f"{base}/{FEED}")) as caller:
        assert (200, "committed") == caller.publish(Who(0), 1).short
        other = """'{"type": "string"}', time = time + 1"""
        site.execute(f"UPDATE zeroeventhub.contracts SET document = {other}")
        assert (422, "wrong-events") == caller.upload(Who(1), rows(2)).short
        assert (200, "committed") == caller.publish(Who(1), "two").short


def test_name_with_a_nul_is_that_of_no_feed(store):
    """PostgreSQL cannot even be asked for it."""
    for ask in (lambda name: store.producer(name, "p"), store.feed):
        with pytest.raises(UnknownFeedError):
            ask("or\0ders")


# How commits are noticed


@pytest.mark.parametrize(("behind_a_pooler", "poll_seconds"), [(False, 600), (True, 0.05)])
def test_commit_of_another_process_is_noticed(
    store, site, monkeypatch, behind_a_pooler, poll_seconds
):
    """A reader that waits does not wait for a poll. A pooler that hands out connections by
    transaction loses LISTEN: then the poll finds it.
    """
    monkeypatch.setattr(dialect, "POLL_SECONDS", poll_seconds)
    before = listening_at(store, site)
    if behind_a_pooler:
        site.execute("ALTER TABLE zeroeventhub.feeds DISABLE TRIGGER notify_commit")
    publish(site.open(), chunk(0, b"1"))
    eventually(lambda: store.version() != before)


def test_listener_that_lost_its_connection_comes_back(store, site):
    """Readers keep waiting through a failover of the database."""
    before = listening_at(store, site)
    site.disconnect()
    publish(store, chunk(0, b"1"))

    def noticed() -> bool:
        try:
            return store.version() != before
        except StoreBusyError:
            return False  # the fault is reported once; then the version is there again

    eventually(noticed)


def listening_at(store: SqlStore, site: PostgresqlSite) -> int:
    """The version, once the store's listener has read the heads after its LISTEN.

    A read ends with a rollback, and nothing else has read in this database yet.
    """
    before = store.version()
    eventually(
        lambda: site.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
            "AND state = 'idle' AND query = 'ROLLBACK'"
        )
    )
    return before
