"""Values of Parquet files become JSON exactly, or are refused with file, row and reason."""

from __future__ import annotations

import math
from datetime import datetime, time, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.scratch_store import ScratchStore
from tests.unit.loading.loads import Files, data, loaded, only_frame
from zeh_spark.errors import StoreError
from zeh_spark.loading.load import Source, load
from zeh_spark.protocol import wire
from zeh_spark.protocol.upload_format import lines_of


def test_parquet_values_stay_exact(file: Files) -> None:
    """No digit and no byte is lost on the way into JSON."""
    table = pa.table(
        {
            "big": [2**63 - 1],
            "price": [Decimal("12345678901234567890.12")],
            "raw": [b"\x00\xff"],
            "nested": [[{"x": 1.5}]],
            "kind": pa.array(["a"]).dictionary_encode(),
        }
    )
    store = ScratchStore()
    store.create("f", 1)
    load(store, "f", [Source(file("a.parquet", table))])
    lines = lines_of(only_frame(store))
    expected = (
        b'{"big":9223372036854775807,"price":12345678901234567890.12,"raw":"AP8=",'
        b'"nested":[{"x":1.5}],"kind":"a"}'
    )
    assert wire.event_line(0, {}, expected) + b"\n" == lines


MAP = pa.map_(pa.string(), pa.int64())
DOUBLE_KEYS = pa.map_(pa.float64(), pa.int64())
DURATION_INSIDE = pa.struct({"x": pa.list_(pa.duration("s"))})


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"v": [1.0, math.nan]}, "row 2: v: JSON has no NaN and no Infinity: 'nan'"),
        ({"v": [[math.inf]]}, "row 1: v: JSON has no NaN and no Infinity: 'inf'"),
        ({"v": [{"x": -math.inf}]}, "row 1: v: x: JSON has no NaN and no Infinity: '-inf'"),
        ({"v": pa.array([0, 1], pa.timestamp("ns"))}, "row 2: v: a time is finer than a micro"),
        ({"v": pa.array([0, 1], pa.time64("ns"))}, "row 2: v: a time is finer than a microsecond"),
        ({"v": pa.array([1], pa.duration("ns"))}, r"the column 'v' .*: v is duration\[ns\], for"),
        ({"v": pa.array([5_000_000], pa.date32())}, "row 1: v: its year is not in 1 to 9999"),
        ({"v": pa.array([2**62], pa.timestamp("us"))}, "row 1: v: its year is not in 1 to 9999"),
        ({"v": pa.array([2**53], pa.timestamp("ms"))}, "row 1: v: its year is not in 1 to 9999"),
        (
            {"v": pa.array([[(1.5, 1)]], DOUBLE_KEYS)},
            "the column 'v' .*: the keys of v are double, not text",
        ),
        ({"v": pa.array([[("a", 1), ("a", 2)]], MAP)}, "row 1: v: a name is there twice: 'a'"),
        (
            {"v": pa.array([{"x": [None]}], DURATION_INSIDE)},
            r"the column 'v' .*: v\.x\[\] is duration\[s\]",
        ),
        ({}, "there are no columns, so its rows say nothing"),
    ],
)
def test_what_json_cannot_say_is_refused_by_name(
    file: Files, columns: dict[str, Any], reason: str
) -> None:
    """A value is never changed in silence."""
    with pytest.raises(StoreError, match=f"a.parquet: {reason}"):
        data(file("a.parquet", pa.table(columns)))


def test_the_row_at_fault_is_found_in_a_large_file(file: Files) -> None:
    """Rows are counted over the whole file."""
    values = [*map(float, range(40_000)), math.nan, 1.0]
    with pytest.raises(StoreError, match=r"a.parquet: row 40001: v: JSON has no NaN"):
        data(file("a.parquet", pa.table({"v": values, "w": ["x" * 300] * len(values)})))


def test_parquet_values_are_written_as_those_of_a_data_frame(file: Files) -> None:
    """The same table is the same events, whether Spark or `zeh-spark load` publishes it."""
    noon = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
    columns = {
        "real": pa.array([0.1], pa.float32()),
        "at": pa.array([noon], pa.timestamp("us", "Europe/Berlin")),
        "far": pa.array([noon], pa.timestamp("us", "Mars/X")),
        "local": pa.array([noon.replace(tzinfo=None)], pa.timestamp("ms")),
        "time": pa.array([time(12, 0, 0, 5)]),
        "map": pa.array([[("b", 1), ("a", None)]], MAP),
        "id": pa.array([b"\xff\x00"], pa.binary(2)),
        "pair": pa.array([[1, None]], pa.list_(pa.int8(), 2)),
    }
    (event,) = data(file("a.parquet", pa.table(columns)))
    assert event == {
        "real": 0.1,
        "at": "2026-11-20T12:00:00Z",
        "far": "2026-11-20T12:00:00Z",
        "local": "2026-11-20T12:00:00",
        "time": "12:00:00.000005",
        "map": {"a": None, "b": 1},
        "id": "/wA=",
        "pair": [1, None],
    }


@pytest.mark.parametrize("keys", [pa.array([7, 8], pa.uint8()), pa.array(["7", "ü"])])
def test_parquet_keys_may_be_in_a_dictionary(file: Files, keys: pa.Array) -> None:
    """As many writers store them."""
    plain = loaded(file("a.parquet", pa.table({"k": keys})), partitions=16, key="k")
    packed = pa.table({"k": keys.dictionary_encode()})
    assert plain == loaded(file("b.parquet", packed), partitions=16, key="k")
