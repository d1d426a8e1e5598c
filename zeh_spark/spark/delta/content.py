"""What a batch holds: the number of its rows, and a sum over them that their order does not change.

A batch of a query with state, or of a stream that is not a feed, is known by its number only. After
a crash Spark repeats it, and it may hold other rows then, because the query's options were changed
or an expression depends on chance. The sum shows that.

Rule for editors: the rows are evaluated once, by `persist`, before they are summed and before
anything is written. Rejected: Spark's `Observation`, which is complete only after the commit that
has to hold the sum, and which counts rows of a MERGE twice.

Runs on the driver; builds a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from zeh_spark.spark.delta.commits import BatchContent
from zeh_spark.spark.frames.compat import is_connect, quoted
from zeh_spark.spark.frames.exact_json import exact_json

_HALF = 32


@contextmanager
def evaluated(frame: DataFrame) -> Iterator[DataFrame]:
    """Yield the frame with its rows evaluated once, however often they are read."""
    if _is_evaluated(frame):
        yield frame
        return
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def _is_evaluated(frame: DataFrame) -> bool:
    """Return whether the frame's plan only reads persisted rows, as the frames of `route` do.

    Spark Connect does not tell, and persists the rows once more.
    """
    if is_connect(frame.sparkSession):
        return False
    plan: Any = frame._jdf.queryExecution().withCachedData()
    leaves = plan.collectLeaves()
    names = [str(leaves.apply(place).nodeName()) for place in range(leaves.size())]
    return bool(names) and all(name == "InMemoryRelation" for name in names)


def content_of(frame: DataFrame) -> BatchContent:
    """Count and sum the rows. Call it within `evaluated`.

    The hash of a row is xxhash64 of its JSON. Spark refuses to hash a MAP, and leaves NULL out of a
    hash, so that rows with NULL in different columns would be equal. The halves of the hash are
    summed separately, because a sum of BIGINTs overflows.
    """
    columns = {
        f"c{place}": (F.col(quoted(field.name)), field.dataType)
        for place, field in enumerate(frame.schema)
    }
    number = F.xxhash64(exact_json(columns))
    low, high = number.bitwiseAND(F.lit((1 << _HALF) - 1)), F.shiftrightunsigned(number, _HALF)
    counted = frame.select(low.alias("low"), high.alias("high"))
    rows, lows, highs = counted.agg(
        F.count("*"), F.coalesce(F.sum("low"), F.lit(0)), F.coalesce(F.sum("high"), F.lit(0))
    ).collect()[0]
    total = (lows + (highs << _HALF)) % (1 << 64)
    return BatchContent(rows, f"{total:016x}")
