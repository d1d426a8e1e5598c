"""Check whether a table in PostgreSQL can be a feed, and find what it lacks. Pure.

Rule for editors: a fault comes with the statements that repair it, unless none can. The statements
are in `postgresql_ddl`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zeh_spark.service.outbox import cursor_sets
from zeh_spark.service.outbox import postgresql_ddl as statements
from zeh_spark.service.outbox.table import OutboxTable, qualified, quoted
from zeh_spark.service.outbox.table_facts import Fault, More, TableFacts

_INTEGERS = ("int2", "int4", "int8")
_TIMES = ("timestamptz", "timestamp")
_KEYS = (*_INTEGERS, "text", "varchar", "bpchar", "uuid")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        type: The name of its type, beneath all domains.
        category: The category of this type (pg_type.typcategory).
    """

    type: str
    category: str
    required: bool
    default: str | None
    element: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresqlFacts(TableFacts):
    """What was found when a table was inspected.

    Args:
        kind: pg_class.relkind; empty if there is no such table.
        indexes: Its indexes that are valid and cover all rows: whether each is unique, and its
            columns or expressions.
        unfinished: The names of the other indexes.
        triggers: The triggers that are on, with the bodies of their functions.
        triggers_digest: A hash of `triggers`, made by the database.
    """

    columns: Mapping[str, Column]
    kind: str
    indexes: Sequence[tuple[bool, tuple[str, ...]]]
    unfinished: frozenset[str]
    triggers: Mapping[str, str]
    triggers_digest: str
    subscribed: bool
    sees_cluster: bool
    hides_rows: bool

    def faults(self) -> list[Fault]:
        if self.is_there and self.kind not in {"r", "p", "v"}:
            reason = f"{self.table.name} is neither a table nor a view (relkind {self.kind!r})"
            return [Fault(reason)]
        return TableFacts.faults(self)  # no `super()` with slots

    def ddl(self, more: More) -> list[str]:
        found, table = TableFacts.ddl(self, more), self.table
        if more.notify and not self.notifies and not self.is_view:
            found += statements.notify(table)
        if more.updates and not self.moves_updates:
            found += statements.updates(table)
        if more.grant_to:
            noted = more.retention or self.notes_removed
            found += statements.grants(table, more.grant_to, removed=noted)
            if more.cursor_sets or self.has_cursors:
                found.append(cursor_sets.grant(table, quoted(more.grant_to)))
        return found

    def history(self) -> tuple[str, ...]:
        return statements.history(self.table)

    def _creation(self) -> Iterator[str]:
        yield statements.next_tx(self.table)
        yield statements.create_table(self.table)
        yield from self._index()
        if self.table.time:
            yield from self._index(statements.time_keys(self.table))

    def _checks(self) -> Iterator[tuple[str, str]]:
        found = self.columns.get(self.table.columns[0])  # None: it will be created
        kind = "jsonb" if not found else "text" if found.category == "S" else found.type
        return statements.checks(self.table, kind)

    def _check_dropped(self, name: str) -> str:
        return f"ALTER TABLE {statements.name_of(self.table)} DROP CONSTRAINT IF EXISTS {name};"

    def _retention(self) -> tuple[str, ...]:
        return statements.retention(self.table, uuid=self.uuid, renewed=False)

    def _own_faults(self) -> Iterator[Fault]:
        table = self.table
        yield from self._column_faults()
        if self.hides_rows:
            yield Fault("row level security hides rows from this role; let it have BYPASSRLS")
        if not self.sees_cluster:
            grant = "GRANT EXECUTE ON FUNCTION pg_control_system() TO CURRENT_USER;"
            yield Fault(
                "this role may not call pg_control_system(), by which a restored table is detected",
                (grant,),
            )
        if self.subscribed:
            yield Fault(
                f"{table.name} is filled by a logical subscription, with transaction numbers of "
                f"another cluster; serve the table where it is written"
            )
        if self.is_view and table.tx not in self.columns:
            yield Fault(f"the view has no column {table.tx}: let it show its table's")
        if not self.is_view:
            yield from self._tx_faults()
            yield from self._index_faults()
        yield from self.retention_faults()

    def retention_faults(self) -> Iterator[Fault]:
        """Yield the fault that readers would not be told of all deletions.

        It stops a publisher also while it runs, because readers would miss rows.
        """
        body = statements.note_removed(self.table, uuid=self.uuid)
        if self.notes_removed and self.triggers[statements.DELETES].strip() != body.strip():
            yield Fault(
                "its trigger notes deleted rows by other partitions than this publisher's settings "
                "have, or as another version of zeh-spark does. If zeh-spark ddl ran with newer "
                "settings, restart the publisher with them",
                statements.retention(self.table, uuid=self.uuid, renewed=True),
            )

    def _column_faults(self) -> Iterator[Fault]:
        table = self.table
        allowed: dict[str, tuple[str, ...]] = {table.id: (*_INTEGERS, "uuid")}
        if table.partition:
            allowed[table.partition] = _INTEGERS
        if table.partition_by:
            allowed.setdefault(table.partition_by, _KEYS)
        if table.time:
            allowed[table.time] = _TIMES
        for name, types in allowed.items():
            found = self.columns.get(name)
            if found and found.type not in types:
                yield Fault(f"{name} is of type {found.type}; it must be one of {', '.join(types)}")
        key = self.columns.get(table.id)
        if key and not key.required and not self.is_view:
            yield Fault(f"{table.id} may be NULL", (statements.require(table, table.id),))

    def _tx_faults(self) -> Iterator[Fault]:
        table, found = self.table, self.columns.get(self.table.tx)
        if found is None:
            reason = f"there is no column {table.tx}, for the transaction that writes a row"
            yield Fault(reason, (statements.next_tx(table), statements.add_tx(table)))
            return
        if found.type != "int8":
            yield Fault(f"{table.tx} is of type {found.type}; it must be bigint")
        if not found.required:
            tx = quoted(table.tx)
            fill = f"UPDATE {statements.name_of(table)} SET {tx} = 0 WHERE {tx} IS NULL;"
            yield Fault(f"{table.tx} may be NULL", (fill, statements.require(table, table.tx)))
        if not self.moves_updates and f"{statements.NEXT_TX}(" not in (found.default or ""):
            reason = f"{table.tx} does not get the transaction by its default"
            yield Fault(reason, (statements.next_tx(table), statements.set_default(table)))

    def _index_faults(self) -> Iterator[Fault]:
        table, keys_of = self.table, [keys for _, keys in self.indexes]
        if table.id in self.columns and not self._has_unique_ids():
            key = quoted(table.id)
            made = statements.create_index(table, key, concurrently=True, unique=True)
            yield Fault(f"nothing says that {table.id} is unique", (made,))
        if not any(_serves(table, keys) for keys in keys_of):
            keys = "(partition, tx, id)" if table.partitions > 1 else "(tx, id)"
            yield Fault(f"there is no index on {keys}", self._index())
        if table.time and not any(_plain(keys[0]) == _plain(table.time) for keys in keys_of):
            index = self._index(statements.time_keys(table))
            yield Fault(f"there is no index on {table.time}, by which readers start", index)

    def _has_unique_ids(self) -> bool:
        """Return whether an index makes ids unique, as far as an index can.

        In a partitioned table it only can together with the columns that it is partitioned by.
        """
        key = _plain(self.table.id)
        unique = [[_plain(each) for each in keys] for is_unique, keys in self.indexes if is_unique]
        if self.kind == "p":
            return not unique or any(key in keys for keys in unique)
        return [key] in unique

    def _index(self, keys: str = "") -> tuple[str, ...]:
        table, keys = self.table, keys or statements.index_keys(self.table)
        concurrently = self.kind != "p"  # indexes of partitioned tables cannot be created so
        create = statements.create_index(table, keys, concurrently=concurrently)
        if (name := statements.index_name(table, keys)) not in self.unfinished:
            return (create,)
        return f"DROP INDEX CONCURRENTLY IF EXISTS {qualified(table, name)};", create


def _serves(table: OutboxTable, keys: Sequence[str]) -> bool:
    """Return whether an index on `keys` finds the rows of a stored partition in order."""
    keys, place = [_plain(each) for each in keys], [_plain(table.tx), _plain(table.id)]
    if table.partitions == 1:
        return keys[:2] == place
    if keys[1:3] != place:
        return False
    if table.partition:
        return keys[0] == _plain(table.partition)
    by = _plain(table.partition_by or "")
    begins = (f"COALESCE({by}, ", f"COALESCE({by}::", f"COALESCE(({by})::")
    ends = (f", {table.partitions}::bigint)", f", '{table.partitions}'::bigint)")
    return any(each in keys[0] for each in begins) and keys[0].endswith(ends)


def _plain(text: str) -> str:
    """Return a column or expression without quotes, as PostgreSQL quotes only some names."""
    return text.replace('"', "")
