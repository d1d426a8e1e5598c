"""State in buckets: all keys with one hash share a value of Spark's state.

Access by key costs a round trip to the JVM for each key, which reduces the rate to a twentieth. So
a query has a fixed number of buckets, and each batch reads and writes the value of a bucket once.

The first batch gives each bucket a value, with the settings that never change in the checkpoint. A
bucket without a value, or with other settings, belongs to a query that was built differently, and
is refused: its keys would be looked for in the wrong places.

`grouped` and `observed` run on the driver, the rest in tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zeh_spark.errors import CheckpointError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

FRAME = 10_000
"""Most rows in a frame that a task returns."""


class _Counted(Protocol):
    buckets: int


Bucket = TypeVar("Bucket", bound=_Counted)
"""A bucket that knows how many the query has."""


def bucket_of(key: str, buckets: int) -> Column:
    """Return the column `bucket`: the bucket of each row, INT, by the column of its key."""
    return F.pmod(F.xxhash64(key), F.lit(buckets)).cast("int").alias("bucket")


def grouped(
    rows: DataFrame,
    by: str,
    buckets: int,
    processor: StatefulProcessor,
    columns: Sequence[str],
    time: str,
) -> DataFrame:
    """Return what a processor makes of the column `row` (see `joined`).

    All columns of the result are STRING. `by` names the key's column; or is "bucket", a column as
    `bucket_of` makes it. The last of `columns` is `counts`. `time` is Spark's timeMode.
    """
    all_buckets = rows.sparkSession.range(buckets).select(F.col("id").cast("int").alias("bucket"))
    bucket = F.col("bucket") if by == "bucket" else bucket_of(by, buckets)
    return (
        rows.select(bucket, "row")
        .groupBy("bucket")
        .transformWithStateInPandas(
            processor,
            ", ".join(f"{name} STRING" for name in columns),
            "append",
            time,
            initialState=all_buckets.groupBy("bucket"),
        )
    )


def observed(given: DataFrame, metrics: str, aggregates: Mapping[str, Column]) -> DataFrame:
    """Return the rows without their counts, which a listener finds under `metrics`.

    `aggregates` are expressions over BIGINT columns with the names of the members of `counts`.
    """
    schema = ", ".join(f"{name} BIGINT" for name in aggregates)
    counts = F.from_json("counts", schema, {"mode": "FAILFAST"})
    found = [column.alias(name) for name, column in aggregates.items()]
    return (
        given.withColumn("counts", counts)
        .observe(metrics, *found)
        .where("counts IS NULL")
        .drop("counts")
    )


def total(name: str) -> Column:
    """Return the sum of a member of `counts`; 0 without rows."""
    return F.coalesce(F.sum(F.col("counts")[name]), F.lit(0))


def joined(numbers: Sequence[Column], texts: Sequence[Column]) -> Column:
    """Return a row in one text.

    "12 34 5 1 abcdex…" has the numbers 12 and 34, and the texts "abcde", "x" and the rest. A
    separate column would cost the worker a microsecond a row. No part may be NULL.
    """
    lengths = [F.char_length(text) for text in texts[:-1]]
    heads = [part for each in (*numbers, *lengths) for part in (each.cast("string"), F.lit(" "))]
    return F.concat(*heads, *texts)


def rows(frames: Iterable[pd.DataFrame]) -> Iterator[str]:
    for frame in frames:
        yield from frame["row"].tolist()


def frames(rows: Iterable[Sequence[str | None]], columns: Sequence[str]) -> Iterator[pd.DataFrame]:
    import pandas as pd

    left = iter(rows)
    while part := list(islice(left, FRAME)):
        yield pd.DataFrame(part, columns=list(columns), dtype=object)


def opened(
    blob: bytes | None, version: int, buckets: int, decode: Callable[[memoryview], Bucket]
) -> Bucket:
    """Return a bucket from its value, whose first byte is the version.

    Raises CheckpointError if it has no value, another version or another number of buckets.
    """
    if blob is None:
        raise CheckpointError(
            f"the checkpoint's state has fewer buckets than buckets={buckets}. Give the number "
            f"that it was made with, or take a new checkpoint",
            got=buckets,
            anchor="the-state-was-made-with-another-option",
        )
    found, why = blob[0] if blob else 0, "of another version of zeh_spark"
    try:
        if found == version:
            bucket = decode(memoryview(blob)[1:])
            same("buckets", buckets, bucket.buckets)
            return bucket
    except msgspec.DecodeError as exc:
        why = f"and cannot be read ({exc})"
    raise CheckpointError(
        f"the checkpoint's state has format {found}, {why}; this one knows {version}. Continue "
        f"with the version that wrote it, or take a new checkpoint",
        expected=version,
        got=found,
        anchor="the-state-was-made-with-another-option",
    )


def same(name: str, mine: object, theirs: object) -> None:
    """Raise CheckpointError if a setting is not the one with which the state was made."""
    if mine != theirs:
        raise CheckpointError(
            f"{name}={mine!r}, and the checkpoint's state was made with {name}={theirs!r}. Give "
            f"that value again, or take a new checkpoint",
            expected=theirs,
            got=mine,
            anchor="the-state-was-made-with-another-option",
        )
