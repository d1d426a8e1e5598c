"""Values that only SQLite has: columns of any type, JSON as bytes, and times as text."""

from __future__ import annotations

import sqlite3

import pytest

from tests.fix_table import SqliteDatabase, quoted, read
from zeh_spark.publisher import Problem


def test_json_that_was_written_as_bytes_is_json(sqlite_database: SqliteDatabase) -> None:
    """As Python's orjson.dumps and JSON columns together write it. JSONB of SQLite is a format of
    its own, of 3.45 and later; what is older cannot read it, and I am told.
    """
    feed = sqlite_database.served("data JSON", on_bad_row="skip")
    jsonb = "x'4C17611331'"  # {"a":1}
    written = """CAST('{"a": 2}' AS BLOB)"""
    sqlite_database.execute(f"INSERT INTO outbox (data) VALUES ({jsonb}), ({written})")
    knows = sqlite3.sqlite_version_info >= (3, 45)
    expected = ([{"a": 1}, {"a": 2}], 0) if knows else ([{"a": 2}], 1)
    assert expected == (read(feed).data, feed.state().skipped)


@pytest.mark.parametrize("column", ["data", "object", "header"])
def test_bytes_that_are_not_json_are_a_bad_row_at_most(
    sqlite_database: SqliteDatabase, column: str
) -> None:
    """One damaged value does not stop the feed."""
    settings = {"data": {}, "object": {"data": ["data"]}, "header": {"headers": ["h", "k"]}}[column]
    settings.setdefault("headers", ["k"])
    feed = sqlite_database.served("data JSON, h JSON, k TEXT", on_bad_row="skip", **settings)
    damaged = ["CAST('{\"a\":' AS BLOB)", "x'ff00'", "x''", "CAST(x'22ff22' AS TEXT)"]
    rows = [f"'3', {each}" if column == "header" else f"{each}, '3'" for each in damaged]
    values = ", ".join(f"({row}, 'b'), ('2', '2', 'c')" for row in rows)
    sqlite_database.execute(f"INSERT INTO outbox (data, h, k) VALUES ('1', '1', 'a'), {values}")
    found = [event["headers"]["k"] for event in read(feed).events]
    assert ["a", *"cccc"] == [k for k in found if k != "b"]


def test_member_that_is_not_json_makes_a_bad_row(sqlite_database: SqliteDatabase) -> None:
    """SQLite looks at no JSON: a column cannot bring members that there are no columns for."""
    feed = sqlite_database.served("body JSON, k TEXT", data=["body", "k"], on_bad_row="skip")
    bad = ("hello", "", '1,"extra":2', "{", 'null}\n{"a":1')
    values = ", ".join(f"({quoted(each)}, 'b'), ('2', 'c')" for each in bad)
    sqlite_database.execute(f"INSERT INTO outbox (body, k) VALUES ('1', 'a'), {values}")
    assert [{"body": 1, "k": "a"}, *[{"body": 2, "k": "c"}] * 5] == read(feed).data


def test_a_header_that_is_not_utf_8_makes_its_row_a_bad_one(
    sqlite_database: SqliteDatabase,
) -> None:
    """It is not replaced by a text that another row may have."""
    feed = sqlite_database.served("data JSON, tenant TEXT", headers=["tenant"])
    tenant = "CAST(x'c3' AS TEXT)"
    sqlite_database.execute(f"INSERT INTO outbox (data, tenant) VALUES ('1', {tenant})")
    with pytest.raises(Problem, match="header tenant: text that is not UTF-8"):
        read(feed)


VALUES = [
    ("TIMESTAMP", "'2024-05-06 07:08:09.12+02:00'", "2024-05-06T05:08:09.12Z"),
    ("TIMESTAMP", "'2024-05-06 07:08:09.1234567+02:00'", "2024-05-06T05:08:09.1234567Z"),
    ("TIMESTAMP", "'2024-05-06 07:08+0200'", "2024-05-06T05:08:00Z"),
    ("TIMESTAMP", "'2024-13-45 07:08:09+02:00'", "2024-13-45 07:08:09+02:00"),
    ("TIMESTAMP", "'0001-01-01 00:00:00+02:00'", "0001-01-01 00:00:00+02:00"),
    ("TIMESTAMP", "'2024-05-06 07:08:09+99:99'", "2024-05-06 07:08:09+99:99"),
    ("TIMESTAMP", "'yesterday'", "yesterday"),
    ("TIMESTAMP", "1714972089", 1714972089),
    ("DATE", "20240506", 20240506),
    ("BOOLEAN", "2", 2),
    ("BOOLEAN", "'yes'", "yes"),
    ("INTEGER", "'many'", "many"),
    ("TEXT", "x'00'", "AA=="),
    ("", "1", 1),
    ("", "'1'", "1"),
]
"""Types of columns, their values in SQL, and as members of the data."""


def test_values_may_be_of_another_type_than_their_column(sqlite_database: SqliteDatabase) -> None:
    """SQLite lets them. A text that is a time is in UTC, exactly; any other one stays as it is."""
    expected = {f"c{at} {type} {value}": member for at, (type, value, member) in enumerate(VALUES)}
    names = [f"c{at}" for at in range(len(VALUES))]
    columns = ", ".join(f"c{at} {type}" for at, (type, _, _) in enumerate(VALUES))
    feed = sqlite_database.served(columns, data=names)
    values = ", ".join(value for _, value, _ in VALUES)
    sqlite_database.execute(f"INSERT INTO outbox ({', '.join(names)}) VALUES ({values})")
    (found,) = read(feed).data
    assert expected == dict(zip(expected, found.values(), strict=True))
