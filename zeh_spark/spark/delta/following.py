"""What a batch may do in its table: it is next, there already, or refused.

Runs on the driver; has no side effects.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import xxhash

from zeh_spark.errors import LakehouseError
from zeh_spark.spark.delta.commits import (
    BatchContent,
    CommitRecord,
    Cursors,
    TableStanding,
    app_of,
    shown,
)


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """The batch that Spark gives: what lies between two places of its feeds.

    Attributes:
        stateful: Whether it is the first batch of a query that keeps state.
        content: What the batch of a query with state holds; other batches are known by their
            cursors.
    """

    query: str
    number: int
    start: Cursors
    end: Cursors
    stateful: bool = False
    content: BatchContent | None = None
    ids: tuple[str, ...] = ()


def next_record(
    table: str, name: str, stands: TableStanding, batch: QueryBatch, accept: str | None
) -> CommitRecord | None:
    """Return the record with which the batch is to be written; None if the table has the batch.

    Raises LakehouseError if the table is not at the place where the batch begins.
    """
    last = stands.record
    if last is None:
        _check_first(table, name, stands, batch, accept)
        # Each number takes a commit, so this one is above those that a cursorColumn may have.
        number = 0 if stands.unknown is None else stands.version + 1
        return _record(batch, name, app_of(name, stands.generation), number)
    if (last.query, last.batch, last.cursors) == (batch.query, batch.number, batch.end):
        check_content(table, last, batch.content, accept)
        return None
    partitions = _other_partitions(last, batch)
    accepted = partitions is not None and accept == _acceptance(partitions, batch)
    if not accepted and not _follows(last, batch):
        raise _out_of_place(table, name, last, batch)
    _check_state(table, name, last, batch, accept)
    app = last.app if stands.generation is None else app_of(name, stands.generation)
    return _record(batch, name, app, last.number + 1)


def _record(batch: QueryBatch, name: str, app: str, number: int) -> CommitRecord:
    return CommitRecord(name, app, number, batch.query, batch.number, batch.end, batch.content)


def check_content(
    table: str, last: CommitRecord, content: BatchContent | None, accept: str | None
) -> None:
    """Compare a batch that is in the table with the same batch as Spark gives it again.

    What `accept` has to say names the batch and its content in the table. It does not name the
    content that came now, which may be another one at each try.

    Raises:
        LakehouseError: the batch has other rows now, which `accept` drops; or it was written by a
            query without state, and this one has state, or the other way round.
    """
    if content == last.content:
        return
    if content is None or last.content is None:
        raise LakehouseError(
            f"table {table}, name={last.name!r}: batch {last.batch} is in the table, written by a "
            f"query {_with_state(last.content)}, and this query is {_with_state(content)}: events "
            f"would be missing, or twice in the table. Start the query as it was; for the changed "
            f"one take a new checkpointLocation and a new table",
            table=table,
            expected=last.content,
            got=content,
            anchor="the-query-begins-at-another-place",
        )
    wanted = f"{last.app}@{last.number} with {last.content.sum[:8]}"
    if accept != wanted:
        raise LakehouseError(
            f"table {table}, name={last.name!r}: batch {last.batch} is in the table with "
            f"{last.content}, and Spark gives it again with {content}. An option of the query was "
            f"changed while the batch was not complete (of in_order, drop_seen or a writer), its "
            f"code was changed, or its rows depend on chance or on a clock. Start the query as it "
            f"was before; change it after a batch has ended. To keep the rows of the table, and "
            f"drop those that came now, say accept={wanted!r}",
            table=table,
            expected=last.content,
            got=content,
            anchor="the-batch-is-in-the-table-with-other-rows",
        )


def _with_state(content: BatchContent | None) -> str:
    return "without state" if content is None else "with state"


def _check_state(
    table: str, name: str, last: CommitRecord, batch: QueryBatch, accept: str | None
) -> None:
    """Refuse a new query with state that continues where another ended.

    The state of the other query is gone.
    """
    wanted = f"{last.app}@{last.number} without state"
    begun = last.query != batch.query and any(batch.start.values())
    if batch.stateful and begun and accept != wanted:
        raise LakehouseError(
            f"table {table}, name={name!r}: a new checkpoint continues after {last}, and the query "
            f"has state (sessions, deduplication, aggregation), which the old one had: events that "
            f"waited in it would be missing. Go back to the old checkpointLocation; or read the "
            f"feed from its beginning into new tables; or, if nothing waited, say "
            f"accept={wanted!r}",
            table=table,
            got=accept,
            anchor="a-new-checkpoint-of-a-query-with-state",
        )


def _follows(last: CommitRecord, batch: QueryBatch) -> bool:
    """Return whether a batch begins where the table is, and within one query is the next one.

    Batches of a query with state may leave the cursors where they were, so cursors alone do not
    tell.
    """
    next_one = last.query != batch.query or last.batch + 1 == batch.number
    return next_one and last.cursors == batch.start


def _moved(last: CommitRecord) -> str:
    """Return the option that gives a moved feed the name that the table knows it by."""
    (name, *others) = sorted(last.cursors)
    return "feedId to the name above" if others else f"feedId={name!r}"


def _other_partitions(last: CommitRecord, batch: QueryBatch) -> str | None:
    """Return what a new query has to accept whose feeds have other partitions.

    None for another query.
    """
    counts = [[len(feed[name]) for name in sorted(feed)] for feed in (last.cursors, batch.end)]
    same_feeds = last.cursors.keys() == batch.end.keys()
    if last.query == batch.query or not same_feeds or counts[0] == counts[1] or 0 in counts[0]:
        return None
    return f"{last.app}@{last.number} in other partitions"


def _check_first(
    table: str, name: str, stands: TableStanding, batch: QueryBatch, accept: str | None
) -> None:
    """Refuse a name's first batch in a table if its feed may be there already."""
    for other in stands.others:
        if shared := sorted(batch.end.keys() & other.cursors.keys()):
            raise LakehouseError(
                f"table {table} has no batch of name={name!r}, but has the feed {shared[0]} under "
                f"name={other.name!r} ({other}): its events would be there twice. Continue under "
                f"that name, or take another table",
                table=table,
                expected=other.name,
                got=name,
                anchor="the-feed-is-kept-under-another-name",
            )
    if stands.unknown is not None and accept != (wanted := _acceptance(stands.unknown, batch)):
        raise LakehouseError(
            f"table {table} may hold events of name={name!r} up to cursors that are not known "
            f"({stands.unknown}), and this batch begins at {shown(batch.start)}. If that is the "
            f"right place, say accept={wanted!r}; else start a new checkpointLocation with the "
            f"right startingCursors, for which there is another one. (A cursorColumn keeps "
            f"cursors in tables whose log is cleaned.)",
            table=table,
            expected=wanted,
            got=accept,
            anchor="cursors-that-are-not-known",
        )
    if batch.number and stands.unknown is None:
        raise LakehouseError(
            f"table {table} has no batch of name={name!r}, but this is batch {batch.number} of its "
            f"query: the table is another one, or was emptied or replaced, or the name was "
            f"changed. Give the name and the table that the checkpoint belongs to, or start a new "
            f"checkpointLocation with startingCursors from zeh_spark.lakehouse.cursors",
            table=table,
            expected=0,
            got=batch.number,
            anchor="the-table-has-no-batch-of-this-name",
        )


def _acceptance(unknown: str, batch: QueryBatch) -> str:
    """Return the value of `accept`, which names the table's side and where the batch begins."""
    start = json.dumps(batch.start, sort_keys=True).encode()
    return f"{unknown} from {xxhash.xxh3_64_hexdigest(start)[:8]}"


_OTHER_PARTITIONS = (
    "this query reads the feed in other partitions, from {start}. If its startingCursors were "
    "found as docs/operate/recover.md says for another partition count, which may bring events "
    "again, say accept={accept!r}"
)
_OTHER_FEED = (
    "this query reads {feeds}. If that is the same feed, which has moved, set the source's option "
    "{moved}; another feed needs another name, or another table"
)
_OTHER_QUERY = (
    "this query ({query}) begins its batch {number} at {start}. If its checkpoint is new, or the "
    "table was restored, {anew}; if the other query still runs, stop one of them"
)
_OLD_CHECKPOINT = (
    "its query gives batch {number} again, now from {start} to {end}: the checkpoint was taken "
    "back to an older state, or another driver runs on it. Stop that one; or {anew}"
)
_OLD_TABLE = (
    "its query is at batch {number}, from {start}: the table was taken back, and lacks batches "
    "{first} to {before}. To have them again, {anew}"
)


def _out_of_place(table: str, name: str, last: CommitRecord, batch: QueryBatch) -> LakehouseError:
    """Return the error for a batch that does not begin where the table is, with its cause."""
    partitions = _other_partitions(last, batch)
    causes = (
        (partitions, _OTHER_PARTITIONS),
        (last.cursors.keys() != batch.end.keys(), _OTHER_FEED),
        (last.query != batch.query, _OTHER_QUERY),
        (last.batch >= batch.number, _OLD_CHECKPOINT),
        (True, _OLD_TABLE),
    )
    cause = next(text for applies, text in causes if applies)
    why = cause.format(
        query=batch.query,
        number=batch.number,
        start=shown(batch.start),
        end=shown(batch.end),
        accept=_acceptance(partitions or "", batch),
        feeds=", ".join(sorted(batch.end)),
        moved=_moved(last),
        first=last.batch + 1,
        before=batch.number - 1,
        anew=(
            "start another new checkpointLocation (this one has planned its batch) with "
            f"startingCursors from zeh_spark.lakehouse.cursors(spark, {table!r}, name={name!r})"
        ),
    )
    return LakehouseError(
        f"table {table}, name={name!r}, holds all up to {last}; {why}",
        table=table,
        expected=last.cursors,
        got=batch.start,
        anchor="the-query-begins-at-another-place",
    )
