"""The Spark jobs of the demo: two ordinary streaming queries, and a comparison after the second.

Each runs in a process of its own: `python -m examples.demo publish URL FILES CHECKPOINT`, and
`python -m examples.demo read URL TABLE CHECKPOINT FILES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from notebooks.kit.flights import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def publish_flights(url: str, files: str, checkpoint: str) -> None:
    """Publish the flights of the files on the feed, each of them once.

    Args:
        url: The feed's address.
        files: The folder with the CSV files.
        checkpoint: The query's checkpointLocation.
    """
    spark = session()
    flights = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .csv(files, header=True, nullValue="NA")
    )
    (
        flights.selectExpr("tailnum AS key", "to_json(struct(*)) AS data")
        .writeStream.format("zeroeventhub")
        .option("url", url)
        .option("producerId", "flights-job")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    spark.stop()


def stream_flights(url: str, table: str, checkpoint: str, files: str) -> None:
    """Write the flights of the feed into a Parquet table, each of them once; then compare.

    Args:
        url: The feed's address.
        table: The folder of the table.
        checkpoint: The query's checkpointLocation.
        files: The folder with the CSV files.
    """
    import zeh_spark

    spark = session()
    feed = (
        spark.readStream.format("zeroeventhub")
        .option("url", url)
        .option("maxEventsPerTrigger", 60_000)  # small batches, to kill the driver between them
        .load()
    )
    flights = zeh_spark.parsed(feed, SCHEMA)
    query = (
        flights.drop("headers")
        .writeStream.format("parquet")
        .option("path", table)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    zeh_spark.drain(query.start)  # one run on Spark 4.2 and later
    compare(spark, url, table, files)
    spark.stop()


def compare(spark: SparkSession, url: str, table: str, files: str) -> None:
    """Compare feed and table with the files, and print the result.

    Args:
        spark: The session.
        url: The feed's address.
        table: The folder of the table.
        files: The folder with the CSV files.

    Raises:
        SystemExit: A flight is missing, is there twice, or has another value, or the feed's numbers
            have a gap.
    """
    expected = spark.read.schema(SCHEMA).csv(files, header=True, nullValue="NA")
    arrived = spark.read.parquet(table)
    number = "BIGINT(headers['zeh-sequence']) AS number"
    feed = spark.read.format("zeroeventhub").load(url)
    feed = feed.selectExpr("partition", number, "data").cache()
    data = f"to_json(struct({', '.join(expected.columns)})) AS data"  # as it was published
    same = is_same(
        expected.selectExpr(data), {"the feed": feed, "the table": arrived.selectExpr(data)}
    )
    if not (_contiguous(feed) and same):
        raise SystemExit("Feed or table differ from the files.")
    print("Each flight was published, and arrived, exactly once.\n")
    _delays(arrived).show(5, truncate=False)


JOBS: dict[str, Callable[..., None]] = {"publish": publish_flights, "read": stream_flights}


def session() -> SparkSession:
    """Return a small local Spark session."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def is_same(expected: DataFrame, arrived: dict[str, DataFrame]) -> bool:
    """Print how many rows differ from those expected; return whether none does.

    Rows are the same if all their columns are. How often each row is anywhere is counted at once.
    """
    from pyspark.sql import functions as F

    columns = expected.columns
    everything = expected.withColumn("where", F.lit("the files"))
    for name, rows in arrived.items():
        everything = everything.union(rows.select(*columns, F.lit(name)))
    counts = [
        F.count(F.when(F.col("where") == each, 1)).alias(each) for each in ("the files", *arrived)
    ]
    counted = everything.groupBy(*columns).agg(*counts)
    wanted = F.col("the files")
    sums = [F.sum(wanted)]
    for name in arrived:
        missing = F.greatest(wanted - F.col(name), F.lit(0))
        surplus = F.greatest(F.col(name) - wanted, F.lit(0))
        sums += [F.sum(name), F.sum(missing), F.sum(surplus)]
    found = counted.agg(*sums).first()
    assert found
    differences = 0
    for at, name in enumerate(arrived):
        count, missing, surplus = found[1 + 3 * at : 4 + 3 * at]
        print(
            f"{found[0]:,} flights in the files, {count:,} in {name}: "
            f"{missing:,} missing, {surplus:,} doubled or changed."
        )
        differences += missing + surplus
    return differences == 0


def _contiguous(feed: DataFrame) -> bool:
    """Return whether the producer's numbers are 0, 1, 2, … in each partition, each once."""
    from pyspark.sql import functions as F

    numbers = [each("number") for each in (F.min, F.max, F.count, F.count_distinct)]
    rows = feed.groupBy("partition").agg(*numbers).orderBy("partition").collect()
    for partition, least, most, count, distinct in rows:
        whole = least == 0 and most + 1 == count == distinct
        gaps = "no gaps" if whole else f"WITH GAPS: {distinct:,} different numbers"
        print(f"Partition {partition}: {count:,} flights, numbered {least} to {most:,}, {gaps}.")
        if not whole:
            return False
    return True


def _delays(flights: DataFrame) -> DataFrame:
    """Return the mean delay of each carrier's flights, and the share of late ones."""
    from pyspark.sql import functions as F

    return (
        flights.groupBy("carrier")
        .agg(
            F.count("*").alias("flights"),
            F.round(F.avg("dep_delay"), 1).alias("mean departure delay (min)"),
            F.round(F.avg((F.col("arr_delay") > 15).cast("int")) * 100, 1).alias("late (%)"),
        )
        .orderBy(F.desc("flights"))
    )
