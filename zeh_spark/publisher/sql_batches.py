"""Producers, uploads and commits in a SQL database: what one transaction does.

Rule for editors: the database decides, not what was read before the transaction: rows are locked,
feed first, then producer; a commit compares what it has moved [verified first and moved then, a
batch lost 4 of 10 chunks to another process's clean-up]. Nothing is cached between transactions:
commands write to the same database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    Connection,
    RowMapping,
    and_,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from zeh_spark.chunks import Content
from zeh_spark.publisher import producers, refusals
from zeh_spark.publisher.batches import (
    RECEIPTS,
    Attempt,
    Call,
    Declared,
    Found,
    Known,
    Producer,
    Receipt,
    Upload,
    after,
)
from zeh_spark.publisher.producers import Step, unwrapped
from zeh_spark.publisher.schema import (
    blobs,
    chunks,
    feeds,
    former_incarnations,
    receipts,
    sequences,
    stagings,
    uploads,
)
from zeh_spark.publisher.schema import producers as producer_table
from zeh_spark.publisher.store import (
    IDLE,
    STAGED_FOR,
    FeedState,
    Moved,
    Publication,
    Staged,
    as_one,
    in_batch_order,
    joined,
    now_ms,
    packs,
    published,
    unknown_feed,
)

NEXT = -1
"""How a staging's batch is stored if it takes the next number at its commit."""

T = TypeVar("T")

_AT_A_TIME = 500
"""Values in one statement; databases allow some thousands."""

_FEED = [feeds.c[name] for name in ("name", "partitions", "origin", "head", "history", "time")]
_PRODUCER = [
    producer_table.c[name]
    for name in (
        "name", "incarnation", "level", "run", "last", "receipts", "chain", "time", "deleted",
    )
]  # fmt: skip
_decode_receipt = msgspec.json.Decoder(Receipt).decode
_decode_chunks = msgspec.msgpack.Decoder(list[Moved]).decode


def find_feed(connection: Connection, name: str, *, lock: bool = False) -> tuple[int, FeedState]:
    """Its row's id, and the feed. Raises UnknownFeedError."""
    query = select(feeds.c.id, *_FEED).where(feeds.c.name == name)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise unknown_feed(name)
    return row[0], FeedState(*row[1:])


def find_producer(
    connection: Connection, feed: int, name: str, *, lock: bool = False
) -> tuple[int | None, Producer]:
    query = select(producer_table.c.id, *_PRODUCER).where(
        producer_table.c.feed == feed, producer_table.c.name == name
    )
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return (None, Producer(name)) if row is None else (row[0], Producer(*row[1:]))


def what_is_known(
    connection: Connection, feed: int, partitions: int, call: Call, *, lock: bool = False
) -> tuple[int | None, Known]:
    """The id of the producer's row, if it has one, and all that the decision goes by."""
    key, producer = find_producer(connection, feed, call.producer, lock=lock)
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


def all_producers(connection: Connection, feed: int) -> list[Producer]:
    query = select(*_PRODUCER).where(producer_table.c.feed == feed).order_by(producer_table.c.name)
    return [Producer(*row) for row in connection.execute(query)]


def delete_producer(connection: Connection, feed: int, name: str) -> None:
    """The row stays, as a tombstone."""
    key, producer = find_producer(connection, feed, name, lock=True)
    _write_producer(connection, feed, key, replace(producer, deleted=True))


def admit(connection: Connection, feed: str, call: Call) -> Receipt | None:
    feed_id, state = find_feed(connection, feed)
    _, known = what_is_known(connection, feed_id, state.partitions, call)
    decision = unwrapped(producers.decide(known, call))
    return decision if isinstance(decision, Receipt) else None


def stage(
    connection: Connection, feed: str, call: Call, upload: Upload, quota: int | None
) -> Staged | Receipt:
    feed_id, state = find_feed(connection, feed)
    _, known = what_is_known(connection, feed_id, state.partitions, call)
    decision = unwrapped(producers.decide(known, call))
    if isinstance(decision, Receipt):
        return decision
    staging = _touched_staging(connection, feed_id, call)
    here = and_(
        uploads.c.staging == staging,
        uploads.c.task == upload.task,
        uploads.c.attempt == upload.attempt,
        uploads.c.number == upload.number,
    )
    digest = connection.scalar(select(uploads.c.digest).where(here))
    if digest is None:
        _within_quota(connection, feed_id, call, upload, quota)
        _insert_upload(connection, staging, upload)
    elif digest != upload.digest:
        name = f"{call.run}.{upload.task}.{upload.attempt}.{upload.number}"
        raise refusals.upload_conflict(call, name)
    return Staged.NEW if digest is None else Staged.SAME


def commit(
    connection: Connection, feed: str, call: Call, declared: Declared
) -> tuple[Receipt, bool]:
    feed_id, before = find_feed(connection, feed, lock=True)
    key, known = what_is_known(connection, feed_id, before.partitions, call, lock=True)
    decision = unwrapped(producers.decide(known, call, declared))
    if isinstance(decision, Receipt):
        return decision, False
    found, moved = _move(connection, feed_id, call, declared.attempts)
    decision = unwrapped(producers.decide(known, call, declared, found))
    assert decision is Step.PUBLISH
    numbers = dict(
        connection.execute(
            select(sequences.c.partition, sequences.c.next).where(sequences.c.producer == key)
        ).all()
    )
    packed = [_packed(connection, each) for each in packs(in_batch_order(moved))]
    publication = published(known, call, declared, before, packed, numbers, now_ms())
    _append(connection, feed_id, publication)
    _write_receipt(connection, feed_id, key, known, publication)
    return publication.receipt, True


def release(connection: Connection, feed: int, producer: str, batch: int | None, run: str) -> int:
    """A step: returns how many uploads it dropped; there may be more until that is 0."""
    wanted = select(stagings.c.id).where(
        stagings.c.feed == feed,
        stagings.c.producer == producer,
        stagings.c.batch == (NEXT if batch is None else batch),
        stagings.c.run == run,
    )
    return _drop_some(connection, wanted.order_by(stagings.c.id).limit(1))


def tidy(connection: Connection) -> bool:
    """A step of cleaning up; False if there was nothing to do."""
    wanted = _superfluous(now_ms() - int(STAGED_FOR * 1000)).limit(1)
    return _drop_some(connection, wanted, and_staging=True) >= 0


def _drop_some(connection: Connection, wanted: Any, *, and_staging: bool = False) -> int:
    """Drop up to 64 uploads of the staging that `wanted` selects, then the staging itself.

    Returns how many uploads, -1 if there is no such staging.
    """
    staging = connection.scalar(wanted)
    if staging is None:
        return -1 if and_staging else 0
    some = select(uploads).where(uploads.c.staging == staging).limit(64)
    rows = connection.execute(some).mappings().all()
    _drop(connection, staging, rows)
    if not rows:
        connection.execute(delete(stagings).where(stagings.c.id == staging))
    return len(rows)


def _drop(connection: Connection, staging: int, rows: Sequence[RowMapping]) -> None:
    for row in rows:
        connection.execute(
            delete(uploads).where(
                uploads.c.staging == staging,
                uploads.c.task == row["task"],
                uploads.c.attempt == row["attempt"],
                uploads.c.number == row["number"],
            )
        )
        _drop_blobs(connection, [each.blob for each in _decode_chunks(row["chunks"])])


def _drop_blobs(connection: Connection, ids: Sequence[int]) -> None:
    for some in _parts(ids):
        connection.execute(delete(blobs).where(blobs.c.id.in_(some)))


def _superfluous(before: int, only: Any = None) -> Any:
    """Stagings that nobody needs: not touched since `before`, or of a batch that is committed, or
    of a run that another one has overtaken.
    """
    same = and_(
        producer_table.c.feed == stagings.c.feed,
        producer_table.c.name == stagings.c.producer,
        producer_table.c.incarnation == stagings.c.incarnation,
    )
    overtaken = exists().where(
        receipts.c.producer == producer_table.c.id,
        receipts.c.incarnation == stagings.c.incarnation,
        receipts.c.run == stagings.c.run,
        stagings.c.run != producer_table.c.run,
    )
    superseded = and_(
        producer_table.c.id.is_not(None),
        stagings.c.batch != NEXT,
        or_(stagings.c.batch <= producer_table.c.last, overtaken),
    )
    query = (
        select(stagings.c.id)
        .select_from(stagings.outerjoin(producer_table, same))
        .where(or_(stagings.c.touched < before, superseded))
        .order_by(stagings.c.id)
    )
    return query if only is None else query.where(only)


def _within_quota(
    connection: Connection, feed: int, call: Call, upload: Upload, quota: int | None
) -> None:
    """Makes room first of what nobody needs. Raises Problem."""
    if quota is None:
        return
    mine = and_(stagings.c.feed == feed, stagings.c.producer == call.producer)
    total = select(func.coalesce(func.sum(stagings.c.bytes), 0)).where(mine)
    staged = connection.scalar(total) or 0
    if staged + upload.bytes <= quota:
        return
    unneeded = _superfluous(now_ms() - int(IDLE * 1000), mine).limit(1)
    while staged + upload.bytes > quota and (each := connection.scalar(unneeded)) is not None:
        rows = connection.execute(select(uploads).where(uploads.c.staging == each)).mappings()
        _drop(connection, each, rows.all())
        connection.execute(delete(stagings).where(stagings.c.id == each))
        staged = connection.scalar(total) or 0
    if staged + upload.bytes > quota:
        raise refusals.quota_exceeded(call, quota, staged)


def _staging(connection: Connection, feed: int, call: Call, *, lock: bool) -> int | None:
    query = select(stagings.c.id).where(
        stagings.c.feed == feed,
        stagings.c.producer == call.producer,
        stagings.c.incarnation == call.incarnation,
        stagings.c.batch == (NEXT if call.batch is None else call.batch),
        stagings.c.run == call.run,
    )
    return connection.scalar(query.with_for_update() if lock else query)


def _touched_staging(connection: Connection, feed: int, call: Call) -> int:
    """The staging that an upload goes into, kept alive by it."""
    staging = _staging(connection, feed, call, lock=True)
    if staging is not None:
        here = stagings.c.id == staging
        connection.execute(update(stagings).where(here).values(touched=now_ms()))
        return staging
    row = {
        "feed": feed,
        "producer": call.producer,
        "incarnation": call.incarnation,
        "batch": NEXT if call.batch is None else call.batch,
        "run": call.run,
        "touched": now_ms(),
        "bytes": 0,
    }
    return _inserted(connection, insert(stagings), row)


def _insert_upload(connection: Connection, staging: int, upload: Upload) -> None:
    moved = []
    for each in upload.chunks:
        blob = _inserted(connection, insert(blobs), {"frame": each.frame})
        moved.append(Moved(blob, each.partition, each.events, each.size, each.digest))
    row = {
        "staging": staging,
        "task": upload.task,
        "attempt": upload.attempt,
        "number": upload.number,
        "digest": upload.digest,
        "events": upload.content.events,
        "sum": upload.content.sum.to_bytes(16, "big"),
        "chunks": msgspec.msgpack.encode(moved),
    }
    connection.execute(insert(uploads), row)
    connection.execute(
        update(stagings)
        .where(stagings.c.id == staging)
        .values(bytes=stagings.c.bytes + upload.bytes)
    )


def _inserted(connection: Connection, statement: Any, row: Mapping[str, Any]) -> int:
    key = connection.execute(statement, row).inserted_primary_key
    assert key is not None
    return int(key[0])


def _move(
    connection: Connection, feed: int, call: Call, attempts: Sequence[Attempt]
) -> tuple[dict[tuple[int, int], Found], list[tuple[tuple[int, int, int], Moved]]]:
    """Take the uploads of these attempts out of the staging, and say what they were."""
    staging = _staging(connection, feed, call, lock=True)
    found: dict[tuple[int, int], Found] = {}
    moved: list[tuple[tuple[int, int, int], Moved]] = []
    if staging is None:
        return found, moved
    named = tuple_(uploads.c.task, uploads.c.attempt)
    for some in _parts([(each.task, each.attempt) for each in attempts]):
        here = and_(uploads.c.staging == staging, named.in_(some))
        taken = delete(uploads).where(here).returning(uploads)
        for row in connection.execute(taken).mappings():
            attempt = (row["task"], row["attempt"])
            content = Content(row["events"], int.from_bytes(row["sum"], "big"))
            before = found.get(attempt, Found())
            found[attempt] = Found(before.uploads + 1, before.content + content)
            for place, each in enumerate(_decode_chunks(row["chunks"])):
                moved.append(((row["task"], row["number"], place), each))
    return found, moved


def _packed(connection: Connection, pack: Sequence[Moved]) -> Moved:
    """Small chunks as one."""
    if len(pack) == 1:
        return pack[0]
    ids = [each.blob for each in pack]
    frames: dict[int, bytes] = {}
    for some in _parts(ids):
        query = select(blobs.c.id, blobs.c.frame).where(blobs.c.id.in_(some))
        frames.update(dict(connection.execute(query).all()))
    frame = joined(frames[each] for each in ids)
    _drop_blobs(connection, ids)
    return as_one(pack, _inserted(connection, insert(blobs), {"frame": frame}), frame)


def _append(connection: Connection, feed: int, publication: Publication) -> None:
    if publication.chunks:
        rows = [{"feed": feed, **asdict(each)} for each in publication.chunks]
        connection.execute(insert(chunks), rows)
    state = publication.feed
    connection.execute(
        update(feeds)
        .where(feeds.c.id == feed)
        .values(head=state.head, history=state.history, time=state.time)
    )


def _write_receipt(
    connection: Connection, feed: int, key: int | None, known: Known, publication: Publication
) -> None:
    receipt = publication.receipt
    key = _write_producer(connection, feed, key, after(receipt))
    if known.producer.receipts and known.producer.incarnation != receipt.incarnation:
        _change_incarnation(connection, key, known.producer, receipt.incarnation)
    for partition, following in publication.sequences.items():
        here = and_(sequences.c.producer == key, sequences.c.partition == partition)
        changed = connection.execute(update(sequences).where(here).values(next=following))
        if not changed.rowcount:
            here_now = {"producer": key, "partition": partition, "next": following}
            connection.execute(insert(sequences), here_now)
    row = {
        "producer": key,
        "number": receipt.number,
        "incarnation": receipt.incarnation,
        "batch": receipt.batch,
        "run": receipt.run,
        "document": msgspec.json.encode(receipt),
    }
    connection.execute(insert(receipts), row)
    expired = and_(receipts.c.producer == key, receipts.c.number <= receipt.number - RECEIPTS)
    connection.execute(delete(receipts).where(expired))


def _write_producer(connection: Connection, feed: int, key: int | None, producer: Producer) -> int:
    values = asdict(producer)
    if key is None:
        return _inserted(connection, insert(producer_table), {"feed": feed, **values})
    connection.execute(update(producer_table).where(producer_table.c.id == key).values(values))
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


def _parts(values: Sequence[T]) -> Iterable[Sequence[T]]:
    return (values[begin : begin + _AT_A_TIME] for begin in range(0, len(values), _AT_A_TIME))
