"""Tokens in a SQL database: parts of a transaction (see `store.access`).

Runs inside a transaction of the caller, in the publisher and in commands that write.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import Connection, insert, or_, select, update

from zeh_spark.service.sql.schema import tokens
from zeh_spark.service.store.access import Grant, Right, Token


def every(connection: Connection) -> list[Token]:
    """Return all tokens, in the order in which they were made."""
    return [
        Token(
            row.id,
            row.name,
            bytes(row.digest),
            tuple(Grant(Right(right), feed, name) for right, feed, name in json.loads(row.grants)),
            row.created,
            row.expires,
            row.revoked,
        )
        for row in connection.execute(select(tokens).order_by(tokens.c.created, tokens.c.id))
    ]


def add(connection: Connection, token: Token) -> None:
    grants = [(each.right.value, each.feed, each.name) for each in token.grants]
    connection.execute(insert(tokens), {**asdict(token), "grants": json.dumps(grants)})


def revoke(connection: Connection, which: str, now: int) -> list[str]:
    """Revoke the tokens of an id or a name. Return the ids of those that were not revoked yet."""
    mine = or_(tokens.c.id == which, tokens.c.name == which), tokens.c.revoked.is_(None)
    found = list(connection.scalars(select(tokens.c.id).where(*mine).order_by(tokens.c.id)))
    connection.execute(update(tokens).where(tokens.c.id.in_(found)).values(revoked=now))
    return found
