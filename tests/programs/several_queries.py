"""Users' queries, several in one driver: one SIGKILL ends each of them at a place of its own. Not a
test.

Usage: several_queries.py QUERIES, as JSON: a list of objects with `kind` (a name in KINDS),
`checkpoint` and what that kind reads; and, if the query is to wait for its end, `place` and
`reached`, a file that is made when it is there. Where a query may wait is said in PLACES.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import zeh_spark
from zeh_spark import lakehouse, sessions
from zeh_spark.spark.frames.compat import HAS_ADMISSION_CONTROL

PLACES = {  # with the number of the batch before them, where the query knows it
    # its offsets are logged, and no task has run; in the middle of a task; after its files
    "into_files": ("planned", "tasks", "written"),
    "keep": ("tasks", "written"),  # half way in a task of the Delta write; after its commit
    "publish": ("upload", "commit"),  # at the gateway, which makes the file
    "order": ("ordered", "dead"),  # after the first writer; after both
    "process": ("handler", "written"),  # within the handler, at step 2; after the Delta commit
}


class Place:
    """Where a query waits, which is nowhere if the job names no place."""

    def __init__(self, job):
        self.name, self.reached = job.get("place"), job.get("reached")

    def wait(self, name):
        if name == self.name:
            Path(self.reached).touch()
            threading.Event().wait()

    def amid(self, name, frame):
        """The frame; its tasks wait half way if it is that place."""
        if name != self.name:
            return frame

        def half(batches):
            for each in batches:
                yield each
                self.wait(name)

        return frame.mapInArrow(half, frame.schema)


def into_files(spark, job, place):
    """A feed into files: `url`, `options` of the source, `folder`. Its `table` has each batch under
    its number, written over when the batch comes again, as an idempotent sink does: a double or a
    hole between batches stays visible.
    """

    def write(frame, batch):
        place.wait(f"{batch} planned")
        rows = place.amid(f"{batch} tasks", frame)
        rows.write.mode("overwrite").parquet(f"{job['folder']}/table/batch={batch}")
        place.wait(f"{batch} written")

    return read(spark, job, **job["options"]).writeStream.foreachBatch(write)


def keep(spark, job, place):
    """A feed into a Delta table: `url`, `table`, `data` (its columns), `settings` of the writer."""
    settings = {"name": "orders", "checkpointLocation": job["checkpoint"], **job["settings"]}

    def before(frame, batch):
        return place.amid(f"{batch} tasks", frame)

    writer = lakehouse.DeltaFeedWriter(job["table"], transform=before, **settings)

    def write(frame, batch):
        writer(frame, batch)
        place.wait(f"{batch} written")

    begin = lakehouse.cursors(spark, job["table"], name="orders")
    feed = read(spark, job, startingCursors=begin)
    return zeh_spark.parsed(feed, job["data"]).writeStream.foreachBatch(write)


def publish(spark, job, _):
    """A Delta table to a feed: `table`, `how` (arguments of from_delta), `options` of the sink."""
    frame = lakehouse.from_delta(spark, job["table"], **job["how"])
    return frame.writeStream.format("zeroeventhub").options(**job["options"])


def order(spark, job, place):
    """A feed in order: `url`, `limit`, `tables` (a folder; each has a batch under its number)."""

    def into(name):
        def write(frame, batch):
            frame.write.mode("overwrite").parquet(f"{job['tables']}/{name}/batch={batch}")
            place.wait(f"{batch} {name}")

        return write

    feed = read(spark, job, maxEventsPerTrigger=job["limit"])
    at = "timestamp_seconds(cast(headers['at'] AS BIGINT))"
    frame = sessions.in_order(feed, "headers['order']", "headers['step']", time=at)
    write = sessions.route(ordered=into("ordered"), dead=into("dead"))
    return frame.writeStream.foreachBatch(write)


def process(spark, job, place):
    """Sessions of a feed, processed: `url`, `table`, `calls` (a file with a line for each call),
    and `lost`: what is killed at the first step 2, once, the "worker" or the "executor" of a task.
    """
    calls, lost = job["calls"], job.get("lost")

    def handler(event):
        with open(calls, "a") as file:
            file.write(f"{event.session} {event.number} {event.attempt} {event.key}\n")
        if event.number == 2:
            place.wait("handler")
            if lost and not os.path.exists(f"{calls}.lost"):
                open(f"{calls}.lost", "w").close()
                os.kill(java() if lost == "executor" else os.getpid(), signal.SIGKILL)
                threading.Event().wait()  # until Spark ends this process, too
        return f"{event.session}{event.number}"

    settings = {"name": "orders", "checkpointLocation": job["checkpoint"]}
    processed = sessions.process(handler, table=job["table"], **settings)

    def write(frame, batch):
        processed(frame, batch)
        place.wait(f"{batch} written")

    feed = read(spark, job, headers="_all")
    frame = sessions.in_order(feed, "headers['order']", "headers['step']", processing=True)
    return frame.writeStream.foreachBatch(write)


def java():
    """The JVM of the executor that this is a worker of."""
    import psutil  # in here: other venvs lack it

    return next(each.pid for each in psutil.Process().parents() if each.name() == "java")


def read(spark, job, **options):
    return spark.readStream.format("zeroeventhub").options(**options).load(job["url"])


KINDS = {each.__name__: each for each in (into_files, keep, publish, order, process)}
TOO_SLOW = "Python worker failed to connect back"


def run(spark, job):
    """Run a query to its end."""
    zeh_spark.register(spark)  # in this thread

    def start():
        writer = KINDS[job["kind"]](spark, job, Place(job)).trigger(availableNow=True)
        return writer.option("checkpointLocation", job["checkpoint"]).start()

    while True:
        try:
            if HAS_ADMISSION_CONTROL or "url" not in job:
                return start().awaitTermination()
            return zeh_spark.drain(start)
        except StreamingQueryException as exc:
            if TOO_SLOW not in str(exc):
                raise


def exit_at_once(failure):
    """Other queries may wait at their places for ever."""
    sys.excepthook(*failure[:3])
    os._exit(1)


if __name__ == "__main__":
    jobs = json.loads(sys.argv[1])
    master = next((each["master"] for each in jobs if "master" in each), "local[8]")
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR")
    kept = any("table" in each for each in jobs)
    session = zeh_spark.configure(builder, parallelism=2, delta=kept).getOrCreate()
    threading.excepthook = exit_at_once
    for each in jobs:
        query = threading.Thread(target=run, args=(session, each))
        query.start()
        while query.is_alive() and not ("place" in each and Path(each["reached"]).exists()):
            time.sleep(0.05)  # one after the other: Spark waits 10 s for a Python process to start
