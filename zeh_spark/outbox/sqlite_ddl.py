"""Whether a table in SQLite can be a feed, and the statements that bring what it lacks."""

from __future__ import annotations

import re

from sqlalchemy import Connection

from zeh_spark.errors import StoreError
from zeh_spark.outbox.postgresql_check import gone_history, mended
from zeh_spark.outbox.postgresql_ddl import DELETES
from zeh_spark.outbox.queries import HISTORY, REMOVED, Fault, More, literal, quoted
from zeh_spark.outbox.table import OutboxTable

NEW_FEED_ID = "lower(hex(randomblob(8)))"

_HIDDEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|\[[^\]]*\]", re.DOTALL
)
"""Comments, text and quoted names."""


def column_types(connection: Connection, table: OutboxTable) -> dict[str, str]:
    """As they were declared, in capitals."""
    return {row[1]: row[2].upper() for row in _columns(connection, table)}


def sqlite_faults(connection: Connection, table: OutboxTable) -> list[Fault]:
    """Why a table cannot be a feed; empty if it can."""
    statement = statement_of(connection, table, "table")
    is_view = not statement and statement_of(connection, table, "view")
    if not statement and not is_view:
        made = (create_table(table), *create_history(connection, table))
        return [Fault(f"there is no table {table.name}", made)]
    types = column_types(connection, table)
    faults = [
        Fault(f"there is no column {each}; there are {', '.join(types)}")
        for each in table.used
        if each not in types
    ]
    if statement and table.id in types and not _gives_ids_once(connection, table, statement):
        reason = (
            f"{table.id} is not INTEGER PRIMARY KEY AUTOINCREMENT: SQLite would give the ids of "
            f"deleted rows again, and readers would miss rows"
        )
        faults.append(Fault(reason, _rebuilt(connection, table, statement)))
    if not _has_history(connection, table):
        made = create_history(connection, table)
        faults.append(Fault(f"{table.name} has no history of its own", made))
    return faults


def sqlite_ddl(connection: Connection, table: OutboxTable, more: More) -> list[str]:
    """Raises StoreError."""
    if (more.updates or more.retention) and statement_of(connection, table, "view"):
        raise StoreError(f"{table.name} is a view; give the option for its table")
    if more.updates:
        raise StoreError("rows of a table in SQLite cannot be moved by updates; insert new ones")
    if more.grant_to:
        raise StoreError("SQLite has no roles: who may read the file may serve it")
    found = mended(table, sqlite_faults(connection, table))
    if _has_history(connection, table) and feed_id(connection, table) is None:
        found += [each for each in create_feed_id(connection, table) if each not in found]
    return found + list(_retention(table)) * (
        more.retention and not notes_removed(connection, table)
    )


def notes_removed(connection: Connection, table: OutboxTable) -> bool:
    """Whether a trigger notes what is deleted, by the partitions that there are."""
    found = connection.exec_driver_sql(
        f"SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND name = {literal(_trigger(table))}"
    )
    return found.first() is not None


def create_table(table: OutboxTable) -> str:
    types = {table.id: "INTEGER PRIMARY KEY AUTOINCREMENT"}
    for name in table.used:
        kind = "INTEGER NOT NULL" if name == table.partition else "TEXT"
        types.setdefault(name, "JSON NOT NULL" if name == table.data else kind)
    columns = (f"    {quoted(name)} {kind}" for name, kind in types.items())
    return f"CREATE TABLE IF NOT EXISTS {quoted(table.bare_name)} (\n" + ",\n".join(columns) + ");"


def create_history(connection: Connection, table: OutboxTable) -> tuple[str, ...]:
    return (
        f"CREATE TABLE IF NOT EXISTS {HISTORY}"
        f" (table_name TEXT PRIMARY KEY, history TEXT NOT NULL, feed_id TEXT);",
        *_feed_id_column(connection),
        f"INSERT OR IGNORE INTO {HISTORY} (table_name, history, feed_id)\n"
        f"    VALUES ({literal(table.bare_name)}, lower(hex(randomblob(4))), {NEW_FEED_ID});",
    )


def create_feed_id(connection: Connection, table: OutboxTable) -> tuple[str, ...]:
    """The feed gets an id, unless it has one."""
    return (
        *_feed_id_column(connection),
        f"UPDATE {HISTORY} SET feed_id = {NEW_FEED_ID}"
        f" WHERE table_name = {literal(table.bare_name)} AND feed_id IS NULL;",
    )


def lacks_feed_ids(connection: Connection) -> bool:
    """Whether the table of histories is there, without the column feed_id."""
    found = connection.exec_driver_sql(f"PRAGMA table_info({HISTORY})").all()
    return bool(found) and "feed_id" not in {row[1] for row in found}


def feed_id(connection: Connection, table: OutboxTable) -> str | None:
    """Raises StoreError if the feed's history is gone."""
    if lacks_feed_ids(connection):
        return None
    mine = f"SELECT feed_id FROM {HISTORY} WHERE table_name = {literal(table.bare_name)}"
    found = connection.exec_driver_sql(mine).first()
    if found is None:
        raise gone_history(table, create_history(connection, table))
    return found[0]  # type: ignore[no-any-return]


def _feed_id_column(connection: Connection) -> tuple[str, ...]:
    """SQLite cannot add a column IF NOT EXISTS, so this statement cannot be run again."""
    add = f"ALTER TABLE {HISTORY} ADD COLUMN feed_id TEXT;"
    return (add,) if lacks_feed_ids(connection) else ()


def statement_of(connection: Connection, table: OutboxTable, kind: str) -> str | None:
    """The one that made the table, or view."""
    found = connection.exec_driver_sql(
        f"SELECT sql FROM sqlite_master WHERE name = {literal(table.bare_name)} AND type = '{kind}'"
    ).scalar()
    return str(found) if found else None


def _retention(table: OutboxTable) -> tuple[str, ...]:
    """Partitions that only we can compute are noted together."""
    partition = f"OLD.{quoted(table.partition)}" if table.partition else "-1"
    return (
        f"CREATE TABLE IF NOT EXISTS {REMOVED} (table_name TEXT, partition INTEGER,\n"
        f"    id INTEGER NOT NULL, removals INTEGER NOT NULL,\n"
        f"    PRIMARY KEY (table_name, partition));",
        f"CREATE TRIGGER IF NOT EXISTS {quoted(_trigger(table))}"
        f" AFTER DELETE ON {quoted(table.bare_name)} BEGIN\n"
        f"    INSERT INTO {REMOVED} VALUES ({literal(table.bare_name)}, {partition},"
        f" OLD.{quoted(table.id)}, 1 + abs(random() % 1000000000000000))\n"
        f"    ON CONFLICT DO UPDATE SET id = max(id, excluded.id), removals = excluded.removals;\n"
        f"END;",
    )


def _trigger(table: OutboxTable) -> str:
    return f"{DELETES}_{table.bare_name}_{table.partition or ''}"


def _gives_ids_once(connection: Connection, table: OutboxTable, statement: str) -> bool:
    """[SQLite allows the word for an INTEGER PRIMARY KEY alone.]"""
    keys = [row[1] for row in _columns(connection, table) if row[5]]
    return keys == [table.id] and bool(re.search(r"\bAUTOINCREMENT\b", _bare(statement), re.I))


def _rebuilt(connection: Connection, table: OutboxTable, statement: str) -> tuple[str, ...]:
    """The table anew, with AUTOINCREMENT; empty where we cannot say how."""
    keys = [(row[1], row[2].upper()) for row in _columns(connection, table) if row[5]]
    bare, name = _bare(statement), table.bare_name
    key = re.search(r"\bPRIMARY\s+KEY\b(\s+(ASC|DESC)\b)?(\s+ON\s+CONFLICT\s+\w+)?", bare, re.I)
    if keys != [(table.id, "INTEGER")] or not key or bare[key.end() :].lstrip().startswith("("):
        return ()
    if re.search(r"\bWITHOUT\s+ROWID\b", bare, re.I) or "DESC" in key[0].upper():
        return ()
    changed = f"{statement[: key.end()]} AUTOINCREMENT{statement[key.end() :]}"
    body, new = changed[bare.index("(") :], f"{name}_new"
    given = (
        f"(SELECT max(seq) FROM sqlite_sequence WHERE name IN ({literal(name)}, {literal(new)}))"
    )
    columns = ", ".join(
        quoted(row[1])
        for row in _columns(connection, table)
        if row[6] == 0  # not generated
    )
    beside = connection.exec_driver_sql(
        f"SELECT sql FROM sqlite_master WHERE tbl_name = {literal(name)} AND sql IS NOT NULL"
        " AND type IN ('index', 'trigger')"
    ).scalars()
    again = "".join(f"{each};\n" for each in beside)
    return (
        f"BEGIN IMMEDIATE;\nCREATE TABLE {quoted(new)} {body}\n;\n"
        f"INSERT INTO {quoted(new)} ({columns}) SELECT {columns} FROM {quoted(name)};\n"
        f"INSERT INTO sqlite_sequence SELECT {literal(new)}, coalesce({given}, 0);\n"
        f"DELETE FROM sqlite_sequence WHERE name = {literal(new)} AND rowid <\n"
        f"    (SELECT max(rowid) FROM sqlite_sequence WHERE name = {literal(new)});\n"
        f"DROP TABLE {quoted(name)};\nALTER TABLE {quoted(new)} RENAME TO {quoted(name)};\n"
        f"{again}COMMIT;",
    )


def _bare(statement: str) -> str:
    """With blanks for what is no SQL; of the same length."""
    return _HIDDEN.sub(lambda hidden: " " * len(hidden[0]), statement)


def _columns(
    connection: Connection, table: OutboxTable
) -> list[tuple[object, str, str, int, object, int, int]]:
    """cid, name, type, notnull, default, pk, hidden."""
    found = connection.exec_driver_sql(f"PRAGMA table_xinfo({quoted(table.bare_name)})")
    return [tuple(row) for row in found]


def _has_history(connection: Connection, table: OutboxTable) -> bool:
    there = f"SELECT 1 FROM sqlite_master WHERE name = {literal(HISTORY)}"
    mine = f"SELECT 1 FROM {HISTORY} WHERE table_name = {literal(table.bare_name)}"
    return all(connection.exec_driver_sql(each).first() for each in (there, mine))
