"""What is packed takes little room in PostgreSQL, and gives that of its rows back by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests import postgresql
from tests.patience import eventually
from tests.store_contract.packs import EVER
from tests.store_contract.writers import FEED, chunk, publish
from zeh_spark.publisher import Store, open_store

_TABLES = (
    "c.relname IN ('recent_chunks', 'blobs') AND c.relnamespace = 'zeroeventhub'::regnamespace"
)
_PARTITIONS = 1024


@pytest.fixture
def server() -> Iterator[postgresql.Server]:
    """One that cleans up by itself, as servers do but those of other tests."""
    postgresql.needed()
    server = postgresql.Server("autovacuum=on", "autovacuum_naptime=1s")
    yield server
    server.remove()


def publish_one_by_one(store: Store, times: int) -> None:
    """Publish events in chunks of their own: so many times one in each partition."""
    for _ in range(times):
        publish(store, *(chunk(each, b"1") for each in range(_PARTITIONS)))


@pytest.mark.slow
def test_tables_do_not_grow_with_what_is_packed(server: postgresql.Server) -> None:
    """20,000 chunks of one event, packed, and as many again: the second ones take the room of the
    first, nobody has to run VACUUM, and the packs take a tenth of it.
    """
    database = server.create_database()

    def numbers(what: str) -> tuple[int, ...]:
        tables = f"pg_class c JOIN pg_stat_user_tables t ON t.relid = c.oid WHERE {_TABLES}"
        return tuple(
            int(each) for each in server.execute(f"SELECT {what} FROM {tables}", database)[0]
        )

    with closing(open_store(server.url(database), receipts=3)) as store:
        store.create(FEED, _PARTITIONS)
        sizes = []
        for _ in range(2):
            publish_one_by_one(store, 20)
            sizes += numbers("sum(pg_total_relation_size(c.oid))")
            while store.seal(FEED, EVER):
                pass
            eventually(lambda: numbers("max(n_dead_tup)") < (1000,))
        packs = "SELECT pg_total_relation_size('zeroeventhub.packs')"
        ((packed,),) = server.execute(packs, database)
    assert sizes[1] < 1.2 * sizes[0]
    assert packed < 0.1 * 2 * sizes[0]
    changed = "bool_and(reloptions::text LIKE '%autovacuum_vacuum_scale_factor=0.02%')::int"
    assert (1,) == numbers(changed)
