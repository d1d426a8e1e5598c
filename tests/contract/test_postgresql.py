"""What only PostgreSQL does: how tables are made, who is woken, how publishers work together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from tests import postgresql
from tests.contract.databases import commit_under_way, in_threads, site, stopped_at, store
from tests.contract.sites import PostgresqlSite
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Problem, migrate_store, open_store
from zeh_spark.sql_store import postgresql as dialect
from zeh_spark.sql_store.store import SqlStore
from zeh_spark.store.access import ADMIN, new_token
from zeh_spark.store.interface import Retention, StoreBusyError
from zeh_spark.testing.writers import (
    FEED,
    call,
    chunk,
    commit,
    data,
    declared,
    everything,
    publish,
    until,
    upload,
)

__all__ = ["site", "store"]


# Its tables


def test_publishers_that_start_at_once_make_the_tables_once(site: PostgresqlSite) -> None:
    """I start five publishers on an empty database."""
    assert [] == in_threads(5, lambda _: open_store(site.url).close())


def test_tables_are_asked_for_by_who_must_not_make_them(site: PostgresqlSite) -> None:
    """`serve` on the wrong database makes nothing there."""
    with pytest.raises(StoreError, match=r"Make it.* with zeh-spark create FEED"):
        open_store(site.url, must_exist=True)
    with closing(open_store(site.url)):
        open_store(site.url, must_exist=True).close()


def test_tables_of_a_later_version_are_left_alone(site: PostgresqlSite, store: SqlStore) -> None:
    """An old program does not harm what a newer one has written."""
    store._write(lambda db: db.execute(text("UPDATE zeroeventhub.store SET version = 99")))
    with pytest.raises(StoreError, match="version 99, and this zeh-spark knows versions up to 8"):
        open_store(site.url)


def _as_version_3(store: SqlStore) -> None:
    """Without what later versions have added."""
    statements = [
        "DROP FUNCTION zeroeventhub.check_version CASCADE",
        "DROP TABLE zeroeventhub.epochs, zeroeventhub.cursor_set_names, zeroeventhub.clocks",
        "ALTER TABLE zeroeventhub.retentions DROP COLUMN names_ms",
        "ALTER TABLE zeroeventhub.sequences DROP COLUMN first",
        "ALTER TABLE zeroeventhub.feeds DROP COLUMN events, DROP COLUMN size",
        "UPDATE zeroeventhub.store SET version = 3",
    ]
    for each in statements:
        store._write(lambda db, each=each: db.execute(text(each)))


def test_store_of_version_3_goes_on(site: PostgresqlSite, store: SqlStore) -> None:
    """My feeds keep their events, their cursors and their ids, also if the store is upgraded five
    times at once; and take epochs from then on.
    """
    publish(store, chunk(0, b"1"))
    store.set_retention(FEED, Retention(age_ms=5))
    store.save_cursors(FEED, "mailer", 2, {0: "1.x"})
    name, _ = store.identity(FEED).id, _as_version_3(store)
    assert [] == in_threads(5, lambda _: migrate_store(site.url))
    publish(store, chunk(0, b"2"))
    begun = site.open().begin_epoch(FEED)
    publish(store, chunk(0, b"3"))
    assert Retention(age_ms=5) == site.open().retention(FEED)
    store.save_cursors(FEED, "mailer", 2, {1: "2.x"}, "a")
    assert {0: "1.x", 1: "2.x"} == store.load_cursors(FEED, "mailer", 2, "a")
    found = [begun.at(each.time) for each in everything(store)]
    assert ([b"1", b"2", b"3"], [name, name, begun.epochs[1].id]) == (data(store), found)


def test_who_may_not_upgrade_a_store_is_told(site: PostgresqlSite, store: SqlStore) -> None:
    """My publisher's role owns nothing there: I hear which role has to upgrade the store."""
    _as_version_3(store)
    server, database = site._server, site._databases[-1]
    server.execute("DROP ROLE IF EXISTS upgrader")
    server.execute("CREATE ROLE upgrader LOGIN")
    server.execute("GRANT USAGE ON SCHEMA zeroeventhub TO upgrader", database)
    server.execute("GRANT ALL ON ALL TABLES IN SCHEMA zeroeventhub TO upgrader", database)
    with pytest.raises(StoreError, match=r"version 3.*must be owner.*owns the schema"):
        migrate_store(site.url.replace("//zeh@", "//upgrader@"))
    migrate_store(site.url)
    open_store(site.url).close()


def test_only_migrate_upgrades_a_store(site: PostgresqlSite, store: SqlStore) -> None:
    """Looking at a store changes nothing: publishers of the older version still serve it."""
    publish(store, chunk(0, b"1", b"2"))
    _as_version_3(store)
    with pytest.raises(StoreError, match=r"version 3.* works with version 8.*zeh-spark migrate"):
        open_store(site.url)
    would = migrate_store(site.url, dry_run=True)
    assert (3, 8) == (would.before, would.after)
    with pytest.raises(StoreError, match="version 3"):
        open_store(site.url)
    migrate_store(site.url)
    assert 2 == site.open().feed(FEED).events


@pytest.mark.parametrize(
    "write",
    [
        lambda store: publish(store, chunk(0, b"2")),
        lambda store: store.stage(FEED, call(), upload(chunk(0, b"3"))),
        lambda store: store.remove(FEED, 1),
        lambda store: store.save_cursors(FEED, "mailer", 2, {0: "1.x"}),
        lambda store: store.set_retention(FEED, Retention(age_ms=5)),
        lambda store: store.begin_epoch(FEED),
        lambda store: store.create("another", 1),
        lambda store: store.delete_producer(FEED, "test"),
        lambda store: store.add_token(new_token("all", ADMIN, 1)[1]),
    ],
    ids=lambda _: "",
)
def test_store_that_is_upgraded_meanwhile_takes_no_writes(
    site: PostgresqlSite, store: SqlStore, write: Callable[[SqlStore], object]
) -> None:
    """A publisher of the older version serves readers until I replace it, and writes nothing."""
    publish(store, chunk(0, b"1"))
    server, database = site._server, site._databases[-1]
    server.execute("UPDATE zeroeventhub.store SET version = 9", database)
    with pytest.raises(StoreBusyError, match=r"was upgraded.*may only read.*Replace"):
        write(store)
    assert [b"1"] == data(store)


def test_program_that_is_older_than_the_check_cannot_write(
    site: PostgresqlSite, store: SqlStore
) -> None:
    """It does not know the totals of feeds, and would leave them wrong. It answers 503 meanwhile:
    to it, SQLSTATEs of the class 55 pass.
    """
    publish(store, chunk(0, b"1"))
    server, database = site._server, site._databases[-1]
    said = "the store is of version 8, and the program that writes"
    with pytest.raises(psycopg.Error, match=said) as refused:
        server.execute("UPDATE zeroeventhub.feeds SET head = head + 1", database)
    assert str(refused.value.sqlstate).startswith("55")


def test_upgrade_waits_for_a_commit_under_way(site: PostgresqlSite, store: SqlStore) -> None:
    """What is being published is counted, or is refused: nothing is in between."""
    publish(store, chunk(0, b"1"))
    begun, go_on = threading.Event(), threading.Event()

    def slowly(connection: Connection) -> None:
        connection.execute(text("UPDATE zeroeventhub.feeds SET time = time + 1"))
        begun.set()
        assert go_on.wait(30)

    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(store._write, slowly)
        assert begun.wait(30)
        # as an upgrade to version 9 would
        upgrading = threads.submit(
            site._server.execute,
            "BEGIN; LOCK TABLE zeroeventhub.feeds IN ACCESS EXCLUSIVE MODE;"
            " UPDATE zeroeventhub.store SET version = 9; COMMIT",
            site._databases[-1],
        )
        until(site.somebody_waits_for_a_lock, seconds=10)
        go_on.set()
        writing.result(30)
        upgrading.result(30)
    with pytest.raises(StoreBusyError, match="was upgraded"):
        publish(store, chunk(0, b"2"))


def test_times_are_those_of_the_database(site: PostgresqlSite) -> None:
    """My publishers agree on the time, also if one machine's clock is a month ahead."""
    with closing(open_store(site.url)) as store:
        ((now,),) = site._server.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000")
        assert abs(store.now() - int(now)) < 5000
        assert abs(store.skew()) < 5000  # one machine: the same clock


def test_tables_of_others_are_not_in_the_way(site: PostgresqlSite) -> None:
    """My own tables `feeds` and `chunks` stay mine."""
    site._server.execute("CREATE TABLE feeds (x int)", site._databases[-1])
    with closing(open_store(site.url)) as store:
        store.create(FEED, 2)
    assert [] == site._server.execute("SELECT x FROM feeds", site._databases[-1])


def test_frames_are_stored_as_they_are(site: PostgresqlSite, store: SqlStore) -> None:
    """PostgreSQL does not compress what is compressed."""
    found = site._server.execute(
        "SELECT attstorage FROM pg_attribute "
        "WHERE attrelid = 'zeroeventhub.blobs'::regclass AND attname = 'frame'",
        site._databases[-1],
    )
    assert [("e",)] == found


def test_commits_are_durable_whatever_the_database_says(store: SqlStore) -> None:
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


def test_owner_of_the_schema_needs_no_more(site: PostgresqlSite) -> None:
    """My role may not create schemas; the administrator has made this one for it."""
    server, database = site._server, site._databases[-1]
    server.execute("DROP ROLE IF EXISTS clerk")
    server.execute("CREATE ROLE clerk LOGIN")
    server.execute(f"REVOKE CREATE ON DATABASE {database} FROM public")
    server.execute("CREATE SCHEMA zeroeventhub AUTHORIZATION clerk", database)
    with closing(open_store(site.url.replace("//zeh@", "//clerk@"))) as store:
        store.create(FEED, 2)
        publish(store, chunk(0, b"1"))
        assert [b"1"] == data(store)


def test_databases_of_any_kind_will_do(site: PostgresqlSite) -> None:
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
    with closing(open_store(server.url("odd"))) as store:
        store.create(FEED, 2)
        commit(store, call(0), upload(chunk(0, '"ä"'.encode())))
        assert ['"ä"'.encode()] == data(store)
    server.drop_database("odd")


def test_several_hosts_may_be_given(site: PostgresqlSite) -> None:
    """Behind a failover the second one answers."""
    server, database = site._server, site._databases[-1]
    hosts = f"host=127.0.0.1:1&host=127.0.0.1:{server.port}"
    with closing(open_store(f"postgresql+psycopg://zeh@/{database}?{hosts}")) as store:
        store.create(FEED, 2)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:geheim@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:ge@he:im@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@h/d?Password=geheim&x=1", "postgresql://u@h/d?Password=***&x=1"),
        ("postgresql://h/d?sslpassword=geheim", "postgresql://h/d?sslpassword=***"),
        ("postgresql://h/d", "postgresql://h/d"),
    ],
)
def test_passwords_are_not_shown(url: str, expected: str) -> None:
    """However wrongly I have written them."""
    assert expected == dialect.shown(url)


def test_url_that_is_not_understood_shows_no_password() -> None:
    """I am told how to write it."""
    with pytest.raises(StoreError, match="In a password, write @ as %40") as raised:
        open_store("postgresql://u:pa@ss:geheim@db/feeds")
    assert "geheim" not in str(raised.value)


# Who is woken


def test_commit_of_another_process_is_noticed_at_once(
    store: SqlStore, site: PostgresqlSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that waits does not wait for a poll."""
    monkeypatch.setattr(dialect, "POLL_SECONDS", 60)
    before = store.version()
    until(lambda: _listening(site))
    publish(site.open(), chunk(0, b"1"))
    until(lambda: store.version() != before, seconds=5)


def test_commit_is_noticed_behind_a_pooler(
    store: SqlStore, site: PostgresqlSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hands out connections by transaction loses LISTEN: the poll finds it."""
    monkeypatch.setattr(dialect, "POLL_SECONDS", 0.05)
    before = store.version()
    until(lambda: _listening(site))
    silenced = "ALTER TABLE zeroeventhub.feeds DISABLE TRIGGER notify_commit"
    site._server.execute(silenced, site._databases[-1])
    publish(site.open(), chunk(0, b"1"))
    until(lambda: store.version() != before, seconds=5)


def test_listener_that_lost_its_connection_comes_back(
    store: SqlStore, site: PostgresqlSite
) -> None:
    """Readers wait on through a failover of the database."""
    before = store.version()
    until(lambda: _listening(site))
    site._server.disconnect(site._databases[-1])
    publish(store, chunk(0, b"1"))

    def noticed() -> bool:
        try:
            return store.version() != before
        except StoreBusyError:
            return False  # told once, and then again what there is

    until(noticed)


def _listening(site: PostgresqlSite) -> bool:
    """Whether the store's listener has asked for the heads after its LISTEN.

    Nobody else has read anything yet, and a read ends with a rollback.
    """
    found = site._server.execute(
        f"SELECT 1 FROM pg_stat_activity WHERE datname = '{site._databases[-1]}' "
        f"AND state = 'idle' AND query = 'ROLLBACK'"
    )
    return len(found) > 0


# Several publishers


def test_two_publishers_commit_in_one_order(site: PostgresqlSite, store: SqlStore) -> None:
    """Whoever I ask, batches are whole, and positions have no gaps (A7)."""
    stores = [store, site.open()]

    def write(number: int) -> None:
        for batch in range(10):
            by = call(batch, producer=f"p{number}")
            commit(stores[number % 2], by, upload(chunk(0, b"%d" % number), chunk(1, b"0")))

    assert [] == in_threads(8, write)
    found = everything(stores[1])
    assert list(range(1, 161)) == [each.g for each in found]
    pairs = zip(found[::2], found[1::2], strict=True)
    assert all((a.producer, a.batch) == (b.producer, b.batch) for a, b in pairs)


def test_commits_of_two_feeds_do_not_wait_for_each_other(store: SqlStore) -> None:
    """A long commit on one feed holds up no other feed, and no upload of its own."""
    store.create("other", 2)
    store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
    with commit_under_way(store, call(0), one):
        publish(store, chunk(0, b"2"), feed="other")
        store.stage(FEED, call(0, producer="q"), upload(chunk(0, b"3")))
    assert [b"1"] == data(store)


def test_an_epoch_waits_for_the_commit_that_is_under_way(
    store: SqlStore, site: PostgresqlSite
) -> None:
    """Its event is of the epoch before, although the epoch was asked for before it was there."""
    store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
    beginning = threading.Thread(target=site.open().begin_epoch, args=(FEED,))
    with commit_under_way(store, call(0), one):
        beginning.start()
        until(site.somebody_waits_for_a_lock)
    beginning.join()
    identity = store.identity(FEED)
    assert identity.epochs[0].id == identity.at(everything(store)[0].time)


def test_a_batch_is_not_denied_while_its_first_commit_is_under_way(store: SqlStore) -> None:
    """ "Not committed" is only said when nobody is about to commit it (PU-03)."""
    store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
    answers: list[object] = []
    asks = [
        threading.Thread(target=lambda: answers.append(store.receipt(FEED, "p", 0, None))),
        threading.Thread(target=lambda: answers.append(store.producer(FEED, "p").last + 1)),
    ]
    with commit_under_way(store, call(0), one):
        for each in asks:
            each.start()
        lane = store._database.writes._lanes.of(FEED)  # type: ignore[attr-defined] # PostgreSQL's
        until(lambda: len(lane._waiting) == 2)
        assert not answers
    for each in asks:
        each.join()
    assert None not in answers and 0 not in answers


def test_uploads_of_a_batch_do_not_wait_for_each_other(store: SqlStore) -> None:
    """Tasks write at the same time: the row they share is locked at the end only."""
    store.stage(FEED, call(0), upload(chunk(0, b"0")))
    one, two = (upload(chunk(0, b"%d" % task), task=task) for task in (1, 2))
    with stopped_at("_touch", lambda: store.stage(FEED, call(0), one)):
        store.stage(FEED, call(0), two)
    store.commit(FEED, call(0), declared(one, two))
    assert [b"1", b"2"] == data(store)


def test_first_uploads_of_a_batch_may_come_at_once(store: SqlStore) -> None:
    """Also the same one twice, as after a lost answer."""
    sent = [upload(chunk(0, b"%d" % task), task=task) for task in range(8)]
    assert [] == in_threads(16, lambda number: store.stage(FEED, call(0), sent[number % 8]))
    store.commit(FEED, call(0), declared(*sent))
    assert [b"%d" % task for task in range(8)] == data(store)


def test_nothing_is_published_behind_the_deletion_of_a_producer(
    store: SqlStore, site: PostgresqlSite
) -> None:
    """Also where a named batch of it was under way: the deletion waits for that."""
    store.stage(FEED, call(0, producer="p#day"), one := upload(chunk(0, b"1")))
    deleting = threading.Thread(target=store.delete_producer, args=(FEED, "p"))
    with commit_under_way(store, call(0, producer="p#day"), one):
        deleting.start()
        until(site.somebody_waits_for_a_lock)
    deleting.join()
    assert [b"1"] == data(store)
    with pytest.raises(Problem, match="deleted"):
        store.stage(FEED, call(0, producer="p#other"), one)
