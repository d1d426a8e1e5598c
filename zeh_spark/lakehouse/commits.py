"""What a table's commits say of the feed that is kept in it, and what a batch may do next.

Each batch is one Delta commit. Its `userMetadata` is a record: who wrote it, and the cursors behind
it. The same commit carries a Delta transaction (`app`, `number`), by which Delta refuses the second
of two writers that go on from one record at the same time.

    {"zeh_spark": 1, "name": …, "app": "zeh-spark:<name>:<generation>", "number": k,
     "query": id, "batch": N, "cursors": {"<feed>": {"0": …, …}, …}}

Rule for editors: Delta writes nothing, and says nothing, where a transaction's number is not above
the table's; and RESTORE takes back rows and records, but not transactions. So numbers go on from
the newest record that counts, and behind a RESTORE, or where no record is left in the log, a
generation begins, named after a version of the table.

Runs on the driver; pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from zeh_spark.errors import LakehouseError

FORMAT = 1
_MEMBERS = {"name", "app", "number", "query", "batch", "cursors"}

Cursors = Mapping[str, Mapping[str, str]]
"""By feed, then by partition; a feed's are empty while all of its partitions are at `_first`."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A line of the table's history."""

    version: int
    operation: str
    parameters: Mapping[str, str | None]
    metadata: str | None
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """What a batch's commit says."""

    name: str
    app: str
    number: int
    query: str
    batch: int
    cursors: Cursors

    def to_json(self) -> str:
        return json.dumps(
            {
                "zeh_spark": FORMAT,
                "name": self.name,
                "app": self.app,
                "number": self.number,
                "query": self.query,
                "batch": self.batch,
                "cursors": self.cursors,
            }
        )

    def __str__(self) -> str:
        return f"batch {self.batch} of query {self.query}, {shown(self.cursors)}"


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that Spark gives: what lies between two places of its feeds. `stateful`: it is a
    query's first one, and the query keeps state.
    """

    query: str
    number: int
    start: Cursors
    end: Cursors
    stateful: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a table stands for one name.

    `version` is the table's, -1 if there is none. `record` is that of the newest commit that
    counts, `others` the newest of each other name. `generation` is the version after which a new
    transaction is named, None if the record's own goes on. `unknown` says what the table may hold
    that no record tells.
    """

    version: int
    record: Record | None = None
    others: tuple[Record, ...] = ()
    generation: int | None = None
    unknown: str | None = None


def record_of(metadata: str | None, table: str) -> Record | None:
    """Out of a commit's metadata; None if it is not ours. Raises LakehouseError for a record of
    another format.
    """
    try:
        document = json.loads(metadata or "")
    except ValueError:
        return None
    if not isinstance(document, dict) or "zeh_spark" not in document:
        return None
    if document["zeh_spark"] != FORMAT or not document.keys() >= _MEMBERS:
        raise LakehouseError(
            f"table {table}: a commit has a record of format {document['zeh_spark']!r}, this "
            f"version of zeh-spark reads format {FORMAT}: use the version that wrote it",
            table=table,
            expected=FORMAT,
            got=document["zeh_spark"],
        )
    return Record(**{member: document[member] for member in _MEMBERS})


def standing(
    commits: Sequence[Commit], name: str, table: str, *, complete: bool
) -> Standing | None:
    """Out of the newest commits, newest first; `complete` says that the log has no others. None if
    older ones are needed, to find the newest record and the one before it.

    Raises LakehouseError for a restore that cannot be followed, and where a batch was written onto
    a table from which the batch before it had just been taken back.
    """
    version = commits[0].version
    restored: int | None = None
    found: list[Record] = []
    others: dict[str, Record] = {}
    beginning: Commit | None = None
    for commit in _that_count(commits, table):
        if commit.operation == "RESTORE" and not found and restored is None:
            restored = commit.version
        record = record_of(commit.metadata, table)
        if record and record.name != name:
            others.setdefault(record.name, record)
        elif record and record not in found:  # what Delta does behind a commit keeps its metadata
            found.append(record)
        if _begins(commit):
            beginning = commit
        if beginning or len(found) == 2:
            break
    if len(found) < 2 and not beginning and not complete:
        return None
    if found:
        _check_chain(found, table)
        return Standing(version, found[0], tuple(others.values()), restored)
    unknown = _unknown(beginning, commits[-1].version)
    generation = version if unknown else max(restored or 0, beginning.version if beginning else 0)
    return Standing(version, None, tuple(others.values()), generation, unknown)


def _unknown(beginning: Commit | None, oldest: int) -> str | None:
    """What a table without a record may hold all the same."""
    if beginning is None:
        return f"commits before version {oldest}"
    if beginning.operation == "CLONE":
        given = beginning.parameters.get("source"), beginning.parameters.get("sourceVersion")
        return f"clone of {given[0]} version {given[1]}"
    copied = beginning.operation.endswith("AS SELECT") and beginning.rows
    if copied or beginning.operation == "CONVERT":
        return f"rows of {beginning.operation} in version {beginning.version}"
    return None


def _begins(commit: Commit) -> bool:
    """Whether nothing of what came before is in the table."""
    return commit.version == 0 or commit.operation == "CLONE" or "REPLACE TABLE" in commit.operation


def _that_count(commits: Iterable[Commit], table: str) -> Iterator[Commit]:
    """Without what a RESTORE has taken back."""
    newest: int | None = None
    for commit in commits:
        if newest is not None and commit.version > newest:
            continue
        if commit.operation == "RESTORE":
            newest = _restored_version(commit, table)
        yield commit


def _restored_version(commit: Commit, table: str) -> int:
    version = commit.parameters.get("version")
    if version is None:
        at = commit.parameters.get("timestamp")
        raise LakehouseError(
            f"table {table} was restored to the time {at} (its version {commit.version}), and the "
            f"log does not say in which time zone that is. Find the version that was meant "
            f"(DESCRIBE HISTORY), and name it: RESTORE TABLE … TO VERSION AS OF <version>, which "
            f"changes no rows if it is the same",
            table=table,
            got=at,
        )
    return int(version)


def _check_chain(records: Sequence[Record], table: str) -> None:
    """Each record goes on from the one before it."""
    if len(records) == 2 and records[0].number != records[1].number + 1:
        newest, before = records
        raise LakehouseError(
            f"table {table}: what lies between {before} and {newest} was taken back while the "
            f"latter was written. RESTORE the table to a version before that, and start a new "
            f"checkpointLocation with startingCursors from zeh_spark.lakehouse.cursors",
            table=table,
            expected=before.number + 1,
            got=newest.number,
        )


def with_transactions(
    stands: Standing, name: str, transactions: Mapping[str, int] | None
) -> Standing:
    """For a table whose log does not tell all: what its transactions, which stay when commits are
    cleaned away, say of records that are gone. `transactions` is None where they cannot be read. A
    name without any is new, if the others' records are known [it may be one of theirs, mistyped].
    """
    if transactions is None:
        return stands
    known = {name, *(record.name for record in stands.others)}
    apps = [app.split(":") for app in transactions if app.startswith(_app("", "")[:-1])]
    ours = [":".join(app) for app in apps if app[1] == name]
    newest = max(ours, key=lambda app: int(app.rpartition(":")[2]), default=None)
    if newest is None:
        cleaned = (stands.unknown or "").startswith("commits before")
        explained = all(app[1] in known for app in apps)
        return replace(stands, unknown=None) if cleaned and explained else stands
    record = stands.record
    if record and (record.app, record.number) == (newest, transactions[newest]):
        return stands
    return replace(stands, record=None, unknown=f"{newest}@{transactions[newest]}")


def next_record(
    table: str, name: str, stands: Standing, batch: Batch, accept: str | None
) -> Record | None:
    """The record with which the batch is to be written; None if it is in the table already.

    Raises LakehouseError where the table is not at the place where the batch begins.
    """
    last = stands.record
    if last is None:
        _check_first(table, name, stands, batch, accept)
        return Record(name, _app(name, stands.generation), 0, batch.query, batch.number, batch.end)
    if (last.query, last.batch, last.cursors) == (batch.query, batch.number, batch.end):
        return None
    partitions = _other_partitions(last, batch)
    accepted = partitions is not None and accept == _acceptance(partitions, batch)
    if not accepted and not _follows(last, batch):
        raise _out_of_place(table, name, last, batch)
    _check_state(table, name, last, batch, accept)
    app = last.app if stands.generation is None else _app(name, stands.generation)
    return Record(name, app, last.number + 1, batch.query, batch.number, batch.end)


def _check_state(table: str, name: str, last: Record, batch: Batch, accept: str | None) -> None:
    """Where a new query goes on, what Spark's state held of the one before is gone."""
    wanted = f"{last.app}@{last.number} without state"
    begun = last.query != batch.query and any(batch.start.values())
    if batch.stateful and begun and accept != wanted:
        raise LakehouseError(
            f"table {table}, name={name!r}: a new checkpoint goes on behind {last}, and the query "
            f"has state (sessions, deduplication, aggregation), which the old one had: events that "
            f"waited in it would be missing. Go back to the old checkpointLocation; or read the "
            f"feed from its beginning into new tables; or, if nothing waited, say "
            f"accept={wanted!r}",
            table=table,
            got=accept,
        )


def _follows(last: Record, batch: Batch) -> bool:
    """Whether a batch begins where the table is; in one query there is none between, either [those
    of a stateful query may leave the cursors where they were].
    """
    next_one = last.query != batch.query or last.batch + 1 == batch.number
    return next_one and last.cursors == batch.start


def _other_partitions(last: Record, batch: Batch) -> str | None:
    """For a new query whose feeds are cut into other partitions: what it has to accept."""
    counts = [[len(feed[name]) for name in sorted(feed)] for feed in (last.cursors, batch.end)]
    same_feeds = last.cursors.keys() == batch.end.keys()
    if last.query == batch.query or not same_feeds or counts[0] == counts[1] or 0 in counts[0]:
        return None
    return f"{last.app}@{last.number} in other partitions"


def _app(name: str, generation: int | str | None) -> str:
    return f"zeh-spark:{name}:{generation}"


def _check_first(table: str, name: str, stands: Standing, batch: Batch, accept: str | None) -> None:
    """A name's first batch in a table."""
    for other in stands.others:
        if shared := sorted(batch.end.keys() & other.cursors.keys()):
            raise LakehouseError(
                f"table {table} has no batch of name={name!r}, but has the feed {shared[0]} under "
                f"name={other.name!r} ({other}): its events would be there twice. Go on under that "
                f"name, or take another table",
                table=table,
                expected=other.name,
                got=name,
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
        )


def _acceptance(unknown: str, batch: Batch) -> str:
    """Names both sides: what the table is, and where the batch begins."""
    start = json.dumps(batch.start, sort_keys=True).encode()
    return f"{unknown} from {xxhash.xxh3_64_hexdigest(start)[:8]}"


def _out_of_place(table: str, name: str, last: Record, batch: Batch) -> LakehouseError:
    """Which of the ways out of step it is."""
    here = f"table {table}, name={name!r}, holds all up to {last}"
    new = (
        "start another new checkpointLocation (this one has planned its batch) with "
        f"startingCursors from zeh_spark.lakehouse.cursors(spark, {table!r}, name={name!r})"
    )
    if partitions := _other_partitions(last, batch):
        why = (
            f"this query reads the feed in other partitions, from {shown(batch.start)}. If its "
            f"startingCursors are those that the README has for that, which may bring events "
            f"again, say accept={_acceptance(partitions, batch)!r}"
        )
    elif last.cursors.keys() != batch.end.keys():
        why = (
            f"this query reads {', '.join(sorted(batch.end))}: take another name or table for "
            f"another feed; for the same feed at another address, set the source's option feedId"
        )
    elif last.query != batch.query:
        why = (
            f"this query ({batch.query}) begins its batch {batch.number} at {shown(batch.start)}. "
            f"If its checkpoint is new, or the table was restored, {new}; if the other query still "
            f"runs, stop one of them"
        )
    elif last.batch >= batch.number:
        why = (
            f"its query gives batch {batch.number} again, now from {shown(batch.start)} to "
            f"{shown(batch.end)}: the checkpoint was taken back to an older state, or another "
            f"driver runs on it. Stop that one; or {new}"
        )
    else:
        why = (
            f"its query is at batch {batch.number}, from {shown(batch.start)}: the table was taken "
            f"back, and lacks batches {last.batch + 1} to {batch.number - 1}. To have them again, "
            f"{new}"
        )
    return LakehouseError(f"{here}; {why}", table=table, expected=last.cursors, got=batch.start)


def shown(cursors: Cursors) -> str:
    """For messages: of many partitions the first ones."""
    texts = []
    for feed, positions in sorted(cursors.items()):
        some = dict(list(positions.items())[:4])
        more = ", …" if len(positions) > len(some) else ""
        places = ", ".join(f"{each}: {cursor}" for each, cursor in some.items())
        texts.append(f"{feed} {{{places or '_first'}{more}}}")
    return "; ".join(texts)


def starting_cursors(record: Record, feed: str | None, table: str) -> str:
    """A record's cursors as the option `startingCursors`. Raises LakehouseError."""
    feeds: dict[str, Any] = dict(record.cursors)
    if feed is None and len(feeds) > 1:
        raise LakehouseError(
            f"table {table} has several feeds under name={record.name!r}: give one of them as "
            f"feed=…: {', '.join(sorted(feeds))}",
            table=table,
            expected=sorted(feeds),
        )
    if feed is not None and feed not in feeds:
        raise LakehouseError(
            f"table {table} has no feed {feed!r} under name={record.name!r}, but "
            f"{', '.join(sorted(feeds))}",
            table=table,
            expected=sorted(feeds),
            got=feed,
        )
    (cursors,) = feeds.values() if feed is None else (feeds[feed],)
    return json.dumps(cursors) if cursors else "first"
