"""Uploads and commits in a SQL database: what one transaction does.

Rule for editors: a commit compares what it has moved [verified first and moved then, a batch lost 4
of 10 chunks to another process's clean-up]; locks are taken as `sql_producers` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
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

from zeh_spark.chunks import Content
from zeh_spark.publisher import producers, refusals
from zeh_spark.publisher.batches import (
    Call,
    Declared,
    Found,
    Known,
    Receipt,
    Upload,
    base,
)
from zeh_spark.publisher.problems import Problem
from zeh_spark.publisher.producers import Decision, Step, unwrapped
from zeh_spark.publisher.publication import (
    Moved,
    Publication,
    as_one,
    in_batch_order,
    joined,
    packs,
    published,
)
from zeh_spark.publisher.schema import (
    anchors,
    blobs,
    chunks,
    feeds,
    receipts,
    stagings,
    uploads,
)
from zeh_spark.publisher.schema import producers as producer_table
from zeh_spark.publisher.sql_producers import (
    Committed,
    Lock,
    execute_all,
    find_feed,
    inserted,
    next_sequences,
    what_is_certain,
    what_is_known,
    write_receipts,
)
from zeh_spark.publisher.store import IDLE, STAGED_FOR, FeedState, Staged, check_partitions, now_ms

NEXT = -1
"""How a staging's batch is stored if it takes the next number at its commit."""

T = TypeVar("T")

_AT_A_TIME = 500
"""Values in one statement; databases allow some thousands."""

Commit = tuple[Call, Declared]
Done = tuple[Receipt, bool] | Problem
"""The receipt, and whether it is new; or why there is none."""

_FEED_MOVED_ON = update(feeds).where(feeds.c.id == bindparam("of"))
_STAGED = "producer", "incarnation", "batch", "run"
_STAGING = select(stagings.c.id).where(
    *(stagings.c[each] == bindparam(each) for each in ("feed", *_STAGED))
)
_UPLOADED = select(uploads.c.digest).where(
    *(uploads.c[each] == bindparam(each) for each in ("staging", "task", "attempt", "number"))
)
_TOUCHED = (
    update(stagings)
    .where(stagings.c.id == bindparam("of"))
    .values(touched=bindparam("now"), bytes=stagings.c.bytes + bindparam("more"))
)

_decode_chunks = msgspec.msgpack.Decoder(list[Moved]).decode


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
    check_partitions(call, upload, state.partitions)
    staging = _staging(connection, feed_id, call) or _new_staging(connection, feed_id, call)
    here = {"task": upload.task, "attempt": upload.attempt, "number": upload.number}
    digest = connection.scalar(_UPLOADED, {"staging": staging, **here})
    more = 0
    if digest is None:
        _within_quota(connection, feed_id, call, upload, quota)
        _insert_upload(connection, staging, upload)
        more = upload.bytes
    elif digest != upload.digest:
        name = f"{call.run}.{upload.task}.{upload.attempt}.{upload.number}"
        raise refusals.upload_conflict(call, name)
    _touch(connection, staging, more)  # last: other tasks' uploads wait for the row
    return Staged.NEW if digest is None else Staged.SAME


def commit(connection: Connection, feed: str, asked: Sequence[Commit]) -> list[Done]:
    """Several commits as if one came after the other, in one transaction. One that is refused
    changes nothing, and its Problem is its answer.

    Raises Problem for one that is refused when all have moved their uploads: then none holds.
    """
    feed_id, state = find_feed(connection, feed, Lock.CHANGE)
    done: dict[int, Done] = {}
    for numbers in _rounds(asked):
        answers, state = _commit(connection, feed_id, state, [asked[each] for each in numbers])
        done.update(zip(numbers, answers, strict=True))
    return [done[each] for each in range(len(asked))]


def _rounds(asked: Sequence[Commit]) -> list[list[int]]:
    """Their numbers, so that no producer is twice in a round: what it does next depends on what it
    did before.
    """
    rounds: list[list[int]] = []
    before: Counter[str] = Counter()
    for number, (call, _) in enumerate(asked):
        if before[call.producer] == len(rounds):
            rounds.append([])
        rounds[before[call.producer]].append(number)
        before[call.producer] += 1
    return rounds


def _commit(
    connection: Connection, feed: int, state: FeedState, asked: Sequence[Commit]
) -> tuple[list[Done], FeedState]:
    """A round, and the feed behind it."""
    calls = [call for call, _ in asked]
    certain = what_is_certain(connection, feed, state.partitions, calls)
    decisions = [
        producers.decide(known, call, declared)
        for (call, declared), (_, known) in zip(asked, certain, strict=True)
    ]
    wanted = [at for at, decision in enumerate(decisions) if decision is Step.MOVE]
    batches = _moved(
        connection, feed, state, [asked[at] for at in wanted], [certain[at] for at in wanted]
    )
    if batches:
        _append(connection, feed, [each.publication for each in batches])
        write_receipts(connection, feed, batches)
        state = batches[-1].publication.feed
    new = {at: (each.receipt, True) for at, each in zip(wanted, batches, strict=True)}
    return [new.get(at) or _answer(decision) for at, decision in enumerate(decisions)], state


def _moved(
    connection: Connection,
    feed: int,
    state: FeedState,
    asked: Sequence[Commit],
    certain: Sequence[tuple[int | None, Known]],
) -> list[Committed]:
    """What is to be written down of each, now that its uploads are taken. Raises Problem."""
    numbers = next_sequences(connection, [key for key, _ in certain if key is not None])
    moves = _move(connection, feed, asked)
    batches: list[Committed] = []
    for (call, declared), (key, known), (found, moved) in zip(asked, certain, moves, strict=True):
        decision = unwrapped(producers.decide(known, call, declared, found))
        assert decision is Step.PUBLISH
        packed = _packed(connection, list(packs(in_batch_order(moved))))
        mine = {} if key is None else numbers[key]
        publication = published(known, call, declared, state, packed, mine, now_ms())
        batches.append(Committed(key, known, mine, publication))
        state = publication.feed
    return batches


def _answer(decision: Decision) -> Done:
    assert not isinstance(decision, Step)
    return decision if isinstance(decision, Problem) else (decision, False)


def release(
    connection: Connection,
    feed: int,
    producer: str,
    batch: int | None,
    run: str,
    attempt: tuple[int, int] | None = None,
) -> int | None:
    """A step: how many uploads it dropped; None if there was nothing left."""
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


def tidy(connection: Connection) -> bool:
    """A step of cleaning up; False if there was nothing to do."""
    wanted = _superfluous(now_ms() - int(STAGED_FOR * 1000))
    return _drop_some(connection, wanted) is not None


def _drop_some(connection: Connection, wanted: Select[Any]) -> int | None:
    """Drop up to 64 uploads of the staging that `wanted` selects, at last the staging itself."""
    staging = connection.scalar(wanted)
    if staging is None:
        return None
    dropped = _drop(connection, uploads.c.staging == staging, limit=64)
    if not dropped:
        connection.execute(delete(stagings).where(stagings.c.id == staging))
    return dropped


def _drop(connection: Connection, wanted: ColumnElement[bool], limit: int | None = None) -> int:
    """Drop uploads; frames only of those that this statement took, and no commit before it."""
    which = uploads.c.staging, uploads.c.task, uploads.c.attempt, uploads.c.number
    some = select(*which).where(wanted).limit(limit)
    taken = delete(uploads).where(tuple_(*which).in_(some))
    rows = connection.execute(taken.returning(uploads.c.staging, uploads.c.chunks)).all()
    for staging in {row.staging for row in rows}:
        mine = [each.chunks for each in rows if each.staging == staging]
        freed = _drop_blobs(connection, [each.blob for c in mine for each in _decode_chunks(c)])
        less = update(stagings).where(stagings.c.id == staging)
        connection.execute(less.values(bytes=stagings.c.bytes - freed))
    return len(rows)


def _drop_blobs(connection: Connection, ids: Sequence[int]) -> int:
    """Returns their bytes."""
    freed = 0
    for some in _parts(ids):
        dropped = delete(blobs).where(blobs.c.id.in_(some)).returning(func.length(blobs.c.frame))
        freed += sum(connection.scalars(dropped))
    return freed


def _superfluous(before: int, only: ColumnElement[bool] | None = None) -> Select[Any]:
    """A staging that nobody needs: not touched since `before`, or of a batch that is committed, or
    of a run that another one has overtaken. It is locked; what others work on is not looked at.
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


def _within_quota(
    connection: Connection, feed: int, call: Call, upload: Upload, quota: int | None
) -> None:
    """Makes room first of what nobody needs. Raises Problem."""
    if quota is None:
        return
    name = base(call.producer)
    named = and_(stagings.c.producer > f"{name}#", stagings.c.producer < f"{name}$")  # P#K: # < $
    mine = and_(stagings.c.feed == feed, or_(stagings.c.producer == name, named))
    total = select(func.coalesce(func.sum(stagings.c.bytes), 0)).where(mine)
    staged = int(connection.scalar(total) or 0)
    if staged + upload.bytes <= quota:
        return
    unneeded = _superfluous(now_ms() - int(IDLE * 1000), mine)
    while staged + upload.bytes > quota and (each := connection.scalar(unneeded)) is not None:
        _drop(connection, uploads.c.staging == each)
        connection.execute(delete(stagings).where(stagings.c.id == each))
        staged = int(connection.scalar(total) or 0)
    if staged + upload.bytes > quota:
        raise refusals.quota_exceeded(call, quota, staged, upload.bytes)


def _staging(connection: Connection, feed: int, call: Call) -> int | None:
    given = dict(zip(_STAGED, _place_of(call), strict=True))
    return connection.scalar(_STAGING, {"feed": feed, **given})


def _new_staging(connection: Connection, feed: int, call: Call) -> int:
    row = {
        "feed": feed,
        "producer": call.producer,
        "incarnation": call.incarnation,
        "batch": NEXT if call.batch is None else call.batch,
        "run": call.run,
        "touched": now_ms(),
        "bytes": 0,
    }
    return inserted(connection, insert(stagings), row)


def _touch(connection: Connection, staging: int, more: int) -> None:
    """Keep it alive; and count what has come."""
    connection.execute(_TOUCHED, {"of": staging, "now": now_ms(), "more": more})


def _insert_upload(connection: Connection, staging: int, upload: Upload) -> None:
    ids = _insert_blobs(connection, [each.frame for each in upload.chunks])
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
        "chunks": msgspec.msgpack.encode(moved),
    }
    connection.execute(insert(uploads), row)


def _insert_blobs(connection: Connection, frames: Sequence[bytes]) -> Sequence[int]:
    if not frames:
        return []
    ids = insert(blobs).returning(blobs.c.id, sort_by_parameter_order=True)
    return connection.scalars(ids, [{"frame": frame} for frame in frames]).all()


def _move(
    connection: Connection, feed: int, asked: Sequence[Commit]
) -> list[tuple[dict[tuple[int, int], Found], list[tuple[tuple[int, int, int], Moved]]]]:
    """Take the uploads of each commit's attempts out of its staging, and say what they were."""
    taken: list[Any] = [({}, []) for _ in asked]
    staged = _stagings(connection, feed, [call for call, _ in asked])
    of = {staging: taken[at] for at, staging in staged.items()}
    attempts = [
        (staging, each.task, each.attempt)
        for at, staging in staged.items()
        for each in asked[at][1].attempts
    ]
    named = tuple_(uploads.c.staging, uploads.c.task, uploads.c.attempt)
    for some in _parts(attempts):
        here = uploads.c.staging.in_({staging for staging, *_ in some}), named.in_(some)
        for row in connection.execute(delete(uploads).where(*here).returning(uploads)).mappings():
            found, moved = of[row["staging"]]
            attempt = (row["task"], row["attempt"])
            content = Content(row["events"], int.from_bytes(row["sum"], "big"))
            before = found.get(attempt, Found())
            found[attempt] = Found(before.uploads + 1, before.content + content)
            for place, each in enumerate(_decode_chunks(row["chunks"])):
                moved.append(((row["task"], row["number"], place), each))
    if of:
        left = exists().where(uploads.c.staging == stagings.c.id)
        connection.execute(delete(stagings).where(stagings.c.id.in_(of), ~left))
    return taken


def _stagings(connection: Connection, feed: int, calls: Sequence[Call]) -> dict[int, int]:
    """Those of calls that have one, by the call's number; locked."""
    if not calls:
        return {}
    names = [stagings.c[each] for each in _STAGED]
    wanted = {_place_of(call): at for at, call in enumerate(calls)}
    query = select(stagings.c.id, *names).where(stagings.c.feed == feed, tuple_(*names).in_(wanted))
    rows = connection.execute(query.order_by(stagings.c.id).with_for_update())
    return {wanted[tuple(row[1:])]: row[0] for row in rows}


def _place_of(call: Call) -> tuple[str, str, int, str]:
    batch = NEXT if call.batch is None else call.batch
    return call.producer, call.incarnation, batch, call.run


def _packed(connection: Connection, packed: Sequence[Sequence[Moved]]) -> list[Moved]:
    """Small chunks as one, of each pack."""
    ids = [each.blob for pack in packed if len(pack) > 1 for each in pack]
    frames: dict[int, bytes] = {}
    for some in _parts(ids):
        query = select(blobs.c.id, blobs.c.frame).where(blobs.c.id.in_(some))
        frames.update(dict(connection.execute(query).all()))
    _drop_blobs(connection, ids)
    made = [joined(frames[each.blob] for each in pack) for pack in packed if len(pack) > 1]
    new = iter(zip(_insert_blobs(connection, made), made, strict=True))
    return [pack[0] if len(pack) == 1 else as_one(pack, *next(new)) for pack in packed]


def _append(connection: Connection, feed: int, publications: Sequence[Publication]) -> None:
    """One behind the other."""
    new = [each for publication in publications for each in publication.chunks]
    execute_all(connection, insert(chunks), [{"feed": feed, **asdict(each)} for each in new])
    state = publications[-1].feed
    connection.execute(
        _FEED_MOVED_ON,
        {"of": feed, "head": state.head, "history": state.history, "time": state.time},
    )


def remove(connection: Connection, feed: int, upto: int) -> None:
    """All chunks up to g, and an anchor of each partition that had some."""
    old = chunks.c.feed == feed, chunks.c.g <= upto
    gone = delete(chunks).where(*old)
    rows = connection.execute(
        gone.returning(chunks.c.g, chunks.c.partition, chunks.c.tag, chunks.c.blob)
    ).all()
    _drop_blobs(connection, [row.blob for row in rows])
    last = {row.partition: row for row in sorted(rows, key=lambda row: row.g)}
    if last:
        here = anchors.c.feed == feed, anchors.c.partition.in_(last)
        connection.execute(delete(anchors).where(*here))
        new = [{"feed": feed, "partition": p, "g": r.g, "tag": r.tag} for p, r in last.items()]
        connection.execute(insert(anchors), new)


def _parts(values: Sequence[T]) -> Iterable[Sequence[T]]:
    return (values[begin : begin + _AT_A_TIME] for begin in range(0, len(values), _AT_A_TIME))
