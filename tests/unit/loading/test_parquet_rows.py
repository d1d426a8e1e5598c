"""Values of Parquet files become JSON exactly, or are refused with file, row and reason."""

from __future__ import annotations

import math
from datetime import datetime, time, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.cases import each_case
from tests.unit.loading.loads import Files, data, loaded, text_of
from zeh_spark.errors import StoreError
from zeh_spark.protocol import wire

MAP = pa.map_(pa.string(), pa.int64())
NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
EXACT = {
    "big": ([2**63 - 1], "9223372036854775807"),
    "price": ([Decimal("12345678901234567890.12")], "12345678901234567890.12"),
    "raw": ([b"\x00\xff"], '"AP8="'),
    "nested": ([[{"x": 1.5}]], '[{"x":1.5}]'),
    "kind": (pa.array(["a"]).dictionary_encode(), '"a"'),
    "real": (pa.array([0.1], pa.float32()), "0.1"),
    "at": (pa.array([NOON], pa.timestamp("us", "Europe/Berlin")), '"2026-11-20T12:00:00Z"'),
    "far": (pa.array([NOON], pa.timestamp("us", "Mars/X")), '"2026-11-20T12:00:00Z"'),
    "local": (pa.array([NOON], pa.timestamp("ms")), '"2026-11-20T12:00:00"'),
    "time": (pa.array([time(12, 0, 0, 5)]), '"12:00:00.000005"'),
    "map": (pa.array([[("b", 1), ("a", None)]], MAP), '{"a":null,"b":1}'),
    "id": (pa.array([b"\xff\x00"], pa.binary(2)), '"/wA="'),
    "pair": (pa.array([[1, None]], pa.list_(pa.int8(), 2)), "[1,null]"),
}


def test_parquet_values_stay_exact(file: Files) -> None:
    """No digit and no byte is lost on the way into JSON: the same table is the same events, whether
    Spark or `zeh-spark load` publishes it.
    """
    table = pa.table({name: values for name, (values, _) in EXACT.items()})
    members = ",".join(f'"{name}":{text}' for name, (_, text) in EXACT.items())
    line = wire.event_line(0, {}, b"{%b}" % members.encode())
    assert line + b"\n" == text_of(file("a.parquet", table))


DOUBLE_KEYS = pa.map_(pa.float64(), pa.int64())
DURATION_INSIDE = pa.struct({"x": pa.list_(pa.duration("s"))})
LARGE = [*map(float, range(40_000)), math.nan, 1.0]
NAN, OF_V = "v: JSON has no NaN and no Infinity", "the column 'v' .*:"
YEAR = "row 1: v: its year is not in 1 to 9999"


@each_case(
    ("columns", "reason"),
    [
        ({"v": [1.0, math.nan]}, f"row 2: {NAN}: 'nan'"),
        ({"v": LARGE, "w": ["x" * 300] * len(LARGE)}, f"row 40001: {NAN}: 'nan'"),
        ({"v": [[math.inf]]}, f"row 1: {NAN}: 'inf'"),
        ({"v": [{"x": -math.inf}]}, "row 1: v: x: JSON has no NaN and no Infinity: '-inf'"),
        ({"v": pa.array([0, 1], pa.timestamp("ns"))}, "row 2: v: a time is finer than a micro"),
        ({"v": pa.array([0, 1], pa.time64("ns"))}, "row 2: v: a time is finer than a microsecond"),
        ({"v": pa.array([1], pa.duration("ns"))}, rf"{OF_V} v is duration\[ns\], for"),
        ({"v": pa.array([5_000_000], pa.date32())}, YEAR),
        ({"v": pa.array([2**62], pa.timestamp("us"))}, YEAR),
        ({"v": pa.array([2**53], pa.timestamp("ms"))}, YEAR),
        ({"v": pa.array([[(1.5, 1)]], DOUBLE_KEYS)}, f"{OF_V} the keys of v are double, not text"),
        ({"v": pa.array([[("a", 1), ("a", 2)]], MAP)}, "row 1: v: a name is there twice: 'a'"),
        ({"v": pa.array([{"x": [None]}], DURATION_INSIDE)}, rf"{OF_V} v\.x\[\] is duration\[s\]"),
        ({}, "there are no columns, so its rows say nothing"),
    ],
)
def test_what_json_cannot_say_is_refused_by_name(
    file: Files, columns: dict[str, Any], reason: str
) -> None:
    """A value is never changed in silence. Rows are counted over the whole file."""
    with pytest.raises(StoreError, match=f"a.parquet: {reason}"):
        data(file("a.parquet", pa.table(columns)))


@each_case("keys", [pa.array([7, 8], pa.uint8()), pa.array(["7", "ü"])])
def test_parquet_keys_may_be_in_a_dictionary(file: Files, keys: pa.Array) -> None:
    """As many writers store them."""
    plain = loaded(file("a.parquet", pa.table({"k": keys})), partitions=16, key="k")
    packed = pa.table({"k": keys.dictionary_encode()})
    assert plain == loaded(file("b.parquet", packed), partitions=16, key="k")
