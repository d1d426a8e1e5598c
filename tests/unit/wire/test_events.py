"""What a program gives as an event: what becomes of it, and what is refused."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from tests import strategies
from tests.cases import each_case
from zeh_spark.client.http.event_json import checked_headers, json_of


@dataclasses.dataclass
class Order:
    number: int
    at: datetime.date


@dataclasses.dataclass
class Device:
    _id: int
    __serial: int
    at: np.datetime64 | None = None


@dataclasses.dataclass
class Tagged:
    tags: dict[object, str] | None = None
    later: int = dataclasses.field(init=False)


@dataclasses.dataclass
class Moment:
    at: datetime.datetime


ODD = datetime.timezone(datetime.timedelta(hours=1, minutes=5, seconds=21))
"""The local time of Vienna until 1893."""


class Line(msgspec.Struct):
    price: Decimal
    note: str | None = None


NESTED: Any = []
for _ in range(100_000):
    NESTED = [NESTED]


@given(strategies.json_texts())
def test_text_that_is_json_stays_as_it_is(text: bytes) -> None:
    """Byte for byte, whether given as text or bytes."""
    kept = text.strip().replace(b"\r", b" ").replace(b"\n", b" ")
    assert [kept] * 3 == [json_of(text), json_of(text.decode()), json_of(bytearray(text))]


@given(strategies.json_texts().map(json.loads).filter(lambda value: not isinstance(value, str)))
def test_objects_become_the_json_that_says_them(value: object) -> None:
    """What I give is what readers decode."""
    assert json.loads(json_of(value)) == value


@each_case(
    ("data", "text"),
    [
        (Order(17, datetime.date(2026, 11, 20)), b'{"number":17,"at":"2026-11-20"}'),
        (Line(Decimal("1.10")), b'{"price":"1.10","note":null}'),
        (Line(Decimal("NaN")), b'{"price":"NaN","note":null}'),
        ({"a": Decimal("-Infinity")}, b'{"a":"-Infinity"}'),
        ({1: [True, None]}, b'{"1":[true,null]}'),
        (17, b"17"),
        ({"a": 2**70}, b'{"a":1180591620717411303424}'),
        ({"a": np.float32(1.5), "b": np.int64(3)}, b'{"a":1.5,"b":3}'),
        (np.array([[1, 2], [3, 4]])[:, 0], b"[1,3]"),
        ({"at": np.datetime64("2026-11-20T01:02:03")}, b'{"at":"2026-11-20T01:02:03"}'),
        ({"at": pd.Timestamp("2026-11-20T01:02:03Z")}, b'{"at":"2026-11-20T01:02:03+00:00"}'),
        (pd.Series({"a": 1.5, "b": None}, dtype=object).to_dict(), b'{"a":1.5,"b":null}'),
        ("null", b"null"),
        (Tagged(), b'{"tags":null}'),
        (Device(1, 2), b'{"_id":1,"_Device__serial":2,"at":null}'),
        (
            {"a": [Device(1, 2, np.datetime64("2026-11-20")), None]},
            b'{"a":[{"_id":1,"_Device__serial":2,"at":"2026-11-20T00:00:00"},null]}',
        ),
        ([Device(1, 2), 1 << 70], b'[{"_id":1,"_Device__serial":2,"at":null},%d]' % (1 << 70)),
    ],
)
def test_dataclasses_structs_and_dates_are_rendered(data: object, text: bytes) -> None:
    """I need not turn them into JSON myself."""
    assert text == json_of(data)


@each_case(
    ("data", "reason"),
    [
        ("paid", "not JSON"),
        (b'{"a":', "not JSON: Input data was truncated"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b'"\xff"', "not UTF-8"),
        ("", "not JSON"),
        (Tagged({1: "a", "1": "b"}), "two of the keys"),
        (float("nan"), "rendered as JSON: Out of range float"),
        ({"a": [None, float("-inf")]}, "rendered as JSON: Out of range float"),
        ({"a": np.float32("nan")}, "rendered as JSON: Out of range float"),
        ({"a": np.array([1.0, np.inf])}, "rendered as JSON: Out of range float"),
        ({"a": pd.NaT}, "rendered as JSON"),
        ({"a": pd.NA}, "rendered as JSON"),
        ({"a": [np.datetime64("NaT")]}, "rendered as JSON"),
        (pd.Series({"a": 1.5, "b": None}).to_dict(), "rendered as JSON: Out of range float"),
        ({"a": [np.datetime64("2026-11-20T01:02:03.000000001")]}, "finer than microseconds"),
        ({"a": np.array(["2026-11-20T01", "2026-11-20T01:02:03.000000005"], "M8[ns]")}, "finer"),
        ({"a": datetime.datetime(1890, 1, 1, tzinfo=ODD)}, "has an offset of 1:05:21"),
        (Moment(datetime.datetime(1890, 1, 1, tzinfo=ODD)), "has an offset of 1:05:21"),
        ({1: "a", "1": "b"}, "two of the keys"),
        ([{"a": {True: 1, "true": 2}}], "two of the keys"),
        (Line(Decimal(1), "\ud800"), "rendered as JSON"),
        ("\ud800", "surrogates not allowed"),
        ({"a": object()}, "rendered as JSON: Encoding objects of type object is unsupported"),
        (msgspec.Raw(b"{"), "not JSON"),
        ("[" * 501 + "]" * 501, "nested 501 deep"),
        (NESTED, "nested too deeply"),
    ],
)
def test_what_json_cannot_say_is_refused_with_the_reason(data: object, reason: str) -> None:
    """No reader meets a line that it cannot read, and no NaN turns into null unnoticed."""
    with pytest.raises(ValueError, match=reason):
        json_of(data)


@each_case("headers", [{"a": 1}, {1: "a"}, {"a": None}])
def test_headers_are_text(headers: Mapping[str, str]) -> None:
    """As every reader expects them."""
    with pytest.raises(ValueError, match="names and values are text"):
        checked_headers(headers)
    assert ({"a": "1"}, {}) == (checked_headers({"a": "1"}), checked_headers(None))
