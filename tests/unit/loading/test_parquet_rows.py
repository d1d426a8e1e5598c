"""Values of Parquet files become JSON exactly, or are refused with file, row and reason."""

from __future__ import annotations

import math
import uuid
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.cases import each_case
from tests.unit.loading.loads import Files, data, loaded, text_of
from zeh_spark.errors import StoreError
from zeh_spark.tools.loading import parquet_rows
from zeh_spark.wire import wire

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
EXACT = {
    "price": ([Decimal("12345678901234567890.12")], "12345678901234567890.12"),
    "raw": ([b"\x00\xff"], '"AP8="'),
    "kind": (pa.array(["a"]).dictionary_encode(), '"a"'),
    "at": (pa.array([NOON], pa.timestamp("us", "Europe/Berlin")), '"2026-11-20T12:00:00Z"'),
}


def test_parquet_values_stay_exact(file: Files) -> None:
    """No digit or byte is lost: Spark and `zeh-spark load` make the same events of a table."""
    table = pa.table({name: values for name, (values, _) in EXACT.items()})
    members = ",".join(f'"{name}":{text}' for name, (_, text) in EXACT.items())
    line = wire.event_line(0, {}, b"{%b}" % members.encode())
    assert line + b"\n" == text_of(file("a.parquet", table))


DOUBLE_KEYS = pa.map_(pa.float64(), pa.int64())
DURATION_INSIDE = pa.struct({"x": pa.list_(pa.duration("s"))})
LARGE = [*map(float, range(40_000)), math.nan, 1.0]
NAN, OF_V = "v: JSON has no NaN and no Infinity", "the column 'v' .*:"


@each_case(
    ("columns", "reason"),
    [
        ({"v": [1.0, math.nan]}, f"row 2: {NAN}: 'nan'"),
        ({"v": LARGE, "w": ["x" * 300] * len(LARGE)}, f"row 40001: {NAN}: 'nan'"),
        ({"v": pa.array([0, 1], pa.timestamp("ns"))}, "row 2: v: a time is finer than a micro"),
        ({"v": pa.array([2**53], pa.timestamp("ms"))}, "row 1: v: its year is not in 1 to 9999"),
        ({"v": pa.array([[(1.5, 1)]], DOUBLE_KEYS)}, f"{OF_V} the keys of v are double, not text"),
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


def test_times_that_may_have_a_zone_are_refused(file: Files, tmp_path: Path) -> None:
    """Spark writes such columns by default."""
    table = pa.table(
        {"a": [1], "v": pa.array([{"at": NOON}], pa.struct({"at": pa.timestamp("us")}))}
    )
    old = tmp_path / "old.parquet"
    parquet.write_table(table, old, use_deprecated_int96_timestamps=True, store_schema=False)
    with pytest.raises(StoreError, match=r"the column 'v\.at' has the outdated type INT96"):
        data(str(old))


@pytest.mark.parametrize("reads_uuids", [True, False])
def test_a_uuid_is_its_text_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_uuids: bool
) -> None:
    """pyarrow 20 takes those of other writers for bytes, whatever I loaded on another machine."""
    if not parquet_rows.READS_UUIDS:
        pytest.skip("pyarrow 20 writes no such file")
    monkeypatch.setattr(parquet_rows, "READS_UUIDS", reads_uuids)
    made, file = uuid.UUID(int=7), tmp_path / "a.parquet"
    kind = pa.struct({"id": pa.uuid()})
    column = pa.StructArray.from_arrays([pa.array([made.bytes], pa.uuid())], fields=[*kind])
    parquet.write_table(pa.table({"v": column}), file, store_schema=False)
    if reads_uuids:
        assert [{"v": {"id": str(made)}}] == data(str(file))
        return
    with pytest.raises(StoreError, match=r"the column 'v\.id' has the type UUID.*pyarrow 21"):
        data(str(file))


@each_case("keys", [pa.array([7, 8], pa.uint8()), pa.array(["7", "ü"])])
def test_parquet_keys_may_be_in_a_dictionary(file: Files, keys: pa.Array) -> None:
    """As many writers store them."""
    plain = loaded(file("a.parquet", pa.table({"k": keys})), partitions=16, key="k")
    packed = pa.table({"k": keys.dictionary_encode()})
    assert plain == loaded(file("b.parquet", packed), partitions=16, key="k")
