"""Producers and their receipts in a SQL database: parts of a transaction.

Rule for editors: the database decides, not what was read before the transaction: rows are locked,
feed first, then producer [the producer alone: two commits took the same positions, 647 of 968 were
refused by the table]. The locks leave the keys alone (FOR NO KEY UPDATE), so that uploads, which
only refer to the feed, do not wait. Nothing is cached between transactions: commands and other
publishers write to the same database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from enum import Enum, auto
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, and_, bindparam, delete, insert, select, update

from zeh_spark.publisher.batches import RECEIPTS, Call, Known, Producer, Receipt, after, base
from zeh_spark.publisher.publication import Publication
from zeh_spark.publisher.schema import feeds, former_incarnations, producers, receipts, sequences
from zeh_spark.publisher.store import FeedState, unknown_feed

_FEED = [feeds.c[name] for name in ("name", "partitions", "origin", "head", "history", "time")]
_PRODUCER = [
    producers.c[name]
    for name in (
        "name", "incarnation", "level", "run", "last", "receipts", "chain", "time", "deleted",
    )
]  # fmt: skip
_decode_receipt = msgspec.json.Decoder(Receipt).decode


class Lock(Enum):
    """What one wants of a row: to change it, or to know that nobody is about to."""

    CHANGE = auto()
    CERTAIN = auto()


def find_feed(connection: Connection, name: str, lock: Lock | None = None) -> tuple[int, FeedState]:
    """Its row's id, and the feed. Raises UnknownFeedError."""
    if "\0" in name:  # which PostgreSQL cannot even look for
        raise unknown_feed(name)
    query = _locked(select(feeds.c.id, *_FEED).where(feeds.c.name == name), lock)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise unknown_feed(name)
    return row[0], FeedState(*row[1:])


def find_producer(
    connection: Connection, feed: int, name: str, lock: Lock | None = None
) -> tuple[int | None, Producer]:
    query = select(producers.c.id, *_PRODUCER).where(
        producers.c.feed == feed, producers.c.name == name
    )
    row = connection.execute(_locked(query, lock)).one_or_none()
    return (None, Producer(name)) if row is None else (row[0], Producer(*row[1:]))


def _locked(query: Select[Any], lock: Lock | None) -> Select[Any]:
    if lock is None:
        return query
    return query.with_for_update(read=lock is Lock.CERTAIN, key_share=lock is Lock.CHANGE)


def some_producers(connection: Connection, feed: int, after: str, limit: int) -> list[Producer]:
    query = select(*_PRODUCER).where(producers.c.feed == feed, producers.c.name > after)
    rows = connection.execute(query.order_by(producers.c.name).limit(limit))
    return [Producer(*row) for row in rows]


def what_is_known(
    connection: Connection, feed: int, partitions: int, call: Call, lock: Lock | None = None
) -> tuple[int | None, Known]:
    """The id of the producer's row, if it has one, and all that the decision goes by."""
    key, producer = find_producer(connection, feed, call.producer, lock)
    if base(call.producer) != call.producer:
        _, above = find_producer(connection, feed, base(call.producer))
        producer = replace(producer, deleted=producer.deleted or above.deleted)
    if key is None:
        return None, Known(producer, partitions)
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
        receipt = find_receipt(connection, key, call.incarnation, call.batch)
    return key, Known(producer, partitions, last, run_known, receipt)


def find_receipt(
    connection: Connection, producer: int, incarnation: str, batch: int
) -> Receipt | None:
    query = select(receipts.c.document).where(
        receipts.c.producer == producer,
        receipts.c.incarnation == incarnation,
        receipts.c.batch == batch,
    )
    document = connection.scalar(query)
    return None if document is None else _decode_receipt(document)


def newest_receipts(connection: Connection, producer: int, below: int, limit: int) -> list[Receipt]:
    query = (
        select(receipts.c.document)
        .where(receipts.c.producer == producer, receipts.c.number < below)
        .order_by(receipts.c.number.desc())
        .limit(limit)
    )
    return [_decode_receipt(document) for document in connection.scalars(query)]


def write_receipt(
    connection: Connection,
    feed: int,
    key: int | None,
    known: Known,
    publication: Publication,
    numbers: Mapping[int, int],
) -> None:
    """`numbers`: the producer's next ones so far."""
    receipt = publication.receipt
    key = _write_producer(connection, feed, key, after(receipt))
    if known.producer.receipts and known.producer.incarnation != receipt.incarnation:
        _change_incarnation(connection, key, known.producer, receipt.incarnation)
    _write_sequences(connection, key, publication.sequences, numbers)
    row = {
        "producer": key,
        "number": receipt.number,
        "incarnation": receipt.incarnation,
        "batch": receipt.batch,
        "run": receipt.run,
        "document": msgspec.json.encode(receipt),
    }
    connection.execute(insert(receipts), row)
    if (oldest := receipt.number - RECEIPTS) > 0:
        expired = and_(receipts.c.producer == key, receipts.c.number <= oldest)
        connection.execute(delete(receipts).where(expired))


def _write_sequences(
    connection: Connection, key: int, following: Mapping[int, int], numbers: Mapping[int, int]
) -> None:
    there = (sequences.c.producer == key) & (sequences.c.partition == bindparam("here"))
    changed = update(sequences).where(there).values(next=bindparam("following"))
    rows = [{"here": each, "following": following[each]} for each in following if each in numbers]
    if rows:
        connection.execute(changed, rows)
    new = [
        {"producer": key, "partition": each, "next": following[each]}
        for each in following
        if each not in numbers
    ]
    if new:
        connection.execute(insert(sequences), new)


def next_sequences(connection: Connection, producer: int | None) -> dict[int, int]:
    query = select(sequences.c.partition, sequences.c.next).where(sequences.c.producer == producer)
    return {row.partition: row.next for row in connection.execute(query)}


def delete_producer(connection: Connection, feed: int, name: str) -> None:
    """The row stays, as a tombstone."""
    key, producer = find_producer(connection, feed, name, Lock.CHANGE)
    _write_producer(connection, feed, key, replace(producer, deleted=True))


def _write_producer(connection: Connection, feed: int, key: int | None, producer: Producer) -> int:
    values = asdict(producer)
    if key is None:
        return inserted(connection, insert(producers), {"feed": feed, **values})
    connection.execute(update(producers).where(producers.c.id == key).values(values))
    return key


def _change_incarnation(
    connection: Connection, key: int, producer: Producer, incarnation: str
) -> None:
    """Remember where the old one ended, in case that it comes back."""
    here = former_incarnations.c.producer == key
    names = [producer.incarnation, incarnation]
    connection.execute(
        delete(former_incarnations).where(here, former_incarnations.c.name.in_(names))
    )
    row = {"producer": key, "name": producer.incarnation, "last": producer.last}
    connection.execute(insert(former_incarnations), row)


def _run_known(connection: Connection, producer: int, call: Call) -> bool:
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
