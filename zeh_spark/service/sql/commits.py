"""Commits in a SQL database: what one transaction does. `uploads` holds what is staged before.

Rule for editors: a commit moves its uploads first and then compares what it has moved. Rejected: to
verify first and move then; a batch lost 4 of 10 chunks to another process's clean-up. Locks are
taken as `producers` says. Runs inside a transaction of the caller, in the publisher and in commands
that write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

from sqlalchemy import (
    Connection,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    tuple_,
    update,
)

from zeh_spark.service.sql import acts, makers
from zeh_spark.service.sql.log import CHUNK
from zeh_spark.service.sql.packed_log import packed_log
from zeh_spark.service.sql.producers import (
    Committed,
    Lock,
    all_sequences,
    execute_all,
    find_feed,
    what_is_certain,
    write_receipts,
)
from zeh_spark.service.sql.schema import (
    anchors,
    blobs,
    chunks,
    clocks,
    feeds,
    packs,
    stagings,
    uploads,
)
from zeh_spark.service.sql.segments import KEPT_MS, to_garbage
from zeh_spark.service.sql.uploads import (
    STAGED,
    decode_chunks,
    drop_blobs,
    insert_blobs,
    parts,
    place_of,
)
from zeh_spark.service.store import commit_decision
from zeh_spark.service.store.acts import Act
from zeh_spark.service.store.batches import Call, CommitFacts, Declared, Found, StoredReceipt, base
from zeh_spark.service.store.clock import check_commit
from zeh_spark.service.store.commit_decision import Step, accepted_override, unwrapped
from zeh_spark.service.store.commit_plan import (
    Moved,
    Publication,
    as_one,
    in_batch_order,
    joinable,
    joined,
    published,
)
from zeh_spark.service.store.interface import Clock
from zeh_spark.service.store.log import Chunk, FeedState
from zeh_spark.service.store.packs import decode
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire.upload_format import Content

Commit = tuple[Call, Declared]
Done = tuple[StoredReceipt, bool, Act | None] | Problem
"""The receipt, whether it is new, and the act if the commit needed an override; or the Problem with
which the commit is refused.
"""

_ROWS = 2_000
"""How many chunks are written at a time; the rows of a large batch would take as much memory."""

_FEED_MOVED_ON = update(feeds).where(feeds.c.id == bindparam("of"))


def commit(
    connection: Connection, feed: str, asked: Sequence[Commit], clock: Clock, receipts: int
) -> list[Done]:
    """Do several commits in one transaction, as if one came after the other.

    A commit that is refused changes nothing, and its Problem is its answer. The answers are in the
    order of `asked`. Raises Problem if a commit is refused after all of them have moved their
    uploads. The transaction has to be rolled back: none of the commits takes effect.
    """
    feed_id, state = find_feed(connection, feed, Lock.CHANGE)
    done: dict[int, Done] = {}
    for numbers in _rounds(asked):
        some = [asked[each] for each in numbers]
        answers, state = _commit(connection, feed_id, state, some, clock, receipts)
        done.update(zip(numbers, answers, strict=True))
    return [done[each] for each in range(len(asked))]


def _rounds(asked: Sequence[Commit]) -> list[list[int]]:
    """Return the commits' numbers in rounds, so that no producer is twice in a round.

    What a producer's next commit does depends on the commit before it.
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
    connection: Connection,
    feed: int,
    state: FeedState,
    asked: Sequence[Commit],
    clock: Clock,
    receipts: int,
) -> tuple[list[Done], FeedState]:
    """Do the commits of a round; return an answer to each, and the feed after them."""
    calls = [call for call, _ in asked]
    certain = what_is_certain(connection, feed, state, calls)
    decisions = [
        commit_decision.decide(known, call, declared)
        for (call, declared), (_, known) in zip(asked, certain, strict=True)
    ]
    wanted = [at for at, decision in enumerate(decisions) if decision is Step.MOVE]
    new_ones = [asked[at] for at in wanted], [certain[at] for at in wanted]
    batches = _moved(connection, feed, state, *new_ones, clock)
    if batches:
        _append(connection, feed, [each.publication for each in batches])
        write_receipts(connection, feed, batches, receipts)
        for (call, _), (key, _) in zip(*new_ones, strict=True):
            if key is None:
                name = base(call.producer)
                makers.add(connection, call.maker, makers.PRODUCER, feed, name)
        state = batches[-1].publication.feed
    receipts_of = {at: each.receipt for at, each in zip(wanted, batches, strict=True)}
    answers: list[Done] = []
    for at, decision in enumerate(decisions):
        receipt = receipts_of.get(at, decision)
        if isinstance(receipt, Problem):
            answers.append(receipt)
            continue
        assert isinstance(receipt, StoredReceipt)
        act = accepted_override(state.name, certain[at][1], *asked[at], clock())
        if act:
            acts.add(connection, [act])
        answers.append((receipt, at in receipts_of, act))
    return answers, state


def _moved(
    connection: Connection,
    feed: int,
    state: FeedState,
    asked: Sequence[Commit],
    certain: Sequence[tuple[int | None, CommitFacts]],
    clock: Clock,
) -> list[Committed]:
    """Take the uploads of each commit and return what has to be written for it. Raises Problem."""
    numbers = all_sequences(connection, [key for key, _ in certain if key is not None])
    moves = _move(connection, feed, asked)
    batches: list[Committed] = []
    for (call, declared), (key, known), (found, moved) in zip(asked, certain, moves, strict=True):
        decision = unwrapped(commit_decision.decide(known, call, declared, found))
        assert decision is Step.PUBLISH
        joined_ones = _joined(connection, list(joinable(in_batch_order(moved))))
        mine = {} if key is None else numbers[key]
        now = clock()
        check_commit(now, state.time, partial(latest_known, connection))
        publication = published(known, call, declared, state, joined_ones, mine, now)
        batches.append(Committed(key, known, mine, publication))
        state = publication.feed
    return batches


def latest_known(connection: Connection) -> int:
    """Return the latest time that the store knows; 0 if it knows none."""
    seen = connection.scalar(select(func.max(clocks.c.seen))) or 0
    return max(int(seen), int(connection.scalar(select(func.max(feeds.c.time))) or 0))


def _move(
    connection: Connection, feed: int, asked: Sequence[Commit]
) -> list[tuple[dict[tuple[int, int], Found], list[tuple[tuple[int, int, int], Moved]]]]:
    """Take the uploads of each commit's attempts out of its staging.

    Returns for each commit what was found of each attempt (task, attempt), and its chunks, each
    with its task, upload and place in the upload.
    """
    taken: list[Any] = [({}, []) for _ in asked]
    staged = _stagings(connection, feed, [call for call, _ in asked])
    of = {staging: taken[at] for at, staging in staged.items()}
    attempts = [
        (staging, each.task, each.attempt)
        for at, staging in staged.items()
        for each in asked[at][1].attempts
    ]
    named = tuple_(uploads.c.staging, uploads.c.task, uploads.c.attempt)
    for some in parts(attempts):
        here = uploads.c.staging.in_({staging for staging, *_ in some}), named.in_(some)
        for row in connection.execute(delete(uploads).where(*here).returning(uploads)).mappings():
            found, moved = of[row["staging"]]
            attempt = (row["task"], row["attempt"])
            content = Content(row["events"], int.from_bytes(row["sum"], "big"))
            before = found.get(attempt, Found())
            versions = [before.schema_version, row["schema_version"] if content.events else None]
            oldest = min((each for each in versions if each is not None), default=None)
            found[attempt] = Found(before.uploads + 1, before.content + content, oldest)
            for place, each in enumerate(decode_chunks(row["chunks"])):
                moved.append(((row["task"], row["number"], place), each))
    if of:
        left = exists().where(uploads.c.staging == stagings.c.id)
        connection.execute(delete(stagings).where(stagings.c.id.in_(of), ~left))
    return taken


def _stagings(connection: Connection, feed: int, calls: Sequence[Call]) -> dict[int, int]:
    """Lock the stagings of the calls that have one; return their ids by the call's number."""
    if not calls:
        return {}
    names = [stagings.c[each] for each in STAGED]
    wanted = {tuple(place_of(call).values()): at for at, call in enumerate(calls)}
    query = select(stagings.c.id, *names).where(stagings.c.feed == feed, tuple_(*names).in_(wanted))
    rows = connection.execute(query.order_by(stagings.c.id).with_for_update())
    return {wanted[tuple(row[1:])]: row[0] for row in rows}


def _joined(connection: Connection, groups: Sequence[Sequence[Moved]]) -> list[Moved]:
    """Return one chunk for each group; the frames of its small chunks are joined to one."""
    together = [group for group in groups if len(group) > 1]
    ids = [each.blob for group in together for each in group]
    frames: dict[int, bytes] = {}
    for some in parts(ids):
        query = select(blobs.c.id, blobs.c.frame).where(blobs.c.id.in_(some))
        frames.update(dict(connection.execute(query).all()))
    drop_blobs(connection, ids)
    made = [joined(frames[each.blob] for each in group) for group in together]
    new = iter(zip(insert_blobs(connection, made), made, strict=True))
    return [as_one(group, *next(new)) if len(group) > 1 else group[0] for group in groups]


def _append(connection: Connection, feed: int, publications: Sequence[Publication]) -> None:
    """Append the chunks of these batches to the feed, one batch after the other."""
    new = chain.from_iterable(publication.chunks for publication in publications)
    while some := list(islice(new, _ROWS)):
        execute_all(connection, insert(chunks), [{"feed": feed, **each._asdict()} for each in some])
    state = publications[-1].feed
    moved = {name: getattr(state, name) for name in ("head", "history", "time", "events", "size")}
    connection.execute(_FEED_MOVED_ON, {"of": feed, **moved})


def remove(
    connection: Connection, feed: int, partitions: int, upto: int, now: int
) -> dict[str, Any] | None:
    """Remove all chunks up to position `upto`; leave an anchor for each partition that had some.

    A pack stays until all of it is removed, and so does a segment, whose object stays longer. The
    feed's row has to be locked: its totals are changed. Returns what was removed: the last
    position, and the numbers of chunks, events and bytes; None if there was nothing.
    """
    packed = packed_log(connection, feed, partitions)
    gone = packed.scan(0, upto, packed.sealed)
    old = packs.c.feed == feed, packs.c.last <= upto
    whole = connection.scalars(delete(packs).where(*old).returning(packs.c.headers)).all()
    drop_blobs(connection, [block.blob for each in whole for block in decode(each).blocks])
    moment = connection.scalar(select(feeds.c.time).where(feeds.c.id == feed)) or 0
    to_garbage(connection, feed, upto, max(now, moment) + KEPT_MS)  # a clock may be behind
    old = chunks.c.feed == feed, chunks.c.g <= upto
    rows = connection.execute(delete(chunks).where(*old).returning(*CHUNK)).all()
    drop_blobs(connection, [row.blob for row in rows])
    gone += sorted(map(Chunk._make, rows))
    if not gone:
        return None
    events, size = sum(each.events for each in gone), sum(each.size for each in gone)
    less = {"events": feeds.c.events - events, "size": feeds.c.size - size}
    connection.execute(update(feeds).where(feeds.c.id == feed).values(less))
    last = {each.partition: each for each in gone}
    here = anchors.c.feed == feed, anchors.c.partition.in_(last)
    connection.execute(delete(anchors).where(*here))
    new = [{"feed": feed, "partition": p, "g": each.g, "tag": each.tag} for p, each in last.items()]
    connection.execute(insert(anchors), new)
    return {"upto": gone[-1].g, "chunks": len(gone), "events": events, "bytes": size}
