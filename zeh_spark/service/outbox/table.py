"""A service's own table as a feed sees it: columns, rows, cursors, and the tables beside it. Pure.

A row has a place, (tx, id). In PostgreSQL `tx` grows with the transactions that write. So a place
that has been passed never gets a row later, however late a transaction commits. Rejected: `id`
alone. Measured: 6,156 of 11,551 rows were skipped. SQLite has one writer at a time: the id is
enough, and tx is 0.

A cursor is `history.tx.id.tag` of the last row that was read, or `history.begin`.

- `history` is random and kept in the database.
- `tag` tells by a row's data whether it is still the row that was read. Rejected: by its line,
  which changes when a header is added. If the data is an object of columns, the tag covers as many
  of them as there were, so that columns can be added at the end.
- If deletions are noted, the number of the last one follows. A reader before a deleted row can
  continue if none was deleted since.

Rule for editors: every name and text in a statement is quoted by a function here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import xxhash

from zeh_spark.errors import OptionError
from zeh_spark.service.store.problems import bad_cursor, other_history
from zeh_spark.wire import wire

MAX_PARTITIONS = 64
"""The most partitions of a table.

A reader with n = 1 asks for each of them separately in one statement. Measured: with 256 of them a
page took 0.26 seconds.
"""

BEGIN = "begin"
"""What a cursor before the first row has instead of a place."""

HISTORY = "zeroeventhub_history"
REMOVED = "zeroeventhub_removed"
CURSORS = "zeroeventhub_cursors"
"""The tables beside the service's own.

`HISTORY` has one row for each table that is a feed. `REMOVED` has up to where rows of a table were
removed, if a trigger notes that. `CURSORS` has the cursors that the feed keeps for readers, if its
owner wants that.
"""

_TABLE = re.compile(r"[^.\0]{1,63}(\.[^.\0]{1,63})?")
_CURSOR = re.compile(
    r"([0-9a-f]{8})\.(?:begin|"
    r"([0-9]{1,19})\.(?:(-?[0-9]{1,19})|([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}))\."
    r"([0-9a-f]{8}(?:-[0-9]{1,4})?))(?:\.r([0-9]{1,18}))?"
)

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Place = tuple[int, int | str]
"""A row's tx and id; a UUID is its text, which sorts as PostgreSQL sorts it."""


@dataclass(frozen=True, slots=True)
class OutboxTable:
    """The settings of a table or view that is a feed: what `SqlTableFeed` is given, checked."""

    name: str
    data: str | Sequence[str] = "data"
    headers: Sequence[str] = ()
    partition_by: str | None = None
    partition: str | None = None
    partitions: int = 1
    id: str = "id"
    tx: str = "tx"
    on_bad_row: str = "stop"
    strict_cursors: bool | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        if not _TABLE.fullmatch(self.name):
            raise _wrong("table", self.name, "a table's name, like outbox or shop.outbox")
        if not self.columns or not all(isinstance(each, str) and each for each in self.columns):
            raise _wrong("data", self.data, "a column, or a list of columns")
        if len(set(self.columns)) < len(self.columns):
            raise _wrong("data", self.data, "each column once")
        if isinstance(self.headers, str) or len(set(self.headers)) < len(self.headers):
            raise _wrong("headers", self.headers, "a list of columns, each once")
        for each in self.headers:
            if each.lower().startswith(wire.RESERVED_HEADER):
                raise _wrong(
                    "headers", each, f"not {wire.RESERVED_HEADER}…: that is the publisher's"
                )
        if type(self.partitions) is not int or not 1 <= self.partitions <= MAX_PARTITIONS:
            raise _wrong("partitions", self.partitions, f"a number of 1 to {MAX_PARTITIONS}")
        if self.partitions > 1 and not (self.partition_by or self.partition):
            raise _wrong("partitions", self.partitions, "1, unless partition_by names a column")
        if self.partition_by and self.partition:
            raise _wrong("partition", self.partition, "left out if partition_by is given")
        if self.on_bad_row not in {"stop", "skip"}:
            raise _wrong("on_bad_row", self.on_bad_row, "stop or skip")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.data,) if isinstance(self.data, str) else tuple(self.data)

    @property
    def is_object(self) -> bool:
        return not isinstance(self.data, str)

    def lineage(self, history: str) -> str:
        """Return the history as cursors have it, which is another one after other `partitions`.

        With other partitions, a key's rows would be in a partition whose reader may be further.
        """
        how = f"{history}.{self.partitions}.{self.partition or ''}.{self.partition_by or ''}"
        return xxhash.xxh3_64_hexdigest(how.encode())[:8]

    @property
    def tagged(self) -> int:
        """Return how many columns a tag covers; 0 if the data is one column."""
        return len(self.columns) if self.is_object else 0

    @property
    def used(self) -> dict[str, None]:
        """Return all columns that are read, `tx` excepted, in order."""
        by = filter(None, (self.partition_by, self.partition, self.time))
        return dict.fromkeys((self.id, *by, *self.columns, *self.headers))

    @property
    def sent_headers(self) -> tuple[str, ...]:
        """Return the headers of events: those of columns, and the time if there is one."""
        return (*self.headers, *([wire.TIME_HEADER] if self.time else []))

    @property
    def schema(self) -> str | None:
        before, dot, _ = self.name.rpartition(".")
        return before if dot else None

    @property
    def bare_name(self) -> str:
        return self.name.rpartition(".")[2]


def _wrong(option: str, value: object, allowed: str) -> OptionError:
    """Return the error for a setting; `allowed` completes "it must be"."""
    return OptionError(f"{option} is {value!r}; it must be {allowed}", option=option)


Cells = tuple[Any, ...]
"""A row as a database gives it: the fields of `OutboxRow`, its headers one by one at the end."""


class OutboxRow(NamedTuple):
    """A row of the table.

    Args:
        asked: The reader's partition for which it was read.
        tx: The first part of its place; 0 in SQLite.
        size: Bytes of data and headers; None if there is no data.
        data: The event's data as JSON; None if there is none, or if it is too long to be served.
        headers: Values of the headers that were asked for; None for NULL, and for all of them if
            the row is too long to be served.
    """

    asked: int
    tx: int
    id: int | str
    size: int | None
    data: str | None
    headers: tuple[str | bytes | None, ...]

    @classmethod
    def of(cls, cells: Cells) -> OutboxRow:
        asked, tx, key, size, data, *headers = cells
        return cls(asked, tx, key, size, data, tuple(headers))

    @property
    def place(self) -> Place:
        return self.tx, self.id

    def tag(self, columns: int) -> str:
        """Return the row's tag, which covers its place and data.

        `columns` is how many columns of an object it covers; 0 for the whole data.
        """
        content = (self.data or f"{self.size} bytes").encode()
        if columns and self.data:
            with suppress(msgspec.DecodeError, RecursionError):
                content = b",".join([*_members(content).values()][:columns])
        text = f"{self.tx}.{self.id}.".encode() + content
        tag = f"{xxhash.xxh3_64_intdigest(text) & 0xFFFFFFFF:08x}"
        return f"{tag}-{columns}" if columns else tag


class Removed(NamedTuple):
    """What is noted about the deleted rows of a partition.

    Args:
        times: A number that is another one after each deletion; 0 before the first.
    """

    place: Place | None = None
    times: int = 0


@dataclass(frozen=True, slots=True)
class Cursor:
    """A cursor into a table.

    Args:
        history: The table's history, as `OutboxTable.lineage` gives it.
        place: The place of the last row that was read; None before the first row.
        removals: The number of the last deletion that was noted when the cursor was given.
    """

    history: str
    place: Place | None = None
    tag: str = ""
    removals: int = 0

    def is_behind(self, row: OutboxRow) -> bool:
        """Return whether a row at the cursor's place is the one that was read."""
        return row.tag(int(self.tag.partition("-")[2] or 0)) == self.tag

    def misses(self, removed: Removed) -> bool:
        """Return whether rows after it may have been deleted since it was given."""
        return later(self.place, removed.place) != self.place and self.removals != removed.times

    def __str__(self) -> str:
        where = f"{self.place[0]}.{self.place[1]}.{self.tag}" if self.place else BEGIN
        return f"{self.history}.{where}" + (f".r{self.removals}" if self.removals else "")


def parse_cursor(
    partition: int, text: str, history: str, uuid: bool, *, replica: bool = False
) -> Cursor | None:
    """Return the cursor in a text; None for `_first` and `_last`.

    `history` is the table's history now, as `OutboxTable.lineage` gives it. Raises Problem if this
    feed cannot have given it, or gave it in another history.
    """
    if text in (wire.FIRST, wire.LAST):
        return None
    match = _CURSOR.fullmatch(text)
    if match and match[1] != history:
        why = f"the feed's history is {history!r}"
        raise other_history(partition, text, why, replica=replica)
    if match and match[2] is None:
        return Cursor(history, removals=int(match[6] or 0))
    if match and uuid == bool(match[4]):
        place = (int(match[2]), match[4] or int(match[3]))
        if place[0] < 1 << 63 and -(1 << 63) <= int(match[3] or 0) < 1 << 63:
            return Cursor(history, place, match[5], int(match[6] or 0))
    allowed = f"_first, _last, and cursors that this feed gave, like {history}.{BEGIN}"
    raise bad_cursor(partition, text, allowed)


def later(one: Place | None, other: Place | None) -> Place | None:
    """Return the later of two places; None is the beginning."""
    if one is None or other is None:
        return one or other
    return max(one, other)  # ids of one table have one type


def all_removed(removed: Mapping[int, Removed], stored: range) -> Removed:
    """Return what was deleted of some stored partitions together.

    In `removed`, the key -1 stands for all partitions.
    """
    place, count = None, 0
    for each in (-1, *stored) if stored else ():
        if each in removed:
            place, count = later(place, removed[each].place), count + removed[each].times
    return Removed(place, count)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def qualified(table: OutboxTable, name: str) -> str:
    """Return a quoted name in the schema of the table."""
    return f"{quoted(table.schema)}.{quoted(name)}" if table.schema else quoted(name)
