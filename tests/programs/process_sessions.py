"""A user's query that processes sessions, in a process of its own so that it can be killed.

Usage: process_sessions.py JOB, as JSON: `url`, `checkpoint`, `table`, `calls` (a file that gets a
line for each call), `master` (local by default), and `crash`: where to die, with SIGKILL. "handler"
dies with its driver while it processes step 2 of an order; "worker" is the task's Python process
alone, once; "executor" is the executor's JVM, once; "commit" is after the first batch's commit,
before Spark knows of it; null does not die.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

import zeh_spark
from zeh_spark import sessions
from zeh_spark._compat import HAS_ADMISSION_CONTROL

job = json.loads(sys.argv[1])
crash, calls, driver = job["crash"], job["calls"], os.getpid()


def handler(event):
    first = event.number == 2 and not Path(f"{calls}.dead").exists()
    with open(calls, "a") as file:
        file.write(f"{event.session} {event.number} {event.attempt} {event.key}\n")
    if crash == "handler" and event.number == 2:
        os.killpg(driver, signal.SIGKILL)
    if crash in ("worker", "executor") and first:
        Path(f"{calls}.dead").touch()
        above = psutil.Process().parents()
        java = next(each.pid for each in above if each.name() == "java")
        os.kill(java if crash == "executor" else os.getpid(), signal.SIGKILL)
        threading.Event().wait()  # until Spark ends this process, too
    return f"{event.session}{event.number}"


master = job.get("master", "local[2,4]")
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
builder = builder.config("spark.log.level", "ERROR")
spark = zeh_spark.configure(builder, parallelism=2).getOrCreate()
write = sessions.process(
    handler, table=job["table"], name="orders", checkpointLocation=job["checkpoint"]
)


def written(batch, number):
    write(batch, number)
    if crash == "commit":
        os.killpg(driver, signal.SIGKILL)


def start():
    feed = spark.readStream.format("zeroeventhub").option("headers", "_all").load(job["url"])
    step = {"session": "headers['order']", "sequence": "headers['step']"}
    out = sessions.in_order(feed, **step, processing=True)
    writer = out.writeStream.foreachBatch(written).option("checkpointLocation", job["checkpoint"])
    return writer.trigger(availableNow=True).start()


if HAS_ADMISSION_CONTROL:
    start().awaitTermination()
else:
    zeh_spark.drain(start)
