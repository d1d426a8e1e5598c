"""What `configure` sets before a session starts. No session is started here."""

from __future__ import annotations

import os

import pytest

from tests.fix_lake import why_absent

pytest.importorskip("delta", reason=why_absent())

from pyspark.sql import SparkSession

import zeh_spark
from zeh_spark.stateful.requirements import PROVIDER, ROCKSDB

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


def settings(*given, **options):
    builder = SparkSession.Builder()
    for name, value in given:
        builder.config(name, value)
    zeh_spark.configure(builder, **options)
    return builder._options


def test_a_small_machine_gets_few_tasks_and_delta():
    """As many as it has cores, and what a session with Delta needs."""
    found = settings()

    cores = str(os.cpu_count())
    assert cores == found["spark.sql.shuffle.partitions"]
    assert cores == found["spark.databricks.delta.snapshotPartitions"]
    assert EXTENSION == found["spark.sql.extensions"]
    assert found["spark.jars.packages"].startswith("io.delta:delta-spark_")


def test_what_is_set_stays():
    """Also the extensions and packages that others need."""
    found = settings(
        ("spark.sql.shuffle.partitions", "7"),
        ("spark.sql.extensions", "org.other.Extension"),
        ("spark.jars.packages", "org.other:thing:1.0"),
    )

    assert "7" == found["spark.sql.shuffle.partitions"]
    assert f"org.other.Extension,{EXTENSION}" == found["spark.sql.extensions"]
    assert "org.other:thing:1.0" in found["spark.jars.packages"].split(",")
    assert 2 == len(found["spark.jars.packages"].split(","))


@pytest.mark.parametrize(
    "given",
    [
        ("spark.jars", "/opt/jars/delta-spark_4.2_2.13-4.4.0.jar"),
        ("spark.jars.packages", "io.delta:delta-spark_4.2_2.13:4.4.0"),
    ],
)
def test_jars_that_are_named_are_not_fetched_again(given):
    """A machine without a network brings its own."""
    found = settings(given)

    assert given[1] == found[given[0]]
    assert {given[0]} == {name for name in found if name.startswith("spark.jars")}


def test_jars_among_pysparks_own_are_not_fetched(tmp_path, monkeypatch):
    """As images for clusters have them."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))

    assert "spark.jars.packages" not in settings()


def test_delta_can_be_left_out():
    """And the number of tasks be another one. State is in RocksDB, as sessions need it."""
    found = settings(delta=False, parallelism=3)

    assert {"spark.sql.shuffle.partitions": "3", PROVIDER: ROCKSDB} == found
