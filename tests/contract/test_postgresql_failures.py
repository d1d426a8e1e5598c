"""What PostgreSQL's failures become: a busy store, nothing torn, nothing acknowledged lost."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from tests import postgresql
from tests.contract.databases import site, store
from tests.fix_publisher import open_feeds
from tests.patience import eventually
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    commit,
    data,
    declared,
    everything,
    publish,
    upload,
)
from zeh_spark.publisher import Problem, Store, open_store
from zeh_spark.service.postgresql import writer as postgresql_writer
from zeh_spark.service.sql import commits as sql_commits
from zeh_spark.service.store.interface import StoreBusyError, StoreOutcomeUnknownError

__all__ = ["site", "store"]


def test_lost_connections_are_replaced(store, site):
    """A failover between two requests is not noticed."""
    publish(store, chunk(0, b"1"))
    site.disconnect()
    publish(store, chunk(0, b"2"))
    site.disconnect()
    assert [b"1", b"2"] == data(store)


def test_connection_lost_within_a_commit_leaves_nothing(store, site):
    """Torn batches do not exist; the same commit goes through afterwards."""
    store.stage(FEED, call(0), one := upload(chunk(0, b"1"), chunk(1, b"2")))
    real = sql_commits.write_receipts

    def lose(*given: Any) -> None:
        site.disconnect()
        real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql_commits, "write_receipts", lose)
        with pytest.raises(StoreBusyError, match="there is no connection"):
            store.commit(FEED, call(0), declared(one))
    assert [] == data(store)
    assert store.commit(FEED, call(0), declared(one))[1]
    assert [b"1", b"2"] == data(store)


def test_connection_lost_at_the_commit_itself_is_not_known_yet(store, site):
    """I am told to ask again, and then hear what happened (PU-03)."""
    store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
    real, me = postgresql_writer._commit, threading.current_thread()

    def lose(connection: Connection) -> None:
        if threading.current_thread() is me:  # another one cleans up
            site.disconnect()
        real(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgresql_writer, "_commit", lose)
        with pytest.raises(StoreOutcomeUnknownError, match=r"not known yet\. Ask again"):
            store.commit(FEED, call(0), declared(one))
    assert store.receipt(FEED, "p", 0, None) is None
    assert store.commit(FEED, call(0), declared(one))[1]


def test_database_that_is_away_is_a_busy_store(own_server):
    """Each call says so at once; when it is back, all goes on."""
    with open_feeds(own_server.url(own_server.create_database()), orders=2) as store:
        publish(store, chunk(0, b"1"))
        own_server.stop("immediate")
        calls: list[Callable[[], object]] = [
            lambda: publish(store, chunk(0, b"2")),
            lambda: store.producer(FEED, "p"),
            lambda: everything(store),
            lambda: store.version(),
        ]
        for each in calls:
            with pytest.raises(StoreBusyError, match="there is no connection"):
                each()
        own_server.start()
        publish(store, chunk(0, b"2"))
        assert [b"1", b"2"] == data(store)


def test_full_disk_is_a_busy_store(own_server):
    """Uploads are refused until there is room again; what was committed stays, nothing is torn."""
    with small_disk(own_server) as space:
        own_server.execute(f"CREATE TABLESPACE small LOCATION '{space}'")
        database = own_server.create_database()
        own_server.execute(f"ALTER DATABASE {database} SET TABLESPACE small")
        with open_feeds(own_server.url(database), orders=2) as store:
            publish(store, chunk(0, b"1"))
            noise = "".join(f"{number * 7919:x}" for number in range(200_000))
            parts = [chunk(0, b'"%b"' % noise[i : i + 50_000].encode()) for i in range(20)]
            with pytest.raises(StoreBusyError, match="No space left on device"):
                for batch in range(500):
                    commit(store, call(batch), upload(*parts))
            kept = len(data(store))
            (space / "ballast").unlink()
            publish(store, chunk(0, b"2"))
            found = everything(store)
            assert list(range(1, len(found) + 1)) == [each.g for each in found]
            assert (kept + 1, 0) == (len(data(store)), (kept - 1) % 20)
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
def test_seal_survives_the_death_of_the_database(own_server):
    """What a producer was told will never be published is not (EX-02)."""
    with open_feeds(own_server.url(own_server.create_database()), orders=2) as store:
        store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
        publish(store, chunk(1, b"0"))  # makes what was staged durable
        store.stage(FEED, call(0), upload(number=1))
        own_server.kill()
        own_server.start()
        with pytest.raises(Problem, match="has staged 2 uploads"):
            store.commit(FEED, call(0), declared(one))


# Backups


def test_base_backup_is_a_copy(own_server):
    """A copy of the whole server, made while it is written to, is a store as of then."""
    database = own_server.create_database()
    with open_feeds(own_server.url(database), orders=2) as store:
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
def test_server_killed_at_any_time_keeps_what_it_acknowledged(own_server):
    """SIGKILL of the database while batches come: each that was acknowledged is there, once."""
    with open_feeds(own_server.url(own_server.create_database()), orders=2) as store:
        for round_of in range(3):
            batches: list[int] = []
            writer = threading.Thread(target=_write_until_it_fails, args=(store, batches))
            writer.start()
            eventually(lambda batches=batches, few=5 * round_of: len(batches) >= few + 5)
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
