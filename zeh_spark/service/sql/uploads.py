"""Uploads that are staged in a SQL database and not committed yet: what one transaction does.

Rule for editors: locks are taken as `producers` says. An upload that nobody needs any more is
dropped whole, with its frames. Runs inside a transaction of the caller, in the publisher and in
commands that write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from zeh_spark.service.sql.producers import inserted, what_is_known
from zeh_spark.service.sql.schema import blobs, feeds, receipts, stagings, uploads
from zeh_spark.service.sql.schema import producers as producer_table
from zeh_spark.service.store import commit_decision, refusals
from zeh_spark.service.store.batches import (
    UPLOAD_BYTES,
    Call,
    StagingResult,
    StoredReceipt,
    TaskAttempt,
    Upload,
    base,
)
from zeh_spark.service.store.commit_decision import unwrapped
from zeh_spark.service.store.commit_plan import Moved
from zeh_spark.service.store.interface import IDLE, STAGED_FOR, Clock

NEXT = -1
"""The number that is stored for a staging whose batch gets its number at its commit."""

T = TypeVar("T")

_AT_A_TIME = 500
"""How many values one statement has at most. Databases allow some thousands."""

STAGED = "producer", "incarnation", "batch", "run"
"""The columns that identify a staging within its feed."""

decode_chunks = msgspec.msgpack.Decoder(list[Moved]).decode
"""Decode the chunks in an upload's row."""

_STAGING = select(stagings.c.id).where(
    *(stagings.c[each] == bindparam(each) for each in ("feed", *STAGED))
)
_UPLOADED = select(uploads.c.digest).where(
    uploads.c.staging == _STAGING.scalar_subquery(),
    *(uploads.c[each] == bindparam(each) for each in ("task", "attempt", "number")),
)
_OF_PRODUCER = and_(  # of P, and of its named batches P#K: # comes before $
    stagings.c.feed == bindparam("feed"),
    or_(
        stagings.c.producer == bindparam("base"),
        and_(
            stagings.c.producer > bindparam("base") + "#",
            stagings.c.producer < bindparam("base") + "$",
        ),
    ),
)
_TOTAL = select(func.coalesce(func.sum(stagings.c.bytes), 0)).where(_OF_PRODUCER)
_PLACE = select(*(each.scalar_subquery() for each in (_STAGING, _UPLOADED, _TOTAL)))
"""The id of the staging, the digest of the upload, and the bytes that the producer has staged."""

_TOUCHED = (
    update(stagings)
    .where(stagings.c.id == bindparam("of"))
    .values(touched=bindparam("now"), bytes=stagings.c.bytes + bindparam("more"))
)


def admit(connection: Connection, feed: str, call: Call) -> StoredReceipt | None:
    """Decide about an upload before it is read (see `Batches.admit`)."""
    _, known = what_is_known(connection, feed, call)
    decision = unwrapped(commit_decision.decide(known, call))
    return decision if isinstance(decision, StoredReceipt) else None


def stage(
    connection: Connection,
    feed: str,
    call: Call,
    upload: Upload,
    quota: int | None,
    clock: Clock,
) -> StagingResult | StoredReceipt:
    """Keep an upload, invisible, until its batch is committed (see `Batches.stage`)."""
    feed_id, known = what_is_known(connection, feed, call)
    decision = unwrapped(commit_decision.decide(known, call))
    if isinstance(decision, StoredReceipt):
        return decision
    for each in upload.chunks:
        if not 0 <= each.partition < known.partition_count:
            raise refusals.partition_lacking(call, each.partition, known.partition_count)
    checked_with = upload.schema_version, upload.schema_time
    if upload.chunks and checked_with != (known.schema_version, known.schema_time):
        return StagingResult.UNCHECKED
    place = {"feed": feed_id, **place_of(call)}
    here = {"task": upload.task, "attempt": upload.attempt, "number": upload.number}
    of = {"base": base(call.producer)}
    staging, digest, staged = connection.execute(_PLACE, {**place, **here, **of}).one()
    more = 0
    if digest is None:
        if quota is not None:
            whose = {"feed": feed_id, **of}
            _make_room(connection, whose, staging, call, upload, quota, staged, clock())
        more = upload.bytes
    elif digest != upload.digest:
        name = f"{call.run}.{upload.task}.{upload.attempt}.{upload.number}"
        raise refusals.upload_conflict(call, name)
    if staging is None:
        row = {**place, "touched": clock(), "bytes": more}
        _insert_upload(connection, inserted(connection, insert(stagings), row), upload)
        return StagingResult.NEW
    if digest is None:
        _insert_upload(connection, staging, upload)
    _touch(connection, staging, more, clock())  # last: the uploads of other tasks wait for this row
    return StagingResult.NEW if digest is None else StagingResult.SAME


def staged_chunks(
    connection: Connection, feed: int, call: Call, attempts: Sequence[TaskAttempt]
) -> int:
    """Count chunks (see `Batches.staged_chunks`). Of each upload's list only the length is read."""
    staging = connection.scalar(_STAGING, {"feed": feed, **place_of(call)})
    if staging is None:
        return 0
    length = func.substr(uploads.c.chunks, 1, 5)
    named = tuple_(uploads.c.task, uploads.c.attempt)
    found = 0
    for some in parts([(each.task, each.attempt) for each in attempts]):
        heads = select(length).where(uploads.c.staging == staging, named.in_(some))
        found += sum(map(_array_length, connection.scalars(heads)))
    return found


def _array_length(head: bytes) -> int:
    """Return the length of an array in MessagePack, given its first five bytes."""
    size = {0xDC: 2, 0xDD: 4}.get(head[0])
    return head[0] & 0x0F if size is None else int.from_bytes(head[1 : 1 + size], "big")


def staged_bytes(connection: Connection) -> dict[str, int]:
    query = (
        select(feeds.c.name, func.sum(stagings.c.bytes))
        .join_from(feeds, stagings)
        .where(stagings.c.bytes > 0)
        .group_by(feeds.c.name)
    )
    return {name: int(size) for name, size in connection.execute(query)}


def release(
    connection: Connection,
    feed: int,
    producer: str,
    batch: int | None,
    run: str,
    attempt: tuple[int, int] | None = None,
) -> int | None:
    """Drop some uploads of a batch's run, or of one attempt of it (see `Batches.release`).

    It returns how many were dropped; None if nothing is left. Callers repeat it until then.
    """
    wanted = select(stagings.c.id).where(
        stagings.c.feed == feed,
        stagings.c.producer == producer,
        stagings.c.batch == (NEXT if batch is None else batch),
        stagings.c.run == run,
    )
    if attempt is None:
        one = wanted.order_by(stagings.c.id).limit(1)
        return _drop_some(connection, one.with_for_update())
    task, tried = attempt
    mine = uploads.c.staging.in_(wanted), uploads.c.task == task, uploads.c.attempt == tried
    return _drop(connection, and_(*mine), limit=64) or None


def tidy(connection: Connection, now: int) -> bool:
    return _drop_some(connection, _superfluous(now - int(STAGED_FOR * 1000))) is not None


def _drop_some(connection: Connection, wanted: Select[Any]) -> int | None:
    """Drop up to 64 uploads of the staging that `wanted` selects; once it is empty, drop it too.

    Returns how many uploads were dropped, None if `wanted` selects no staging.
    """
    staging = connection.scalar(wanted)
    if staging is None:
        return None
    dropped = _drop(connection, uploads.c.staging == staging, limit=64)
    if not dropped:
        connection.execute(delete(stagings).where(stagings.c.id == staging))
    return dropped


def _drop(connection: Connection, wanted: ColumnElement[bool], limit: int | None = None) -> int:
    """Drop uploads and return how many.

    Only the frames of uploads that this statement deleted are dropped. A commit may have taken
    other uploads before it.
    """
    which = uploads.c.staging, uploads.c.task, uploads.c.attempt, uploads.c.number
    some = select(*which).where(wanted).limit(limit)
    taken = delete(uploads).where(tuple_(*which).in_(some))
    rows = connection.execute(taken.returning(uploads.c.staging, uploads.c.chunks)).all()
    for staging in {row.staging for row in rows}:
        mine = [each.chunks for each in rows if each.staging == staging]
        freed = drop_blobs(connection, [each.blob for c in mine for each in decode_chunks(c)])
        freed += UPLOAD_BYTES * len(mine)
        less = update(stagings).where(stagings.c.id == staging)
        connection.execute(less.values(bytes=stagings.c.bytes - freed))
    return len(rows)


def drop_blobs(connection: Connection, ids: Sequence[int]) -> int:
    """Delete frames and return how many bytes they had."""
    freed = 0
    for some in parts(ids):
        dropped = delete(blobs).where(blobs.c.id.in_(some)).returning(func.length(blobs.c.frame))
        freed += sum(connection.scalars(dropped))
    return freed


def _superfluous(before: int, only: ColumnElement[bool] | None = None) -> Select[Any]:
    """Return a query that selects and locks one staging that nobody needs any more.

    Such a staging was not touched since `before`; or its batch is committed; or another run has
    overtaken its run. Stagings that other transactions have locked are skipped.
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
        .limit(1)
        .with_for_update(of=stagings, skip_locked=True)
    )
    return query if only is None else query.where(only)


def _make_room(
    connection: Connection,
    of: Mapping[str, Any],
    staging: int | None,
    call: Call,
    upload: Upload,
    quota: int,
    staged: int,
    now: int,
) -> None:
    """Drop what nobody needs any more if an upload exceeds the quota.

    `of` is the feed and the producer, as `_OF_PRODUCER` takes them, and `staged` its staged bytes.
    The upload's own `staging` stays. Raises Problem if the upload exceeds the quota also then.
    """
    others = and_(_OF_PRODUCER, stagings.c.id.is_distinct_from(staging))
    unneeded = _superfluous(now - int(IDLE * 1000), others)
    while staged + upload.bytes > quota and (each := connection.scalar(unneeded, of)) is not None:
        _drop(connection, uploads.c.staging == each)
        connection.execute(delete(stagings).where(stagings.c.id == each))
        staged = int(connection.scalar(_TOTAL, of) or 0)
    if staged + upload.bytes > quota:
        raise refusals.quota_exceeded(call, quota, staged, upload.bytes)


def _touch(connection: Connection, staging: int, more: int, now: int) -> None:
    """Note the time of the last upload, which keeps a staging alive, and add the new bytes."""
    connection.execute(_TOUCHED, {"of": staging, "now": now, "more": more})


def _insert_upload(connection: Connection, staging: int, upload: Upload) -> None:
    ids = insert_blobs(connection, [each.frame for each in upload.chunks])
    moved = [
        Moved(blob, each.partition, each.events, each.size, each.digest)
        for blob, each in zip(ids, upload.chunks, strict=True)
    ]
    row = {
        "staging": staging,
        "task": upload.task,
        "attempt": upload.attempt,
        "number": upload.number,
        "digest": upload.digest,
        "events": upload.content.events,
        "sum": upload.content.sum.to_bytes(16, "big"),
        "schema_version": upload.schema_version,
        "chunks": msgspec.msgpack.encode(moved),
    }
    connection.execute(insert(uploads), row)


def insert_blobs(connection: Connection, frames: Sequence[bytes]) -> Sequence[int]:
    """Insert frames and return their ids, in the same order."""
    if not frames:
        return []
    ids = insert(blobs).returning(blobs.c.id, sort_by_parameter_order=True)
    return connection.scalars(ids, [{"frame": frame} for frame in frames]).all()


def place_of(call: Call) -> dict[str, str | int]:
    """Return the values of the columns `STAGED` for a call, in their order."""
    batch = NEXT if call.batch is None else call.batch
    return dict(zip(STAGED, (call.producer, call.incarnation, batch, call.run), strict=True))


def parts(values: Sequence[T]) -> Iterable[Sequence[T]]:
    """Yield the values in parts that are small enough for one statement."""
    return (values[begin : begin + _AT_A_TIME] for begin in range(0, len(values), _AT_A_TIME))
