"""Values of a database as JSON and as headers: one table of expectations for both databases."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from tests.fix_table import Database, PostgresqlDatabase, quoted, read

BYTES = bytes(range(256))
ENCODED = base64.b64encode(BYTES).decode()
LONG = "1" * 65_536
LONG_NUMBER = "123456789012345678901234567890.123"
TEXT = 'He said "no" \\ to\n\tä\u2028€\U0001f600 \x7f \\u0041'
SOME_UUID = "6b1ff5a4-9d0e-4e1f-8a39-0a6a0d2c7e11"


class Case(NamedTuple):
    """`type`: of the column; `value`: as SQL; `json` and `header`: what is to be read."""

    type: str
    value: str
    json: str
    header: str | None
    databases: str = "postgresql sqlite"


def same(type: str, value: str, json: str, databases: str = "postgresql sqlite") -> Case:
    """A header as the JSON is, without its quotes."""
    return Case(type, value, json, json.strip('"'), databases)


POSTGRESQL, SQLITE = "postgresql", "sqlite"
CASES = [
    # JSON
    Case("json", """'{"a": [1, 1.10, null, "ä"]}'""", '{"a":[1,1.10,null,"ä"]}',
         '{"a": [1, 1.10, null, "ä"]}'),
    Case("json", """'{"a":\n1}'""", '{"a":1}', '{"a":\n1}'),
    Case("jsonb", """'{"a": [1, 1.10, null, "ä"]}'""", '{"a":[1,1.10,null,"ä"]}',
         '{"a": [1, 1.10, null, "ä"]}', POSTGRESQL),
    Case("json", f"'{LONG_NUMBER}'", LONG_NUMBER, LONG_NUMBER, POSTGRESQL),
    Case("json", """'{"a": 1e400}'""", '{"a": 1e400}', '{"a": 1e400}'),
    Case("jsonb", """'"text \\" here"'""", '"text \\" here"', 'text " here', POSTGRESQL),
    Case("json", """'"text \\" here"'""", '"text \\" here"', 'text " here'),
    Case("json", "'null'", "null", None),
    Case("json", "NULL", "null", None),
    # text
    Case("text", quoted(TEXT), json.dumps(TEXT), TEXT),
    Case("text", "'{\"a\":1}'", '"{\\"a\\":1}"', '{"a":1}'),
    Case("text", "''", '""', ""),
    Case("text", "'null'", '"null"', "null"),
    Case("text", "'\"'", '"\\""', '"'),
    Case("text", "NULL", "null", None),
    Case("varchar(20)", "'1.0'", '"1.0"', "1.0"),
    Case("char(3)", "'abc'", '"abc"', "abc"),
    Case("text", "'a' || char(0) || 'b'", '"a\\u0000b"', "a\0b", SQLITE),
    same("name", "'abc'", '"abc"', POSTGRESQL),
    same("uuid", f"'{SOME_UUID}'", f'"{SOME_UUID}"'),
    same("inet", "'10.0.0.1'", '"10.0.0.1"', POSTGRESQL),
    # numbers
    same("smallint", "-32768", "-32768"),
    same("integer", "2147483647", "2147483647"),
    same("bigint", "9223372036854775807", "9223372036854775807"),
    same("bigint", "-9223372036854775808", "-9223372036854775808"),
    Case("bigint", "NULL", "null", None),
    same("numeric", "1.10", "1.10", POSTGRESQL),
    same("numeric", LONG_NUMBER, LONG_NUMBER, POSTGRESQL),
    same("numeric(12,2)", "-5", "-5.00", POSTGRESQL),
    same("numeric", "1e30", "1" + "0" * 30, POSTGRESQL),
    same("numeric", "'NaN'", '"NaN"', POSTGRESQL),
    same("numeric", "'-Infinity'", '"-Infinity"', POSTGRESQL),
    same("numeric", "5", "5"),
    same("numeric", "1.5", "1.5"),
    same("real", "1.5", "1.5"),
    same("real", "'NaN'", '"NaN"', POSTGRESQL),
    same("real", "'Infinity'", '"Infinity"', POSTGRESQL),
    same("double precision", "0.1", "0.1"),
    same("double precision", "1e300", "1e+300"),
    same("double precision", "-2.5e-7", "-2.5e-07"),
    same("double precision", "'NaN'", '"NaN"', POSTGRESQL),
    same("double precision", "'Infinity'", '"Infinity"', POSTGRESQL),
    same("double precision", "'-Infinity'", '"-Infinity"', POSTGRESQL),
    same("double precision", "9e999", '"Infinity"', SQLITE),
    same("double precision", "-9e999", '"-Infinity"', SQLITE),
    # booleans
    same("boolean", "true", "true"),
    same("boolean", "false", "false"),
    Case("boolean", "NULL", "null", None),
    # time
    same("timestamptz", "'2024-05-06 07:08:09+02:00'", '"2024-05-06T05:08:09Z"'),
    same("timestamptz", "'2024-05-06 07:08:09.123456+05:30'", '"2024-05-06T01:38:09.123456Z"'),
    same("timestamptz", "'2024-01-01 00:00:00Z'", '"2024-01-01T00:00:00Z"'),
    same("timestamptz", "'infinity'", '"infinity"'),
    same("timestamptz", "'0044-03-15 00:00:00+00 BC'", '"0044-03-15T00:00:00 BC"', POSTGRESQL),
    same("timestamp", "'2024-05-06 07:08:09'", '"2024-05-06T07:08:09"'),
    same("timestamp", "'2024-05-06 07:08:09.5'", '"2024-05-06T07:08:09.5"'),
    same("timestamp", "'2024-05-06T07:08:09'", '"2024-05-06T07:08:09"'),
    same("datetime", "'2024-05-06 07:08:09.123456'", '"2024-05-06T07:08:09.123456"', SQLITE),
    same("date", "'2024-05-06'", '"2024-05-06"'),
    same("time", "'07:08:09.5'", '"07:08:09.5"'),
    same("interval", "'1 day 02:03:04'", '"1 day 02:03:04"', POSTGRESQL),
    # bytes
    Case("bytea", "'\\x0001ff'", '"AAH/"', "AAH/", POSTGRESQL),
    Case("blob", "x'0001ff'", '"AAH/"', "AAH/", SQLITE),
    same("bytea", f"'\\x{BYTES.hex()}'", f'"{ENCODED}"', POSTGRESQL),
    same("blob", f"x'{BYTES.hex()}'", f'"{ENCODED}"', SQLITE),
    Case("bytea", "''", '""', "", POSTGRESQL),
    Case("blob", "x''", '""', "", SQLITE),
    # of PostgreSQL alone
    Case("integer[]", "'{1,NULL,3}'", "[1,null,3]", "[1,null,3]", POSTGRESQL),
    Case("text[]", """'{a,"b \\" c"}'""", '["a","b \\" c"]', '["a","b \\" c"]', POSTGRESQL),
    Case("integer[]", "'{{1,2},{3,4}}'", "[[1,2],[3,4]]", "[[1,2],[3,4]]", POSTGRESQL),
    Case("jsonb[]", """ARRAY['{"a":1}'::jsonb]""", '[{"a": 1}]', '[{"a": 1}]', POSTGRESQL),
    Case("integer[]", "'{}'", "[]", "[]", POSTGRESQL),
    Case("timestamptz[]", "'{2024-05-06 07:08:09+02}'", '["2024-05-06T05:08:09Z"]',
         '["2024-05-06T05:08:09Z"]', POSTGRESQL),
    Case("bytea[]", """'{"\\\\x0001ff"}'""", '["AAH/"]', '["AAH/"]', POSTGRESQL),
    same("mood", "'so so'", '"so so"', POSTGRESQL),
    Case("payload", """'{"a": 1}'""", '{"a": 1}', '{"a": 1}', POSTGRESQL),
    Case("payload2", """'{"a": 1}'""", '{"a": 1}', '{"a": 1}', POSTGRESQL),
    same("moment", "'2024-05-06 07:08:09+02'", '"2024-05-06T05:08:09Z"', POSTGRESQL),
    same("moment2", "'2024-05-06 07:08:09+02'", '"2024-05-06T05:08:09Z"', POSTGRESQL),
    Case("pair", "(1, 'x')", '{"a":1,"b":"x"}', '{"a":1,"b":"x"}', POSTGRESQL),
]  # fmt: skip
TYPES = (
    "CREATE TYPE mood AS ENUM ('so so', 'good')",
    "CREATE TYPE pair AS (a integer, b text)",
    "CREATE DOMAIN payload AS jsonb CHECK (value <> 'null')",
    "CREATE DOMAIN payload2 AS payload",
    "CREATE DOMAIN moment AS timestamptz",
    "CREATE DOMAIN moment2 AS moment",
)


def of(database: Database) -> list[Case]:
    return [case for case in CASES if database.kind in case.databases]


def exactly(value: str) -> Any:
    """Numbers as they are written."""
    return json.loads(value, parse_float=_number, parse_int=_number)


def _number(written: str) -> str:
    sign, digits, exponent = Decimal(written).as_tuple()
    return f"number {sign} {digits} {exponent}"


def test_values_of_columns_are_members_of_the_data_and_headers(database: Database) -> None:
    """Whatever my columns are, their values are exact; in headers as text, where NULL is none."""
    cases = of(database)
    if isinstance(database, PostgresqlDatabase):
        for each in TYPES:
            database.execute(each)
    names = [f"c{number}x" for number in range(len(cases))]
    columns = ", ".join(f"{name} {case.type}" for name, case in zip(names, cases, strict=True))
    feed = database.served(columns, data=names, headers=names)
    values = ", ".join(case.value for case in cases)
    database.execute(f"INSERT INTO outbox ({', '.join(names)}) VALUES ({values})")
    (line,) = read(feed).lines
    shown = [f"{at} {case.type} {case.value[:30]}" for at, case in enumerate(cases)]
    members = [exactly(case.json) for case in cases]
    found = exactly(line.decode())["data"].values()
    assert dict(zip(shown, members, strict=True)) == dict(zip(shown, found, strict=True))
    headers = json.loads(line)["headers"]
    texts = [case.header for case in cases]
    assert dict(zip(shown, texts, strict=True)) == {
        text: headers.get(name) for text, name in zip(shown, names, strict=True)
    }
    assert None not in headers.values()


def test_json_in_a_column_is_the_data(database: Database) -> None:
    """Also where the column is text."""
    for type in ("json", "jsonb", "text", "varchar"):
        feed = database.served(f"data {type}", table=type)
        database.execute(
            f"""INSERT INTO "{type}" (data) VALUES ('{{"a": [1.10, "ä"]}}'), ('"x"'), ('7')"""
        )
        assert (type, [{"a": [1.1, "ä"]}, "x", 7]) == (type, read(feed).data)


BAD_ROWS = {
    "word": ("text", "'hello'"),
    "NULL": ("text", "NULL"),
    "NULL of another type": ("integer", "NULL"),
    "long number": ("text", f"'{LONG}'"),
    "long text": ("text", f"'\"{LONG}\"'"),
}
"""A line takes 65,535 bytes: what is cut is no event, also where it would be JSON."""


def test_text_that_is_not_json_is_a_bad_row(database: Database) -> None:
    """It is passed over, if I say so, and the others come."""
    for number, (bad, (type, data)) in enumerate(BAD_ROWS.items()):
        table = f"box{number}"
        feed = database.served(f"data {type}", table=table, on_bad_row="skip", checks=False)
        database.execute(f"INSERT INTO {table} (data) VALUES ('1'), ({data}), ('2')")
        assert (bad, [1, 2], 1) == (bad, read(feed).data, feed.state().skipped)


def test_a_row_without_data_hides_none_of_a_large_page(database: Database) -> None:
    """A page ends at its size, and the next one begins with the next row."""
    feed = database.served("data text", on_bad_row="skip", checks=False)
    texts = [f"{number:060000}" for number in range(21)]
    rows = [f"('\"{each}\"')" for each in texts[:20]] + ["(NULL)", f"('\"{texts[20]}\"')"]
    database.execute(f"INSERT INTO outbox (data) VALUES {', '.join(rows)}")
    page = read(feed)
    found = page.data
    while page.data:
        page = read(feed, page.cursors)
        found += page.data
    assert (texts, 1) == (found, feed.state().skipped)


def test_headers_that_nobody_wants_are_not_in_the_lines(database: Database) -> None:
    """The database does not give them, and the publisher has nothing to leave out."""
    feed = database.served("data text, a text, b text", headers=["a", "b"])
    database.execute("INSERT INTO outbox (data, a, b) VALUES ('1', 'x', 'y')")
    wanted = (["_all"], ["b", "none"], ["b", "a"], [])
    events = [each for names in wanted for each in read(feed, headers=names).events]
    both = {"a": "x", "b": "y"}
    assert [(1, both), (1, {"b": "y"}), (1, both), (1, {})] == [
        (event["data"], event["headers"]) for event in events
    ]


@pytest.mark.parametrize("wanted", [["_all"], []])
def test_which_rows_are_too_long_does_not_depend_on_the_headers_wanted(
    database: Database, wanted: list[str]
) -> None:
    """Nor does a cursor behind such a row: who asked for headers may go on without them."""
    feed = database.served("data text, a text", headers=["a"], on_bad_row="skip", checks=False)
    database.execute("INSERT INTO outbox (data, a) VALUES ('1', 'x')")
    long = "'[' || replace(hex(zeroblob(20000)), '0', '1') || ']'"
    if database.kind == "postgresql":
        long = "'[' || repeat('1', 40000) || ']'"
    database.execute(f"INSERT INTO outbox (data, a) VALUES ({long}, {long})")
    page = read(feed, headers=wanted)
    assert ([1], 1, page.cursors) == (page.data, feed.state().skipped, read(feed).cursors)
    database.execute("INSERT INTO outbox (data, a) VALUES ('2', 'y')")
    assert [[2], [2]] == [read(feed, page.cursors, headers=each).data for each in (["_all"], [])]


def test_columns_that_are_not_json_can_be_data_alone(postgresql_database: Database) -> None:
    """A number, a time, an enum: each as JSON."""
    postgresql_database.execute("CREATE TYPE mood AS ENUM ('so so', 'good')")
    postgresql_database.served("data mood")
    postgresql_database.execute("INSERT INTO outbox (data) VALUES ('good')")
    assert ["good"] == read(postgresql_database.feed()).data


@pytest.mark.parametrize(
    "zone", ["UTC", "Asia/Kolkata", "America/St_Johns"], ids=["utc", "east", "west"]
)
def test_times_do_not_depend_on_where_the_database_is(
    postgresql_database: PostgresqlDatabase, zone: str
) -> None:
    """Wherever my database thinks that it is."""
    database = postgresql_database
    database.execute(f"ALTER DATABASE {database.name} SET timezone = '{zone}'")
    database.execute(f"ALTER DATABASE {database.name} SET datestyle = 'German'")
    columns = "at timestamptz, local timestamp, day date"
    feed = database.served(columns, data=["at", "local", "day"], headers=["at"])
    database.execute(
        "INSERT INTO outbox (at, local, day)"
        " VALUES ('2024-05-06 07:08:09.1+02', '2024-05-06 07:08:09', '2024-05-06')"
    )
    at = "2024-05-06T05:08:09.1Z"
    (event,) = read(feed).events
    assert ({"at": at, "local": "2024-05-06T07:08:09", "day": "2024-05-06"}, {"at": at}) == (
        event["data"],
        event["headers"],
    )


@pytest.mark.parametrize(
    ("setting", "type", "value", "expected"),
    [
        ("intervalstyle = 'sql_standard'", "interval", "'1 day 02:03:04'", "1 day 02:03:04"),
        ("extra_float_digits = -5", "float8", "0.12345678901234566", 0.12345678901234566),
        ("bytea_output = 'escape'", "bytea", "'\\x0001ff'", "AAH/"),
        ("standard_conforming_strings = off", "text", "'a'", "a"),
    ],
)
def test_values_do_not_depend_on_the_databases_settings(
    postgresql_database: PostgresqlDatabase, setting: str, type: str, value: str, expected: object
) -> None:
    """However my administrator likes them."""
    database = postgresql_database
    database.served(f'"a\\b" {type}', data=["a\\b"])
    database.execute(f"INSERT INTO outbox VALUES (1, {value})")
    database.execute(f"ALTER DATABASE {database.name} SET {setting}")
    feed = database.feed(data=["a\\b"])
    assert [{"a\\b": expected}] == read(feed).data


def test_data_is_cut_nowhere(database: Database) -> None:
    """60,000 bytes of it."""
    feed = database.served("data text, more text", data=["data", "more"])
    database.execute(f"INSERT INTO outbox (data, more) VALUES ('{'ä' * 15_000}', '{'x' * 30_000}')")
    assert [{"data": "ä" * 15_000, "more": "x" * 30_000}] == read(feed).data
