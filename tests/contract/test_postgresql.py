"""What only PostgreSQL does: how its tables are made, who is woken, what its failures become."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests import postgresql
from tests.contract.sites import PostgresqlSite
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Problem, Store, open_store, sql_batches
from zeh_spark.publisher import postgresql as dialect
from zeh_spark.publisher.sql import SqlStore
from zeh_spark.publisher.store import OutcomeUnknownError, StoreBusyError, UnknownFeedError
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


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PostgresqlSite]:
    site = PostgresqlSite(tmp_path)
    yield site
    site.close()


@pytest.fixture
def store(site: PostgresqlSite) -> SqlStore:
    store = site.open()
    assert isinstance(store, SqlStore)
    store.create(FEED, 2)
    return store


@pytest.fixture
def own_server() -> Iterator[postgresql.Server]:
    """One that the test may stop."""
    postgresql.needed()
    server = postgresql.Server()
    yield server
    server.remove()


def in_threads(count: int, work: Callable[[int], object]) -> list[BaseException]:
    """What they raised."""
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as exc:  # noqa: BLE001 - handed to the test
            raised.append(exc)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return raised


# Its tables


def test_publishers_that_start_at_once_make_the_tables_once(site: PostgresqlSite) -> None:
    """I start five publishers on an empty database."""
    assert [] == in_threads(5, lambda _: open_store(site.url).close())


def test_tables_are_asked_for_by_who_must_not_make_them(site: PostgresqlSite) -> None:
    """`serve` on the wrong database makes nothing there."""
    with pytest.raises(StoreError, match="zeh-spark create makes it"):
        open_store(site.url, must_exist=True)
    with closing(open_store(site.url)):
        open_store(site.url, must_exist=True).close()


def test_tables_of_a_later_version_are_left_alone(site: PostgresqlSite, store: SqlStore) -> None:
    """An old program does not harm what a newer one has written."""
    store._write(lambda db: db.execute(text("UPDATE zeroeventhub.store SET version = 99")))
    with pytest.raises(StoreError, match="version 99; this zeh-spark knows 3: upgrade it"):
        open_store(site.url)


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
    with pytest.raises(StoreError, match="In a password, @ is %40") as raised:
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
    """Whether the store's listener has asked for the heads after its LISTEN."""
    found = site._server.execute(
        f"SELECT 1 FROM pg_stat_activity WHERE datname = '{site._databases[-1]}' "
        f"AND state = 'idle' AND query LIKE '%sum(zeroeventhub.feeds.head)%'"
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
    begun, free = threading.Event(), threading.Event()
    real = sql_batches.write_receipt

    def held(*given: Any) -> None:
        begun.set()
        assert free.wait(20)
        real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_batches, "write_receipt", held)
        commit_of_one = threading.Thread(target=store.commit, args=(FEED, call(0), declared(one)))
        commit_of_one.start()
        assert begun.wait(20)
    publish(store, chunk(0, b"2"), feed="other")
    store.stage(FEED, call(0, producer="q"), upload(chunk(0, b"3")))
    free.set()
    commit_of_one.join()
    assert [b"1"] == data(store)


def test_a_batch_is_not_denied_while_its_first_commit_is_under_way(store: SqlStore) -> None:
    """ "Not committed" is only said when nobody is about to commit it (PU-14)."""
    store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
    begun, free = threading.Event(), threading.Event()
    real, answers = sql_batches.write_receipt, []

    def held(*given: Any) -> None:
        begun.set()
        assert free.wait(20)
        real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_batches, "write_receipt", held)
        commits = threading.Thread(target=store.commit, args=(FEED, call(0), declared(one)))
        commits.start()
        assert begun.wait(20)
    asks = [
        threading.Thread(target=lambda: answers.append(store.receipt(FEED, "p", 0, None))),
        threading.Thread(target=lambda: answers.append(store.producer(FEED, "p").last + 1)),
    ]
    for each in asks:
        each.start()
        each.join(0.2)
    waited = not answers
    free.set()
    for each in [*asks, commits]:
        each.join()
    assert waited
    assert None not in answers and 0 not in answers


def test_uploads_of_a_batch_do_not_wait_for_each_other(store: SqlStore) -> None:
    """Tasks write at the same time: the row they share is locked at the end only."""
    store.stage(FEED, call(0), upload(chunk(0, b"0")))
    begun, free = threading.Event(), threading.Event()
    real = sql_batches._touch

    def held(*given: Any) -> None:
        begun.set()
        assert free.wait(20)
        real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_batches, "_touch", held)
        one = upload(chunk(0, b"1"), task=1)
        slow = threading.Thread(target=store.stage, args=(FEED, call(0), one))
        slow.start()
        assert begun.wait(20)
    store.stage(FEED, call(0), two := upload(chunk(0, b"2"), task=2))
    free.set()
    slow.join()
    store.commit(FEED, call(0), declared(one, two))
    assert [b"1", b"2"] == data(store)


def test_first_uploads_of_a_batch_may_come_at_once(store: SqlStore) -> None:
    """Also the same one twice, as after a lost answer."""
    sent = [upload(chunk(0, b"%d" % task), task=task) for task in range(8)]
    assert [] == in_threads(16, lambda number: store.stage(FEED, call(0), sent[number % 8]))
    store.commit(FEED, call(0), declared(*sent))
    assert [b"%d" % task for task in range(8)] == data(store)


# Failures


def test_deadlock_is_tried_again(store: SqlStore) -> None:
    """Two who lock in the opposite order both get through (A7)."""
    store.create("other", 2)
    both = threading.Barrier(2)
    tries = []

    def locked(first: str, second: str) -> Callable[[Connection], None]:
        def work(db: Connection) -> None:
            tries.append(first)
            db.execute(text(_LOCK), {"name": first})
            if tries.count(first) == 1:
                both.wait(20)
            db.execute(text(_LOCK), {"name": second})

        return work

    orders = [(FEED, "other"), ("other", FEED)]
    assert [] == in_threads(2, lambda number: store._write(locked(*orders[number])))
    assert 3 == len(tries)


_LOCK = "SELECT 1 FROM zeroeventhub.feeds WHERE name = :name FOR UPDATE"


def test_statement_timeout_is_a_busy_store(store: SqlStore) -> None:
    """The database's own limits make me wait, and nothing is half done."""

    def slow(db: Connection) -> None:
        db.execute(text("UPDATE zeroeventhub.feeds SET time = 99"))
        db.execute(text("SET LOCAL statement_timeout = 20"))
        db.execute(text("SELECT pg_sleep(10)"))

    with pytest.raises(StoreBusyError, match="statement timeout"):
        store._write(slow)
    assert 0 == store.feed(FEED).time


def test_lock_that_does_not_come_is_a_busy_store(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that hangs within a commit does not hang the others for ever."""
    begin = str(dialect._BEGIN).replace(f"{dialect.LOCK_SECONDS}s", "50ms", 1)
    monkeypatch.setattr(dialect, "_BEGIN", text(begin))
    begun, free = threading.Event(), threading.Event()

    def hold(db: Connection) -> None:
        db.execute(text(_LOCK), {"name": FEED})
        begun.set()
        assert free.wait(20)

    holder = threading.Thread(target=store._write, args=(hold,))
    holder.start()
    assert begun.wait(20)
    with pytest.raises(StoreBusyError, match="lock timeout"):
        publish(store, chunk(0, b"1"))
    free.set()
    holder.join()
    publish(store, chunk(0, b"1"))


def test_failure_of_the_database_is_told_to_a_whole_group_at_once(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty commits that wait for a lock that does not come wait for it together."""
    begin = str(dialect._BEGIN).replace(f"{dialect.LOCK_SECONDS}s", "300ms", 1)
    monkeypatch.setattr(dialect, "_BEGIN", text(begin))
    begun, free = threading.Event(), threading.Event()

    def hold(db: Connection) -> None:
        db.execute(text(_LOCK), {"name": FEED})
        begun.set()
        assert free.wait(20)

    holder = threading.Thread(target=store._write, args=(hold,))
    holder.start()
    assert begun.wait(20)
    began = time.monotonic()
    raised = in_threads(20, lambda number: store.producer(FEED, f"p{number}"))
    free.set()
    holder.join()
    assert [StoreBusyError] * 20 == [type(each) for each in raised]
    assert time.monotonic() - began < 10 * 0.3


def test_refusal_of_one_commit_is_that_one_s_alone(store: SqlStore) -> None:
    """Others that were committed together with it are there."""
    lane = store._database.writes._lanes.of(FEED)  # type: ignore[attr-defined]
    sent = upload(chunk(0, b"1"))
    for number in range(6):
        store.stage(FEED, call(0, producer=f"p{number}"), sent)
    batches = [call(0 if number % 3 else 7, producer=f"p{number}") for number in range(6)]
    raised: list[BaseException] = []
    with lane._turn:
        waiting = threading.Thread(
            target=lambda: raised.extend(
                in_threads(6, lambda number: store.commit(FEED, batches[number], declared(sent)))
            )
        )
        waiting.start()
        until(lambda: len(lane._waiting) == 6)
    waiting.join()
    assert ["batch-gap"] * 2 == [each.name for each in raised if isinstance(each, Problem)]
    assert 2 == len(raised)
    assert [b"1"] * 4 == data(store)


def test_lost_connections_are_replaced(store: SqlStore, site: PostgresqlSite) -> None:
    """A failover between two requests is not noticed."""
    publish(store, chunk(0, b"1"))
    site._server.disconnect(site._databases[-1])
    publish(store, chunk(0, b"2"))
    site._server.disconnect(site._databases[-1])
    assert [b"1", b"2"] == data(store)


def test_connection_lost_within_a_commit_leaves_nothing(
    store: SqlStore, site: PostgresqlSite
) -> None:
    """Torn batches do not exist; the same commit goes through afterwards."""
    store.stage(FEED, call(0), one := upload(chunk(0, b"1"), chunk(1, b"2")))
    real = sql_batches.write_receipt

    def lose(*given: Any) -> None:
        site._server.disconnect(site._databases[-1])
        real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_batches, "write_receipt", lose)
        with pytest.raises(StoreBusyError, match="does not answer"):
            store.commit(FEED, call(0), declared(one))
    assert [] == data(store)
    assert store.commit(FEED, call(0), declared(one))[1]
    assert [b"1", b"2"] == data(store)


def test_connection_lost_at_the_commit_itself_is_not_known_yet(
    store: SqlStore, site: PostgresqlSite
) -> None:
    """I am told to ask again, and then hear what happened (PU-14)."""
    store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
    real, me = dialect._commit, threading.current_thread()

    def lose(connection: Connection) -> None:
        if threading.current_thread() is me:  # another one cleans up
            site._server.disconnect(site._databases[-1])
        real(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialect, "_commit", lose)
        with pytest.raises(OutcomeUnknownError, match="not known yet; ask again"):
            store.commit(FEED, call(0), declared(one))
    assert store.receipt(FEED, "p", 0, None) is None
    assert store.commit(FEED, call(0), declared(one))[1]


def test_database_that_is_away_is_a_busy_store(own_server: postgresql.Server) -> None:
    """Each call says so at once; when it is back, all goes on."""
    with closing(open_store(own_server.url(own_server.create_database()))) as store:
        store.create(FEED, 2)
        publish(store, chunk(0, b"1"))
        own_server.stop("immediate")
        calls: list[Callable[[], object]] = [
            lambda: publish(store, chunk(0, b"2")),
            lambda: store.producer(FEED, "p"),
            lambda: everything(store),
            lambda: store.version(),
        ]
        for each in calls:
            with pytest.raises(StoreBusyError, match="does not answer"):
                each()
        own_server.start()
        publish(store, chunk(0, b"2"))
        assert [b"1", b"2"] == data(store)


def test_full_disk_is_a_busy_store(own_server: postgresql.Server) -> None:
    """Uploads are refused until there is room again; what was committed stays, nothing is torn."""
    with small_disk(own_server) as space:
        own_server.execute(f"CREATE TABLESPACE small LOCATION '{space}'")
        database = own_server.create_database()
        own_server.execute(f"ALTER DATABASE {database} SET TABLESPACE small")
        with closing(open_store(own_server.url(database))) as store:
            store.create(FEED, 2)
            publish(store, chunk(0, b"1"))
            noise = "".join(f"{number * 7919:x}" for number in range(200_000))
            with pytest.raises(StoreBusyError, match="No space left on device"):
                for batch in range(500):
                    parts = [chunk(0, b'"%b"' % noise[i : i + 50_000].encode()) for i in range(20)]
                    commit(store, call(batch), upload(*parts))
            kept = len(data(store))
            (space / "ballast").unlink()
            publish(store, chunk(0, b"2"))
            found = everything(store)
            assert list(range(1, len(found) + 1)) == [each.g for each in found]
            assert kept + 1 == len(data(store))
            assert 0 == (kept - 1) % 20
        own_server.drop_database(database)
        own_server.execute("DROP TABLESPACE small")


@contextmanager
def small_disk(server: postgresql.Server) -> Iterator[Path]:
    """A file system of 48 MiB, and a file `ballast` on it that makes it smaller."""
    space = server.directory / "small"
    space.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(space)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here: that takes root")
    try:
        server.own(space)
        (space / "ballast").write_bytes(bytes(16 << 20))
        yield space
    finally:
        server.stop("immediate")
        subprocess.run(["umount", str(space)], check=True)


def test_seal_survives_the_death_of_the_database(own_server: postgresql.Server) -> None:
    """What a producer was told will never be published is not (EX-08)."""
    with closing(open_store(own_server.url(own_server.create_database()))) as store:
        store.create(FEED, 2)
        store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
        publish(store, chunk(1, b"0"))  # makes what was staged durable
        store.stage(FEED, call(0), upload(number=1))
        own_server.kill()
        own_server.start()
        with pytest.raises(Problem, match="has staged 2 uploads"):
            store.commit(FEED, call(0), declared(one))


# Backups


def test_base_backup_is_a_copy(own_server: postgresql.Server) -> None:
    """A copy of the whole server, made while it is written to, is a store as of then."""
    database = own_server.create_database()
    with closing(open_store(own_server.url(database))) as store:
        store.create(FEED, 2)
        commit(store, call(0), upload(chunk(0, b"1"), chunk(1, b"2")))
        store.stage(FEED, call(1), upload(chunk(0, b"3")))
        own_server.run(
            "pg_basebackup", "--checkpoint=fast", "-D", str(own_server.directory / "backup")
        )
        commit(store, call(1), upload(chunk(0, b"3")))
    own_server.stop()
    own_server.data = own_server.directory / "backup"
    own_server.start()
    with closing(open_store(own_server.url(database))) as store:
        assert [b"1", b"2"] == data(store)
        with pytest.raises(Problem, match="has published up to batch 0, this is 2") as refused:
            commit(store, call(2), upload(chunk(0, b"4")))
        assert "batch-gap" == refused.value.name
        commit(store, call(1), upload(chunk(0, b"3")))
        assert [b"1", b"2", b"3"] == data(store)


def test_server_killed_at_any_time_keeps_what_it_acknowledged(
    own_server: postgresql.Server,
) -> None:
    """SIGKILL of the database while batches come: each that was acknowledged is there, once."""
    with closing(open_store(own_server.url(own_server.create_database()))) as store:
        store.create(FEED, 2)
        for round_of in range(3):
            batches: list[int] = []
            writer = threading.Thread(target=_write_until_it_fails, args=(store, batches))
            writer.start()
            until(lambda batches=batches, round_of=round_of: len(batches) >= 5 * (round_of + 1))
            own_server.kill()
            writer.join()
            own_server.start()
            found = data(store)
            assert [b"%d" % each for each in range(len(found))] == found
            assert len(found) - batches[-1] in (1, 2)


def _write_until_it_fails(store: Store, acknowledged: list[int]) -> None:
    batch = store.producer(FEED, "p").last + 1
    try:
        while True:
            commit(store, call(batch), upload(chunk(0, b"%d" % batch)))
            acknowledged.append(batch)
            batch += 1
    except (StoreBusyError, OutcomeUnknownError):
        pass


def test_name_with_a_nul_is_that_of_no_feed(store: SqlStore) -> None:
    """PostgreSQL cannot even be asked for it."""
    with pytest.raises(UnknownFeedError):
        store.producer("or\0ders", "p")
    with pytest.raises(UnknownFeedError):
        store.feed("or\0ders")
