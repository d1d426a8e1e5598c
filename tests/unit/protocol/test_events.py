"""What a program gives as an event: what becomes of it, and what is refused."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from zeh_spark.protocol import wire
from zeh_spark.protocol.events import checked_headers, json_of, partition_for


@dataclasses.dataclass
class Order:
    number: int
    at: datetime.date


@dataclasses.dataclass
class Moment:
    at: datetime.datetime


class Kind(str, enum.Enum):
    A = "a"


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


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (Order(17, datetime.date(2026, 11, 20)), b'{"number":17,"at":"2026-11-20"}'),
        (Line(Decimal("1.10")), b'{"price":"1.10","note":null}'),
        ({1: [True, None]}, b'{"1":[true,null]}'),
        (17, b"17"),
        ({"a": 2**70}, b'{"a":1180591620717411303424}'),
        ({"a": np.float32(1.5), "b": np.int64(3)}, b'{"a":1.5,"b":3}'),
        (np.array([[1, 2], [3, 4]])[:, 0], b"[1,3]"),
        ({"at": np.datetime64("2026-11-20T01:02:03")}, b'{"at":"2026-11-20T01:02:03"}'),
        ({"at": pd.Timestamp("2026-11-20T01:02:03Z")}, b'{"at":"2026-11-20T01:02:03+00:00"}'),
        (pd.Series({"a": 1.5, "b": None}, dtype=object).to_dict(), b'{"a":1.5,"b":null}'),
        ("null", b"null"),
    ],
)
def test_dataclasses_structs_and_dates_are_rendered(data: object, text: bytes) -> None:
    """I need not turn them into JSON myself."""
    assert text == json_of(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("paid", "not JSON"),
        (b'{"a":', "not JSON: Input data was truncated"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b'"\xff"', "not UTF-8"),
        ("", "not JSON"),
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
    ids=lambda each: re.sub(" at 0x.*", "", repr(each))[:30] if each is not NESTED else "nested",
)
def test_what_json_cannot_say_is_refused_with_the_reason(data: object, reason: str) -> None:
    """No reader meets a line that it cannot read, and no NaN turns into null unnoticed."""
    with pytest.raises(ValueError, match=reason):
        json_of(data)


def test_a_key_that_is_a_member_of_an_enumeration_is_its_text() -> None:
    """It goes where the same text goes."""
    assert wire.partition_of("a", 64) == partition_for(Kind.A, None, 64)


@given(st.text(), st.integers(), st.integers(1, 8))
def test_a_key_goes_where_every_writer_puts_it(text: str, number: int, count: int) -> None:
    """From Spark, a file or a service, a key's events meet in one partition."""
    assert wire.partition_of(text, count) == partition_for(text, None, count)
    assert partition_for(f"{number}", None, count) == partition_for(number, None, count)


def test_partition_is_taken_as_given_and_nothing_means_anywhere() -> None:
    """I may place events myself, or not care."""
    assert (1, 0, None) == (
        partition_for(None, 1, 2),
        partition_for(None, 0, 2),
        partition_for(None, None, 2),
    )


@pytest.mark.parametrize(
    ("key", "partition", "reason"),
    [
        ("a", 1, "'partition' and 'key' exclude each other"),
        (None, 2, "there is no partition 2: the feed has 0 to 1"),
        (None, -1, "there is no partition -1"),
        (None, True, "there is no partition True"),
        (None, "1", "there is no partition '1'"),
        (1.5, None, "the key is 1.5; a key is text or an integer"),
        (True, None, "the key is True"),
        ("\ud800", None, "surrogates not allowed"),
    ],
)
def test_bad_places_are_refused(key: Any, partition: Any, reason: str) -> None:
    """A mistake in a key does not send an event where nobody expects it."""
    with pytest.raises(ValueError, match=reason):
        partition_for(key, partition, 2)


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": None}])
def test_headers_are_text(headers: Mapping[str, str]) -> None:
    """As every reader expects them."""
    with pytest.raises(ValueError, match="names and values are text"):
        checked_headers(headers)
    assert ({"a": "1"}, {}) == (checked_headers({"a": "1"}), checked_headers(None))
