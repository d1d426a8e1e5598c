"""A job on Databricks that keeps a feed in a Delta table, publishes a part of it, and is watched.

`databricks.yml` deploys it; docs/operate/databricks.md tells what has to be there before. Each run
reads what is new on the feed `flights`, and ends. All that it could do is done and committed when
it fails because somebody has to look:

- an event had waited for longer than --max-seconds-behind: runs were missed, or failed;
- events do not fit COLUMNS: they are in the table, with their text in the column `bad`;
- rows could not be published: they are dead letters on the feed `delays-dead`.

For a job of your own change COLUMNS, `events` and `publish`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from databricks.sdk.runtime import dbutils
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import zeh_spark
from zeh_spark import lakehouse

COLUMNS = "carrier STRING, dep_delay DOUBLE, origin STRING"
NAME = "flights-job"
"""This job's name at the publisher and in the table. Never change it."""
HOUR = 3600


class Job:
    """One run: `spark`, the parameters of the job, and the token of the secret scope."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.spark = SparkSession.builder.getOrCreate()
        self.table = given.table
        self.checkpoints = Path(given.volume)
        self.feed = f"{given.publisher}/flights"
        self.token = dbutils.secrets.get(given.scope, given.key)
        self.sink = {
            "url": f"{given.publisher}/delays",
            "deadLetterUrl": f"{given.publisher}/delays-dead",
            "producerId": NAME,
            "token": self.token,
        }

    def events(self, **options: str) -> DataFrame:
        """Return the feed with its fields as columns; what does not fit is in `bad`."""
        reader = self.spark.readStream.format("zeroeventhub").options(token=self.token, **options)
        return zeh_spark.parsed(reader.load(self.feed), COLUMNS, corrupt="bad")

    def fill(self) -> StreamingQuery:
        """Append what is new to the table. The publisher keeps the position as a cursor set, so
        that it can alert if this job does not run.
        """
        start = lakehouse.cursors(self.spark, self.table, name=NAME)
        return lakehouse.to_delta(
            self.events(startingCursors=start, cursorSet=NAME),
            self.table,
            name=NAME,
            checkpointLocation=str(self.checkpoints / "table"),
            trigger={"availableNow": True},
        )

    def publish(self) -> StreamingQuery:
        """Publish late flights. A row that cannot be published becomes a dead letter."""
        late = self.events().where("dep_delay > 0")
        rows = late.selectExpr("carrier AS key", "struct(carrier, dep_delay, origin) AS data")
        writer = rows.writeStream.format("zeroeventhub").options(**self.sink)
        writer = writer.option("checkpointLocation", str(self.checkpoints / "delays"))
        return writer.trigger(availableNow=True).start()

    def seconds_behind(self) -> float:
        """Return the age of the oldest event that is not in the table; 0 before the first batch."""
        checkpoint = self.checkpoints / "table"
        empty = lakehouse.cursors(self.spark, self.table, name=NAME) == "first"
        if empty or not (checkpoint / "commits").exists():
            return 0.0
        command = [sys.executable, "-m", "zeh_spark", "lag", self.feed, "--json"]
        told = subprocess.run(
            [*command, "--checkpoint", str(checkpoint)],
            env={**os.environ, "ZEH_TOKEN": self.token},
            stdout=subprocess.PIPE,
            check=True,
        )
        return float(json.loads(told.stdout)["secondsBehind"]["max"])

    def misfits(self) -> int:
        """Return the number of events in the table that do not fit COLUMNS."""
        if not self.spark.catalog.tableExists(self.table):
            return 0  # the feed has no events yet
        return self.spark.table(self.table).where("bad IS NOT NULL").count()

    def dead_letters(self) -> int:
        """Return the number of rows that could not be published, also in runs that failed, since
        this was asked last. A file beside the checkpoints has the receipt that was the newest then.
        """
        receipts = zeh_spark.receipts(
            self.sink["deadLetterUrl"], NAME, spark=self.spark, token=self.token
        ).collect()
        names = [f"{row.run} {row.batch}" for row in receipts]  # the newest is the first one
        file = self.checkpoints / "dead-letters-told"
        told = file.read_text() if file.exists() else ""
        new = receipts[: names.index(told)] if told in names else receipts
        file.write_text(names[0] if names else "")
        return sum(row.events for row in new)


def main(words: list[str] | None = None) -> None:
    """Run once. The last line of the error says what somebody has to look at."""
    parser = argparse.ArgumentParser()
    for name in ("publisher", "table", "volume", "scope", "key"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--max-seconds-behind", type=float, default=2 * HOUR)
    given = parser.parse_args(words)
    job = Job(given)
    zeh_spark.register(job.spark)
    job.spark.streams.addListener(zeh_spark.ProgressListener(live=True))  # the driver's log

    behind = job.seconds_behind()
    zeh_spark.drain(job.fill, timeout=HOUR)  # fails if the feed grows faster than it is read
    zeh_spark.drain(job.publish, timeout=HOUR)

    troubles = []
    if behind > given.max_seconds_behind:
        troubles.append(f"an event had waited for {behind:,.0f} s when this run began")
    if misfits := job.misfits():
        troubles.append(f"events in {job.table} that do not fit its columns (`bad`): {misfits}")
    if letters := job.dead_letters():
        troubles.append(f"rows that became dead letters in {job.sink['deadLetterUrl']}: {letters}")
    if troubles:
        raise RuntimeError(f"All is committed, but look at this: {'; '.join(troubles)}.")


if __name__ == "__main__":
    main()
