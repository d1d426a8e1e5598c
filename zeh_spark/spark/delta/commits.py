"""What a table's commits say about the feed that is kept in it.

Each batch is one Delta commit. Its `userMetadata` is a record: who wrote it, and the cursors after
it. The same commit carries a Delta transaction (`app`, `number`), by which Delta refuses the second
of two writers that continue from one record at the same time.

    {"zeh_spark": 2, "name": …, "app": "zeh-spark:<name>:<generation>", "number": k,
     "query": id, "batch": N, "cursors": {"<feed>": {"0": …, …}, …},
     "content": [rows, sum]}                      of a query with state, see `content`; else null

Rule for editors: Delta writes nothing, and raises no error, if a transaction's number is not above
the table's; and RESTORE takes back rows and records, but not transactions. So numbers continue from
the newest record that counts. After a RESTORE, or if no record is left in the log, a generation
begins, named after a version of the table.

Runs on the driver; has no side effects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import orjson

from zeh_spark.errors import LakehouseError
from zeh_spark.wire.phrases import counted

FORMAT = 2

Cursors = Mapping[str, Mapping[str, str]]
"""Cursors by feed, then by partition; empty while all partitions of a feed are at `_first`."""


class BatchContent(NamedTuple):
    """What a batch holds (see `content.content_of`).

    Attributes:
        sum: The sum of their hashes modulo 2^64, as 16 hexadecimal digits.
    """

    rows: int
    sum: str

    def __str__(self) -> str:
        return f"{counted(self.rows, 'row')} with the sum {self.sum}"


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A line of the table's history.

    Attributes:
        rows: How many it has written; None if it does not tell, as those of other engines.
    """

    version: int
    operation: str
    parameters: Mapping[str, str | None]
    metadata: str | None
    rows: int | None = 0


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """What a batch's commit says.

    Attributes:
        content: What the batch holds; None for a query without state.
    """

    name: str
    app: str
    number: int
    query: str
    batch: int
    cursors: Cursors
    content: BatchContent | None = None

    def to_json(self) -> str:
        return json.dumps({"zeh_spark": FORMAT, **msgspec.to_builtins(self)})

    @property
    def transaction(self) -> dict[str, str]:
        """The options by which Delta keeps the record and the transaction with the commit."""
        return {
            "txnAppId": self.app,
            "txnVersion": str(self.number),
            "userMetadata": self.to_json(),
        }

    def __str__(self) -> str:
        return f"batch {self.batch} of query {self.query}, {shown(self.cursors)}"


@dataclass(frozen=True, slots=True)
class TableStanding:
    """Where a table stands for one name.

    Attributes:
        version: The table's version; -1 if there is no table.
        generation: The version after which a new transaction is named; None to continue the
            record's.
        unknown: What the table may hold that no record tells; None if there is nothing.
    """

    version: int
    record: CommitRecord | None = None
    others: tuple[CommitRecord, ...] = ()
    generation: int | None = None
    unknown: str | None = None


def record_of(metadata: str | None, table: str) -> CommitRecord | None:
    """Return the record in a commit's metadata; None if it has none.

    Raises LakehouseError if the record has a format that this version does not know.
    """
    try:
        document = orjson.loads(metadata or "")
    except ValueError:
        return None
    if not isinstance(document, dict) or "zeh_spark" not in document:
        return None
    try:
        if document["zeh_spark"] != FORMAT or "content" not in document:
            raise msgspec.ValidationError("another format")
        return msgspec.convert(document, CommitRecord)
    except msgspec.ValidationError as exc:
        raise LakehouseError(
            f"table {table}: a commit has a record of format {document['zeh_spark']!r}, and this "
            f"version of zeh-spark, which reads format {FORMAT}, cannot read it ({exc}). Use the "
            f"version that wrote it",
            table=table,
            expected=FORMAT,
            got=document["zeh_spark"],
        ) from None


def standing(
    commits: Sequence[TableCommit], name: str, table: str, *, complete: bool
) -> TableStanding | None:
    """Return where a table stands, from its newest commits; None if older commits are needed.

    Older commits are needed to find the newest record and the one before it. `commits` come newest
    first; they are `complete` if they are all commits of the log. Raises LakehouseError if a
    RESTORE cannot be followed, or a batch was written onto a table from which the batch before it
    had just been taken back.
    """
    version = commits[0].version
    restored: int | None = None
    found: list[CommitRecord] = []
    others: dict[str, CommitRecord] = {}
    beginning: TableCommit | None = None
    added: TableCommit | None = None
    for commit in _that_count(commits, table):
        if commit.operation == "RESTORE" and not found and restored is None:
            restored = commit.version
        record = record_of(commit.metadata, table)
        if record and record.name != name:
            others.setdefault(record.name, record)
        elif record and record not in found:  # Delta's own commits after it repeat its metadata
            found.append(record)
        elif record is None and _adds_rows(commit):
            added = commit
        if _begins(commit):
            beginning = commit
        if beginning or len(found) == 2:
            break
    if len(found) < 2 and not beginning and not complete:
        return None
    if found:
        _check_chain(found, table)
        return TableStanding(version, found[0], tuple(others.values()), restored)
    unknown = _unknown(beginning, added, commits[-1].version)
    generation = version if unknown else max(restored or 0, beginning.version if beginning else 0)
    return TableStanding(version, None, tuple(others.values()), generation, unknown)


def versions(
    commits: Sequence[TableCommit], app: str, table: str
) -> tuple[dict[int, CommitRecord], set[int]]:
    """Return the records of an app that count, by number, and the numbers that were taken back."""
    records = {
        record.number: record
        for record in reversed([*_records(_that_count(commits, table), table)])
        if record.app == app
    }
    undone = {each.number for each in _records(commits, table) if each.app == app}
    return records, undone - records.keys()


def _records(commits: Iterable[TableCommit], table: str) -> Iterator[CommitRecord]:
    for commit in commits:
        if record := record_of(commit.metadata, table):
            yield record


def _unknown(beginning: TableCommit | None, added: TableCommit | None, oldest: int) -> str | None:
    """Return what a table without a record may hold nevertheless; None if there is nothing.

    Rows that were added without a record may be those of a copied table.
    """
    if beginning is None:
        return f"commits before version {oldest}"
    if beginning.operation == "CLONE":
        given = beginning.parameters.get("source"), beginning.parameters.get("sourceVersion")
        return f"clone of {given[0]} version {given[1]}"
    return f"rows of {added.operation} in version {added.version}" if added else None


def _adds_rows(commit: TableCommit) -> bool:
    """Return whether a commit adds rows, by an operation that may copy those of another table."""
    copies = commit.operation in ("WRITE", "STREAMING UPDATE", "COPY INTO")
    copies = copies or commit.operation.endswith("AS SELECT")
    return (copies and commit.rows != 0) or commit.operation == "CONVERT"


def _begins(commit: TableCommit) -> bool:
    """Return whether nothing from before this commit is in the table."""
    return commit.version == 0 or commit.operation == "CLONE" or "REPLACE TABLE" in commit.operation


def _that_count(commits: Iterable[TableCommit], table: str) -> Iterator[TableCommit]:
    """Yield the commits, without those that a RESTORE has taken back."""
    newest: int | None = None
    for commit in commits:
        if newest is not None and commit.version > newest:
            continue
        if commit.operation == "RESTORE":
            newest = _restored_version(commit, table)
        yield commit


def _restored_version(commit: TableCommit, table: str) -> int:
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
            anchor="the-table-was-restored",
        )
    return int(version)


def _check_chain(records: Sequence[CommitRecord], table: str) -> None:
    """Check that each record continues from the one before it."""
    if len(records) == 2 and records[0].number != records[1].number + 1:
        newest, before = records
        raise LakehouseError(
            f"table {table}: what lies between {before} and {newest} was taken back while the "
            f"latter was written. RESTORE the table to a version before that, and start a new "
            f"checkpointLocation with startingCursors from zeh_spark.lakehouse.cursors",
            table=table,
            expected=before.number + 1,
            got=newest.number,
            anchor="the-table-was-restored",
        )


def with_transactions(
    stands: TableStanding, name: str, transactions: Mapping[str, int] | None
) -> TableStanding:
    """Return where a table stands, given the numbers of its transactions.

    Transactions stay when commits are cleaned away, and tell of records that are gone from the log.
    A name without any transaction is new if the others' records are known. Otherwise it may be one
    of theirs, mistyped. `transactions` has the number of each app; None if they cannot be read.
    """
    if transactions is None:
        return stands
    known = {name, *(record.name for record in stands.others)}
    apps = [app.split(":") for app in transactions if app.startswith(app_of("", "")[:-1])]
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


def app_of(name: str, generation: int | str | None) -> str:
    return f"zeh-spark:{name}:{generation}"


def shown(cursors: Cursors) -> str:
    """Return cursors for messages, of many partitions the first ones."""
    texts = []
    for feed, positions in sorted(cursors.items()):
        some = dict(list(positions.items())[:4])
        more = ", …" if len(positions) > len(some) else ""
        places = ", ".join(f"{each}: {cursor}" for each, cursor in some.items())
        texts.append(f"{feed} {{{places or '_first'}{more}}}")
    return "; ".join(texts)


def starting_cursors(record: CommitRecord, feed: str | None, table: str) -> str:
    """Return a record's cursors as the option `startingCursors`. Raises LakehouseError."""
    feeds: dict[str, Any] = dict(record.cursors)
    if feed is None and len(feeds) > 1:
        raise LakehouseError(
            f"table {table} has several feeds under name={record.name!r}. Give one of them as "
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
