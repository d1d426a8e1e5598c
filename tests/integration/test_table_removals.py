"""Rows that are deleted from a table while it is read: no other row is lost or comes twice."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from tests.fix_stream import DECODER, Run
from tests.fix_table import Database
from zeh_spark.client.options.given import parse
from zeh_spark.client.polling import finite_read
from zeh_spark.spark.source.batch import BatchReader
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.stream import StreamReader
from zeh_spark.testing import running_publisher


@pytest.fixture
def url(sqlite_database: Database) -> Iterator[str]:
    """A table whose deletions are noted."""
    feed = sqlite_database.served("data JSON")
    sqlite_database.run(feed.ddl(retention=True))
    with running_publisher({"orders": feed}) as base:
        yield f"{base}/orders"


def insert(database: Database, numbers: range) -> None:
    values = ", ".join(f"('{each}')" for each in numbers)
    database.execute(f"INSERT INTO outbox (data) VALUES {values}")


def options(url: str, **given: str) -> SourceOptions:
    return parse(SourceOptions, {"url": url, "retryTimeout": "10s", **given})


def test_a_batch_read_holds_all_rows_if_a_newer_one_was_deleted(
    sqlite_database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row was inserted and deleted after the query was planned, before its task began."""
    monkeypatch.setattr(finite_read, "SETTLED", 0)
    insert(sqlite_database, range(500))
    reader = BatchReader(options(url, pageSizeHint="10"), DECODER)
    (task,) = pickle.loads(pickle.dumps(reader.partitions()))
    insert(sqlite_database, range(500, 501))
    sqlite_database.execute("DELETE FROM outbox WHERE id = 501")

    rows = [int(row["data"]) for batch in reader.read(task) for row in batch.to_pylist()]

    assert list(range(500)) == rows


def test_accepting_a_loss_brings_no_row_again(sqlite_database: Database, url: str) -> None:
    """failOnDataLoss=false continues after what was read, without the row that was deleted."""
    reading = options(url, failOnDataLoss="false")
    insert(sqlite_database, range(100))
    first = Run(finite(reading))
    assert list(range(100)) == first.to_the_end()
    insert(sqlite_database, range(100, 110))
    sqlite_database.execute("DELETE FROM outbox WHERE id = 105")

    second, again = Run(finite(reading), start=first.offset), Run(finite(options(url)))

    while (rows := second.next()) is not None:
        assert rows == again.rows(second.start, second.offset)
    assert [*range(100, 104), *range(105, 110)] == second.all()


def finite(reading: SourceOptions) -> StreamReader:
    reader = StreamReader(reading, DECODER)
    reader.prepareForTriggerAvailableNow()
    return reader
