"""What is known of a table: how it was made, how it stands, what it lacks, what `ddl` may add.

What asks the database is in `postgresql`, `sqlite` and `queries`; what differs of faults and
statements is in `postgresql_check` and `sqlite_ddl`. Pure.

Rule for editors: an error prints the statements themselves whenever all faults have some, so that a
reader of the log can repair the table.
"""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zeh_spark.errors import StoreError
from zeh_spark.service.outbox import cursor_sets
from zeh_spark.service.outbox.table import HISTORY, OutboxTable, Removed


@dataclass(frozen=True, slots=True)
class TableStatus:
    """How a table stands at one moment.

    Args:
        removed: What is noted as deleted of each stored partition; the key -1 stands for all.
        end: A place after all places that cursors can have; empty if that is not known.
        settled: A place before which no row will come any more; empty if there is no such limit.
        server: The server that was asked, by the time of its start.
    """

    history: str
    removed: Mapping[int, Removed] = field(default_factory=dict)
    end: tuple[int, ...] = ()
    settled: tuple[int, ...] = ()
    standby: bool = False
    server: str = ""


@dataclass(frozen=True, slots=True)
class BlockingTransaction:
    """The oldest open transaction that writes, which holds rows back from readers.

    It may be in any database of the cluster. A fact that the role may not see is None.

    Args:
        seconds: Its age in seconds.
        prepared: The name of a prepared transaction, which no process will end by itself.
    """

    pid: int | None = None
    database: str | None = None
    seconds: float | None = None
    prepared: str | None = None

    def __str__(self) -> str:
        who = "a transaction that cannot be seen from here"
        if self.prepared:
            who = f"the prepared transaction {self.prepared!r}"
        elif self.pid:
            who = f"the transaction of process {self.pid}"
        where = f" in database {self.database!r}" if self.database else ""
        return who + where + (f", {self.seconds:.0f} s old" if self.seconds is not None else "")


@dataclass(frozen=True, slots=True)
class More:
    """What `ddl` is to add to what a feed needs (see `SqlTableFeed.ddl`)."""

    notify: bool = False
    updates: bool = False
    retention: bool = False
    cursor_sets: bool = False
    checks: bool = True
    grant_to: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A reason why a table cannot be a feed."""

    reason: str
    statements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts(ABC):
    """What is known of a table since it was inspected, in every database.

    Args:
        columns: Its columns, by name.
        is_there: Whether there is such a table or view.
        is_view: Whether it is a view, which can have no trigger.
        lacks_feed_ids: Whether the table of histories is there, without the column feed_id.
        checks: The names of what refuses rows that cannot be events.
        uuid: Whether ids are UUIDs; else they are integers.
        moves_updates: Whether a trigger makes an updated row the last one.
        notifies: Whether a trigger reports new rows.
        notes_removed: Whether a trigger notes what is deleted.
        has_cursors: Whether the feed can keep cursors for readers.
        others: The names of the other tables, if the table is absent.
    """

    table: OutboxTable
    columns: Mapping[str, Any]
    is_there: bool
    is_view: bool
    has_history: bool
    lacks_feed_ids: bool
    has_cursors: bool
    notes_removed: bool
    checks: Collection[str]
    others: Sequence[str] = ()
    uuid: bool = False
    moves_updates: bool = False
    notifies: bool = False

    def faults(self) -> list[Fault]:
        """Return why the table cannot be a feed; empty if it can."""
        name, columns = self.table.name, self.columns
        if self.lacks_feed_ids:
            reason = (
                f"{HISTORY} has no column feed_id, so no release of zeh-spark has made it: drop "
                f"it, and run what zeh-spark ddl prints then. Readers of {name} have to begin again"
            )
            return [Fault(reason)]
        if not self.is_there:
            return [self._absence()]
        faults = [
            Fault(f"there is no column {each}; there are {', '.join(columns)}")
            for each in self.table.used
            if each not in columns
        ]
        faults += self._own_faults()
        if not self.has_history:
            faults.append(Fault(f"{name} has no history of its own", self.history()))
        return faults

    def ddl(self, more: More) -> list[str]:
        """Return the statements that add what is missing, and `more`, in order.

        Raises StoreError if no statement can repair the table, or it is a view, which has no
        triggers.
        """
        if self.is_view and (more.updates or more.retention):
            raise StoreError(f"{self.table.name} is a view. Give the option for its table.")
        faults = self.faults()
        if helpless := [each for each in faults if not each.statements]:
            raise self.refusal(helpless)
        found = [statement for each in faults for statement in each.statements]
        if more.checks and not self.is_view:
            checks = dict(self._checks())
            found += [each for name, each in checks.items() if name not in self.checks]
            ours = re.compile(r"zeroeventhub_(is_json|fits|insert|update)_[0-9a-f]{8}$")
            old = sorted(filter(ours.search, {*self.checks} - checks.keys()))
            found += map(self._check_dropped, old)
        if more.retention and not self.notes_removed:
            found += self._retention()
        if more.cursor_sets and not self.has_cursors:
            found.append(cursor_sets.create(self.table))
        return found

    def refusal(self, faults: Sequence[Fault]) -> StoreError:
        """Return the error for a table with faults, with the statements if all faults have some."""
        reasons = "; ".join(each.reason for each in faults)
        mendable = all(each.statements for each in faults)
        missing = "\n".join(each for fault in faults for each in fault.statements if mendable)
        remedy = f". zeh-spark ddl prints what is missing:\n{missing}" if missing else ""
        return StoreError(
            f"table {self.table.name} cannot be served as a feed: {reasons}{remedy}",
            anchor="the-table-cannot-be-served",
        )

    @abstractmethod
    def history(self) -> tuple[str, ...]:
        """Return the statements that give the table a history and a feed id."""

    def _absence(self) -> Fault:
        """Return the fault of a table that is not there.

        It is not created if another one has nearly its name: its feed would be empty without an
        error.
        """
        name, bare = self.table.name, self.table.bare_name.lower()
        names = {each.lower(): each for each in self.others if not each.startswith("zeroeventhub_")}
        if close := difflib.get_close_matches(bare, names, n=1, cutoff=0.8):
            return Fault(
                f"there is no table {name}; did you mean {names[close[0]]}? If it is to be a new "
                f"table, create it first"
            )
        return Fault(f"there is no table {name}", (*self._creation(), *self.history()))

    @abstractmethod
    def _creation(self) -> Iterator[str]:
        """Yield the statements that create the table and its indexes."""

    @abstractmethod
    def _own_faults(self) -> Iterator[Fault]:
        """Yield the faults that only this kind of database has."""

    @abstractmethod
    def _checks(self) -> Iterator[tuple[str, str]]:
        """Yield name and statement of each check that refuses what cannot be an event."""

    @abstractmethod
    def _check_dropped(self, name: str) -> str:
        """Return the statement that drops a check."""

    @abstractmethod
    def _retention(self) -> tuple[str, ...]:
        """Return the statements for triggers that note what is deleted."""
