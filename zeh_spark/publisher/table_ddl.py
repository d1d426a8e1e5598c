"""What a table in PostgreSQL needs to be a feed, and the statements that give it that. Pure.

Rule for editors: each statement can be pasted into psql, and pasted again; existing rows get tx 0
without being rewritten, and stand before all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zeh_spark.errors import StoreError
from zeh_spark.publisher.table import Table
from zeh_spark.publisher.table_sql import HISTORY, REMOVED, literal, qualified, quoted

CHANNEL = "zeroeventhub_rows"
UPDATES = "zeroeventhub_tx"
INSERTS = "zeroeventhub_notify"
DELETES = "zeroeventhub_removed"

TX = (
    "greatest(pg_current_xact_id()::text::bigint,"
    " pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)"
)
_INTEGERS = ("int2", "int4", "int8")
_KEYS = (*_INTEGERS, "text", "varchar", "bpchar", "uuid")


@dataclass(frozen=True, slots=True)
class Column:
    """`type` and `category` are of the type beneath a domain."""

    type: str
    category: str
    required: bool
    default: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What there is. `indexes`: the whole and valid ones, each with its columns or expressions;
    `kind`: pg_class.relkind, empty if there is no such table.
    """

    columns: Mapping[str, Column]
    indexes: Sequence[tuple[bool, tuple[str, ...]]]
    triggers: frozenset[str]
    kind: str
    subscribed: bool
    has_history: bool
    has_removed: bool
    sees_cluster: bool
    table: Table

    @property
    def uuid(self) -> bool:
        """Whether rows have UUIDs."""
        return self.columns[self.table.id].type == "uuid"

    @property
    def is_view(self) -> bool:
        return self.kind in {"v", "m"}

    @property
    def moves_updates(self) -> bool:
        return UPDATES in self.triggers

    @property
    def notifies(self) -> bool:
        return INSERTS in self.triggers

    @property
    def notes_removed(self) -> bool:
        return self.has_removed and DELETES in self.triggers


@dataclass(frozen=True, slots=True)
class Fault:
    """What is missing, and the statements that bring it."""

    reason: str
    statements: tuple[str, ...] = ()


def partition_sql(table: Table) -> str:
    """The stored partition of a row: of 32 bits of an MD5 [PostgreSQL has no xxh3, and its own
    `hashtext` may change with a version]. Rows without a key spread by their ids.
    """
    if table.partition:
        return quoted(table.partition)
    if not table.partition_by:
        return "0"
    key = f"coalesce({quoted(table.partition_by)}::text, {quoted(table.id)}::text)"
    bits = f"('x' || substr(md5({key}), 1, 8))::bit(32)::bigint"
    return f"mod({bits}, {table.partitions})"


def postgresql_faults(table: Table, facts: Facts) -> list[Fault]:
    """Why a table cannot be a feed; empty if it can."""
    if not facts.kind:
        return [Fault(f"there is no table {table.name}", (example(table),))]
    faults = list(_column_faults(table, facts))
    if facts.subscribed:
        faults.append(
            Fault(
                f"{table.name} is filled by a logical subscription, with transaction numbers of "
                f"another cluster; serve the table where it is written"
            )
        )
    if not facts.is_view:
        faults += _tx_faults(table, facts)
        if table.id in facts.columns and not any(
            unique and [_plain(each) for each in keys] == [_plain(table.id)]
            for unique, keys in facts.indexes
        ):
            unique = f"ALTER TABLE {_name(table)} ADD UNIQUE ({quoted(table.id)});"
            faults.append(Fault(f"nothing says that {table.id} is unique", (unique,)))
        if not any(_serves(table, keys) for _, keys in facts.indexes):
            keys = "(partition, tx, id)" if table.partitions > 1 else "(tx, id)"
            faults.append(Fault(f"there is no index on {keys}", (_index(table, facts),)))
    elif table.tx not in facts.columns:
        faults.append(Fault(f"the view has no column {table.tx}: let it show its table's"))
    if not facts.has_history:
        faults.append(Fault(f"{table.name} has no history of its own", history(table)))
    return faults


def _column_faults(table: Table, facts: Facts) -> Iterator[Fault]:
    for name in table.used:
        if name not in facts.columns:
            yield Fault(f"there is no column {name}; there are {', '.join(facts.columns)}")
    allowed: dict[str, tuple[str, ...]] = {table.id: (*_INTEGERS, "uuid")}
    if table.partition:
        allowed[table.partition] = _INTEGERS
    if table.partition_by:
        allowed.setdefault(table.partition_by, _KEYS)
    for name, types in allowed.items():
        found = facts.columns.get(name)
        if found and found.type not in types:
            yield Fault(f"{name} is of type {found.type}; it must be one of {', '.join(types)}")
    key = facts.columns.get(table.id)
    if key and not key.required and not facts.is_view:
        required = f"ALTER TABLE {_name(table)} ALTER COLUMN {quoted(table.id)} SET NOT NULL;"
        yield Fault(f"{table.id} may be NULL", (required,))


def _tx_faults(table: Table, facts: Facts) -> Iterator[Fault]:
    found, change = facts.columns.get(table.tx), f"ALTER TABLE {_name(table)}"
    by_default = f"{change} ALTER COLUMN {quoted(table.tx)} SET DEFAULT\n    {TX};"
    if found is None:
        add = (
            f"BEGIN;\n{change} ADD COLUMN IF NOT EXISTS {quoted(table.tx)} bigint NOT NULL"
            f" DEFAULT 0;\n{by_default}\nCOMMIT;"
        )
        yield Fault(f"there is no column {table.tx}, for the transaction that writes a row", (add,))
        return
    if found.type != "int8":
        yield Fault(f"{table.tx} is of type {found.type}; it must be bigint")
    if not found.required:
        fill = (
            f"UPDATE {_name(table)} SET {quoted(table.tx)} = 0 WHERE {quoted(table.tx)} IS NULL;\n"
            f"{change} ALTER COLUMN {quoted(table.tx)} SET NOT NULL;"
        )
        yield Fault(f"{table.tx} may be NULL", (fill,))
    default = found.default or ""
    if not facts.moves_updates and not (
        "pg_current_xact_id" in default and "pg_snapshot_xmax" in default
    ):
        yield Fault(f"{table.tx} does not get the transaction by its default", (by_default,))


def _serves(table: Table, keys: Sequence[str]) -> bool:
    """Whether rows of a partition are found in order by an index."""
    keys, place = [_plain(each) for each in keys], [_plain(table.tx), _plain(table.id)]
    if table.partitions == 1:
        return keys[:2] == place
    if keys[1:3] != place:
        return False
    if table.partition:
        return keys[0] == _plain(table.partition)
    counts = (f"{table.partitions}::bigint)", f"'{table.partitions}'::bigint)")
    return f"COALESCE({_plain(table.partition_by or '')}" in keys[0] and keys[0].endswith(counts)


def _index(table: Table, facts: Facts) -> str:
    place = f"{quoted(table.tx)}, {quoted(table.id)}"
    keys = place if table.partitions == 1 else f"({partition_sql(table)}), {place}"
    how = "" if facts.kind == "p" else " CONCURRENTLY"  # which partitioned tables cannot
    name = f"{table.bare_name[:40]}_zeroeventhub_{table.partitions}"
    return f"CREATE INDEX{how} IF NOT EXISTS {quoted(name)}\n    ON {_name(table)} ({keys});"


def history(table: Table) -> tuple[str, ...]:
    return (
        f"CREATE TABLE IF NOT EXISTS {qualified(table, HISTORY)} (\n"
        f"    table_name text PRIMARY KEY, history text NOT NULL, cluster text);",
        f"INSERT INTO {qualified(table, HISTORY)}\n"
        f"    SELECT {literal(table.bare_name)}, left(gen_random_uuid()::text, 8),"
        f" system_identifier::text\n    FROM pg_control_system() ON CONFLICT DO NOTHING;",
    )


def notify(table: Table) -> tuple[str, ...]:
    """Readers that wait are woken at once."""
    function = qualified(table, INSERTS)
    return (
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS\n"
        f"    $$ BEGIN PERFORM pg_notify('{CHANNEL}', ''); RETURN NULL; END $$;",
        f"CREATE OR REPLACE TRIGGER {INSERTS} AFTER INSERT OR UPDATE ON {_name(table)}\n"
        f"    FOR EACH STATEMENT EXECUTE FUNCTION {function}();",
    )


def updates(table: Table) -> tuple[str, ...]:
    """A row that is updated moves to the end, as a new event."""
    function = qualified(table, f"{UPDATES}_{table.bare_name}"[:63])
    return (
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS\n"
        f"    $$ BEGIN NEW.{quoted(table.tx)} := {TX}; RETURN NEW; END $$;",
        f"CREATE OR REPLACE TRIGGER {UPDATES} BEFORE INSERT OR UPDATE ON {_name(table)}\n"
        f"    FOR EACH ROW EXECUTE FUNCTION {function}();",
    )


def retention(table: Table, facts: Facts) -> tuple[str, ...]:
    """What is deleted is noted, so that who has not read it is told."""
    key = "uuid" if facts.uuid else "bigint"
    name, function = literal(table.bare_name), qualified(table, f"{DELETES}_{table.bare_name}"[:63])
    tx, id_, into = quoted(table.tx), quoted(table.id), qualified(table, REMOVED)
    note = (
        f"        INSERT INTO {into} AS kept SELECT DISTINCT ON (p) {name}, p, t, i::text\n"
        f"            FROM (SELECT {partition_sql(table)} AS p, {tx} AS t, {id_} AS i\n"
        f"                FROM {{}}) AS r\n"
        f"            ORDER BY p, t DESC, i DESC\n"
        f"            ON CONFLICT (table_name, partition) DO UPDATE\n"
        f"            SET tx = excluded.tx, id = excluded.id\n"
        f"            WHERE (excluded.tx, excluded.id::{key}) > (kept.tx, kept.id::{key});\n"
    )
    return (
        f"CREATE TABLE IF NOT EXISTS {into} (table_name text, partition integer,\n"
        f"    tx bigint NOT NULL, id text NOT NULL, PRIMARY KEY (table_name, partition));",
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN\n"
        f"    IF TG_OP = 'TRUNCATE' THEN\n{note.format(_name(table))}"
        f"    ELSE\n{note.format('gone')}    END IF;\n    RETURN NULL;\nEND $$;",
        f"CREATE OR REPLACE TRIGGER {DELETES} AFTER DELETE ON {_name(table)}\n"
        f"    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {function}();",
        f"CREATE OR REPLACE TRIGGER {DELETES}_all BEFORE TRUNCATE ON {_name(table)}\n"
        f"    FOR EACH STATEMENT EXECUTE FUNCTION {function}();",
    )


def grants(table: Table, role: str, *, removed: bool) -> tuple[str, ...]:
    """What a role needs to serve the table."""
    beside = [qualified(table, HISTORY), *([qualified(table, REMOVED)] if removed else [])]
    schema = table.schema
    return (
        *([f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)};"] if schema else []),
        f"GRANT SELECT ON {', '.join([_name(table), *beside])} TO {quoted(role)};",
    )


def example(table: Table) -> str:
    """A new table."""
    types = {table.id: "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"}
    for name in table.used:
        types.setdefault(name, "jsonb NOT NULL" if name == table.data else "text")
    columns = [f"    {quoted(name)} {kind}" for name, kind in types.items()]
    columns.insert(1, f"    {quoted(table.tx)} bigint NOT NULL DEFAULT\n        {TX}")
    return f"CREATE TABLE {_name(table)} (\n" + ",\n".join(columns) + ");"


def refusal(table: Table, faults: Sequence[Fault]) -> str:
    reasons = "; ".join(each.reason for each in faults)
    statements = "\n".join(each for fault in faults for each in fault.statements)
    remedy = f". zeh-spark ddl prints what is missing:\n{statements}" if statements else ""
    return f"table {table.name} cannot be served as a feed: {reasons}{remedy}"


def mended(table: Table, faults: Sequence[Fault]) -> list[str]:
    """The statements against faults. Raises StoreError for those that have none."""
    if helpless := [each for each in faults if not each.statements]:
        raise StoreError(refusal(table, helpless))
    return [statement for each in faults for statement in each.statements]


def gone_history(table: Table, statements: tuple[str, ...]) -> StoreError:
    return StoreError(refusal(table, [Fault(f"{HISTORY} has no row for it any more", statements)]))


def _name(table: Table) -> str:
    return qualified(table, table.bare_name)


def _plain(text: str) -> str:
    """A column or expression as PostgreSQL prints it, whether it quotes names or not."""
    return text.replace('"', "")
