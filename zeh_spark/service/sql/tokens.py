"""Tokens in a SQL database (see `store.tokens`).

Runs in the publisher and in commands that write.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, insert, or_, select, update

from zeh_spark.service.sql.schema import tokens
from zeh_spark.service.sql.transactions import Transactions
from zeh_spark.service.store.acts import Action, Actor
from zeh_spark.service.store.tokens import Grant, Right, Token


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


class SqlTokens(Transactions):
    """The tokens of a store in a SQL database (see `Administration`)."""

    def tokens(self) -> list[Token]:
        with self._reading() as connection:
            return every(connection)

    def add_token(self, token: Token, *, by: Actor | None = None) -> None:
        grants = [(each.right.value, each.feed, each.name) for each in token.grants]
        row = {**asdict(token), "grants": json.dumps(grants)}

        def work(connection: Connection) -> tuple[None, dict[str, Any]]:
            connection.execute(insert(tokens), row)
            return None, token.told

        self._administer(by, Action.CREATE_TOKEN, work, subject=token.id)

    def revoke_token(self, which: str, *, by: Actor | None = None) -> list[str]:
        mine = or_(tokens.c.id == which, tokens.c.name == which), tokens.c.revoked.is_(None)
        query = select(tokens.c.id).where(*mine).order_by(tokens.c.id)

        def work(connection: Connection) -> tuple[list[str], dict[str, Any] | None]:
            revoked = list(connection.scalars(query))
            here = tokens.c.id.in_(revoked)
            connection.execute(update(tokens).where(here).values(revoked=self.now()))
            return revoked, {"ids": revoked} if revoked else None

        return self._administer(by, Action.REVOKE_TOKEN, work, subject=which)
