"""The stamps of events in a DataFrame: as typed columns, or as headers.

Runs on the driver, and only builds expressions.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType

from zeh_spark.errors import OptionError
from zeh_spark.spark.frames.compat import column_of, columns_of
from zeh_spark.wire.stamp_columns import (
    HEADERS,
    KEY,
    MAX_DIGITS,
    MAX_TIME,
    STAMP_COLUMNS,
    StampColumn,
)

_NEEDED = {
    "timestamp": "timestamp",
    "producer": "string",
    "storedPartition": "int",
    "sequence": "bigint",
}
"""The columns by which a frame is known to have typed stamps, with their types."""

_ALL = {each.name: each.kind for each in STAMP_COLUMNS}
"""The columns of `stamps=columns`."""


def stamped(df: DataFrame, *, key: bool = False) -> DataFrame:
    """Return the frame with the stamps of its column `headers` as typed columns.

    For an existing frame, it does the same as the option `stamps=columns` does for a read. The
    columns are `timestamp` TIMESTAMP, `feed` STRING, `producer` STRING, `storedPartition` INT,
    `sequence` BIGINT and `batch` BIGINT; see docs/reference/columns.md. A value is NULL if the
    event has no such header.

    Args:
        df: a streaming or batch frame with the column `headers`, as the source gives it.
        key: add the column `key` STRING, too: the key that an event was published with, from the
            header `zeh-key`. By default it is left out, as `stamps=columns` does.

    Returns:
        The frame with these columns at its end, and without these headers and `zeh-key` in the map.
        The query fails if a header is not a number that fits its column.

    Raises:
        OptionError: the frame has no column `headers`, or a column with one of these names.
    """
    columns = columns_of(df)
    if columns and not has_headers(df):
        raise OptionError(
            "the frame has no column 'headers' MAP<STRING, STRING>, which holds the stamps. Call "
            "stamped(df) before headers are dropped, or read with stamps=columns",
            option="headers",
        )
    added = (*STAMP_COLUMNS, KEY) if key else STAMP_COLUMNS
    taken = {name.lower() for name in columns or ()} & {each.name.lower() for each in added}
    if taken:
        raise OptionError(
            f"the frame has a column {sorted(taken)[0]!r} already, which is added here. Rename it, "
            f"or call stamped(df) before zeh_spark.parsed(df, schema)",
            option=sorted(taken)[0],
        )
    own = F.map_filter("headers", lambda name, _: ~name.isin(*sorted(HEADERS)))
    headers = column_of(df, "headers") if columns else "headers"
    return df.select("*", *(_typed(each).alias(each.name) for each in added)).withColumn(
        str(headers), own
    )


def _typed(stamp: StampColumn) -> Column:
    text = F.col("headers")[stamp.header]
    if stamp.kind == "string":
        return text
    digits = text.rlike(f"^[0-9]{{1,{MAX_DIGITS[stamp.kind]}}}\\z")
    number = F.when(digits, text.cast("bigint"))
    valid = number <= MAX_TIME if stamp.kind == "timestamp" else number.isNotNull()
    complaint = F.concat(
        F.lit(f"an event's header '{stamp.header}' is '"),
        F.substring(text, 1, 100),
        F.lit(f"', which is no number that fits the column {stamp.name} {stamp.kind.upper()}"),
    )
    value = F.timestamp_millis(number) if stamp.kind == "timestamp" else number.cast(stamp.kind)
    failed = F.raise_error(complaint).cast(stamp.kind)
    return F.when(F.coalesce(valid, F.lit(False)), value).when(text.isNotNull(), failed)


def has_headers(df: DataFrame) -> bool:
    name = column_of(df, "headers")
    return name is not None and isinstance(df.schema[name].dataType, MapType)


def has_columns(df: DataFrame) -> bool:
    """Return whether the frame has stamps as typed columns.

    Columns of the user's with some of their names are no stamps: all that identify an event have to
    be there, with their types.
    """
    return _has(df, _NEEDED)


def typed_stamps(df: DataFrame) -> list[str | None]:
    """Return the columns that are certain to be typed stamps.

    If not all of them are there, `feed` and `batch` may be fields of the events.
    """
    found = next((each for each in (_ALL, _NEEDED) if _has(df, each)), {})
    return [column_of(df, name) for name in found]


def _has(df: DataFrame, columns: Mapping[str, str]) -> bool:
    types: dict[str | None, str] = {**dict(df.dtypes)}
    return all(types.get(column_of(df, name)) == kind for name, kind in columns.items())


def has_stamps(df: DataFrame) -> bool:
    """Return whether the frame may have stamps: as typed columns, or in a map of headers."""
    return has_columns(df) or has_headers(df)


def stamp(df: DataFrame, header: str) -> Column:
    """Return a stamp of events as the text of its header; NULL for an event without it.

    `header` is like `zeh-time`.
    """
    of = {each.header: each for each in STAMP_COLUMNS}[header]
    if not has_columns(df):
        return F.col("headers")[header]
    if column_of(df, of.name) is None:
        return F.lit(None).cast("string")
    value = F.unix_millis("timestamp") if of.kind == "timestamp" else F.col(of.name)
    return value.cast("string")
