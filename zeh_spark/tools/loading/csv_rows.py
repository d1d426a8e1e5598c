"""CSV files as events: each row is an object with the header's names.

A CSV file has no types. So each field stands for itself: what is a JSON number stays that number,
digit for digit; an empty field is null; any other field is text. Rejected: guessing types by
column, which changes values without an error (00123 becomes 123, a long number a near one) and may
type the same value differently in another file.
"""

from __future__ import annotations

import codecs
import csv
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
from msgspec import Raw

Row = tuple[int, bytes, str | None]
"""The number of a row from 1, its JSON, and its key."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """How to understand a CSV file.

    Attributes:
        texts: Columns whose numbers stay text; `*` for all.
    """

    delimiter: str = ","
    nulls: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def rows(stream: BinaryIO, key: str | None, form: CsvFormat) -> Iterator[Row]:
    """Yield the rows of a CSV file in UTF-8 (RFC 4180).

    Raises ValueError with the line and the reason.
    """
    lines = codecs.iterdecode(stream, "utf-8-sig")
    reader = csv.reader(lines, delimiter=form.delimiter, strict=True)
    number = 0
    try:
        names = next(reader, [])
        _check_names(names, key, form)
        values = [str if {name, "*"} & {*form.texts} else _number_or_text for name in names]
        nulls = {"", *form.nulls}
        at = names.index(key) if key else 0
        # With several columns, an empty line is no row.
        for number, fields in enumerate(reader if len(names) == 1 else filter(None, reader), 1):
            if not fields:
                raise ValueError('it is empty; write "" if it is a row with an empty field')
            if len(fields) != len(names):
                raise ValueError(f"{len(fields)} fields where the header has {len(names)}")
            row = {
                name: None if field in nulls else value(field)
                for name, value, field in zip(names, values, fields, strict=True)
            }
            of_key = fields[at] if key and fields[at] not in nulls else None
            yield number, msgspec.json.encode(row), of_key
    except (csv.Error, ValueError) as exc:
        if "new-line character" in str(exc):
            exc = ValueError("a carriage return stands alone; end lines with newlines")
        unread = reader.line_num == 0 or isinstance(exc, UnicodeDecodeError)
        raise ValueError(f"line {reader.line_num + unread}: {exc}") from None


def _check_names(names: list[str], key: str | None, form: CsvFormat) -> None:
    if not names:
        raise ValueError("the file is empty; its first line has to name the columns")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"there are two columns {twice!r}; rename one")
    if not all(names):
        raise ValueError("a column has no name")
    if len(names) == 1 and (other := next((each for each in ";\t|" if each in names[0]), None)):
        raise ValueError(f"there is one column, {names[0]!r}; is it --delimiter {other!r}?")
    for name, what in [(key, "the key"), *((each, "--text") for each in form.texts)]:
        if name is not None and name not in {*names, "*"}:
            raise ValueError(
                f"there is no column {name!r} for {what}; there are {', '.join(names)}"
            )


@functools.lru_cache(1 << 16)  # values repeat
def _number_or_text(field: str) -> Raw | str:
    return Raw(field) if _NUMBER.fullmatch(field) else field
