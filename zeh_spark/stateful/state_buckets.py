"""State in buckets: all keys with one hash share a value of Spark's state.

Access by key costs a round trip to the JVM each, a twentieth of the rate. So a query has a fixed
number of buckets, and each batch reads and writes the value of a bucket once.

The first batch gives each bucket a value, with the settings that are the checkpoint's for ever. So
a bucket without one, or with others, belongs to a query that was built differently, and is refused:
its keys would be looked for in the wrong places.

`grouped` and `observed` run on the driver, the rest in tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zeh_spark.errors import CheckpointError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

FRAME = 10_000


def grouped(
    rows: DataFrame,
    by: str,
    buckets: int,
    processor: StatefulProcessor,
    columns: Sequence[str],
    time: str,
) -> DataFrame:
    """What a processor makes of the column `row`, see `joined`; `by` names the key's column. All
    columns of the result are STRING, the last is `counts`. `time` is Spark's timeMode.
    """
    bucket = F.pmod(F.xxhash64(by), F.lit(buckets)).cast("int").alias("bucket")
    all_buckets = rows.sparkSession.range(buckets).select(F.col("id").cast("int").alias("bucket"))
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
    """The rows without their counts, which a listener finds under `metrics`. `aggregates` are
    written with the members of `counts` as columns of that name: BIGINT.
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
    return F.coalesce(F.sum(F.col("counts")[name]), F.lit(0))


def joined(numbers: Sequence[Column], texts: Sequence[Column]) -> Column:
    """A row in one text: "12 34 5 1 abcdex…" has the numbers 12 and 34, and the texts "abcde", "x"
    and the rest. A column more would cost the worker a microsecond a row. None may be NULL.
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


def opened(blob: bytes | None, version: int, buckets: int) -> memoryview:
    """A bucket's value after its version. Raises CheckpointError."""
    if blob is None:
        raise CheckpointError(
            f"the checkpoint's state has fewer buckets than buckets={buckets}: give the number "
            f"that it was made with, or take a new checkpoint",
            got=buckets,
            anchor="the-state-was-made-with-another-option",
        )
    if blob[0] != version:
        raise CheckpointError(
            f"the checkpoint's state has format {blob[0]}, of another version of zeh_spark; this "
            f"one knows {version}: continue with that version, or take a new checkpoint",
            expected=version,
            got=blob[0],
            anchor="the-state-was-made-with-another-option",
        )
    return memoryview(blob)[1:]


def same(name: str, mine: object, theirs: object) -> None:
    """Raises CheckpointError if a setting is not the one that the state was made with."""
    if mine != theirs:
        raise CheckpointError(
            f"{name}={mine!r}, and the checkpoint's state was made with {name}={theirs!r}: give "
            f"that again, or take a new checkpoint",
            expected=theirs,
            got=mine,
            anchor="the-state-was-made-with-another-option",
        )
