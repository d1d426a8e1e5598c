"""What the stateful operators need of the Spark session and of a frame's columns.

Runs on the driver, before a query starts.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TypeVar

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructType,
    TimestampType,
    VariantType,
)

from zeh_spark.errors import OptionError
from zeh_spark.spark.frames.compat import column_of, quoted
from zeh_spark.spark.frames.exact_json import exact_json
from zeh_spark.spark.frames.stamping import typed_stamps
from zeh_spark.spark.stateful.ranges import MAX_NUMBER

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_MILLISECONDS = {
    **dict.fromkeys(("ms", "millisecond"), 1),
    **dict.fromkeys(("s", "sec", "second"), 1_000),
    **dict.fromkeys(("m", "min", "minute"), 60_000),
    **dict.fromkeys(("h", "hour"), 3_600_000),
    **dict.fromkeys(("d", "day"), 86_400_000),
    "week": 604_800_000,
}

T = TypeVar("T")


def check(df: DataFrame, what: str) -> None:
    """Raise OptionError, with what to do, if the frame's session could not run a stateful query."""
    if not df.isStreaming:
        raise OptionError(
            f"{what}: the frame is not a stream. Read the feed with spark.readStream, and use "
            f".trigger(availableNow=True) for a run that ends"
        )
    if not hasattr(df.groupBy(), "transformWithStateInPandas"):
        raise OptionError(
            f"{what}: on Spark Connect it needs Spark 4.1 or later. Use a classic session"
        )
    _check_provider(df.sparkSession, what)
    _check_libraries(what)


def _check_libraries(what: str) -> None:
    """Raise OptionError if a library is missing.

    Without it, Spark's workers would end without an error.
    """
    try:
        import_module("pyspark.sql.streaming.proto.StateMessage_pb2")
        import_module("pandas")
    except Exception as exc:  # protobuf has an error of its own for a version that does not fit
        raise OptionError(
            f"{what}: Spark's state for Python needs pandas, and a protobuf that fits Spark's own "
            f"messages, on the driver and on all executors ({exc}). On Databricks use the versions "
            f"of the runtime; elsewhere pip install 'zeh-spark[sessions]' 'protobuf>=6.33.5,<7'",
            anchor="pandas-and-protobuf-are-needed",
        ) from exc


def _check_provider(spark: SparkSession, what: str) -> None:
    provider = str(spark.conf.get(PROVIDER, ""))
    if "RocksDB" not in provider:
        raise OptionError(
            f"{what}: Spark's state has to be in RocksDB, and is in {provider or 'its default'}: "
            f"zeh_spark.configure(builder) sets that, or "
            f"spark.conf.set({PROVIDER!r}, {ROCKSDB!r}) before the query starts",
            option=PROVIDER,
            anchor="state-has-to-be-in-rocksdb",
        )


def milliseconds(name: str, text: str) -> int:
    """Return a duration like "10 minutes", "1 hour 30 minutes" or "500ms" in milliseconds."""
    given = text.strip().lower() if isinstance(text, str) else ""
    parts = re.findall(r"(\d+)\s*([a-z]+)", given)
    units = [unit if unit in _MILLISECONDS else unit.removesuffix("s") for _, unit in parts]
    whole = re.fullmatch(r"(\d+\s*[a-z]+\s*)+", given)
    if not whole or any(unit not in _MILLISECONDS for unit in units):
        raise OptionError(
            f"{name}={text!r} must be a duration like '10 minutes', '1 hour 30 minutes' or '30s'",
            option=name,
        )
    return sum(int(n) * _MILLISECONDS[unit] for (n, _), unit in zip(parts, units, strict=True))


def at_least(name: str, value: int, least: int) -> int:
    """Return `value`. Raises OptionError if it is not a whole number from `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}={value!r} must be a whole number from {least}", option=name)
    return value


def one_of(name: str, value: T, known: tuple[T, ...]) -> T:
    """Return `value`. Raises OptionError if it is not among those that are known."""
    if value not in known or isinstance(value, bool):
        raise OptionError(
            f"{name}={value!r} must be one of {', '.join(map(repr, known))}", option=name
        )
    return value


# Columns


def typed(df: DataFrame, option: str, value: str | Column) -> tuple[Column, DataType]:
    """Return an expression on the frame, with its type. Raises OptionError if it is not valid."""
    try:
        column = F.expr(value) if isinstance(value, str) else value
        return column, df.select(column.alias("x")).schema["x"].dataType
    except (AnalysisException, ParseException) as exc:
        raise OptionError(
            f"{option}={value!r} is no expression on the frame's columns, "
            f"{', '.join(df.columns)}: {str(exc).partition(';')[0]}",
            option=option,
        ) from exc


EVENT = "_zeh_event"
"""The column that holds all of a frame's columns as one text (see `row_codec`)."""

CLOCK = "_zeh_clock"
"""The column of the watermark of `sessions.in_order`."""


def text(df: DataFrame, option: str, value: str | Column | None) -> Column:
    """Return an expression on the frame as STRING; NULL without a value.

    Raises OptionError if it is not valid, or of a type of which different values have equal texts.
    """
    if value is None:
        return F.lit(None).cast("string")
    column, kind = typed(df, option, value)
    if isinstance(kind, ArrayType | MapType | StructType | VariantType):
        raise OptionError(
            f"{option}={value!r} must be one value, but is {kind.simpleString()}. Give a text or a "
            f"number",
            option=option,
        )
    if isinstance(kind, TimestampType):
        shown = value if isinstance(value, str) else "…"
        raise OptionError(
            f"{option}={value!r} is a TIMESTAMP, whose text depends on the session's time zone. "
            f"Give unix_micros({shown})",
            option=option,
        )
    return column.cast("string")


def content(df: DataFrame, option: str, value: str | Column | None) -> Column:
    """Return what must be equal in two events that are one, as text that is never NULL.

    Without a value it is the column `data`, or all columns but `headers`, `partition` and stamps.
    """
    if value is not None:
        return exact_json({"content": typed(df, option, value)})
    data, *others = (column_of(df, name) for name in ("data", "headers", "partition"))
    if data:
        names = {"data": data}
    else:
        others += typed_stamps(df)
        names = {each: each for each in df.columns if each not in others}
    return exact_json(
        {name: (F.col(quoted(of)), df.schema[of].dataType) for name, of in names.items()}
    )


def number(text: str) -> Column:
    """Return a column's text as a sequence number, BIGINT; NULL if it is not one from 0 up."""
    number = F.when(F.col(text).rlike(r"^[0-9]{1,40}\z"), F.col(text).try_cast("bigint"))
    return F.when(number <= MAX_NUMBER, number)


def says(what: str, value: Column, expected: str) -> Column:
    shown = F.coalesce(F.concat(F.lit("'"), F.substring(value, 1, 100), F.lit("'")), F.lit("NULL"))
    return F.concat(F.lit(f"{what} is "), shown, F.lit(f", and has to be {expected}"))


def check_free(df: DataFrame, names: list[str]) -> None:
    """Raise OptionError for a frame that has a column with the name of one that is added."""
    if taken := [name for name in df.columns if name.lower() in (*names, EVENT)]:
        raise OptionError(
            f"the frame has the column {taken[0]!r} already, which is added here. Rename it",
            option=taken[0],
        )
