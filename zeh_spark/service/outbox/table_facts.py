"""What is known of a table that is a feed: how it was made, how it stands, what `ddl` may add.

Values only; what asks the database for them is in `postgresql`, `sqlite` and `queries`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zeh_spark.service.outbox.table import Removed


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
    grant_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What is known of a table since it was inspected, in every database.

    Args:
        is_view: Whether it is a view, which can have no trigger.
        lacks_feed_ids: Whether the table of histories is there, without the column feed_id.
        uuid: Whether ids are UUIDs; else they are integers.
        moves_updates: Whether a trigger makes an updated row the last one.
        notifies: Whether a trigger reports new rows.
        notes_removed: Whether a trigger notes what is deleted.
        has_cursors: Whether the feed can keep cursors for readers.
    """

    is_view: bool
    has_history: bool
    lacks_feed_ids: bool
    has_cursors: bool
    notes_removed: bool
    uuid: bool = False
    moves_updates: bool = False
    notifies: bool = False
