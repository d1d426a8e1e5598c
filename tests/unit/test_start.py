"""What Spark's Python processes load. A query starts several, and each pays for its imports."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

from pyspark.sql.types import StringType, StructField, StructType

from tests.cases import each_case
from zeh_spark.client.options.given import parse
from zeh_spark.spark.datasource import ZeroEventHubDataSource
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.planned_batch import DirectPartition
from zeh_spark.spark.source.tasks import CarriedSegment

PROGRAM = """
import pickle, sys
import pyspark.worker, pyspark.sql.datasource
there = set(sys.modules)
pickle.load(sys.stdin.buffer)
print(*sorted(set(sys.modules) - there))
"""

URL = "http://127.0.0.1:9/feed"
OPTIONS = parse(SourceOptions, {"url": URL})
DATA = StructType([StructField("data", StringType())])
DRIVER = ["pyarrow.fs", "zeh_spark.client.polling", "zeh_spark.spark.source.stream_dispatcher"]
FETCHING = ["requests", "urllib3", "ssl", "email", "zeh_spark.client.http.transport"]
SINK = ["zeh_spark.spark.sink.writer"]
SOURCE = ["zeh_spark.spark.source.tasks", "zeh_spark.client.decoding"]


def source(**options: str) -> ZeroEventHubDataSource:
    return ZeroEventHubDataSource({"url": URL, **options})


@each_case(
    ("pickled", "needed", "unwanted"),
    [
        (  # where a query is analyzed
            source(),
            "zeh_spark.spark.datasource",
            ["numpy", "pyarrow", "importlib.metadata", *FETCHING, *DRIVER, *SINK, *SOURCE],
        ),
        (  # a task to which the driver sends events; Spark sends its data source along
            [source(), source().streamReader(DATA), CarriedSegment(b"")],
            "zeh_spark.client.decoding.lines",
            [*FETCHING, *DRIVER, *SINK],
        ),
        (  # a task that fetches its events
            [source(), source().streamReader(DATA), DirectPartition((), 1, OPTIONS)],
            "zeh_spark.client.http.transport",
            [*DRIVER, *SINK],
        ),
        (  # a task that publishes
            source(producerId="flights").streamWriter(DATA, overwrite=False),
            "zeh_spark.spark.sink.rows",
            [*DRIVER, *SOURCE],
        ),
    ],
)  # fmt: skip
def test_a_process_loads_only_what_its_pickles_need(
    pickled: Any, needed: str, unwanted: list[str]
) -> None:
    """My query starts soon, although each of Spark's processes begins with nothing."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=pickle.dumps(pickled), capture_output=True, check=True,
    )  # fmt: skip

    loaded = set(done.stdout.decode().split())
    assert needed in loaded
    assert set() == {name for name in unwanted if name in loaded}
