"""Check whether a table in PostgreSQL can be a feed, and find what it lacks. Pure.

Rule for editors: a fault comes with the statements that repair it, unless none can. The statements
are in `postgresql_ddl`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zeh_spark.errors import StoreError
from zeh_spark.service.outbox import cursor_sets
from zeh_spark.service.outbox import postgresql_ddl as statements
from zeh_spark.service.outbox.table import OutboxTable, qualified, quoted
from zeh_spark.service.outbox.table_facts import (
    Fault,
    More,
    TableFacts,
    absent,
    repair_statements,
    unreleased_history,
)

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
        columns: Its columns, by name; empty if there is no such table.
        kind: pg_class.relkind; empty if there is no such table.
        indexes: Its indexes that are valid and cover all rows: whether each is unique, and its
            columns or expressions.
        unfinished: The names of the other indexes.
        triggers: The triggers that are on, with the bodies of their functions.
        checks: The names of its CHECK constraints.
    """

    columns: Mapping[str, Column]
    kind: str
    indexes: Sequence[tuple[bool, tuple[str, ...]]]
    unfinished: frozenset[str]
    triggers: Mapping[str, str]
    checks: frozenset[str]
    subscribed: bool
    sees_cluster: bool
    hides_rows: bool


def postgresql_faults(table: OutboxTable, facts: PostgresqlFacts) -> list[Fault]:
    if facts.lacks_feed_ids:
        return [unreleased_history(table)]
    if not facts.kind:
        made = (
            statements.next_tx(table),
            statements.create_table(table),
            *_index(table, facts),
            *(_index(table, facts, statements.time_keys(table)) if table.time else ()),
            *statements.history(table),
        )
        return [absent(table, facts.others, made)]
    if facts.kind not in {"r", "p", "v"}:
        reason = f"{table.name} is neither a table nor a view (relkind {facts.kind!r})"
        return [Fault(reason)]
    faults = list(_column_faults(table, facts))
    if facts.hides_rows:
        reason = "row level security hides rows from this role; let it have BYPASSRLS"
        faults.append(Fault(reason))
    if not facts.sees_cluster:
        grant = "GRANT EXECUTE ON FUNCTION pg_control_system() TO CURRENT_USER;"
        reason = "this role may not call pg_control_system(), by which a restored table is detected"
        faults.append(Fault(reason, (grant,)))
    if facts.subscribed:
        faults.append(
            Fault(
                f"{table.name} is filled by a logical subscription, with transaction numbers of "
                f"another cluster; serve the table where it is written"
            )
        )
    if facts.is_view and table.tx not in facts.columns:
        faults.append(Fault(f"the view has no column {table.tx}: let it show its table's"))
    if not facts.is_view:
        faults += _tx_faults(table, facts)
        faults += _index_faults(table, facts)
    if not facts.has_history:
        made = statements.history(table)
        faults.append(Fault(f"{table.name} has no history of its own", made))
    body = statements.note_removed(table, uuid=facts.uuid)
    if facts.notes_removed and facts.triggers[statements.DELETES].strip() != body.strip():
        reason = "its trigger notes deleted rows by partitions that it no longer has"
        renewed = statements.retention(table, uuid=facts.uuid, renewed=True)
        faults.append(Fault(reason, renewed))
    return faults


def postgresql_ddl(table: OutboxTable, facts: PostgresqlFacts, more: More) -> list[str]:
    """Return the statements that add what is missing, and `more`.

    Raises StoreError if no statement can repair the table, or it is a view, which has no triggers.
    """
    if facts.is_view and (more.updates or more.retention):
        raise StoreError(f"{table.name} is a view. Give the option for its table.")
    found = repair_statements(table, postgresql_faults(table, facts))
    if more.checks and not facts.is_view:
        made = statements.checks(table, _types_of(table, facts))
        found += [statement for name, statement in made if name not in facts.checks]
    if more.notify and not facts.notifies and not facts.is_view:
        found += statements.notify(table)
    if more.updates and not facts.moves_updates:
        found += statements.updates(table)
    if more.retention and not facts.notes_removed:
        found += statements.retention(table, uuid=facts.uuid, renewed=False)
    if more.cursor_sets and not facts.has_cursors:
        found.append(cursor_sets.create(table))
    if more.grant_to:
        noted = more.retention or facts.notes_removed
        found += statements.grants(table, more.grant_to, removed=noted)
        if more.cursor_sets or facts.has_cursors:
            found.append(cursor_sets.grant(table, quoted(more.grant_to)))
    return found


def _types_of(table: OutboxTable, facts: PostgresqlFacts) -> dict[str, str]:
    """Return the types of columns, `text` for all types of text; of a new table as it is made."""
    types = dict.fromkeys(table.used, "text") | {str(table.data): "jsonb"}
    for name, column in facts.columns.items():
        types[name] = "text" if column.category == "S" else column.type
    return types


def _column_faults(table: OutboxTable, facts: PostgresqlFacts) -> Iterator[Fault]:
    for name in table.used:
        if name not in facts.columns:
            yield Fault(f"there is no column {name}; there are {', '.join(facts.columns)}")
    allowed: dict[str, tuple[str, ...]] = {table.id: (*_INTEGERS, "uuid")}
    if table.partition:
        allowed[table.partition] = _INTEGERS
    if table.partition_by:
        allowed.setdefault(table.partition_by, _KEYS)
    if table.time:
        allowed[table.time] = _TIMES
    for name, types in allowed.items():
        found = facts.columns.get(name)
        if found and found.type not in types:
            yield Fault(f"{name} is of type {found.type}; it must be one of {', '.join(types)}")
    key = facts.columns.get(table.id)
    if key and not key.required and not facts.is_view:
        yield Fault(f"{table.id} may be NULL", (statements.require(table, table.id),))


def _tx_faults(table: OutboxTable, facts: PostgresqlFacts) -> Iterator[Fault]:
    found = facts.columns.get(table.tx)
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
    if not facts.moves_updates and f"{statements.NEXT_TX}(" not in (found.default or ""):
        reason = f"{table.tx} does not get the transaction by its default"
        yield Fault(reason, (statements.next_tx(table), statements.set_default(table)))


def _index_faults(table: OutboxTable, facts: PostgresqlFacts) -> Iterator[Fault]:
    if table.id in facts.columns and not _has_unique_ids(table, facts):
        key = quoted(table.id)
        made = statements.create_index(table, key, concurrently=True, unique=True)
        yield Fault(f"nothing says that {table.id} is unique", (made,))
    if not any(_serves(table, keys) for _, keys in facts.indexes):
        keys = "(partition, tx, id)" if table.partitions > 1 else "(tx, id)"
        yield Fault(f"there is no index on {keys}", _index(table, facts))
    if table.time and not any(_plain(keys[0]) == _plain(table.time) for _, keys in facts.indexes):
        index = _index(table, facts, statements.time_keys(table))
        yield Fault(f"there is no index on {table.time}, by which readers start", index)


def _has_unique_ids(table: OutboxTable, facts: PostgresqlFacts) -> bool:
    """Return whether an index makes ids unique, as far as an index can.

    In a partitioned table it only can together with the columns that it is partitioned by.
    """
    unique = [[_plain(each) for each in keys] for is_unique, keys in facts.indexes if is_unique]
    if facts.kind == "p":
        return not unique or any(_plain(table.id) in keys for keys in unique)
    return [_plain(table.id)] in unique


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


def _index(table: OutboxTable, facts: PostgresqlFacts, keys: str = "") -> tuple[str, ...]:
    keys = keys or statements.index_keys(table)
    concurrently = facts.kind != "p"  # indexes of partitioned tables cannot be created so
    create = statements.create_index(table, keys, concurrently=concurrently)
    if (name := statements.index_name(table, keys)) not in facts.unfinished:
        return (create,)
    return f"DROP INDEX CONCURRENTLY IF EXISTS {qualified(table, name)};", create


def _plain(text: str) -> str:
    """Return a column or expression without quotes, as PostgreSQL quotes only some names."""
    return text.replace('"', "")
