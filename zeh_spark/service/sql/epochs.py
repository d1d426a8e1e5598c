"""A feed's epochs in a SQL database: parts of a transaction.

Rule for editors: `store.epochs` decides; this module only reads and writes rows. Runs inside a
transaction of the caller, in the publisher and in commands that write.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from zeh_spark.service.sql.producers import Lock, find_feed
from zeh_spark.service.sql.schema import epochs, feeds
from zeh_spark.service.store.epochs import identity_of, next_epoch
from zeh_spark.service.store.interface import Clock, FeedState
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity


def identity(connection: Connection, feed: str) -> FeedIdentity:
    """Return a feed's id and its epochs. Raises UnknownFeedError."""
    return _known(connection, *find_feed(connection, feed))


def begin_epoch(
    connection: Connection, feed: str, clock: Clock, *, copy: bool, since: int | None
) -> FeedIdentity:
    """Begin an epoch of a feed, and lock the feed's row for the transaction.

    See `Store.begin_epoch` for `copy` and `since`. Raises StoreError if the epoch cannot begin.
    """
    feed_id, state = find_feed(connection, feed, Lock.CHANGE)
    known = _known(connection, feed_id, state)
    new = next_epoch(state, known, clock(), copy=copy, since=since)
    row = {"feed": feed_id, "number": len(known.epochs), "id": new.id, "time": new.time}
    connection.execute(insert(epochs), row)
    moment = max(state.time, new.time)
    connection.execute(update(feeds).where(feeds.c.id == feed_id).values(time=moment))
    return identity_of(state, (*known.epochs[1:], new))


def _known(connection: Connection, feed_id: int, state: FeedState) -> FeedIdentity:
    query = select(epochs.c.id, epochs.c.time).where(epochs.c.feed == feed_id)
    rows = connection.execute(query.order_by(epochs.c.number))
    return identity_of(state, [Epoch(row.id, row.time) for row in rows])
