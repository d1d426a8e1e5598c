"""Fields of CSV files become JSON without loss, or are refused with file, line and reason."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from tests.scratch_store import ScratchStore
from tests.unit.loading.loads import Files, data, only_frame
from zeh_spark.loading.csv_rows import CsvFormat
from zeh_spark.loading.load import Source, load
from zeh_spark.protocol import wire
from zeh_spark.protocol.upload_format import lines_of


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv_rows_become_objects(file: Files, name: str) -> None:
    """Numbers are numbers, an empty field is null, the rest is text; quotes and newlines as in RFC
    4180; a BOM, CRLF and blank lines do no harm.
    """
    content = b'\xef\xbb\xbfid,name\r\n1,"x ""y"",\nz"\r\n\r\n,"\xc3\xbc"\r\n'
    path = file(name, gzip.compress(content) if name.endswith("gz") else content)
    assert [{"id": 1, "name": 'x "y",\nz'}, {"id": None, "name": "ü"}] == data(path)


@pytest.mark.parametrize(
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
        store = ScratchStore()
        store.create("f", 1)
        load(store, "f", [Source(path, csv=CsvFormat(nulls=("NA",)))])
        line = lines_of(only_frame(store)).splitlines()[1]
        assert wire.event_line(0, {}, f'{{"v":{expected},"w":0}}'.encode()) == line


@pytest.mark.parametrize(("texts", "expected"), [(("v",), ["1.10", 2]), (("*",), ["1.10", "2"])])
def test_csv_numbers_can_be_text(file: Files, texts: tuple[str, ...], expected: list[Any]) -> None:
    """Codes that look like numbers."""
    path = file("a.csv", b"v,w\n1.10,2\n,\n")
    found = data(path, csv=CsvFormat(texts=texts))
    assert [dict(zip("vw", expected, strict=True)), {"v": None, "w": None}] == found


def test_csv_has_any_delimiter(file: Files) -> None:
    """As spreadsheets of other countries write it."""
    assert [{"a": "1,5", "b": 2}] == data(
        file("a.csv", b"a;b\n1,5;2\n"), csv=CsvFormat(delimiter=";")
    )
