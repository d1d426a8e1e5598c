"""Fields of CSV files become JSON without loss, or are refused with file, line and reason."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from tests.cases import each_case
from tests.unit.loading.loads import Files, data, text_of
from zeh_spark.tools.loading.csv_rows import CsvFormat
from zeh_spark.wire import wire


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv_rows_become_objects(file: Files, name: str) -> None:
    """Numbers, null for empty, else text; quotes as in RFC 4180; a BOM and blank lines are fine."""
    content = b'\xef\xbb\xbfid,name\r\n1,"x ""y"",\nz"\r\n\r\n,"\xc3\xbc"\r\n'
    path = file(name, gzip.compress(content) if name.endswith("gz") else content)
    assert [{"id": 1, "name": 'x "y",\nz'}, {"id": None, "name": "ü"}] == data(path)


@each_case(
    ("field", "expected"),
    [
        ("00123", '"00123"'),
        ("9007199254740993", "9007199254740993"),
        ("12345678901234567890", "12345678901234567890"),
        ("1.50", "1.50"),
        ("-0.0", "-0.0"),
        ("1e-05", "1e-05"),
        ("+1", '"+1"'),
        (".5", '".5"'),
        ("1_000", '"1_000"'),
        ("١", '"١"'),
        ("NaN", '"NaN"'),
        ("true", '"true"'),
        ("null", '"null"'),
        ("NA", "null"),
        (" 1", '" 1"'),
    ],
)
def test_a_csv_field_keeps_every_digit_in_every_file(
    file: Files, field: str, expected: str
) -> None:
    """Other values in the column do not change how a field is read."""
    for others in ("1", "1.5", "x", ""):
        path = file("a.csv", f"v,w\n{others},0\n{field},0\n".encode())
        line = text_of(path, csv=CsvFormat(nulls=("NA",))).splitlines()[1]
        assert wire.event_line(0, {}, f'{{"v":{expected},"w":0}}'.encode()) == line


def test_an_empty_field_of_one_column_is_written_with_quotes(file: Files) -> None:
    """An empty line may be a row there, which PostgreSQL writes for NULL, or none."""
    assert [{"a": 1}, {"a": None}, {"a": 2}] == data(file("a.csv", b'a\n1\n""\n2\n'))


NULLS = {"v": None, "w": None}


@each_case(
    ("content", "how", "expected"),
    [
        (b"v,w\n1.10,2\n,\n", CsvFormat(texts=("v",)), [{"v": "1.10", "w": 2}, NULLS]),
        (b"v,w\n1.10,2\n,\n", CsvFormat(texts=("*",)), [{"v": "1.10", "w": "2"}, NULLS]),
        (b"a;b\n1,5;2\n", CsvFormat(delimiter=";"), [{"a": "1,5", "b": 2}]),
    ],
)
def test_csv_is_read_as_it_is_said(
    file: Files, content: bytes, how: CsvFormat, expected: list[Any]
) -> None:
    """Codes that look like numbers can be text, and delimiters differ between countries."""
    assert expected == data(file("a.csv", content), csv=how)
