"""What PostgreSQL's failures become: a busy store, nothing torn, nothing acknowledged lost."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from sqlalchemy import Connection, Engine, event, text

from tests import postgresql
from tests.contract.databases import in_threads, site, store
from tests.contract.sites import PostgresqlSite
from zeh_spark.publisher import Problem, Store, open_store
from zeh_spark.sql_store import commits as sql_commits
from zeh_spark.sql_store import postgresql_reads, postgresql_writer
from zeh_spark.sql_store import uploads as sql_uploads
from zeh_spark.sql_store.postgresql import READERS
from zeh_spark.sql_store.postgresql_writer import TURN_SECONDS
from zeh_spark.sql_store.store import SqlStore
from zeh_spark.store.interface import StoreBusyError, StoreOutcomeUnknownError, UnknownFeedError
from zeh_spark.store.outcome import attempted
from zeh_spark.testing import running_publisher
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
    assert 3 <= len(tries)  # more, if the second try meets the other one's first again


_LOCK = "SELECT 1 FROM zeroeventhub.feeds WHERE name = :name FOR UPDATE"


def set_lock_timeout(monkeypatch: pytest.MonkeyPatch, timeout: str) -> None:
    begin = str(postgresql_writer._BEGIN).replace(f"{postgresql_writer.LOCK_SECONDS}s", timeout, 1)
    monkeypatch.setattr(postgresql_writer, "_BEGIN", text(begin))


@contextmanager
def feed_locked(store: SqlStore) -> Iterator[None]:
    """As by a publisher that hangs within a commit."""
    begun, free = threading.Event(), threading.Event()

    def hold(db: Connection) -> None:
        db.execute(text(_LOCK), {"name": FEED})
        begun.set()
        assert free.wait(20)

    holder = threading.Thread(target=store._write, args=(hold,))
    holder.start()
    assert begun.wait(20)
    try:
        yield
    finally:
        free.set()
        holder.join()


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
    set_lock_timeout(monkeypatch, "50ms")
    with feed_locked(store), pytest.raises(StoreBusyError, match="lock timeout"):
        publish(store, chunk(0, b"1"))
    publish(store, chunk(0, b"1"))


@contextmanager
def table_locked(site: PostgresqlSite, table: str) -> Iterator[None]:
    """As by an ALTER TABLE that does not end."""
    with (
        psycopg.connect(site.url.replace("+psycopg", "")) as other,
        other.transaction(),
    ):
        other.execute(f"LOCK TABLE zeroeventhub.{table} IN ACCESS EXCLUSIVE MODE".encode())
        yield


def test_reads_behind_a_lock_end_and_others_go_on(store: SqlStore, site: PostgresqlSite) -> None:
    """More reads than there are connections wait for one table: the process does not stop."""
    publish(store, chunk(0, b"1"))
    with table_locked(site, "chunks"):
        began = time.monotonic()
        with ThreadPoolExecutor(READERS) as pool:
            stuck = [pool.submit(store.scan, FEED, 0, 9, 9) for _ in range(READERS)]
            assert [] == store.tokens()
            raised = [each.exception() for each in stuck]
        lasted = time.monotonic() - began
    assert [StoreBusyError] * READERS == [type(each) for each in raised]
    assert all("lock timeout" in str(each) for each in raised)
    assert lasted < TURN_SECONDS
    assert [b"1"] == data(store)


def test_readers_of_a_locked_table_are_asked_to_come_again(
    store: SqlStore, site: PostgresqlSite
) -> None:
    """503 with Retry-After instead of silence, and the page once the lock is gone."""
    publish(store, chunk(0, b"1"))
    with running_publisher(store) as url:
        page = f"{url}/{FEED}?n=2&cursor0=_first"
        with table_locked(site, "chunks"):
            refused = requests.get(page, timeout=TURN_SECONDS)
        answer = requests.get(page, timeout=TURN_SECONDS)
    assert (503, "store-busy") == (refused.status_code, refused.json()["type"].split(":")[-1])
    assert refused.headers["Retry-After"]
    assert (200, 1) == (answer.status_code, answer.text.count('"data"'))


def test_a_look_for_commits_behind_a_lock_ends(store: SqlStore, site: PostgresqlSite) -> None:
    """Readers that wait for events are told, and wait again when the lock is gone."""
    with table_locked(site, "feeds"), pytest.raises(StoreBusyError, match="lock timeout"):
        store.version()
    seen = store.version()
    with table_locked(site, "feeds"):
        until(lambda: isinstance(attempted(store.version).exception(), StoreBusyError))
    until(lambda: attempted(store.version).exception() is None)
    publish(store, chunk(0, b"1"))
    until(lambda: store.version() != seen)


def test_a_read_that_takes_too_long_is_a_busy_store(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that the database does not finish does not hold its connection for ever."""
    begin = postgresql_reads._BEGIN.replace(f"{postgresql_reads.STATEMENT_SECONDS}s", "50ms")
    monkeypatch.setattr(postgresql_reads, "_BEGIN", begin)
    with pytest.raises(StoreBusyError, match="statement timeout"), store._reading() as connection:
        connection.execute(text("SELECT pg_sleep(10)"))
    assert 0 == store.feed(FEED).time


def test_the_bounds_of_a_read_end_with_it(store: SqlStore) -> None:
    """A pooler may give the connection to others, who have not asked for bounds."""
    with store._reading() as connection:
        assert "2s" == connection.scalar(text("SHOW lock_timeout"))
        driver = connection.connection.driver_connection
    assert driver is not None
    assert ("0",) == driver.execute("SHOW lock_timeout").fetchone()


def test_failure_of_the_database_is_told_to_a_whole_group_at_once(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty commits that wait for a lock that does not come wait for it together."""
    set_lock_timeout(monkeypatch, "300ms")
    with feed_locked(store):
        began = time.monotonic()
        raised = in_threads(20, lambda number: store.producer(FEED, f"p{number}"))
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
    with lane.lead():
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


def test_a_look_that_is_refused_holds_up_nobody(store: SqlStore) -> None:
    """Who is overtaken asks again and again; what is committed beside that is committed at once."""
    publish(store, chunk(0, b"0"))
    store.stage(FEED, call(0, producer="q"), sent := upload(chunk(0, b"1")))
    lane = store._database.writes._lanes.of(FEED)  # type: ignore[attr-defined]
    commits: list[threading.Thread] = []

    def ask() -> None:
        with pytest.raises(Problem):
            store._look(FEED, lambda connection, _: sql_uploads.admit(connection, FEED, call(7)))

    asks = [ask, lambda: store.commit(FEED, call(0, producer="q"), declared(sent))]
    threads = [threading.Thread(target=each) for each in asks]

    def note(_: Connection) -> None:
        commits.append(threading.current_thread())

    event.listen(Engine, "commit", note)
    try:
        with lane.lead():
            for at, each in enumerate(threads, 1):
                each.start()
                until(lambda at=at: len(lane._waiting) == at)
            commits.clear()
        for each in threads:
            each.join()
    finally:
        event.remove(Engine, "commit", note)
    assert 2 == len(data(store))
    assert 1 == sum(each in threads for each in commits)  # others clean up


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
    real = sql_commits.write_receipts

    def lose(*given: Any) -> None:
        site._server.disconnect(site._databases[-1])
        real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_commits, "write_receipts", lose)
        with pytest.raises(StoreBusyError, match="does not answer"):
            store.commit(FEED, call(0), declared(one))
    assert [] == data(store)
    assert store.commit(FEED, call(0), declared(one))[1]
    assert [b"1", b"2"] == data(store)


def test_connection_lost_at_the_commit_itself_is_not_known_yet(
    store: SqlStore, site: PostgresqlSite
) -> None:
    """I am told to ask again, and then hear what happened (PU-03)."""
    store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
    real, me = postgresql_writer._commit, threading.current_thread()

    def lose(connection: Connection) -> None:
        if threading.current_thread() is me:  # another one cleans up
            site._server.disconnect(site._databases[-1])
        real(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgresql_writer, "_commit", lose)
        with pytest.raises(StoreOutcomeUnknownError, match=r"not known yet\. Ask again"):
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
    if reason := postgresql.why_no_small_disk():
        pytest.skip(reason)
    space = server.directory / "small"
    space.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(space)], check=True)
    try:
        server.own(space)
        (space / "ballast").write_bytes(bytes(16 << 20))
        yield space
    finally:
        server.stop("immediate")
        subprocess.run(["umount", str(space)], check=True)


@pytest.mark.kill
def test_seal_survives_the_death_of_the_database(own_server: postgresql.Server) -> None:
    """What a producer was told will never be published is not (EX-02)."""
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


@pytest.mark.kill
@pytest.mark.slow
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
    except (StoreBusyError, StoreOutcomeUnknownError):
        pass


def test_name_with_a_nul_is_that_of_no_feed(store: SqlStore) -> None:
    """PostgreSQL cannot even be asked for it."""
    with pytest.raises(UnknownFeedError):
        store.producer("or\0ders", "p")
    with pytest.raises(UnknownFeedError):
        store.feed("or\0ders")
