"""Values that only SQLite has: columns of any type, JSON as bytes, and times as text."""

from __future__ import annotations

import sqlite3

import pytest

from tests.fix_table import SqliteDatabase, quoted, read


def test_jsonb_of_sqlite_is_json(sqlite_database: SqliteDatabase) -> None:
    """It is a format of its own, of 3.45 and later; what is older cannot read it, and I am told."""
    feed = sqlite_database.served("data JSON", on_bad_row="skip")
    sqlite_database.execute("INSERT INTO outbox (data) VALUES (x'4C17611331')")  # {"a":1}
    knows = sqlite3.sqlite_version_info >= (3, 45)
    expected = ([{"a": 1}], 0) if knows else ([], 1)
    assert expected == (read(feed).data, feed.state().skipped)


@pytest.mark.parametrize(
    "data",
    ["CAST('{\"a\":' AS BLOB)", "x'ff00'", "x''", "CAST(x'22ff22' AS TEXT)"],
    ids=["cut", "bytes", "nothing", "not UTF-8"],
)
@pytest.mark.parametrize("column", ["data", "object", "header"])
def test_bytes_that_are_not_json_are_a_bad_row_at_most(
    sqlite_database: SqliteDatabase, data: str, column: str
) -> None:
    """One damaged value does not stop the feed."""
    settings = {"data": {}, "object": {"data": ["data"]}, "header": {"headers": ["h", "k"]}}[column]
    settings.setdefault("headers", ["k"])
    feed = sqlite_database.served("data JSON, h JSON, k TEXT", on_bad_row="skip", **settings)
    damaged = f"'3', {data}" if column == "header" else f"{data}, '3'"
    sqlite_database.execute(
        f"INSERT INTO outbox (data, h, k) VALUES ('1', '1', 'a'), ({damaged}, 'b'), ('2', '2', 'c')"
    )
    assert ["a", "c"] == [k for each in read(feed).events if (k := each["headers"]["k"]) != "b"]


def test_json_that_was_written_as_bytes_is_json(sqlite_database: SqliteDatabase) -> None:
    """As Python's orjson.dumps and JSON columns together write it."""
    feed = sqlite_database.served("data JSON")
    sqlite_database.execute("""INSERT INTO outbox (data) VALUES (CAST('{"a": 1}' AS BLOB))""")
    assert [{"a": 1}] == read(feed).data


@pytest.mark.parametrize("json_text", ["hello", "", '1,"extra":2', "{", 'null}\n{"a":1'])
def test_member_that_is_not_json_makes_a_bad_row(
    sqlite_database: SqliteDatabase, json_text: str
) -> None:
    """SQLite does not look at what is in a column declared JSON: it cannot bring members that
    there are no columns for.
    """
    feed = sqlite_database.served("body JSON, k TEXT", data=["body", "k"], on_bad_row="skip")
    sqlite_database.execute(
        f"INSERT INTO outbox (body, k) VALUES ('1', 'a'), ({quoted(json_text)}, 'b'), ('2', 'c')"
    )
    assert [{"body": 1, "k": "a"}, {"body": 2, "k": "c"}] == read(feed).data


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2024-05-06 07:08:09.12+02:00", "2024-05-06T05:08:09.12Z"),
        ("2024-05-06 07:08:09.1234567+02:00", "2024-05-06T05:08:09.1234567Z"),
        ("2024-05-06 07:08+0200", "2024-05-06T05:08:00Z"),
        ("2024-13-45 07:08:09+02:00", "2024-13-45 07:08:09+02:00"),
        ("0001-01-01 00:00:00+02:00", "0001-01-01 00:00:00+02:00"),
        ("2024-05-06 07:08:09+99:99", "2024-05-06 07:08:09+99:99"),
        ("yesterday", "yesterday"),
    ],
)
def test_times_are_texts_in_sqlite(
    sqlite_database: SqliteDatabase, value: str, expected: str
) -> None:
    """What is no time of day stays as it is, and what is one is in UTC, exactly."""
    feed = sqlite_database.served("at TIMESTAMP", data=["at"])
    sqlite_database.execute(f"INSERT INTO outbox (at) VALUES ('{value}')")
    assert [{"at": expected}] == read(feed).data


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        ("BOOLEAN", "2", 2),
        ("BOOLEAN", "'yes'", "yes"),
        ("INTEGER", "'many'", "many"),
        ("TIMESTAMP", "1714972089", 1714972089),
        ("TEXT", "x'00'", "AA=="),
        ("", "1", 1),
        ("", "'1'", "1"),
        ("DATE", "20240506", 20240506),
    ],
)
def test_values_may_be_of_another_type_than_their_column(
    sqlite_database: SqliteDatabase, type: str, value: str, expected: object
) -> None:
    """SQLite lets them."""
    feed = sqlite_database.served(f"x {type}", data=["x"])
    sqlite_database.execute(f"INSERT INTO outbox (x) VALUES ({value})")
    assert [{"x": expected}] == read(feed).data
