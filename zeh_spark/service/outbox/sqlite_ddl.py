"""Check whether a table in SQLite can be a feed, and print what it lacks as statements. Pure.

Rule for editors: the statements can be pasted into the shell `sqlite3`. They can be pasted again,
apart from the one that adds a column, because SQLite has no ADD COLUMN IF NOT EXISTS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import xxhash

from zeh_spark.errors import StoreError
from zeh_spark.service.outbox import sqlite_values
from zeh_spark.service.outbox.postgresql_ddl import DELETES
from zeh_spark.service.outbox.rows import room_for_values
from zeh_spark.service.outbox.table import HISTORY, REMOVED, OutboxTable, literal, quoted
from zeh_spark.service.outbox.table_facts import Fault, More, TableFacts

NEW_FEED_ID = "lower(hex(randomblob(8)))"
"""SQL for a new feed id: 16 hexadecimal digits."""

_HIDDEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|\[[^\]]*\]", re.DOTALL
)
"""The parts of a statement that are comments, text or quoted names."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        type: Its type as it was declared, in capitals.
    """

    type: str
    is_key: bool
    is_generated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteFacts(TableFacts):
    """What was found when a table was inspected. Ids are integers, and no trigger wakes readers.

    Args:
        statement: The statement that created the table; None if there is no such table.
        beside: The statements that created its indexes and triggers, by their names.
    """

    columns: Mapping[str, Column]
    statement: str | None
    beside: Mapping[str, str]

    def ddl(self, more: More) -> list[str]:
        if more.updates and not self.is_view:
            why = "rows of a table in SQLite cannot be moved by updates. Insert new rows."
            raise StoreError(why)
        if more.notify:
            why = "SQLite wakes no readers: they see new rows within 0.1 seconds anyway"
            raise StoreError(f"{why}. Leave --notify out.")
        if more.grant_to:
            why = "SQLite has no roles: everybody who may read the file may serve it"
            raise StoreError(f"{why}. Leave the role out.")
        return TableFacts.ddl(self, more)  # no `super()` with slots

    def history(self) -> tuple[str, ...]:
        return (
            f"CREATE TABLE IF NOT EXISTS {HISTORY}"
            f" (table_name TEXT PRIMARY KEY, history TEXT NOT NULL, feed_id TEXT NOT NULL);",
            f"INSERT OR IGNORE INTO {HISTORY} (table_name, history, feed_id)\n"
            f"    VALUES ({literal(self.table.bare_name)}, lower(hex(randomblob(4))),"
            f" {NEW_FEED_ID});",
        )

    def _creation(self) -> Iterator[str]:
        yield create_table(self.table)
        if self.table.time:
            yield _time_index(self.table)

    def _own_faults(self) -> Iterator[Fault]:
        table = self.table
        if self.statement and table.id in self.columns and not self._gives_ids_once():
            reason = (
                f"{table.id} is not INTEGER PRIMARY KEY AUTOINCREMENT: SQLite would give the ids "
                f"of deleted rows again, and readers would miss rows"
            )
            yield Fault(reason, self._rebuilt())
        time = self.columns.get(table.time or "")
        if time and re.search("INT|REAL|NUM|FLOA|DOUB", time.type):
            yield Fault(f"{table.time} is of type {time.type}; it must be TEXT")
        indexed = _time_index_name(table) in self.beside
        if self.statement and time and not indexed:
            reason = f"there is no index on {table.time}, by which readers start"
            yield Fault(reason, (_time_index(table),))

    def _checks(self) -> Iterator[tuple[str, str]]:
        """Yield name and statement of each trigger that refuses what cannot be an event.

        SQLite adds no constraint to a table.
        """
        table = self.table
        types = {name: each.type for name, each in self.columns.items()}
        types = types or dict.fromkeys(table.used, "TEXT")
        sizes = [_json_size(f"NEW.{quoted(each)}") for each in table.headers]
        data = f"NEW.{quoted(table.columns[0])}"
        refusals = [] if table.is_object else [(f"{data} IS NULL", "is NULL")]
        if table.is_object:
            sizes += [
                (_size if "JSON" in types[each] else _json_size)(f"NEW.{quoted(each)}")
                for each in table.columns
            ]
        elif sqlite_values.is_json(types[table.columns[0]]):
            sizes.append(_size(data))
            kind = f"CASE json_valid({data}) WHEN 1 THEN json_type({data}) ELSE 'null' END"
            refusals.append(
                (f"typeof({data}) = 'text' AND {kind} = 'null'", "is not JSON, or null")
            )
        else:
            sizes.append(_json_size(data))
        room = room_for_values(table)
        refusals.append((f"{' + '.join(sizes)} > {room}", f"has more than {room} bytes"))
        cases = " ".join(
            f"\n    WHEN {wrong} THEN RAISE(ABORT, {literal(f'{table.name}: an event {why}')})"
            for wrong, why in refusals
        )
        digest = xxhash.xxh3_64_hexdigest(cases.encode())[:8]
        for event in ("INSERT", "UPDATE"):
            name = f"{table.bare_name}_zeroeventhub_{event.lower()}_{digest}"
            yield (
                name,
                f"{self._check_dropped(name)}\n"
                f"CREATE TRIGGER {quoted(name)} BEFORE {event} ON {quoted(table.bare_name)} BEGIN\n"
                f"    SELECT CASE{cases} END;\nEND;",
            )

    def _check_dropped(self, name: str) -> str:
        return f"DROP TRIGGER IF EXISTS {quoted(name)};"

    def _retention(self) -> tuple[str, ...]:
        """Return the statements for a trigger that notes what is deleted.

        Only our own functions can compute the partition of a key, so deletions of all such
        partitions are noted together, as partition -1.
        """
        table = self.table
        partition = f"OLD.{quoted(table.partition)}" if table.partition else "-1"
        name = quoted(retention_trigger(table))
        return (
            f"CREATE TABLE IF NOT EXISTS {REMOVED} (table_name TEXT, partition INTEGER,\n"
            f"    id INTEGER NOT NULL, removals INTEGER NOT NULL,\n"
            f"    PRIMARY KEY (table_name, partition));",
            f"DROP TRIGGER IF EXISTS {name};\n"  # of a table that had this one's name
            f"CREATE TRIGGER {name} AFTER DELETE ON {quoted(table.bare_name)} BEGIN\n"
            f"    INSERT INTO {REMOVED} VALUES ({literal(table.bare_name)}, {partition},"
            f" OLD.{quoted(table.id)}, 1 + abs(random() % 1000000000000000))\n"
            f"    ON CONFLICT DO UPDATE SET id = max(id, excluded.id),\n"
            f"        removals = excluded.removals;\n"
            f"END;",
        )

    def _gives_ids_once(self) -> bool:
        """Return whether the table never gives an id a second time.

        SQLite allows the word AUTOINCREMENT only for an INTEGER PRIMARY KEY.
        """
        keys = [name for name, each in self.columns.items() if each.is_key]
        word = re.search(r"\bAUTOINCREMENT\b", _bare(self.statement or ""), re.I)
        return keys == [self.table.id] and bool(word)

    def _rebuilt(self) -> tuple[str, ...]:
        """Return the statements that rebuild the table with AUTOINCREMENT.

        It is empty if the table is declared in a form that we cannot rebuild.
        """
        keys = {column: each.type for column, each in self.columns.items() if each.is_key}
        statement, name = self.statement or "", self.table.bare_name
        bare = _bare(statement)
        key = re.search(r"\bPRIMARY\s+KEY\b(\s+(ASC|DESC)\b)?(\s+ON\s+CONFLICT\s+\w+)?", bare, re.I)
        if keys != {self.table.id: "INTEGER"} or not key:
            return ()
        if bare[key.end() :].lstrip().startswith("("):
            return ()
        if re.search(r"\bWITHOUT\s+ROWID\b", bare, re.I) or "DESC" in key[0].upper():
            return ()
        changed = f"{statement[: key.end()]} AUTOINCREMENT{statement[key.end() :]}"
        body, new = changed[bare.index("(") :], f"{name}_new"
        given = (
            f"(SELECT max(seq) FROM sqlite_sequence"
            f" WHERE name IN ({literal(name)}, {literal(new)}))"
        )
        stored = [column for column, each in self.columns.items() if not each.is_generated]
        columns = ", ".join(map(quoted, stored))
        again = "".join(f"{each};\n" for each in self.beside.values())
        return (
            f"BEGIN IMMEDIATE;\nCREATE TABLE {quoted(new)} {body}\n;\n"
            f"INSERT INTO {quoted(new)} ({columns}) SELECT {columns} FROM {quoted(name)};\n"
            f"INSERT INTO sqlite_sequence SELECT {literal(new)}, coalesce({given}, 0);\n"
            f"DELETE FROM sqlite_sequence WHERE name = {literal(new)} AND rowid <\n"
            f"    (SELECT max(rowid) FROM sqlite_sequence WHERE name = {literal(new)});\n"
            f"DROP TABLE {quoted(name)};\nALTER TABLE {quoted(new)} RENAME TO {quoted(name)};\n"
            f"{again}COMMIT;",
        )


def create_table(table: OutboxTable) -> str:
    types = {table.id: "INTEGER PRIMARY KEY AUTOINCREMENT"}
    if table.time:
        types[table.time] = "TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"
    for name in table.used:
        kind = "INTEGER NOT NULL" if name == table.partition else "TEXT"
        types.setdefault(name, "JSON NOT NULL" if name == table.data else kind)
    columns = (f"    {quoted(name)} {kind}" for name, kind in types.items())
    return f"CREATE TABLE IF NOT EXISTS {quoted(table.bare_name)} (\n" + ",\n".join(columns) + ");"


def ms(value: str) -> str:
    """Return SQL for a text with a time, as SQLite's functions know it, in ms since 1970."""
    since = f"CAST(round((julianday({value}) - 2440587.5) * 86400000) AS INTEGER)"
    return f"CASE WHEN {value} LIKE '____-__-__%' THEN {since} END"


def _time_index(table: OutboxTable) -> str:
    keys = ms(quoted(table.time or ""))
    name = quoted(_time_index_name(table))
    new = f"CREATE INDEX {name}\n    ON {quoted(table.bare_name)} ({keys});"
    return f"DROP INDEX IF EXISTS {name};\n{new}"  # that of a table that had this one's name


def _time_index_name(table: OutboxTable) -> str:
    return f"{table.bare_name}_zeroeventhub_{table.time}"


def _size(value: str) -> str:
    return f"coalesce(length(CAST({value} AS BLOB)), 0)"


def _json_size(value: str) -> str:
    """Return SQL for the most bytes that a value can have as JSON text."""
    text = f"length(CAST(json_quote(CAST({value} AS TEXT)) AS BLOB)) + 16"
    return f"CASE typeof({value}) WHEN 'blob' THEN 2 * length({value}) ELSE coalesce({text}, 4) END"


def retention_trigger(table: OutboxTable) -> str:
    return f"{DELETES}_{table.bare_name}_{table.partition or ''}"


def _bare(statement: str) -> str:
    """Return a statement of the same length, with blanks for comments, text and quoted names."""
    return _HIDDEN.sub(lambda hidden: " " * len(hidden[0]), statement)
