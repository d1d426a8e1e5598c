"""What an operator decides about a SQL store, and what its upkeep removes (see `Administration`).

What is packed is read in a snapshot, without a lock. One transaction then replaces the rows by the
pack, if they are still the same. Rejected: to compare tags alone, because events that are published
again after a restore have the same.

Rule for editors: `feed_epochs` decides about epochs; this module only reads and writes rows.
Runs in the publisher and in commands that write.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from zeh_spark.errors import StoreError
from zeh_spark.service.sql import acts, commits, producers
from zeh_spark.service.sql.feed_epochs import identity_of, next_epoch
from zeh_spark.service.sql.log import CHUNK, SqlLog
from zeh_spark.service.sql.producers import Lock, find_feed
from zeh_spark.service.sql.schema import (
    chunks,
    clocks,
    contracts,
    epochs,
    feeds,
    packs,
    retentions,
    tokens,
)
from zeh_spark.service.sql.transactions import Transactions
from zeh_spark.service.sql.uploads import drop_blobs, insert_blobs
from zeh_spark.service.store.acts import (
    ACTS_SHOWN,
    EVERY_ACT,
    Act,
    ActFilter,
    Action,
    Actor,
    log_act,
)
from zeh_spark.service.store.clock import check_commit
from zeh_spark.service.store.contracts import FeedSchema, next_version
from zeh_spark.service.store.interface import Retention, new_feed
from zeh_spark.service.store.log import Chunk, FeedState, Run
from zeh_spark.service.store.packs import (
    PACK_CHUNKS,
    block_of,
    blocks_of,
    checked_lines,
    encode,
    sealable,
)
from zeh_spark.service.store.token_rights import Grant, Right, Token
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity

T = TypeVar("T")

_PACE = 64
"""How many chunks that are being packed are read, or checked, before other threads go on."""


class _ChangedError(Exception):
    """What was to be packed was changed meanwhile."""


class SqlAdministration(Transactions):
    """The administration of a store in a SQL database (see `Administration`)."""

    def create(self, name: str, partitions: int, *, by: Actor | None = None) -> FeedState:
        feed = new_feed(name, partitions)
        row = {column: value for column, value in asdict(feed).items() if column in feeds.c}

        def work(connection: Connection) -> tuple[None, dict[str, Any]]:
            connection.execute(insert(feeds), row)
            return None, {"partitions": partitions}

        try:
            self._administer(by, Action.CREATE_FEED, work, feed=name)
        except IntegrityError:
            raise StoreError(
                f"feed {name!r} exists already. Use it, or choose another name"
            ) from None
        return feed

    def schema(self, feed: str, version: int | None = None) -> FeedSchema | None:
        with self._reading() as connection:
            feed_id, state = find_feed(connection, feed)
            return _schema(connection, feed_id, version or state.schema_version)

    def set_schema(
        self, feed: str, document: bytes, *, compatible: bool = True, by: Actor | None = None
    ) -> FeedSchema:
        def work(connection: Connection) -> tuple[FeedSchema, dict[str, Any] | None]:
            feed_id, state = find_feed(connection, feed, Lock.CHANGE)
            before = _schema(connection, feed_id, state.schema_version)
            after = next_version(before, document, self.now(), compatible=compatible)
            if after == before:
                return after, None
            connection.execute(insert(contracts), {"feed": feed_id, **asdict(after)})
            now = {"schema_version": after.version, "schema_since": after.since}
            connection.execute(update(feeds).where(feeds.c.id == feed_id).values(now))
            return after, {"version": after.version, "since": after.since}

        return self._administer(by, Action.SET_SCHEMA, work, feed=feed)

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
            known, now = known_identity(connection, feed_id, state), self.now()
            latest = partial(commits.latest_known, connection)
            check_commit(now, state.time, latest, f"feed {feed!r}: no epoch begins")
            new = next_epoch(state, known, now, copy=copy, since=since)
            row = {"feed": feed_id, "number": len(known.epochs), "id": new.id, "time": new.time}
            connection.execute(insert(epochs), row)
            moment = max(state.time, new.time)
            connection.execute(update(feeds).where(feeds.c.id == feed_id).values(time=moment))
            begun = identity_of(state, (*known.epochs[1:], new))
            return begun, {"epoch": new.id, "copy": copy, "since": since}

        return self._administer(by, Action.NEW_HISTORY, work, feed=feed)

    def delete_producer(self, feed: str, name: str, *, by: Actor | None = None) -> None:
        def work(connection: Connection) -> tuple[None, dict[str, Any] | None]:
            feed_id, _ = find_feed(connection, feed, Lock.CHANGE)  # its named batches have ended
            return None, {} if producers.delete_producer(connection, feed_id, name) else None

        self._administer(by, Action.DELETE_PRODUCER, work, feed=feed, subject=name)

    def remove(self, feed: str, upto: int, *, by: Actor | None = None) -> None:
        def work(connection: Connection) -> tuple[None, dict[str, Any] | None]:
            feed_id, state = find_feed(connection, feed, Lock.CHANGE)
            return None, commits.remove(connection, feed_id, state.partitions, upto, self.now())

        if by:
            self._administer(by, Action.PRUNE, work, feed=feed)
        else:
            self._write(work, durable=False)

    def seal(self, feed: str, before: int) -> int:
        if self._database.is_behind():
            return 0
        with self._errors(), self._database.snapshot(feed, ()) as (connection, rows):
            log = SqlLog(connection, feed, rows)
            oldest = log.scan(log.sealed, log.state.head, PACK_CHUNKS + 1)
            chosen = [*sealable(oldest, before)]
            run = Run.made(chosen)
            frames = [each.packed for each in _paced(log.frames(run.positions, run.blobs))]
        if not chosen:
            return 0
        lines = dict(zip(chosen, map(checked_lines, chosen, _paced(frames)), strict=True))
        blocks = blocks_of(chosen)
        shared = [block for block in blocks if len(block) > 1]
        made = [block_of(lines[each] for each in block) for block in shared]
        totals = log.totals.after(run.headers).encode()
        first, last = chosen[0], chosen[-1]
        row = {"first": first.g, "last": last.g, "time": first.time, "totals": totals}

        def work(connection: Connection, of: int) -> None:
            # All up to the last one: what was packed before may be lost in a failover.
            here = chunks.c.feed == of, chunks.c.g <= last.g
            found = connection.execute(delete(chunks).where(*here).returning(*CHUNK))
            if sorted(map(Chunk._make, found)) != chosen:
                raise _ChangedError
            ids = iter(insert_blobs(connection, made))
            parts = [(next(ids) if len(each) > 1 else each[0].blob, len(each)) for each in blocks]
            headers = encode(run, parts)
            connection.execute(insert(packs), {"feed": of, **row, "headers": headers})
            drop_blobs(connection, [each.blob for block in shared for each in block])

        try:
            self._write_to(feed, work, lock=Lock.CHANGE, durable=False)
        except _ChangedError:
            return 0
        return len(chosen)

    def retention(self, feed: str) -> Retention:
        return self._read(partial(_retention, feed=feed))

    def set_retention(
        self,
        feed: str,
        retention: Retention,
        *,
        before: Retention | None = None,
        by: Actor | None = None,
    ) -> None:
        values = {**asdict(retention), "readers": json.dumps(retention.readers)}

        def work(connection: Connection) -> tuple[None, dict[str, Any] | None]:
            feed_id, _ = find_feed(connection, feed, Lock.CHANGE)
            known = _retention(connection, feed)
            if before not in (None, known):
                raise StoreError(
                    f"feed {feed!r}: somebody else has changed the retention meanwhile. Look at "
                    f"it, and set yours again"
                )
            connection.execute(delete(retentions).where(retentions.c.feed == feed_id))
            connection.execute(insert(retentions), {"feed": feed_id, **values})
            told = {"before": asdict(known), "after": asdict(retention)}
            return None, told if retention != known else None

        self._administer(by, Action.SET_RETENTION, work, feed=feed)

    def expire_names(self, feed: str, before: int, limit: int) -> int:
        expire = partial(producers.expire_names, before=before, limit=limit)
        return self._write_to(feed, expire, durable=False)

    def expire_producers(self, feed: str, before: int, limit: int) -> int:
        expire = partial(producers.expire_producers, before=before, limit=limit)
        return self._write_to(feed, expire, lock=Lock.CHANGE, durable=False)

    def clock_seen(self) -> int:
        return self._read(_clock_seen)

    def see_clock(self, now: int, *, by: Actor | None = None) -> None:
        def work(connection: Connection) -> tuple[None, dict[str, Any]]:
            before = _clock_seen(connection)
            if not connection.execute(update(clocks).values(seen=now)).rowcount:
                connection.execute(insert(clocks), {"id": 1, "seen": now})
            return None, {"before": before, "accepted": now}

        if by:
            self._administer(by, Action.ACCEPT_CLOCK, work)
            return
        with suppress(IntegrityError):  # another publisher was the first
            self._write(work, durable=False)

    def skew(self) -> int:
        return self._read(self._database.skew)

    def tokens(self) -> list[Token]:
        return self._read(every_token)

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

    def acts(self, wanted: ActFilter = EVERY_ACT, limit: int = ACTS_SHOWN) -> list[Act]:
        return self._read(partial(acts.newest, wanted=wanted, limit=limit))

    def record(self, done: Sequence[Act]) -> None:
        self._write(partial(acts.add, done=done))
        for each in done:
            if not each.id:
                log_act(each)


def _paced(items: Iterable[T]) -> Iterator[T]:
    """Yield items, with pauses, so that a thread that has to commit goes on at once.

    Without them it waits for the interpreter again and again, 5 ms each (sys.getswitchinterval).
    """
    for at, each in enumerate(items, 1):
        if at % _PACE == 0:
            time.sleep(0.001)
        yield each


def known_identity(connection: Connection, feed_id: int, state: FeedState) -> FeedIdentity:
    query = select(epochs.c.id, epochs.c.time).where(epochs.c.feed == feed_id)
    rows = connection.execute(query.order_by(epochs.c.number))
    return identity_of(state, [Epoch(row.id, row.time) for row in rows])


def _schema(connection: Connection, feed_id: int, version: int) -> FeedSchema | None:
    here = contracts.c.feed == feed_id, contracts.c.version == version
    columns = (contracts.c[each.name] for each in fields(FeedSchema))
    row = connection.execute(select(*columns).where(*here)).mappings().one_or_none()
    return FeedSchema(**{**row, "document": bytes(row["document"])}) if row else None


def _retention(connection: Connection, feed: str) -> Retention:
    """Return what a feed keeps; everything if nothing is set."""
    columns = (column for column in retentions.c if column is not retentions.c.feed)
    query = select(*columns).join(feeds, feeds.c.id == retentions.c.feed)
    row = connection.execute(query.where(feeds.c.name == feed)).mappings().one_or_none()
    if row is None:
        return Retention()
    return Retention(**{**row, "readers": tuple(json.loads(row["readers"]))})


def _clock_seen(connection: Connection) -> int:
    return int(connection.scalar(select(clocks.c.seen)) or 0)


def every_token(connection: Connection) -> list[Token]:
    """Return all tokens, in the order in which they were made."""
    query = select(tokens).order_by(tokens.c.created, tokens.c.id)
    return [
        Token(**{**row, "digest": bytes(row["digest"]), "grants": _grants(row["grants"])})
        for row in connection.execute(query).mappings()
    ]


def _grants(text: str) -> tuple[Grant, ...]:
    return tuple(Grant(Right(right), feed, name) for right, feed, name in json.loads(text))
