"""What a service's own table is to a feed: its columns, its rows, and the cursors into it. Pure.

A row has a place, (tx, id). In PostgreSQL `tx` grows with the transactions that write, so that a
place that has been passed never gets a row any more, whoever commits late [by `id` alone, 6,156 of
11,551 rows were skipped]. SQLite has one writer at a time: the id is enough, and tx is 0.

A cursor is `history.tx.id.tag` of the last row that was read, or `history.begin`. `history` is
random and kept in the database; `tag` tells whether the row is still the one that was read, by its
data [not by its line: that changes when a header is added]. Where the data is an object of columns,
it goes by as many of them as there were, so that more can be added behind. Where deletions are
noted, the number of the last one follows: who stands before a deleted row goes on if none was
deleted since.
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
from zeh_spark.protocol import wire
from zeh_spark.store.problems import bad_cursor, other_history

MAX_PARTITIONS = 64
"""A reader with n = 1 asks each by itself in one statement [256 took 0.26 s a page]."""

BEGIN = "begin"

_TABLE = re.compile(r"[^.\0]{1,63}(\.[^.\0]{1,63})?")
_CURSOR = re.compile(
    r"([0-9a-f]{8})\.(?:begin|"
    r"([0-9]{1,19})\.(?:(-?[0-9]{1,19})|([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}))\."
    r"([0-9a-f]{8}(?:-[0-9]{1,4})?))(?:\.r([0-9]{1,18}))?"
)

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Place = tuple[int, int | str]
"""tx and id; a UUID as its text, which sorts as PostgreSQL sorts it."""


@dataclass(frozen=True, slots=True)
class OutboxTable:
    """A table or view as a feed.

    `data`: the column that holds an event's data; or columns, and its data is an object of them.
    `headers`: columns that become headers of their names. The stored partition is in the column
    `partition`, or computed of the column `partition_by`, or 0.
    `on_bad_row`: `stop` at a row that cannot be an event, or `skip` it with a warning.
    `strict_cursors`: refuse a cursor whose row is gone while older ones are left. None: unless rows
    may be updated, which the trigger of `zeh-spark ddl --updates` tells.
    """

    name: str
    data: str | Sequence[str]
    headers: Sequence[str] = ()
    partition_by: str | None = None
    partition: str | None = None
    partitions: int = 1
    id: str = "id"
    tx: str = "tx"
    on_bad_row: str = "stop"
    strict_cursors: bool | None = None

    def __post_init__(self) -> None:
        """Raises OptionError."""
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
            raise _wrong("partition", self.partition, "left out where partition_by is given")
        if self.on_bad_row not in {"stop", "skip"}:
            raise _wrong("on_bad_row", self.on_bad_row, "stop or skip")

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the data."""
        return (self.data,) if isinstance(self.data, str) else tuple(self.data)

    @property
    def is_object(self) -> bool:
        """Whether an event's data is an object of columns."""
        return not isinstance(self.data, str)

    def lineage(self, history: str) -> str:
        """The history as cursors have it: other partitions make it another one [a key's rows would
        be in a partition whose reader may be further on].
        """
        how = f"{history}.{self.partitions}.{self.partition or ''}.{self.partition_by or ''}"
        return xxhash.xxh3_64_hexdigest(how.encode())[:8]

    @property
    def tagged(self) -> int:
        """Columns that tags go by."""
        return len(self.columns) if self.is_object else 0

    @property
    def used(self) -> dict[str, None]:
        """All columns that are read but `tx`, in order."""
        by = (self.partition_by, self.partition)
        return dict.fromkeys((self.id, *filter(None, by), *self.columns, *self.headers))

    @property
    def schema(self) -> str | None:
        before, dot, _ = self.name.rpartition(".")
        return before if dot else None

    @property
    def bare_name(self) -> str:
        """Without its schema."""
        return self.name.rpartition(".")[2]


def _wrong(option: str, value: object, allowed: str) -> OptionError:
    return OptionError(f"{option} is {value!r}; it must be {allowed}", option=option)


Cells = tuple[Any, ...]
"""A row as a database gives it: what `OutboxRow` has, its headers one by one."""


class OutboxRow(NamedTuple):
    """A row. `asked`: the reader's partition; `size`: bytes of data and headers, None where there
    is no data; both are None, too, where they are too long to be served.
    """

    asked: int
    tx: int
    id: int | str
    size: int | None
    data: str | None
    headers: tuple[str | None, ...]

    @classmethod
    def of(cls, cells: Cells) -> OutboxRow:
        asked, tx, key, size, data, *headers = cells
        return cls(asked, tx, key, size, data, tuple(headers))

    @property
    def place(self) -> Place:
        return self.tx, self.id

    def tag(self, columns: int) -> str:
        """Of the first columns of an object, or of all data where there are 0."""
        content = (self.data or f"{self.size} bytes").encode()
        if columns and self.data:
            with suppress(msgspec.DecodeError, RecursionError):
                content = b",".join([*_members(content).values()][:columns])
        text = f"{self.tx}.{self.id}.".encode() + content
        tag = f"{xxhash.xxh3_64_intdigest(text) & 0xFFFFFFFF:08x}"
        return f"{tag}-{columns}" if columns else tag


class Removed(NamedTuple):
    """What was deleted of a partition: rows up to a place; `times` is another number after each
    deletion.
    """

    place: Place | None = None
    times: int = 0


@dataclass(frozen=True, slots=True)
class Cursor:
    """`place` is None before the first row; `removals`: the number of the last deletion."""

    history: str
    place: Place | None = None
    tag: str = ""
    removals: int = 0

    def is_behind(self, row: OutboxRow) -> bool:
        """Whether a row at its place is the one that was read."""
        return row.tag(int(self.tag.partition("-")[2] or 0)) == self.tag

    def misses(self, removed: Removed) -> bool:
        """Whether something behind it may have been deleted since it was given."""
        return later(self.place, removed.place) != self.place and self.removals != removed.times

    def __str__(self) -> str:
        where = f"{self.place[0]}.{self.place[1]}.{self.tag}" if self.place else BEGIN
        return f"{self.history}.{where}" + (f".r{self.removals}" if self.removals else "")


def parse_cursor(partition: int, text: str, history: str, uuid: bool) -> Cursor | None:
    """None for a special cursor. Raises Problem for what this feed cannot have given. `uuid`:
    whether its ids are UUIDs.
    """
    if text in (wire.FIRST, wire.LAST):
        return None
    match = _CURSOR.fullmatch(text)
    if match and match[1] != history:
        raise other_history(partition, text, f"the feed's history is {history!r}")
    if match and match[2] is None:
        return Cursor(history, removals=int(match[6] or 0))
    if match and uuid == bool(match[4]):
        place = (int(match[2]), match[4] or int(match[3]))
        if place[0] < 1 << 63 and -(1 << 63) <= int(match[3] or 0) < 1 << 63:
            return Cursor(history, place, match[5], int(match[6] or 0))
    allowed = f"_first, _last, and cursors that this feed gave, like {history}.{BEGIN}"
    raise bad_cursor(partition, text, allowed)


def later(one: Place | None, other: Place | None) -> Place | None:
    """The place further on; None is the beginning."""
    if one is None or other is None:
        return one or other
    return max(one, other)  # ids of one table have one type


def all_removed(removed: Mapping[int, Removed], stored: range) -> Removed:
    """Of some stored partitions together. `removed`: of each; -1 stands for all."""
    place, count = None, 0
    for each in (-1, *stored) if stored else ():
        if each in removed:
            place, count = later(place, removed[each].place), count + removed[each].times
    return Removed(place, count)
