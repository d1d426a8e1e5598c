"""What writers, readers and owners of a table do that few expect."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
import requests

from tests.fix_shop import Shop
from tests.fix_table import COLUMNS, Database, SqliteDatabase, insert, prepared, read, refusal
from tests.integration.test_table_restores import events
from tests.patience import PATIENCE, eventually
from zeh_spark.publisher import Problem, SqlTableFeed
from zeh_spark.service.outbox import pages as outbox_feed
from zeh_spark.service.outbox.queries import READ_BYTES
from zeh_spark.testing import running_publisher

KEYED = {"partition_by": "k", "partitions": 4}
LARGE = f"""'"{"x" * 60_000}"'"""


def test_statement_that_waits_and_writes_has_the_later_place(shop: Shop) -> None:
    """Lock and event in one statement: its snapshot is older than the lock that it waited for."""
    changed = (
        "WITH o AS (UPDATE orders SET version = version + 1 WHERE key = 1 RETURNING key, version)"
        " INSERT INTO outbox (key, version) SELECT key, version FROM o"
    )
    with shop.connect() as early, shop.connect() as late:
        early.execute("SELECT pg_current_xact_id()")  # the lower number
        late.execute(changed)
        waiting = threading.Thread(target=early.execute, args=[changed])
        waiting.start()
        process = early.info.backend_pid
        waits = f"SELECT wait_event_type FROM pg_stat_activity WHERE pid = {process}"
        eventually(lambda: shop.execute(waits) == [("Lock",)])
        late.commit()
        waiting.join()
        early.commit()
    assert [1, 2] == [each["version"] for each in read(shop.feed(), n=1).data]


def test_page_ends_where_the_server_was_started_anew(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have undone what I have read: the next page looks first. While down, it says when."""
    monkeypatch.setattr(outbox_feed, "READ_ROWS", 2)
    shop.sell(1, 2, 3, 4)
    feed = shop.feed()
    page = feed.page({0: "_first"}, 1, None)
    before = next(page)
    with running_publisher({"orders": shop.feed()}) as base:
        shop.server.stop()
        down = requests.get(f"{base}/orders?n=1&cursor0=_first", timeout=PATIENCE)
        shop.server.start()
    assert [] == list(page)
    assert [3, 4] == events(feed, before.cursor)[0]
    assert (503, "1") == (down.status_code, down.headers["Retry-After"])
    assert "urn:zeroeventhub:problem:store-busy" == down.json()["type"]


def test_other_partitions_are_another_history(database: Database) -> None:
    """A key's rows are elsewhere then, where a reader may be further on."""
    prepared(database)
    four, eight = (database.feed(partition_by="k", partitions=number) for number in (4, 8))
    database.run(four.ddl())
    database.run(eight.ddl())
    with pytest.raises(Problem, match="it belongs to another feed"):
        read(eight, {0: read(four).cursors[0]})


@pytest.mark.parametrize("partition", ["NULL", "-1", "2"])
def test_row_of_no_partition_stops_the_feed(database: Database, partition: str) -> None:
    """No reader would ever get it."""
    prepared(database)
    feed = database.feed(partition="p", partitions=2)
    database.run(feed.ddl())
    database.execute(f"INSERT INTO outbox (id, p, data) VALUES (7, {partition}, '7')")
    with pytest.raises(Problem, match="with id 7 is in no partition of the feed"):
        read(feed)


def test_materialized_view_is_refused(postgresql_database: Database) -> None:
    """It gets rows when it is refreshed, which may be before others that were committed earlier."""
    prepared(postgresql_database, "CREATE MATERIALIZED VIEW orders AS SELECT * FROM outbox")
    said = refusal(postgresql_database.feed(table="orders"))
    assert "orders is neither a table nor a view" in said


def test_rows_that_a_policy_hides_are_not_left_out(
    postgresql_database: Database, clerk: str
) -> None:
    """Row level security would give me fewer rows, and no word."""
    hidden = "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY"
    policy = "CREATE POLICY mine ON outbox USING (id > 1)"
    prepared(postgresql_database, hidden, policy, grant_to=clerk)
    assert "row level security hides rows" in refusal(postgresql_database.feed(role=clerk))


def test_truncate_that_cannot_be_noted_is_refused(postgresql_database: Database) -> None:
    """A transaction with an old snapshot does not see all that it removes."""
    prepared(postgresql_database, retention=True)
    with closing(postgresql_database.connect()) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.errors.RaiseException, match="READ COMMITTED transactions only"):
            connection.execute("TRUNCATE outbox")


def test_removals_of_another_history_do_not_excuse_a_cursor(
    sqlite_database: SqliteDatabase,
) -> None:
    """Each history had one deletion; the rows are others."""
    feed = prepared(sqlite_database, retention=True)
    copy = sqlite_database.copied()
    for key in (4, 5, 6):
        insert(sqlite_database, key)
    sqlite_database.execute("DELETE FROM outbox WHERE id = 1")
    cursor = read(feed).cursors[0]
    sqlite_database.put_back(copy)
    sqlite_database.execute(
        "INSERT INTO outbox (id, data) VALUES (4, '40'), (5, '50'), (6, '60'), (7, '70')"
    )
    sqlite_database.execute("DELETE FROM outbox WHERE id = 7")
    with pytest.raises(Problem) as raised:
        read(sqlite_database.feed(), cursor)
    assert raised.value.status in {409, 410}


def test_trigger_that_is_made_while_readers_read_counts_at_once(database: Database) -> None:
    """I run ddl --retention, and then delete; the publisher runs on."""
    feed = prepared(database)
    cursor = read(feed, hint=1).cursors[0]
    database.run(database.feed().ddl(retention=True))
    assert [2, 3] == read(feed, cursor).data
    database.execute("DELETE FROM outbox WHERE id = 2")
    with pytest.raises(Problem, match="events after it were removed"):
        read(feed, cursor)


def test_deletions_of_what_was_read_disturb_nobody(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader further on gets its whole page while old rows go."""
    monkeypatch.setattr(outbox_feed, "READ_ROWS", 1)
    feed = prepared(database, retention=True)
    page = feed.page({0: read(feed, hint=1).cursors[0]}, 1, None)
    before = next(page).lines
    database.execute("DELETE FROM outbox WHERE id = 1")
    assert [2, 3] == [json.loads(each)["data"] for each in [before, *(b.lines for b in page)]]


def test_large_rows_come_a_few_at_a_time(database: Database) -> None:
    """Whatever the sizes, a publisher holds about a MiB for each reader."""
    feed = database.served("data json")
    for _ in range(60):
        database.execute(f"INSERT INTO outbox (data) VALUES ({LARGE})")
    blocks = [len(block.lines) for block in feed.page({0: "_first"}, 1, None)]
    assert sum(blocks) > 60 * 60_000
    assert max(blocks) < READ_BYTES + 2 * 65_536


def test_cursors_behind_large_rows_are_all_known(database: Database) -> None:
    """One request for 64 partitions, each behind a row of 60 KB."""
    feed = database.served("data json, p integer", partition="p", partitions=64)
    for each in range(64):
        database.execute(f"INSERT INTO outbox (data, p) VALUES ({LARGE}, {each}), ('1', {each})")
    cursors = {each: read(feed, {each: "_first"}, hint=1).cursors[each] for each in range(64)}
    assert [1] * 64 == read(feed, cursors).data


def test_reader_of_more_partitions_than_there_are(database: Database) -> None:
    """The others are empty, with any cursor, and cost nothing."""
    prepared(database)
    feed = database.feed(**KEYED)
    database.run(feed.ddl())
    first = read(feed, n=2000)
    again = read(feed, first.cursors, n=2000)
    assert ([1, 2, 3], []) == (sorted(first.data), again.data)
    some = first.cursors[next(p for p in range(4) if "begin" not in first.cursors[p])]
    assert [] == read(feed, {1000: some.replace(".", ".9", 1)}, n=2000).data


def test_slow_table_keeps_no_reader_of_another_one(shop: Shop) -> None:
    """Somebody holds a lock on one table; the feeds of others go on."""
    shop.execute(f"CREATE TABLE other (id bigint PRIMARY KEY, {COLUMNS})")
    other = SqlTableFeed(shop.engine, table="other", data="data")
    for statement in other.ddl():
        shop.execute(statement)
    with (
        running_publisher({"orders": shop.feed(), "other": other}) as base,
        ThreadPoolExecutor(10) as pool,
    ):
        assert requests.get(f"{base}/other?n=1&cursor0=_first", timeout=30).ok
        with shop.connect() as owner:
            owner.execute("LOCK TABLE outbox")
            for _ in range(10):
                pool.submit(requests.get, f"{base}/orders?n=1&cursor0=_first", timeout=60)
            assert requests.get(f"{base}/other?n=1&cursor0=_first", timeout=PATIENCE).ok
