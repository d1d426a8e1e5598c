"""What an audit has to remember, in a temporary SQLite database that ends with the process.

Rule for editors: keep nothing in memory for each producer or batch without a limit. A named batch
is a producer of its own, and there may be any number of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from zeh_spark.service.store.batches import StoredReceipt

_TABLES = """
CREATE TABLE receipts (first INTEGER, last INTEGER, document BLOB);
CREATE INDEX by_position ON receipts (first, last);
CREATE TABLE producers (name TEXT PRIMARY KEY, expired INTEGER, lowest INTEGER) WITHOUT ROWID;
CREATE TABLE told (producer TEXT, partition INTEGER, next INTEGER);
CREATE TABLE numbers (producer TEXT, partition INTEGER, next INTEGER,
                      PRIMARY KEY (producer, partition)) WITHOUT ROWID;
"""

_decode = msgspec.json.Decoder(StoredReceipt).decode


@dataclass(frozen=True, slots=True)
class ListedProducer:
    """A producer of the publisher's list.

    Args:
        lowest: The lowest position that one of the receipts left claims; None if none does.
    """

    expired: bool
    lowest: int | None

    def may_lack_receipt(self, position: int) -> bool:
        """Return whether the receipt of this position may have expired."""
        return self.expired and (self.lowest is None or position < self.lowest)


class Ledger:
    """Receipts by position, producers by name, and the numbers that were seen."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")  # nothing is ever rolled back
        self._database.executescript(_TABLES)
        self._database.execute("BEGIN")
        self._firsts: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        self._database.close()

    def add_receipt(self, receipt: StoredReceipt) -> None:
        assert receipt.positions
        row = (*receipt.positions, msgspec.json.encode(receipt))
        self._database.execute("INSERT INTO receipts VALUES (?, ?, ?)", row)

    def receipts(self) -> Iterator[StoredReceipt]:
        """Yield the receipts in the order of their positions."""
        query = "SELECT document FROM receipts ORDER BY first, last"
        for (document,) in self._database.execute(query):
            yield _decode(document)

    def add_producer(self, name: str, known: ListedProducer) -> None:
        row = (name, known.expired, known.lowest)
        self._database.execute("INSERT OR REPLACE INTO producers VALUES (?, ?, ?)", row)

    def producer(self, name: str) -> ListedProducer | None:
        query = "SELECT expired, lowest FROM producers WHERE name = ?"
        row = self._database.execute(query, (name,)).fetchone()
        return ListedProducer(bool(row[0]), row[1]) if row else None

    def tell(self, producer: str, partition: int, following: int) -> None:
        """Keep a partition's next number that only the producer's state tells, and no receipt."""
        row = (producer, partition, following)
        self._database.execute("INSERT INTO told VALUES (?, ?, ?)", row)

    def told(self) -> Iterator[tuple[str, int, int]]:
        yield from self._database.execute("SELECT * FROM told ORDER BY producer, partition")

    def begins(self, producer: str, partition: int, first: int) -> None:
        """Keep the first number of a producer that did not begin with 0 in a partition."""
        self._firsts[producer, partition] = first

    def first(self, producer: str, partition: int) -> int:
        return self._firsts.get((producer, partition), 0)

    def following(self, producer: str, partition: int) -> int | None:
        """Return the number after the last one that was seen."""
        query = "SELECT next FROM numbers WHERE producer = ? AND partition = ?"
        row = self._database.execute(query, (producer, partition)).fetchone()
        return row and int(row[0])

    def saw(self, producer: str, partition: int, following: int) -> None:
        row = (producer, partition, following)
        self._database.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?, ?)", row)
