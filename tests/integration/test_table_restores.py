"""Tables restored from a copy, with rows deleted or changed, and the cursors of their readers."""

from __future__ import annotations

import json
import shutil

import pytest

from tests import postgresql
from tests.fix_shop import Shop, opened_shop
from zeh_spark.publisher import Problem, SqlTableFeed


def events(feed: SqlTableFeed, cursor: str = "_first") -> tuple[list[int], str]:
    """The ids of all events behind a cursor, read as one partition, and the last cursor."""
    found: list[int] = []
    while True:
        blocks = list(feed.page({0: cursor}, 1, None))
        cursor = blocks[-1].cursor
        lines = [line for block in blocks for line in block.lines.splitlines()]
        if not lines:
            return found, cursor
        found += [json.loads(line)["data"]["id"] for line in lines]


def refusal(feed: SqlTableFeed, cursor: str = "_first") -> tuple[str, int, str]:
    with pytest.raises(Problem) as raised:
        list(feed.page({0: cursor}, 1, None))
    return raised.value.name, raised.value.status, raised.value.detail


def restored(shop: Shop, server: postgresql.Server) -> Shop:
    """The database of a shop in another server, by pg_dump and pg_restore."""
    dump = str(shop.server.directory / "dump")
    shop.server.run("pg_dump", "-Fc", "-f", dump, shop.database)
    name = server.create_database()
    server.run("pg_restore", "-d", name, dump)
    return Shop(server, name)


def spend(server: postgresql.Server, transactions: int) -> None:
    """Bring a cluster's transactions further."""
    server.execute(
        f"DO $$ BEGIN FOR i IN 1..{transactions} LOOP PERFORM pg_current_xact_id(); COMMIT;"
        f" END LOOP; END $$"
    )


def test_table_of_another_cluster_is_refused(own_server: postgresql.Server) -> None:
    """Restored into a younger cluster, my rows seem to be of the future: new ones would stand
    before them, unseen. Restored into an older one, rows that were written while nobody looked
    would hide that the transactions are others'. I am told, and one command puts it right.
    """
    with opened_shop(postgresql.shared()) as shop:
        spend(shop.server, 5000)
        shop.sell(1, 2, 3)
        _, cursor = events(shop.feed())
        younger = restored(shop, own_server)
        assert ("restored-table", 503) == refusal(younger.feed())[:2]
        spend(own_server, 20_000)
        older = restored(shop, own_server)
    older.sell(4)
    name, _, detail = refusal(older.feed())
    assert ("restored-table", True) == (name, "zeh-spark new-history" in detail)
    for copy in (younger, older):
        copy.feed().new_history()
        copy.sell(5)
        ids = [1, 2, 3, 4, 5] if copy is older else [1, 2, 3, 4]
        assert ids == events(copy.feed())[0]
        assert "cursor-of-another-history" == refusal(copy.feed(), cursor)[0]
        copy.engine.dispose()


def test_reader_of_what_a_restore_undid_is_told(own_server: postgresql.Server) -> None:
    """Other rows got the same numbers, of other transactions: I am not sent on over them."""
    with opened_shop(own_server) as shop:
        shop.sell(1, 2)
        _, early = events(shop.feed())
        own_server.stop()
        shutil.copytree(own_server.data, own_server.directory / "copy")
        own_server.start()
        shop.sell(3, 4)
        _, late = events(shop.feed())
        own_server.stop()
        shutil.rmtree(own_server.data)
        (own_server.directory / "copy").rename(own_server.data)
        for path in [own_server.data, *own_server.data.rglob("*")]:
            own_server.own(path)
        own_server.start()
        behind = refusal(shop.feed(), late)[2]
        shop.sell(5, 6, 7)
        again = refusal(shop.feed(), late)[2]
        unharmed = events(shop.feed(), early)[0]
    assert "has never come that far" in behind
    assert "it belongs to another feed, or to a history that a restore" in again
    assert 3 == len(unharmed)


def test_reader_of_rows_that_a_dump_undid_is_told(shop: Shop) -> None:
    """After a restore in its own cluster, only readers of rows that are gone get an error."""
    shop.sell(1, 2)
    _, early = events(shop.feed())
    shop.execute("CREATE TABLE copy AS SELECT * FROM outbox")
    shop.sell(3)
    _, late = events(shop.feed())
    shop.execute("TRUNCATE outbox")
    shop.execute("INSERT INTO outbox SELECT * FROM copy")
    shop.sell(4)
    assert ("cursor-of-another-history", 409) == refusal(shop.feed(), late)[:2]
    assert [4] == events(shop.feed(), early)[0]


def test_row_that_is_gone_before_older_ones_is_asked_about(shop: Shop) -> None:
    """A restore may have undone it. Who deletes rows in any order says so with an option.
    Once all older rows are deleted, too, a reader behind them continues.
    """
    shop.sell(1, 2)
    _, cursor = events(shop.feed())
    shop.execute("DELETE FROM outbox WHERE id = 2")
    name, _, detail = refusal(shop.feed(), cursor)
    assert ("cursor-of-another-history", True) == (name, "strict_cursors" in detail)
    assert [] == events(shop.feed(strict_cursors=False), cursor)[0]
    shop.execute("DELETE FROM outbox")
    assert ([], cursor) == events(shop.feed(), cursor)
    shop.sell(4)
    assert [3] == events(shop.feed(), cursor)[0]


def test_row_that_is_another_one_by_now_is_noticed(shop: Shop) -> None:
    """A restore may be behind it, and I am told; not where my feed got one more column."""
    shop.sell(1)
    _, cursor = events(shop.feed(data=["id", "key"]))
    assert [] == events(shop.feed(data=["id", "key", "version"]), cursor)[0]
    shop.execute("UPDATE outbox SET key = 9")
    assert "row 1 is another one now" in refusal(shop.feed(data=["id", "key"]), cursor)[2]


def test_new_history_of_a_table_with_updates(shop: Shop) -> None:
    """The trigger that moves updated rows does not get in its way."""
    for statement in shop.feed().ddl(updates=True):
        shop.execute(statement)
    shop.sell(1, 2)
    _, cursor = events(shop.feed())
    shop.execute("UPDATE outbox SET version = 5 WHERE id = 1")
    shop.feed().new_history()
    shop.execute("UPDATE outbox SET version = 6 WHERE id = 1")
    assert ([2, 1], "cursor-of-another-history") == (
        events(shop.feed())[0],
        refusal(shop.feed(), cursor)[0],
    )
