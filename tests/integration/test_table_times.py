"""A column with the time at which a row was written: the header `zeh-time`, and starts by time."""

from __future__ import annotations

import time

import pytest
import requests

from tests.fix_table import Database, read, refusal
from tests.patience import PATIENCE
from zeh_spark.publisher import SqlTableFeed
from zeh_spark.testing import running_publisher

TIMES = {
    "2026-11-01T08:00:00.123Z": 1793520000123,
    "2026-11-01T10:00:00+02:00": 1793520000000,
    "1969-12-31T23:59:59.999Z": -1,
}


def served(database: Database, **table: object) -> SqlTableFeed:
    kind = "timestamptz" if database.kind == "postgresql" else "TEXT"
    return database.served(f"k text, at {kind}, data json", time="at", **table)


def write(database: Database, *times: str | None) -> None:
    for each in times:
        database.execute(
            f"INSERT INTO outbox (k, at, data) VALUES ('{each}',"
            f" {'NULL' if each is None else repr(each)}, '{{}}')"
        )


def test_events_have_the_time_of_their_row(database: Database) -> None:
    """In ms since 1970; a row without a time has no such header."""
    feed = served(database, headers=["k"])
    write(database, *TIMES, None)
    headers = [each["headers"] for each in read(feed).events]
    assert [*map(str, TIMES.values()), None] == [each.get("zeh-time") for each in headers]
    assert [{"zeh-time": str(each)} for each in TIMES.values()] == [
        each["headers"] for each in read(feed, headers=["zeh-time"]).events if each["headers"]
    ]
    assert {} == read(feed, headers=[]).events[0]["headers"]


@pytest.mark.parametrize("value", ["infinity", "-infinity"])
def test_an_infinite_time_is_none(postgresql_database: Database, value: str) -> None:
    """It does not break the page."""
    feed = served(postgresql_database)
    write(postgresql_database, value)
    assert [{}] == [each["headers"] for each in read(feed).events]


@pytest.mark.parametrize("value", ["soon", "2026-13-01", "12"])
def test_a_text_that_is_no_time_is_none(sqlite_database: Database, value: str) -> None:
    """SQLite takes any text, and takes `12` for a Julian day."""
    feed = served(sqlite_database)
    write(sqlite_database, value)
    assert [{}] == [each["headers"] for each in read(feed).events]


def moments(*hours: int) -> list[str]:
    return [f"2026-11-01T{each:02}:00:00Z" for each in hours]


def ms(hour: int) -> int:
    return 1793491200000 + hour * 3_600_000


@pytest.mark.parametrize("keys", [{}, {"partition_by": "k", "partitions": 4}])
def test_a_reader_starts_at_a_time(database: Database, keys: dict[str, object]) -> None:
    """With all rows since then, also those that come later, and those without a time."""
    feed = served(database, **keys)
    write(database, *moments(1, 2, 3, 4))

    def ids(hour: int) -> list[str]:
        cursors = feed.cursors_at(feed.partitions, ms(hour))
        return sorted(each["headers"]["zeh-time"] for each in read(feed, cursors).events)

    assert [str(ms(3)), str(ms(4))] == ids(3)
    assert [str(ms(each)) for each in (1, 2, 3, 4)] == ids(0)
    assert [] == ids(5)
    after = feed.cursors_at(feed.partitions, ms(5))
    write(database, *moments(6))
    assert [str(ms(6))] == [each["headers"]["zeh-time"] for each in read(feed, after).events]
    write(database, None)
    assert 2 == len(read(feed, feed.cursors_at(feed.partitions, ms(6))).events)


def test_a_row_that_came_late_is_never_left_out(database: Database) -> None:
    """Times may go back from row to row: it starts before the first row of the time."""
    feed = served(database)
    write(database, *moments(1, 4, 2, 3))
    found = read(feed, feed.cursors_at(1, ms(3))).events
    assert [str(ms(each)) for each in (4, 2, 3)] == [each["headers"]["zeh-time"] for each in found]


def test_starting_by_time_is_refused_without_times_and_ahead(database: Database) -> None:
    """The error says what to do."""
    feed = served(database)
    plain = database.feed()
    with running_publisher({"timed": feed, "plain": plain}) as base:
        future = int(time.time() * 1000) + 1_000_000

        def problem(name: str, ms: int) -> tuple[int, str]:
            found = requests.get(f"{base}/{name}/cursors?n=1&time={ms}", timeout=PATIENCE)
            return found.status_code, found.json()["detail"]

        ahead, unknown = problem("timed", future), problem("plain", 1)
    assert 400 == ahead[0] and "ahead of the publisher's clock" in ahead[1]
    assert 404 == unknown[0] and "the setting time" in unknown[1]


def test_the_index_that_it_needs_is_asked_for(database: Database) -> None:
    """By serve, which prints the statement; a start never reads the whole table."""
    kind = "timestamptz" if database.kind == "postgresql" else "TEXT"
    database.served(f"at {kind}, data json")
    feed = database.feed(time="at")
    assert "there is no index on at, by which readers start" in refusal(feed)
    database.apply(feed.ddl())
    feed.check()
    assert [] == feed.ddl()


def test_a_new_table_gets_the_column(database: Database) -> None:
    """With the time of each row as its default."""
    feed = database.feed(time="at")
    database.apply(feed.ddl())
    database.execute("INSERT INTO outbox (data) VALUES ('1')")
    [event] = read(feed).events
    assert abs(int(event["headers"]["zeh-time"]) - time.time() * 1000) < PATIENCE * 1000
    assert [] == feed.ddl()


def test_another_type_is_refused(postgresql_database: Database) -> None:
    """It is named with the types that are allowed."""
    postgresql_database.served("at bigint, data json")
    said = refusal(postgresql_database.feed(time="at"))
    assert "at is of type int8; it must be one of timestamptz, timestamp" in said


@pytest.mark.parametrize(
    "kind", ["integer DEFAULT (unixepoch())", "bigint", "real", "numeric", "double precision"]
)
def test_a_number_is_no_time(sqlite_database: Database, kind: str) -> None:
    """Nothing would come of the setting, and nobody would see it."""
    sqlite_database.served(f"at {kind}, data json")
    said = refusal(sqlite_database.feed(time="at"))
    assert f"at is of type {kind.split(' DEFAULT')[0].upper()}; it must be TEXT" in said


@pytest.mark.parametrize("kind", ["", "DATETIME DEFAULT CURRENT_TIMESTAMP", "timestamp", "date"])
def test_other_types_of_sqlite_may_have_times(sqlite_database: Database, kind: str) -> None:
    """SQLite keeps a text as it is in columns of these types."""
    sqlite_database.execute(f"CREATE TABLE outbox ({sqlite_database.id}, data json, at {kind})")
    feed = sqlite_database.feed(time="at")
    sqlite_database.apply(feed.ddl())
    sqlite_database.execute("INSERT INTO outbox (data, at) VALUES ('1', '2026-11-01 08:00:00')")
    assert ["1793520000000"] == [each["headers"]["zeh-time"] for each in read(feed).events]
