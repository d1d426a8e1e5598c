"""A feed's epochs in a SQL database.

Rule for editors: `store.epochs` decides; this module only reads and writes rows. Runs in the
publisher and in commands that write.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select, update

from zeh_spark.service.sql.producers import Lock, find_feed
from zeh_spark.service.sql.schema import epochs, feeds
from zeh_spark.service.sql.transactions import Transactions
from zeh_spark.service.store.acts import Action, Actor
from zeh_spark.service.store.epochs import identity_of, next_epoch
from zeh_spark.service.store.interface import FeedState
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity


class SqlEpochs(Transactions):
    """The identities of feeds in a SQL database (see `Administration.begin_epoch`)."""

    def identity(self, feed: str) -> FeedIdentity:
        with self._reading() as connection:
            return _known(connection, *find_feed(connection, feed))

    def begin_epoch(
        self,
        feed: str,
        *,
        copy: bool = False,
        since: int | None = None,
        by: Actor | None = None,
    ) -> FeedIdentity:
        def work(connection: Connection) -> tuple[FeedIdentity, dict[str, Any]]:
            feed_id, state = find_feed(connection, feed, Lock.CHANGE)
            known = _known(connection, feed_id, state)
            new = next_epoch(state, known, self.now(), copy=copy, since=since)
            row = {"feed": feed_id, "number": len(known.epochs), "id": new.id, "time": new.time}
            connection.execute(insert(epochs), row)
            moment = max(state.time, new.time)
            connection.execute(update(feeds).where(feeds.c.id == feed_id).values(time=moment))
            begun = identity_of(state, (*known.epochs[1:], new))
            return begun, {"epoch": new.id, "copy": copy, "since": since}

        return self._administer(by, Action.NEW_HISTORY, work, feed=feed)


def _known(connection: Connection, feed_id: int, state: FeedState) -> FeedIdentity:
    query = select(epochs.c.id, epochs.c.time).where(epochs.c.feed == feed_id)
    rows = connection.execute(query.order_by(epochs.c.number))
    return identity_of(state, [Epoch(row.id, row.time) for row in rows])
