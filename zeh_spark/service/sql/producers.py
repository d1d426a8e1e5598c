"""Producers and their receipts in a SQL database: parts of a transaction.

Rule for editors: the database decides, not what was read before the transaction. Rows are locked,
first the feed's, then the producer's. Rejected: to lock the producer's alone; two commits took the
same positions, and the table refused 647 of 968. The locks leave the keys alone (FOR NO KEY
UPDATE), so that uploads, which only refer to the feed, do not wait. Nothing is cached between
transactions: commands and other publishers write to the same database. Runs inside a transaction
of the caller, in the publisher and in commands that write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum, auto
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Executable,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    insert,
    select,
    update,
)

from zeh_spark.service.sql import makers
from zeh_spark.service.sql.schema import (
    IsReplica,
    contracts,
    feeds,
    former_incarnations,
    producers,
    receipts,
    sequences,
)
from zeh_spark.service.store.batches import (
    Account,
    Call,
    CommitFacts,
    Numbers,
    ProducerState,
    StoredReceipt,
    after,
    base,
)
from zeh_spark.service.store.commit_plan import Publication
from zeh_spark.service.store.interface import unknown_feed
from zeh_spark.service.store.log import FeedState
from zeh_spark.wire.wire import BATCH_INCARNATION

_FEED = [
    IsReplica() if each.name == "replica" else feeds.c[each.name] for each in fields(FeedState)
]
_PRODUCER = [producers.c[each.name] for each in fields(ProducerState)]


class Lock(Enum):
    """Why a row is locked: to CHANGE it, or to be CERTAIN that no transaction is changing it."""

    CHANGE = auto()
    CERTAIN = auto()


def _locked(query: Select[Any], lock: Lock | None) -> Select[Any]:
    """Return the query, with its rows locked as `lock` says."""
    if lock is None:
        return query
    return query.with_for_update(read=lock is Lock.CERTAIN, key_share=lock is Lock.CHANGE)


_FEEDS = {
    lock: _locked(select(feeds.c.id, *_FEED).where(feeds.c.name == bindparam("wanted")), lock)
    for lock in (None, *Lock)
}
_PRODUCERS = {
    lock: _locked(
        select(producers.c.id, *_PRODUCER)
        .where(producers.c.feed == bindparam("of"))
        .where(producers.c.name.in_(bindparam("names", expanding=True)))
        .order_by(producers.c.name),
        lock,
    )
    for lock in (None, *Lock)
}
_FEED_AND_PRODUCER = (
    select(
        feeds.c.id,
        feeds.c.partitions,
        feeds.c.schema_version,
        contracts.c.time,
        producers.c.id,
        *_PRODUCER,
    )
    .outerjoin_from(
        feeds,
        producers,
        and_(producers.c.feed == feeds.c.id, producers.c.name == bindparam("named")),
    )
    .outerjoin(
        contracts,
        and_(contracts.c.feed == feeds.c.id, contracts.c.version == feeds.c.schema_version),
    )
    .where(feeds.c.name == bindparam("wanted"))
)
_CHANGED = update(producers).where(producers.c.id == bindparam("key"))
_MOVED_ON = (
    update(sequences)
    .where(sequences.c.producer == bindparam("of"), sequences.c.partition == bindparam("here"))
    .values(next=bindparam("following"))
)
_EXPIRED = delete(receipts).where(
    receipts.c.producer == bindparam("of"), receipts.c.number <= bindparam("upto")
)
_decode_receipt = msgspec.json.Decoder(StoredReceipt).decode


def find_feed(connection: Connection, name: str, lock: Lock | None = None) -> tuple[int, FeedState]:
    """Return the id of the feed's row, and the feed. Raises UnknownFeedError."""
    row = _feed_row(connection, _FEEDS[lock], name)
    return row[0], FeedState(*row[1:])


def _feed_row(connection: Connection, query: Select[Any], name: str, **more: str) -> Sequence[Any]:
    found = None
    if "\0" not in name:  # PostgreSQL cannot even search for it
        found = connection.execute(query, {"wanted": name, **more}).one_or_none()
    if found is None:
        raise unknown_feed(name)
    return tuple(found)


def every_feed(connection: Connection) -> list[FeedState]:
    rows = connection.execute(select(*_FEED).order_by(feeds.c.name))
    return [FeedState(*row) for row in rows]


def find_producer(
    connection: Connection, feed: int, name: str, lock: Lock | None = None
) -> tuple[int | None, ProducerState]:
    """Return a producer with its row's id; None and defaults if it never published."""
    found = find_producers(connection, feed, [name], lock)
    return found.get(name, (None, ProducerState(name)))


def find_producers(
    connection: Connection, feed: int, names: Sequence[str], lock: Lock | None = None
) -> dict[str, tuple[int, ProducerState]]:
    """Return by name those producers that ever published, each with its row's id."""
    rows = connection.execute(_PRODUCERS[lock], {"of": feed, "names": names})
    return {row.name: (row[0], ProducerState(*row[1:])) for row in rows}


def some_producers(
    connection: Connection, feed: int, after: str, limit: int
) -> list[ProducerState]:
    query = select(*_PRODUCER).where(producers.c.feed == feed, producers.c.name > after)
    rows = connection.execute(query.order_by(producers.c.name).limit(limit))
    return [ProducerState(*row) for row in rows]


def some_accounts(
    connection: Connection, feed: int, after: str, limit: int, kept: int
) -> list[Account]:
    mine = select(producers.c.id, *_PRODUCER).where(
        producers.c.feed == feed, producers.c.name > after
    )
    rows = connection.execute(mine.order_by(producers.c.name).limit(limit))
    states = {key: ProducerState(*found) for key, *found in rows}
    numbers = all_sequences(connection, [*states])
    newest: dict[int, list[StoredReceipt]] = {key: [] for key in states}
    written = (
        select(receipts.c.producer, receipts.c.document)
        .join(producers, producers.c.id == receipts.c.producer)
        .where(producers.c.id.in_([*states]), receipts.c.number > producers.c.receipts - kept)
        .order_by(receipts.c.number.desc())
    )
    for key, document in connection.execute(written):
        newest[key].append(_decode_receipt(document))
    return [Account(state, numbers[key], newest[key]) for key, state in states.items()]


def what_is_known(connection: Connection, feed: str, call: Call) -> tuple[int, CommitFacts]:
    """Return the id of the feed's row, and the facts for the commit decision.

    Nothing is locked: the facts may change before the caller uses them. Raises UnknownFeedError.
    """
    row = _feed_row(connection, _FEED_AND_PRODUCER, feed, named=call.producer)
    feed_id, partitions, version, time, key, *found = row
    producer = ProducerState(call.producer) if key is None else ProducerState(*found)
    known = _known(connection, feed_id, partitions, call, key, producer)
    if version:
        known = replace(known, schema_version=version, schema_time=time)
    return feed_id, known


def what_is_certain(
    connection: Connection, feed: int, state: FeedState, calls: Sequence[Call]
) -> list[tuple[int | None, CommitFacts]]:
    """Return the id of the producer's row, if it has one, and the facts, for each of several calls.

    The producers' rows are locked. Each call has to be of another producer.
    """
    found = find_producers(connection, feed, [each.producer for each in calls], Lock.CHANGE)
    certain = []
    for each in calls:
        key, producer = found.get(each.producer, (None, ProducerState(each.producer)))
        known = _known(connection, feed, state.partitions, each, key, producer)
        if state.schema_version:
            version, since = state.schema_version, state.schema_since
            known = replace(known, schema_version=version, schema_since=since)
        certain.append((key, known))
    return certain


def _known(
    connection: Connection,
    feed: int,
    partitions: int,
    call: Call,
    key: int | None,
    producer: ProducerState,
) -> CommitFacts:
    """Return what is known of a call's producer; deleting P deletes its named batches P#K, too."""
    if base(call.producer) != call.producer:
        _, above = find_producer(connection, feed, base(call.producer))
        producer = replace(producer, deleted=producer.deleted or above.deleted)
    if key is None:
        name = base(call.producer)
        made = makers.count(connection, call.maker, makers.PRODUCER, feed, name)
        return CommitFacts(producer, partitions, made=made)
    last = producer.last
    if call.incarnation != producer.incarnation:
        former = select(former_incarnations.c.last).where(
            former_incarnations.c.producer == key, former_incarnations.c.name == call.incarnation
        )
        found = connection.scalar(former)
        last = -1 if found is None else found
    run_known = call.run == producer.run or _run_known(connection, key, call)
    receipt = None
    if call.batch is not None and call.batch <= last:
        its = receipts.c.incarnation == call.incarnation, receipts.c.batch == call.batch
        query = select(receipts.c.document).where(receipts.c.producer == key, *its)
        document = connection.scalar(query)  # none, if the receipt is not kept
        receipt = None if document is None else _decode_receipt(document)
    numbers = all_sequences(connection, [key])[key] if call.starting else {}
    return CommitFacts(producer, partitions, last, run_known, receipt, numbers)


def newest_receipts(
    connection: Connection, producer: int, below: int, limit: int
) -> list[StoredReceipt]:
    query = (
        select(receipts.c.document)
        .where(receipts.c.producer == producer, receipts.c.number < below)
        .order_by(receipts.c.number.desc())
        .limit(limit)
    )
    return [_decode_receipt(document) for document in connection.scalars(query)]


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit writes of one batch.

    Args:
        key: the id of the producer's row, None if it has none yet.
        numbers: the producer's numbers before the batch, by stored partition.
    """

    key: int | None
    known: CommitFacts
    numbers: Mapping[int, Numbers]
    publication: Publication

    @property
    def receipt(self) -> StoredReceipt:
        return self.publication.receipt


def write_receipts(
    connection: Connection, feed: int, batches: Sequence[Committed], kept: int
) -> None:
    """Write the receipts of these batches, and what their producers are after them.

    Each batch has to be of another producer. Each producer's newest `kept` receipts stay.
    """
    keys = _write_producers(connection, feed, batches)
    for key, each in zip(keys, batches, strict=True):
        before = each.known.producer
        if before.receipts and before.incarnation != each.receipt.incarnation:
            _change_incarnation(connection, key, before, each.receipt.incarnation)
    _write_sequences(connection, keys, batches)
    written = list(zip(keys, (each.receipt for each in batches), strict=True))
    rows = [
        {
            "producer": key,
            "number": receipt.number,
            "incarnation": receipt.incarnation,
            "batch": receipt.batch,
            "run": receipt.run,
            "document": msgspec.json.encode(receipt),
        }
        for key, receipt in written
    ]
    execute_all(connection, insert(receipts), rows)
    expired = [
        {"of": key, "upto": receipt.number - kept}
        for key, receipt in written
        if receipt.number > kept
    ]
    execute_all(connection, _EXPIRED, expired)


def _write_producers(connection: Connection, feed: int, batches: Sequence[Committed]) -> list[int]:
    """Write the producers of these batches and return the ids of their rows, in the same order."""
    known = [(each.key, asdict(after(each.receipt))) for each in batches]
    changed = [{"key": key, **values} for key, values in known if key is not None]
    execute_all(connection, _CHANGED, changed)
    return [
        inserted(connection, insert(producers), {"feed": feed, **values}) if key is None else key
        for key, values in known
    ]


def _write_sequences(
    connection: Connection, keys: Sequence[int], batches: Sequence[Committed]
) -> None:
    moved: list[dict[str, int]] = []
    new: list[dict[str, int]] = []
    for key, each in zip(keys, batches, strict=True):
        for partition, own in each.publication.sequences.items():
            if partition in each.numbers:
                moved.append({"of": key, "here": partition, "following": own.next})
            else:
                new.append({"producer": key, "partition": partition, **own._asdict()})
    execute_all(connection, _MOVED_ON, moved)
    execute_all(connection, insert(sequences), new)


def all_sequences(connection: Connection, keys: Sequence[int]) -> dict[int, dict[int, Numbers]]:
    """Return the numbers of producers, by the id of the producer's row and by stored partition."""
    found: dict[int, dict[int, Numbers]] = {key: {} for key in keys}
    columns = sequences.c.producer, sequences.c.partition, sequences.c.first, sequences.c.next
    if keys:
        for row in connection.execute(select(*columns).where(sequences.c.producer.in_(keys))):
            found[row.producer][row.partition] = Numbers(row.first, row.next)
    return found


def delete_producer(connection: Connection, feed: int, name: str) -> bool:
    """Mark a producer as deleted; its row stays, so that it can never publish again.

    Returns whether it was not deleted yet.
    """
    key, producer = find_producer(connection, feed, name, Lock.CHANGE)
    if producer.deleted:
        return False
    makers.forget(connection, makers.PRODUCER, feed, [name])
    values = asdict(replace(producer, deleted=True))
    if key is None:
        inserted(connection, insert(producers), {"feed": feed, **values})
    else:
        connection.execute(_CHANGED, {"key": key, **values})
    return True


def expire_names(connection: Connection, feed: int, before: int, limit: int) -> int:
    old = (
        select(receipts.c.producer)
        .join(producers, producers.c.id == receipts.c.producer)
        .where(
            producers.c.feed == feed,
            producers.c.incarnation == BATCH_INCARNATION,
            producers.c.time < before,
        )
        .limit(limit)
    )
    return len(_expire(connection, list(connection.scalars(old))))


def expire_producers(connection: Connection, feed: int, before: int, limit: int) -> int:
    """Expire producers. The feed's row has to be locked, so that no commit is under way."""
    named = producers.alias()
    below = named.c.name > producers.c.name + "#", named.c.name < producers.c.name + "$"
    in_use = exists().where(named.c.feed == feed, *below, named.c.time >= before)
    idle = (
        select(producers.c.id)
        .where(
            producers.c.feed == feed,
            producers.c.deleted.is_(False),
            producers.c.incarnation != BATCH_INCARNATION,
            producers.c.time < before,
            ~in_use,
        )
        .limit(limit)
    )
    keys = _expire(connection, list(connection.scalars(idle)))
    if keys:
        here = former_incarnations.c.producer.in_(keys)
        connection.execute(delete(former_incarnations).where(here))
        mine = producers.c.id.in_(keys)
        names = connection.scalars(select(producers.c.name).where(mine)).all()
        makers.forget(connection, makers.PRODUCER, feed, names)
        connection.execute(update(producers).where(mine).values(deleted=True))
    return len(keys)


def _expire(connection: Connection, keys: Sequence[int]) -> Sequence[int]:
    """Delete what is kept of producers besides their rows, and return the ids of these."""
    if keys:
        connection.execute(delete(receipts).where(receipts.c.producer.in_(keys)))
        connection.execute(delete(sequences).where(sequences.c.producer.in_(keys)))
    return keys


def _change_incarnation(
    connection: Connection, key: int, producer: ProducerState, incarnation: str
) -> None:
    """Keep the last batch of the producer's old incarnation, in case that it comes back."""
    here = former_incarnations.c.producer == key
    names = [producer.incarnation, incarnation]
    connection.execute(
        delete(former_incarnations).where(here, former_incarnations.c.name.in_(names))
    )
    row = {"producer": key, "name": producer.incarnation, "last": producer.last}
    connection.execute(insert(former_incarnations), row)


def _run_known(connection: Connection, producer: int, call: Call) -> bool:
    """Return whether the call's run has committed a batch whose receipt is kept."""
    query = select(receipts.c.number).where(
        receipts.c.producer == producer,
        receipts.c.incarnation == call.incarnation,
        receipts.c.run == call.run,
    )
    return connection.scalar(query.limit(1)) is not None


def inserted(connection: Connection, statement: Any, row: Mapping[str, Any]) -> int:
    key = connection.execute(statement, row).inserted_primary_key
    assert key is not None
    return int(key[0])


def execute_all(connection: Connection, statement: Executable, rows: Sequence[Any]) -> None:
    if rows:
        connection.execute(statement, rows if len(rows) > 1 else rows[0])
