"""The statements about a table in PostgreSQL (14 and later), as far as they differ.

By its default, `tx` is the number of the transaction that writes. If a transaction with a higher
number has already ended when the row is written, `tx` is that number instead. So:

- Rows of a transaction that is still open have a tx from `pg_snapshot_xmin` on. Rows below it are
  settled, and a place that has been passed never gets a row later.
- A transaction that waits for another one's lock, and then writes, gets the later place, even if it
  began earlier. Rejected: the transaction's own number. Two changes of one order came out in the
  wrong order if transactions changed several orders.

Values become JSON in the database, which knows their types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import Connection

from zeh_spark.service.outbox import postgresql_ddl
from zeh_spark.service.outbox.postgresql_check import Column, PostgresqlFacts
from zeh_spark.service.outbox.queries import COUNTED, Form, TableSql, history_row
from zeh_spark.service.outbox.table import (
    CURSORS,
    HISTORY,
    REMOVED,
    OutboxTable,
    Place,
    literal,
    qualified,
    quoted,
)
from zeh_spark.service.outbox.table_facts import BlockingTransaction, TableStatus
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.lag import Unread
from zeh_spark.wire import problems

HORIZON = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
END = "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
SERVER = "extract(epoch FROM pg_postmaster_start_time())::text"
CLUSTER = "(SELECT system_identifier::text FROM pg_control_system())"

_TEXT = frozenset("S")
"""The categories of types whose values are text (pg_type.typcategory)."""


@dataclass(frozen=True, slots=True)
class PostgresqlTable(TableSql):
    """The statements about one table in PostgreSQL (see `TableSql`)."""

    facts: PostgresqlFacts

    new_history_sql: ClassVar[str] = (
        f"history = left(gen_random_uuid()::text, 8), cluster = {CLUSTER}"
    )
    new_feed_id_sql: ClassVar[str] = postgresql_ddl.NEW_FEED_ID
    server_sql: ClassVar[str] = SERVER
    bytes_sql: ClassVar[str] = "octet_length({})"

    def standing(self, connection: Connection) -> TableStatus | None:
        same = f"coalesce(cluster = {CLUSTER}, true)" if self.facts.sees_cluster else "true"
        history, same_cluster, horizon, end, standby, server, same_triggers = self._kept(
            connection,
            f"history, {same}, {HORIZON}, {END}, pg_is_in_recovery(), {SERVER},"
            f" {self._same_triggers}",
        )
        if not same_triggers:
            return None
        if faults := list(self.facts.retention_faults()):
            raise self.facts.refusal(faults)
        if not same_cluster:
            raise self._restored("it came from another PostgreSQL cluster")
        removed = self._removed(connection, "tx")
        return TableStatus(history, removed, (end,), (horizon,), standby, server)

    @property
    def _same_triggers(self) -> str:
        """Return a condition: the same triggers are on, with functions of the same bodies."""
        digest = _TRIGGERS_DIGEST.format(literal(self._name))
        return f"({digest}) = {literal(self.facts.triggers_digest)}"

    def _stands_so(self, standing: TableStatus) -> str:
        return f"{TableSql._stands_so(self, standing)} AND {self._same_triggers}"

    def newest(self, connection: Connection) -> tuple[object, bool]:
        """Return the newest settled row, and whether others wait (see `TableSql.newest`)."""
        found = connection.exec_driver_sql(
            f"SELECT greatest({', '.join(self._newest(self.settled))}),"
            f" greatest({', '.join(self._newest('true'))}), {END}, pg_is_in_recovery()"
        ).one()
        settled, newest, end, standby = found
        if newest is not None and newest >= end and not standby:
            raise self._restored(
                f"it has rows of transaction {newest}, and this cluster has only come to "
                f"transaction {end - 1}"
            )
        return (settled or (0, "")), newest != settled

    def _newest(self, where: str) -> list[str]:
        """Return queries for the tx of the last row of each stored partition."""
        return [
            f"(SELECT r.{self.tx} FROM {self._name} AS r WHERE {self._of(each)} AND {where}"
            f" ORDER BY {self._backwards} LIMIT 1)"
            for each in range(self.table.partitions)
        ]

    def _restored(self, why: str) -> Problem:
        return Problem(
            problems.RESTORED_TABLE,
            f"table {self.table.name} was restored: {why}. Its rows cannot be put in order with "
            f"new ones. Run zeh-spark new-history; readers then have to begin again.",
        )

    def blocker(self, connection: Connection) -> BlockingTransaction | None:
        if connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar():
            return BlockingTransaction()
        found = connection.exec_driver_sql(
            f"WITH oldest AS (SELECT mod({HORIZON}, 4294967296)::text AS xid)"
            " SELECT a.pid, coalesce(a.datname, p.database),"
            " extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8,"
            " p.gid FROM oldest"
            " LEFT JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted"
            " AND l.mode = 'ExclusiveLock' AND l.transactionid::text = oldest.xid"
            " LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
            " LEFT JOIN pg_prepared_xacts p ON p.transaction::text = oldest.xid LIMIT 1"
        ).one()
        return BlockingTransaction(*found)

    def new_history(self, connection: Connection, *, copy: bool) -> str:
        """Begin a new history (see `TableSql.new_history`).

        The rows of the table get tx 0. So they come before all later ones, in order of their ids.
        """
        statements = [f"UPDATE {self._name} SET {self.tx} = 0 WHERE {self.tx} <> 0"]
        if self.facts.moves_updates:
            trigger = f"TRIGGER {quoted(postgresql_ddl.UPDATES)}"
            statements.insert(0, f"ALTER TABLE {self._name} DISABLE {trigger}")
            statements.append(f"ALTER TABLE {self._name} ENABLE {trigger}")
        for statement in statements:
            connection.exec_driver_sql(statement)
        return TableSql.new_history(self, connection, copy=copy)  # no `super()` with slots

    def _literal(self, place: Place) -> str:
        key = f"{literal(str(place[1]))}::uuid" if self.facts.uuid else place[1]
        return f"({place[0]}, {key})"

    def unread(
        self, connection: Connection, after: Mapping[int, Mapping[int, Place | None]]
    ) -> dict[int, Unread]:
        most = COUNTED // max(1, sum(map(len, after.values())))
        parts = [
            f"SELECT {asked} AS v, count(*) AS c, {self._age('min(at)')} AS since"
            f" FROM (SELECT {self._time} AS at FROM {self._name} AS r"
            f" WHERE {' AND '.join(self._next(partition, place))}"
            f" ORDER BY {self._order} LIMIT {most}) AS part"
            for asked, stored in after.items()
            for partition, place in stored.items()
        ]
        if not parts:
            return {}
        found = connection.exec_driver_sql(
            f"SELECT v, sum(c)::bigint, min(since), bool_or(c = {most})"
            f" FROM ({' UNION ALL '.join(parts)}) AS parts GROUP BY v"
        )
        return {asked: Unread(*each) for asked, *each in found}

    def _times(self, time: int) -> tuple[str, str]:
        is_utc = self.facts.columns[self.table.time or ""].type == "timestamp"
        return self._time, f"to_timestamp({time} / 1000.0)" + " AT TIME ZONE 'UTC'" * is_utc

    def _ms(self, value: str) -> str:
        since = f"floor(extract(epoch FROM {value}) * 1000)::bigint"
        return f"CASE WHEN isfinite({value}) THEN {since} END"

    def _value_of(self, column: str, form: Form) -> str:
        value, about = self._alias[column], self.facts.columns[column]
        if form != "json" and about.category in _TEXT:
            return f"{value}::text"
        if about.type in {"json", "jsonb"}:
            json = f"{value}::text"
        elif about.element and about.element in _OWN_FORM:
            json = _array_of(value, _OWN_FORM[about.element]("e.x"))
        else:
            json = _OWN_FORM.get(about.type, "to_json({})::text".format)(value)
        return f"({json})::json #>> '{{}}'" if form == "text" else json

    def _id(self, value: str) -> str:
        # "C" has the order of uuids. In Danish, aa comes after z.
        return f'{value}::text COLLATE "C"' if self.facts.uuid else value


def _base64(value: str) -> str:
    return f"""'"' || translate(encode({value}, 'base64'), E'\\n', '') || '"'"""


def _moment(value: str) -> str:
    """Return SQL for a time in UTC as JSON, with Z at its end.

    'infinity' and years BC have no digit at their end, and get no Z.
    """
    return f"""regexp_replace(to_json({value} AT TIME ZONE 'UTC')::text, '([0-9])"$', '\\1Z"')"""


_OWN_FORM: Mapping[str, Callable[[str], str]] = {"bytea": _base64, "timestamptz": _moment}
"""Types that need SQL of their own, because `to_json` makes another form than other databases."""


def _array_of(value: str, element: str) -> str:
    """Return SQL for an array as JSON: element by element, if it has one dimension."""
    elements = f"string_agg(coalesce({element}, 'null'), ',' ORDER BY e.n)"
    whole = f"SELECT {elements} FROM unnest({value}) WITH ORDINALITY AS e (x, n)"
    return (
        f"CASE WHEN {value} IS NULL THEN NULL WHEN array_ndims({value}) > 1"
        f" THEN to_json({value})::text ELSE '[' || coalesce(({whole}), '') || ']' END"
    )


_COLUMNS = """
SELECT a.attname, b.typname, b.typcategory::text, a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
    (SELECT e.typname FROM pg_type e WHERE e.oid = b.typelem AND b.typcategory = 'A')
FROM pg_attribute a
JOIN LATERAL (
    WITH RECURSIVE beneath AS (
        SELECT t.oid, t.typtype, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
        UNION ALL SELECT t.oid, t.typtype, t.typbasetype FROM beneath
        JOIN pg_type t ON t.oid = beneath.typbasetype WHERE beneath.typtype = 'd')
    SELECT oid FROM beneath WHERE typtype <> 'd') base ON true
JOIN pg_type b ON b.oid = base.oid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = to_regclass({}) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_INDEXES = """
SELECT i.indisvalid AND i.indpred IS NULL, i.indisunique, c.relname,
    ARRAY(SELECT pg_get_indexdef(i.indexrelid, k, true) FROM generate_series(1, i.indnkeyatts) k)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = to_regclass({})
"""

_OF_TRIGGERS = """
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgrelid = to_regclass({})
"""

_TRIGGERS = f"SELECT t.tgname, p.prosrc {_OF_TRIGGERS}"

_TRIGGERS_DIGEST = (
    "SELECT hashtextextended("
    "coalesce(string_agg(t.tgname || ' ' || p.prosrc, ' ' ORDER BY t.tgname), ''), 0)::text"
    f" {_OF_TRIGGERS}"
)


def inspected(connection: Connection, table: OutboxTable) -> PostgresqlTable:
    """Return the statements about a table as it is now. A table that is absent has no columns."""
    name = literal(qualified(table, table.bare_name))

    def found(statement: str) -> Sequence[Any]:
        return connection.exec_driver_sql(statement.format(name)).all()

    columns = {column: Column(*about) for column, *about in found(_COLUMNS)}
    indexes = found(_INDEXES)
    beside = [literal(qualified(table, each)) for each in (HISTORY, REMOVED, CURSORS)]
    ((kind, subscribed, history, has_ids, removed, cursors, sees, hides, checks),) = found(
        "SELECT (SELECT relkind::text FROM pg_class WHERE oid = to_regclass({0})),"
        " EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = to_regclass({0})),"
        f" to_regclass({beside[0]}) IS NOT NULL, EXISTS (SELECT FROM pg_attribute WHERE"
        f" attname = 'feed_id' AND NOT attisdropped AND attrelid = to_regclass({beside[0]})),"
        f" to_regclass({beside[1]}) IS NOT NULL, to_regclass({beside[2]}) IS NOT NULL,"
        " has_function_privilege('pg_control_system()', 'execute'),"
        " coalesce(row_security_active(to_regclass({0})), false),"
        " ARRAY(SELECT conname::text FROM pg_constraint"
        " WHERE contype = 'c' AND conrelid = to_regclass({0}))"
    )
    ((triggers_digest,),) = found(_TRIGGERS_DIGEST)  # first: a later change is seen by it
    triggers = dict(tuple(each) for each in found(_TRIGGERS))
    schema = literal(quoted(table.schema)) if table.schema else "current_schema()::text"
    others = (
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p', 'v')"
        f" AND relnamespace = to_regnamespace({schema})"
    )
    facts = PostgresqlFacts(
        table=table,
        columns=columns,
        is_there=kind is not None,
        kind=kind or "",
        is_view=kind == "v",
        indexes=[(unique, tuple(keys)) for whole, unique, _, keys in indexes if whole],
        unfinished=frozenset(index for whole, _, index, _ in indexes if not whole),
        triggers=triggers,
        triggers_digest=triggers_digest,
        checks=frozenset(checks),
        others=[] if kind else [each for (each,) in found(others)],
        subscribed=subscribed,
        has_history=history and history_row(connection, table, "1") is not None,
        lacks_feed_ids=history and not has_ids,
        has_cursors=cursors,
        notes_removed=removed and postgresql_ddl.DELETES in triggers,
        moves_updates=postgresql_ddl.UPDATES in triggers,
        notifies=postgresql_ddl.INSERTS in triggers,
        sees_cluster=sees,
        hides_rows=hides,
        uuid=table.id in columns and columns[table.id].type == "uuid",
    )
    tx, removed = quoted(table.tx), f"(tx, id::{'uuid' if facts.uuid else 'bigint'})"
    return PostgresqlTable(
        table, facts, tx,
        place=(f"r.{tx}", f"r.{quoted(table.id)}"),
        settled=f"{tx} < {HORIZON}",
        partition=postgresql_ddl.partition_sql(table),
        removed_place=removed,
    )  # fmt: skip
