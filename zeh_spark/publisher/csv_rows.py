"""CSV files as events: each row is an object with the header's names.

A CSV file has no types, and guessing them by column changes values in silence [00123 becomes 123, a
long number a near one] and the same value differently in another file. So each field stands for
itself: what is a JSON number stays that number, digit for digit; an empty field is null; any other
is text.
"""

from __future__ import annotations

import codecs
import csv
import functools
import re
from collections.abc import Callable, Collection, Iterator
from typing import BinaryIO

import msgspec
from msgspec import Raw

Row = tuple[int, bytes, str | None]
"""The number of a row from 1, its JSON, its key."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


def rows(
    stream: BinaryIO, key: str | None, nulls: Collection[str], all_text: bool
) -> Iterator[Row]:
    """Read CSV as RFC 4180 has it, in UTF-8. `nulls`: texts that mean null beside the empty one;
    `all_text`: no field is a number.

    Raises ValueError with the reason.
    """
    reader = csv.reader(codecs.iterdecode(stream, "utf-8-sig"), strict=True)
    value = _values({"", *nulls}, all_text)
    number = 0
    try:
        names = next(reader, [])
        at = _check_names(names, key)
        for fields in reader:
            if not fields:  # a blank line
                continue
            number += 1
            if len(fields) != len(names):
                raise ValueError(f"{len(fields)} fields where the header has {len(names)}")
            row = dict(zip(names, map(value, fields), strict=True))
            yield number, msgspec.json.encode(row), _key(fields[at], nulls) if key else None
    except (csv.Error, ValueError) as exc:
        place = f"row {number}: " if number else ""
        raise ValueError(f"{place}{exc}") from None


def _check_names(names: list[str], key: str | None) -> int:
    """Where the key is."""
    if not names:
        raise ValueError("the file is empty; its first line has to name the columns")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"there are two columns {twice!r}; rename one")
    if key is not None and key not in names:
        raise ValueError(f"there is no column {key!r} for the key; there are {', '.join(names)}")
    return names.index(key) if key is not None else 0


def _values(nulls: Collection[str], all_text: bool) -> Callable[[str], Raw | str | None]:
    @functools.lru_cache(1 << 16)  # values repeat
    def value(text: str) -> Raw | str | None:
        if text in nulls:
            return None
        return text if all_text or not _NUMBER.fullmatch(text) else Raw(text)

    return value


def _key(text: str, nulls: Collection[str]) -> str | None:
    return None if text == "" or text in nulls else text
