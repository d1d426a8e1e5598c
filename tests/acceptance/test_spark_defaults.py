"""`conf/spark-defaults.conf`: a cluster's settings, given to `spark-submit`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest

pytest.importorskip("delta", reason="delta-spark is not installed")
pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from pyspark.sql import SparkSession

import zeh_spark
from tests import class_archive
from tests.fix_publisher import Publisher
from tests.fix_spark import ENVIRONMENT

CONF = Path(__file__).parents[2] / "conf" / "spark-defaults.conf"

JOB = """
import sys
from pyspark.sql import SparkSession
from zeh_spark import sessions
from zeh_spark.lakehouse import DeltaFeedWriter

url, here = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
assert "60s" == spark.conf.get("spark.sql.streaming.stopTimeout")
feed = spark.readStream.format("zeroeventhub").load(url)
step, order = (f"get_json_object(data, '$.{name}')" for name in ("step", "order"))
out = sessions.in_order(feed, session=order, sequence=step)
ordered = DeltaFeedWriter(f"{here}/table", name="orders", checkpointLocation=f"{here}/checkpoint")
dead = DeltaFeedWriter(f"{here}/dead", name="dead", checkpointLocation=f"{here}/checkpoint")
write = out.writeStream.foreachBatch(sessions.route(ordered=ordered, dead=dead))
write = write.option("checkpointLocation", f"{here}/checkpoint").trigger(availableNow=True)
write.start().awaitTermination()
"""


def settings() -> dict[str, str]:
    lines = CONF.read_text(encoding="utf-8").splitlines()
    given = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {name: value for name, value in given}


def test_a_clusters_settings_are_those_of_configure() -> None:
    """But for the number of tasks, which is a cluster's."""
    builder = SparkSession.Builder()
    zeh_spark.configure(builder, parallelism=16)
    expected = {**builder._options, "spark.sql.streaming.stopTimeout": "60s"}
    expected.pop("spark.jars.ivySettings", None)  # this machine has a folder of Maven's

    assert expected.keys() == settings().keys()
    of_spark = "spark.jars.packages"
    assert {**expected, of_spark: ""} == {**settings(), of_spark: ""}
    assert "io.delta:delta-spark_4.2_2.13:4.4.0" == settings()[of_spark]


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_with_sessions_and_delta_needs_no_other_settings(
    publisher: Publisher, tmp_path: Path
) -> None:
    """`spark-submit --properties-file conf/spark-defaults.conf job.py`."""
    publisher.publish(*({"order": "A", "step": step} for step in (1, 0)), partition=0)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    submit = Path(sys.executable).with_name("spark-submit")
    command = [submit, "--properties-file", CONF, "--conf", "spark.sql.shuffle.partitions=2"]
    command += ["--driver-java-options", class_archive.SHARED]
    environment = {**os.environ, **ENVIRONMENT}

    done = subprocess.run(
        [*map(str, command), str(job), publisher.url, tmp_path.as_uri()],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr[-4000:]
    assert (tmp_path / "table" / "_delta_log").is_dir()
    rows = pyarrow.dataset.dataset(sorted((tmp_path / "table").glob("*.parquet"))).to_table()
    expected = ['{"order": "A", "step": 0}', '{"order": "A", "step": 1}']
    assert expected == sorted(rows.column("data").to_pylist())
