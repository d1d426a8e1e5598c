"""A declarative pipeline (`spark-pipelines`): from a feed into a table, and on into a feed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.class_archive import SHORT_LIVED
from tests.fix_databricks import RUNTIME
from tests.fix_publisher import Publisher
from tests.patience import PATIENCE
from zeh_spark.testing import publish

EXAMPLE = Path(__file__).parents[2] / "notebooks" / "pipeline"

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.spark,
    pytest.mark.skipif(not find_spec("pyspark.pipelines"), reason="pipelines need Spark 4.1"),
]


@dataclass
class Pipeline:
    """The example in a folder of its own, with Hive's catalog, which outlives a run."""

    folder: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "spark-pipelines"), "run"]
        command += ["--driver-java-options", SHORT_LIVED, "--conf", "spark.ui.enabled=false"]
        command += ["--conf", "spark.sql.catalogImplementation=hive"]
        command += ["--conf", f"spark.sql.warehouse.dir={self.folder / 'warehouse'}", *words]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        own_port = {"SPARK_TESTING": "1"}  # otherwise it is 15002
        return subprocess.run(
            command,
            cwd=self.folder,
            env={
                **os.environ,
                **python,
                **own_port,
                "PYTHONPATH": f"{EXAMPLE.parents[1]}:{RUNTIME}",
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def complete(self) -> None:
        done = self.run()
        assert "Run is COMPLETED" in done.stdout, done.stdout[-4000:]

    @property
    def checkpoints(self) -> Path:
        """The checkpoints of the sink's flow: a folder for each, with a number."""
        return self.folder / "storage" / "_checkpoints" / "delays" / "late_flights"


REFUSED = """
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import zeh_spark

spark = SparkSession.active()
schemas = ["carrier STRING", StructType.fromDDL("carrier STRING, Timestamp STRING")]


@dp.temporary_view
def refused():
    events = spark.readStream.format("zeroeventhub").load(spark.conf.get("flights.url"))
    for schema in schemas:
        try:
            zeh_spark.parsed(events, schema)
        except zeh_spark.errors.OptionError as exc:
            with Path("refused").open("a") as file:
                file.write(f"{exc}\\n")
    return events
"""
"""Query functions in which `parsed` cannot know what it needs."""


@pytest.fixture
def pipeline(tmp_path: Path, publisher: Publisher) -> Pipeline:
    folder = shutil.copytree(EXAMPLE, tmp_path / "pipeline")
    spec = folder / "spark-pipeline.yml"
    text = spec.read_text().replace("http://127.0.0.1:8080", publisher.url.rpartition("/")[0])
    spec.write_text(text.replace("file:///tmp/flights-pipeline", f"file://{folder}/storage"))
    for feed in ("flights", "delays"):
        publisher.store.create(feed, 2)
    return Pipeline(folder)


def load(publisher: Publisher, *carriers: str) -> None:
    """Publish a late and a punctual flight of each carrier."""
    for delay in (5.0, -1.0):
        flights = [{"carrier": each, "dep_delay": delay, "origin": "EWR"} for each in carriers]
        publish(publisher.store, "flights", flights)


def delayed(publisher: Publisher) -> Counter[str]:
    """How often the late flight of each carrier is on the feed `delays`."""
    query = "n=2&cursor0=_first&cursor1=_first"
    flights = publisher.get(query, path="/delays").data
    assert {flight["dep_delay"] for flight in flights} <= {5.0}
    return Counter(flight["carrier"] for flight in flights)


def test_a_schema_that_a_query_function_cannot_have_is_refused(pipeline):
    """DDL text, which Spark reads elsewhere, and fields named like any column of the source."""
    (pipeline.folder / "transformations" / "refused.py").write_text(REFUSED)

    done = pipeline.run()

    text, name = (pipeline.folder / "refused").read_text().splitlines()
    assert "Run is COMPLETED" in done.stdout, done.stdout[-4000:]
    assert "Make the type outside of it, with pyspark.sql.types.StructType.fromDDL(" in text
    assert "the schema's field 'Timestamp' has the name of a column that a feed's frame" in name


def test_a_pipeline_publishes_each_row_once_also_after_a_full_refresh(pipeline, publisher):
    """Each run publishes what is new. A full refresh is refused instead of publishing everything
    again; without its checkpoint the next run continues where the last one ended.
    """
    load(publisher, "UA", "DL")
    pipeline.complete()
    load(publisher, "AA")
    pipeline.complete()
    assert delayed(publisher) == Counter(["UA", "DL", "AA"])

    refused = pipeline.run("--full-refresh-all")
    assert refused.returncode != 0
    assert "409 incarnation-changed: producer 'flights-pipeline'" in refused.stdout
    assert delayed(publisher) == Counter(["UA", "DL", "AA"])

    assert sorted(path.name for path in pipeline.checkpoints.iterdir()) == ["0", "1"]
    shutil.rmtree(pipeline.checkpoints / "1")
    pipeline.run("--full-refresh", "flights")  # which the table does not allow
    load(publisher, "B6")
    pipeline.complete()
    assert delayed(publisher) == Counter(["UA", "DL", "AA", "B6"])


def test_the_pipeline_of_the_bundle_fills_its_table(pipeline, publisher, spark, monkeypatch):
    """With a secret scope, as there. What does not fit is in `bad`, and the token nowhere."""
    token = "the-token-of-the-pipeline"
    secrets = {"feeds": {"token": token}}
    monkeypatch.setenv("EMULATED_DATABRICKS", json.dumps({"widgets": {}, "secrets": secrets}))
    conf = EXAMPLE.parents[1] / "conf"
    shutil.copy(conf / "databricks_pipeline.py", pipeline.folder / "transformations" / "flights.py")
    bundle = yaml.safe_load((conf / "databricks.yml").read_text(encoding="utf-8"))
    spec = yaml.safe_load((pipeline.folder / "spark-pipeline.yml").read_text(encoding="utf-8"))
    feed = spec["configuration"]["flights.url"]
    told = {"feeds.url": feed, "feeds.scope": "feeds", "feeds.key": "token"}
    assert {*told} == {*bundle["resources"]["pipelines"]["flights_pipeline"]["configuration"]}
    spec["configuration"] = told
    (pipeline.folder / "spark-pipeline.yml").write_text(yaml.safe_dump(spec))
    publish(publisher.store, "flights", [{"carrier": "UA", "dep_delay": 1.5}, {"dep_delay": "?"}])

    pipeline.complete()

    found = spark.read.parquet(str(pipeline.folder / "warehouse" / "flights_of_pipeline"))
    assert sorted((row.carrier or "", row.bad is None) for row in found.collect()) == [
        ("", False),
        ("UA", True),
    ]
    files = [path for path in pipeline.folder.rglob("*") if path.is_file()]
    assert [path for path in files if token.encode() in path.read_bytes()] == []
