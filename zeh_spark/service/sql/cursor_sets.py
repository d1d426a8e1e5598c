"""Cursor sets in a SQL database (see `store.cursor_sets`).

Rule for editors: the row of the name is there, and locked, before a cursor is written. So two
consumers that begin under one name at the same time cannot both be the first. Runs in the publisher
and in commands that write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from zeh_spark.service.sql import makers
from zeh_spark.service.sql.producers import find_feed
from zeh_spark.service.sql.schema import cursor_set_names as names
from zeh_spark.service.sql.schema import cursor_sets
from zeh_spark.service.sql.transactions import Transactions
from zeh_spark.service.store.acts import Action, Actor
from zeh_spark.service.store.cursor_sets import (
    NOBODY,
    CursorSet,
    check_consumer,
    check_made,
    check_n,
    freed_by,
)
from zeh_spark.service.store.token_rights import Maker


class SqlCursorSets(Transactions):
    """The cursor sets of feeds in a SQL database (see `CursorSets`)."""

    def save_cursors(
        self,
        feed: str,
        name: str,
        n: int,
        cursors: Mapping[int, str],
        consumer: str = NOBODY,
        maker: Maker | None = None,
    ) -> None:
        freed = freed_by(feed, name)

        def work(connection: Connection, feed_id: int) -> None:
            bound = _bound(connection, feed_id, name, lock=True)
            check_consumer(name, bound, consumer, freed)
            mine = cursor_sets.c.feed == feed_id, cursor_sets.c.name == name
            kept = connection.scalars(select(cursor_sets.c.n).where(*mine).distinct()).all()
            check_n(name, n, kept, consumer, freed)
            if set(kept) - {n}:
                connection.execute(delete(cursor_sets).where(*mine, cursor_sets.c.n != n))
            if bound is None:
                if maker:
                    made = makers.count(connection, maker, makers.CURSOR_SET, feed_id, name)
                    check_made(name, made, maker.most)
                makers.add(connection, maker, makers.CURSOR_SET, feed_id, name)
                row = {"feed": feed_id, "name": name, "consumer": consumer}
                connection.execute(insert(names), row)
            elif bound != consumer:
                here = names.c.feed == feed_id, names.c.name == name
                connection.execute(update(names).where(*here).values(consumer=consumer))
            _write(connection, {"feed": feed_id, "name": name, "n": n}, cursors)

        try:
            self._write_to(feed, work)
        except IntegrityError:  # another transaction was the first under this name
            self._write_to(feed, work)

    def load_cursors(self, feed: str, name: str, n: int, consumer: str = NOBODY) -> dict[int, str]:
        with self._reading_of(feed) as (connection, feed_id):
            # The binding is read before and after the cursors. So they are no other consumer's,
            # also if the name is freed or taken between the statements.
            freed = freed_by(feed, name)
            check_consumer(name, _bound(connection, feed_id, name), consumer, freed)
            query = select(cursor_sets.c.partition, cursor_sets.c.cursor).where(
                cursor_sets.c.feed == feed_id, cursor_sets.c.name == name, cursor_sets.c.n == n
            )
            found = {row.partition: row.cursor for row in connection.execute(query)}
            check_consumer(name, _bound(connection, feed_id, name), consumer, freed)
            return found

    def saved_cursors(self, feed: str, name: str) -> dict[int, dict[int, str]]:
        with self._reading_of(feed) as (connection, feed_id):
            found = _every(connection, feed_id, name)
        return {n: dict(cursors) for each in found for n, cursors in each.cursors.items()}

    def cursor_sets(self, feed: str, name: str | None = None) -> list[CursorSet]:
        with self._reading_of(feed) as (connection, feed_id):
            return _every(connection, feed_id, name)

    def delete_cursor_set(self, feed: str, name: str, *, by: Actor | None = None) -> bool:
        def work(connection: Connection) -> tuple[bool, dict[str, Any] | None]:
            feed_id, _ = find_feed(connection, feed)
            _bound(connection, feed_id, name, lock=True)
            makers.forget(connection, makers.CURSOR_SET, feed_id, [name])
            mine = cursor_sets.c.feed == feed_id, cursor_sets.c.name == name
            found = bool(connection.execute(delete(cursor_sets).where(*mine)).rowcount)
            here = names.c.feed == feed_id, names.c.name == name
            connection.execute(delete(names).where(*here))
            return found, {} if found else None

        return self._administer(by, Action.DELETE_CURSOR_SET, work, feed=feed, subject=name)


def _write(
    connection: Connection, under: Mapping[str, str | int], cursors: Mapping[int, str]
) -> None:
    """Write the cursors that are not kept already, in two statements at most."""
    here = [cursor_sets.c[column] == value for column, value in under.items()]
    query = select(cursor_sets.c.partition, cursor_sets.c.cursor).where(*here)
    kept = {row.partition: row.cursor for row in connection.execute(query)}
    moved = [
        {"of": partition, "to": cursor}
        for partition, cursor in cursors.items()
        if partition in kept and kept[partition] != cursor
    ]
    new = [
        {**under, "partition": partition, "cursor": cursor}
        for partition, cursor in cursors.items()
        if partition not in kept
    ]
    if moved:
        of = cursor_sets.c.partition == bindparam("of")
        connection.execute(
            update(cursor_sets).where(*here, of).values(cursor=bindparam("to")), moved
        )
    if new:
        connection.execute(insert(cursor_sets), new)


def _every(connection: Connection, feed: int, name: str | None = None) -> list[CursorSet]:
    """Return what is kept, by name; or what is kept under one name."""
    query = (
        select(cursor_sets, names.c.consumer)
        .outerjoin_from(
            cursor_sets,
            names,
            (names.c.feed == cursor_sets.c.feed) & (names.c.name == cursor_sets.c.name),
        )
        .where(cursor_sets.c.feed == feed)
    )
    if name is not None:
        query = query.where(cursor_sets.c.name == name)
    found: dict[str, tuple[str, dict[int, dict[int, str]]]] = {}
    for row in connection.execute(query):
        _, by_n = found.setdefault(row.name, (row.consumer or NOBODY, {}))
        by_n.setdefault(row.n, {})[row.partition] = row.cursor
    return [CursorSet(each, *found[each]) for each in sorted(found)]


def _bound(connection: Connection, feed: int, name: str, *, lock: bool = False) -> str | None:
    """Return to whom a name is bound; None if the name has no row."""
    query = select(names.c.consumer).where(names.c.feed == feed, names.c.name == name)
    bound: str | None = connection.scalar(query.with_for_update() if lock else query)
    return bound
