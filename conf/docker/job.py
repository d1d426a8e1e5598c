"""Stream a feed into Parquet files until the container is stopped. An example: make it your own.

Environment variables:
    FEED_URL: the feed's address.
    TOKEN_FILE: the file with the token to send. Without it no token is sent.
    FOLDER: where the Parquet files and the checkpoint are. It has to outlive the container.
    TRIGGER: how often a micro-batch is made, if there are events; "10 seconds" by default.

It ends with 0 after SIGTERM, and with 1 and the error if the query fails. Started again, it
continues after the last micro-batch that it has written.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python of Spark's workers

from pyspark.sql import SparkSession

import zeh_spark

url, folder = os.environ["FEED_URL"], os.environ["FOLDER"]
token_file = os.environ.get("TOKEN_FILE")

stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())

builder = SparkSession.builder.appName("job").config("spark.ui.showConsoleProgress", "false")
spark = zeh_spark.configure(builder, delta=False).getOrCreate()
spark.streams.addListener(zeh_spark.ProgressListener(live=True))

feed = (
    spark.readStream.format("zeroeventhub")
    .options(**{"tokenFile": token_file} if token_file else {})
    .load(url)
)
query = (
    feed.writeStream.format("parquet")
    .option("path", f"{folder}/events")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(processingTime=os.environ.get("TRIGGER", "10 seconds"))
    .start()
)
try:
    while not stopped.is_set() and not query.awaitTermination(1):
        pass
finally:
    query.stop()
    spark.stop()
