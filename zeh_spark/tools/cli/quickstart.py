"""The command `quickstart`: serve sample data of a new store, and print a script that reads it.

The script is whole: it reads the feed as a stream into a table, shows the table, and publishes a
frame as a feed. It can be run again at any time: it continues, and adds nothing twice.

Needs the extra `publisher`. Runs on the user's machine.
"""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click
from click.core import ParameterSource

from zeh_spark.errors import StoreError
from zeh_spark.tools.cli.output import print_remark

FLIGHTS = 1000
_PRODUCER, _BATCH = "quickstart", "sample"
_CARRIERS = ("AA", "B6", "DL", "EV", "UA")
_ORIGINS = ("EWR", "JFK", "LGA")

SCRIPT = '''\
"""A feed becomes a table, and a frame becomes a feed. Run it again: it continues, and adds nothing
twice."""

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python of Spark's workers

from pyspark.sql import SparkSession

import zeh_spark

PUBLISHER = {publisher!r}
FOLDER = {folder!r}

spark = zeh_spark.configure(SparkSession.builder, delta=False).getOrCreate()

# 1. Stream the feed "flights" into a table of Parquet files. The checkpoint keeps the position.
feed = spark.readStream.format("zeroeventhub").load(f"{{PUBLISHER}}/flights")
flights = zeh_spark.parsed(
    feed, "carrier STRING, flight INT, origin STRING, dep_delay DOUBLE"
)
query = (
    flights.writeStream.format("parquet")
    .option("path", f"{{FOLDER}}/table")
    .option("checkpointLocation", f"{{FOLDER}}/checkpoint")
    .trigger(availableNow=True)  # read what is there, and end; without it, the stream runs on
    .start()
)
query.awaitTermination()

# 2. Look at the table.
table = spark.read.parquet(f"{{FOLDER}}/table")
delays = table.groupBy("origin").agg({{"dep_delay": "avg", "flight": "count"}}).orderBy("origin")
delays.show()

# 3. Publish the frame as the feed "delays". The batch has a name, so a repetition adds nothing.
rows = delays.selectExpr("origin AS key", "struct(*) AS data")
(
    rows.write.format("zeroeventhub")
    .option("url", f"{{PUBLISHER}}/delays")
    .option("producerId", "quickstart-job")
    .option("batchId", "first")
    .mode("append")
    .save()
)
print(f"Published. Look: zeh-spark tail {{PUBLISHER}}/delays --from first --no-follow")
spark.stop()
'''
"""The script, to be formatted with the publisher's address and a folder."""


@click.command()
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), default="zeh-quickstart",
    show_default=True, metavar="FOLDER", help="Where the store, the script and its table are kept.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True,
    help="TCP port to listen on. If the default is taken, a free one is used.",
)  # fmt: skip
@click.pass_context
def quickstart(ctx: click.Context, folder: Path, port: int) -> None:
    """Make a feed with sample data, serve it on this machine, and print a script that reads it.

    The feed `flights` has 1,000 events. The script streams it into a table, and publishes a
    DataFrame as the feed `delays`. Run the script in another terminal, with the Python in which
    PySpark is installed.
    Ctrl-C stops the publisher. Everything is in FOLDER: delete it to begin again.

    \b
    Example:
      zeh-spark quickstart
    """
    from zeh_spark.service.app import server
    from zeh_spark.tools.cli.serve_command import serve

    by_default = ctx.get_parameter_source("port") is ParameterSource.DEFAULT
    port = free_port(port, or_other=by_default)
    url = make(folder)
    base = f"http://127.0.0.1:{port}"
    with server.only_publisher(url):  # the script of another one that runs stays as it is
        script = write_script(folder, base)
    click.echo(
        f"{script.read_text(encoding='utf-8')}\n"
        f"The script above is {script}. Run it in another terminal:\n\n"
        f"  {sys.executable} {script}\n"
    )
    ctx.invoke(serve, url=url, port=port, host="127.0.0.1", log_level="warning")


def sample() -> Iterator[bytes]:
    """Yield the sample: flights that are the same on each machine, as lines of JSON."""
    for number in range(FLIGHTS):
        flight = {
            "carrier": _CARRIERS[number * 7 % len(_CARRIERS)],
            "flight": 100 + number * 37 % 900,
            "origin": _ORIGINS[number % len(_ORIGINS)],
            "dep_delay": float(number * 13 % 61 - 10),
        }
        yield json.dumps(flight).encode() + b"\n"


def make(folder: Path) -> str:
    """Make the store, its feeds and the sample, unless they are there; return the store's URL."""
    from zeh_spark.service.databases import open_store
    from zeh_spark.service.store.interface import UnknownFeedError
    from zeh_spark.tools.loading import load
    from zeh_spark.tools.loading.load import Source
    from zeh_spark.tools.loading.one_batch import named_batch

    folder.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{folder.resolve() / 'feeds.db'}"
    with closing(open_store(url)) as store:
        for name in ("flights", "delays"):
            try:
                store.feed(name)
            except UnknownFeedError:
                store.create(name, 4)
        call = named_batch(store, "flights", _PRODUCER, _BATCH)
        flights = Source("the sample", io.BytesIO(b"".join(sample())), "carrier")
        load.load(store, "flights", [flights], call=call)
    return url


def write_script(folder: Path, publisher: str) -> Path:
    file = folder / "quickstart.py"
    text = SCRIPT.format(publisher=publisher, folder=str(folder.resolve()))
    file.write_text(text, encoding="utf-8")
    return file


def free_port(wanted: int, *, or_other: bool) -> int:
    """Return the wanted port of the loopback address if it is free; another free one if `or_other`.

    Raises StoreError if the port is taken.
    """
    try:
        with socket.create_server(("127.0.0.1", wanted)) as found:
            return int(found.getsockname()[1])
    except OSError as exc:
        if not or_other:
            raise StoreError(
                f"127.0.0.1:{wanted} cannot be used: {exc.strerror}. Stop the process that listens "
                f"there, or give another --port",
                anchor="cannot-listen",
            ) from exc
    port = free_port(0, or_other=False)
    print_remark(f"Port {wanted} is taken: the publisher listens on {port}.")
    return port
