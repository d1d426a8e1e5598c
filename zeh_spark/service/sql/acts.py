"""Administrative acts in a SQL database: parts of a transaction (see `store.acts`).

Runs inside a transaction of the caller, in the publisher and in commands that write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from sqlalchemy import Connection, insert, literal, or_, select

from zeh_spark.service.sql.schema import acts
from zeh_spark.service.store.acts import Act, ActFilter


def add(connection: Connection, done: Iterable[Act]) -> None:
    for each in done:
        row = each.document() | {"details": json.dumps(dict(each.details), ensure_ascii=False)}
        del row["id"]
        connection.execute(insert(acts), row)


def newest(connection: Connection, wanted: ActFilter, limit: int | None = None) -> list[Act]:
    """Return the wanted acts, at most `limit` if it is given, the newest first."""
    query = select(acts).order_by(acts.c.id.desc()).limit(limit)
    for column, value in ((acts.c.feed, wanted.feed), (acts.c.action, wanted.action)):
        if value is not None:
            query = query.where(column == value)
    if wanted.actor is not None:
        whole = acts.c.via + literal(":") + acts.c.actor
        query = query.where(or_(acts.c.actor == wanted.actor, whole == wanted.actor))
    if wanted.since is not None:
        query = query.where(acts.c.time >= wanted.since)
    if wanted.before is not None:
        query = query.where(acts.c.id < wanted.before)
    return [
        Act(**{**row, "details": json.loads(row["details"])})
        for row in connection.execute(query).mappings()
    ]
