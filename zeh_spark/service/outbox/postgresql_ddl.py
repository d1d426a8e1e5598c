"""The statements that prepare a table in PostgreSQL, as `zeh-spark ddl` prints them. Pure.

Rules for editors:

- Each statement can be pasted into psql, and pasted again.
- Rows that the table has already get tx 0 without being rewritten. So they come before all others.
- The body of the function that notes deletions is compared with the installed one. So a change of
  it makes `serve` refuse tables that were prepared before.
"""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from zeh_spark.service.outbox.rows import room_for_values
from zeh_spark.service.outbox.table import HISTORY, REMOVED, OutboxTable, literal, qualified, quoted

_JSON = {
    "json": "json_typeof({})", "jsonb": "jsonb_typeof({})", "text": "json_typeof({}::json)",
}  # fmt: skip
"""For each type of a column whose values are JSON already: SQL for what kind of JSON it is."""

CHANNEL = "zeroeventhub_rows"
"""The channel on which a trigger tells of new rows."""

UPDATES = "zeroeventhub_tx"
INSERTS = "zeroeventhub_notify"
DELETES = "zeroeventhub_removed"
"""The names of triggers, with which the names of their functions begin."""

NEXT_TX = "zeroeventhub_next_tx"
"""The function that is the default of `tx`."""

_TX = (
    "greatest(pg_current_xact_id()::text::bigint,"
    " pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)"
)
"""The value of `tx`. It has to be in a function, which takes a snapshot of its own.

Rejected: in the statement. Its snapshot may be older than the lock that it has waited for.
"""


_NUMBER = "1 + floor(random() * 1e15)::bigint"


def partition_sql(table: OutboxTable) -> str:
    """Return SQL for the stored partition of a row: 32 bits of an MD5, modulo `partitions`.

    Rows without a key are spread by their ids. Rejected: xxh3, which PostgreSQL does not have, and
    its own `hashtext`, which may change with a version.
    """
    if table.partition:
        return quoted(table.partition)
    if not table.partition_by:
        return "0"
    key = f"coalesce({quoted(table.partition_by)}::text, {quoted(table.id)}::text)"
    bits = f"('x' || substr(md5({key}), 1, 8))::bit(32)::bigint"
    return f"mod({bits}, {table.partitions})"


def create_table(table: OutboxTable) -> str:
    types = {table.id: "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"}
    types[table.tx] = f"bigint NOT NULL DEFAULT {qualified(table, NEXT_TX)}()"
    if table.time:
        types[table.time] = "timestamptz NOT NULL DEFAULT clock_timestamp()"
    for name in table.used:
        kind = "integer NOT NULL" if name == table.partition else "text"
        types.setdefault(name, "jsonb NOT NULL" if name == table.data else kind)
    columns = [f"    {quoted(name)} {kind}" for name, kind in types.items()]
    return f"CREATE TABLE IF NOT EXISTS {name_of(table)} (\n" + ",\n".join(columns) + ");"


def next_tx(table: OutboxTable) -> str:
    return (
        f"CREATE OR REPLACE FUNCTION {qualified(table, NEXT_TX)}() RETURNS bigint\n"
        f"    LANGUAGE plpgsql VOLATILE AS $$ BEGIN RETURN {_TX}; END $$;"
    )


def add_tx(table: OutboxTable) -> str:
    """Return the statements that add the column `tx`, in one transaction."""
    return (
        f"BEGIN;\nALTER TABLE {name_of(table)} ADD COLUMN IF NOT EXISTS {quoted(table.tx)} bigint"
        f" NOT NULL DEFAULT 0;\n{set_default(table)}\nCOMMIT;"
    )


def set_default(table: OutboxTable) -> str:
    change = f"ALTER TABLE {name_of(table)} ALTER COLUMN {quoted(table.tx)}"
    return f"{change} SET DEFAULT {qualified(table, NEXT_TX)}();"


def require(table: OutboxTable, column: str) -> str:
    return f"ALTER TABLE {name_of(table)} ALTER COLUMN {quoted(column)} SET NOT NULL;"


def index_name(table: OutboxTable, keys: str) -> str:
    """Return the name of an index: unique for each table and keys, however long their names."""
    return f"{table.bare_name[:36]}_zeroeventhub_{_digest(f'{table.name} {keys}')}"


def index_keys(table: OutboxTable) -> str:
    """Return the keys of the index that readers need: partition, tx, id."""
    place = f"{quoted(table.tx)}, {quoted(table.id)}"
    return place if table.partitions == 1 else f"({partition_sql(table)}), {place}"


def time_keys(table: OutboxTable) -> str:
    """Return the keys of the index by which readers start at a time."""
    return f"{quoted(table.time or '')}, {quoted(table.tx)}, {quoted(table.id)}"


def create_index(table: OutboxTable, keys: str, *, concurrently: bool, unique: bool = False) -> str:
    what = "UNIQUE INDEX" if unique else "INDEX"
    how = " CONCURRENTLY" if concurrently else ""
    name = quoted(index_name(table, keys))
    return f"CREATE {what}{how} IF NOT EXISTS {name}\n    ON {name_of(table)} ({keys});"


NEW_FEED_ID = "right(replace(gen_random_uuid()::text, '-', ''), 16)"
"""SQL for a new feed id: 16 hexadecimal digits."""


def history(table: OutboxTable) -> tuple[str, ...]:
    return (
        f"CREATE TABLE IF NOT EXISTS {qualified(table, HISTORY)} (\n"
        f"    table_name text PRIMARY KEY, history text NOT NULL, cluster text,\n"
        f"    feed_id text NOT NULL);",
        f"INSERT INTO {qualified(table, HISTORY)} (table_name, history, cluster, feed_id)\n"
        f"    SELECT {literal(table.bare_name)}, left(gen_random_uuid()::text, 8),"
        f" system_identifier::text,\n    {NEW_FEED_ID}\n"
        f"    FROM pg_control_system() ON CONFLICT DO NOTHING;",
    )


def checks(table: OutboxTable, kind: str) -> Iterator[tuple[str, str]]:
    """Yield name and statement of each constraint that refuses what cannot be an event.

    `kind` is the type of the data, if it is one column; `text` for all types of text. Rows that are
    there already are not checked, so that a statement takes its lock for a moment only.
    """
    texts = [f"to_json(to_json({quoted(each)}) #>> '{{}}')" for each in table.headers]
    data = quoted(table.columns[0])
    if table.is_object:
        texts += [f"coalesce(to_json({quoted(each)}), 'null')" for each in table.columns]
    else:
        texts.append(data if kind in _JSON else f"to_json({data})")
        is_null = f" AND {_JSON[kind].format(data)} <> 'null'" if kind in _JSON else ""
        yield _check(table, "is_json", f"{data} IS NOT NULL{is_null}")
    size = " + ".join(f"coalesce(octet_length({each}::text), 0)" for each in texts)
    yield _check(table, "fits", f"{size} <= {room_for_values(table)}")


def _check(table: OutboxTable, what: str, condition: str) -> tuple[str, str]:
    name = f"zeroeventhub_{what}_{_digest(condition)}"
    return name, (
        f"ALTER TABLE {name_of(table)} DROP CONSTRAINT IF EXISTS {name},\n"
        f"    ADD CONSTRAINT {name} CHECK ({condition}) NOT VALID;"
    )


def notify(table: OutboxTable) -> tuple[str, ...]:
    """Return the statements for a trigger that wakes waiting readers at once."""
    function = qualified(table, INSERTS)
    return (
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS\n"
        f"    $$ BEGIN PERFORM pg_notify('{CHANNEL}', ''); RETURN NULL; END $$;",
        f"CREATE OR REPLACE TRIGGER {INSERTS} AFTER INSERT OR UPDATE ON {name_of(table)}\n"
        f"    FOR EACH STATEMENT EXECUTE FUNCTION {function}();",
    )


def updates(table: OutboxTable) -> tuple[str, ...]:
    """Return the statements for a trigger that moves an updated row to the end, as a new event."""
    function = _function(table, UPDATES)
    return (
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS\n"
        f"    $$ BEGIN NEW.{quoted(table.tx)} := {_TX}; RETURN NEW; END $$;",
        f"CREATE OR REPLACE TRIGGER {UPDATES} BEFORE INSERT OR UPDATE ON {name_of(table)}\n"
        f"    FOR EACH ROW EXECUTE FUNCTION {function}();",
    )


def note_removed(table: OutboxTable, *, uuid: bool) -> str:
    """Return the body of the function that notes deletions.

    For each stored partition it notes the last place of which a row was deleted, and a random
    number for the deletion. Rejected: a count. That of another history may be equal.
    """
    key, into = "uuid" if uuid else "bigint", qualified(table, REMOVED)
    rows = f"{partition_sql(table)} AS p, {quoted(table.tx)} AS t, {quoted(table.id)} AS i"
    note = (
        f"        INSERT INTO {into} AS kept\n"
        f"            SELECT DISTINCT ON (r.p) {literal(table.bare_name)}, r.p, r.t, r.i::text,\n"
        f"                {_NUMBER}\n"
        f"            FROM (SELECT {rows} FROM {{}}) AS r\n"
        f"            ORDER BY r.p, r.t DESC, r.i DESC\n"
        f"            ON CONFLICT (table_name, partition) DO UPDATE SET (tx, id, removals) =\n"
        f"            (SELECT v.t, v.i::text, excluded.removals FROM (VALUES\n"
        f"                (kept.tx, kept.id::{key}), (excluded.tx, excluded.id::{key})\n"
        f"                ) AS v (t, i) ORDER BY v.t DESC, v.i DESC LIMIT 1);\n"
    )
    return (
        f" BEGIN\n    IF TG_OP = 'TRUNCATE' THEN\n"
        f"        IF current_setting('transaction_isolation') <> 'read committed' THEN\n"
        f"            RAISE EXCEPTION 'TRUNCATE is noted in READ COMMITTED transactions only';\n"
        f"        END IF;\n{note.format(name_of(table))}"
        f"    ELSE\n{note.format('gone')}    END IF;\n    RETURN NULL;\nEND "
    )


def retention(table: OutboxTable, *, uuid: bool, renewed: bool) -> tuple[str, ...]:
    """Return the statements for triggers that note what is deleted, by any client.

    So a reader that has not read a deleted row gets an error. If it is `renewed`, the table had
    other partitions before, and what was noted of them counts for all partitions.
    """
    function, into = _function(table, DELETES), qualified(table, REMOVED)
    mine = f"table_name = {literal(table.bare_name)}"
    last = f"ORDER BY tx DESC, id::{'uuid' if uuid else 'bigint'} DESC LIMIT 1"
    joined = (
        f"BEGIN;\nINSERT INTO {into} SELECT table_name, -1, tx, id, {_NUMBER}\n"
        f"    FROM {into} WHERE {mine} {last}\n"
        f"    ON CONFLICT (table_name, partition) DO UPDATE\n"
        f"    SET tx = excluded.tx, id = excluded.id, removals = excluded.removals;\n"
        f"DELETE FROM {into} WHERE {mine} AND partition >= 0;\nCOMMIT;"
    )
    return (
        f"CREATE TABLE IF NOT EXISTS {into} (\n"
        f"    table_name text, partition integer, tx bigint NOT NULL, id text NOT NULL,\n"
        f"    removals bigint NOT NULL, PRIMARY KEY (table_name, partition));",
        *([joined] if renewed else []),
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql\n"
        f"SECURITY DEFINER SET search_path FROM CURRENT AS $${note_removed(table, uuid=uuid)}$$;",
        f"CREATE OR REPLACE TRIGGER {DELETES} AFTER DELETE ON {name_of(table)}\n"
        f"    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {function}();",
        f"CREATE OR REPLACE TRIGGER {DELETES}_all BEFORE TRUNCATE ON {name_of(table)}\n"
        f"    FOR EACH STATEMENT EXECUTE FUNCTION {function}();",
    )


def grants(table: OutboxTable, role: str, *, removed: bool) -> tuple[str, ...]:
    """Return the statements that grant a role what it needs to serve the table.

    If deletions are noted in `removed`, the role gets the right to read them.
    """
    beside = [qualified(table, HISTORY), *([qualified(table, REMOVED)] if removed else [])]
    schema = table.schema
    return (
        *([f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)};"] if schema else []),
        f"GRANT SELECT ON {', '.join([name_of(table), *beside])} TO {quoted(role)};",
    )


def name_of(table: OutboxTable) -> str:
    return qualified(table, table.bare_name)


def _function(table: OutboxTable, begin: str) -> str:
    """Return the name of a trigger's function: unique for each table of a schema."""
    return qualified(table, f"{begin}_{_digest(table.bare_name)}")


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())[:8]
