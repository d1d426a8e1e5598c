"""What `configure` sets before a session starts. No session is started here."""

import os
import sys
from pathlib import Path

import pytest

from tests.cases import each_case
from tests.fix_lake import why_absent

pytest.importorskip("delta", reason=why_absent())

from pyspark.sql import SparkSession

import zeh_spark
from zeh_spark.errors import LakehouseError
from zeh_spark.spark.stateful.requirements import PROVIDER, ROCKSDB

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


@each_case(
    "given",
    [
        ("spark.jars", "/opt/jars/delta-spark_4.2_2.13-4.4.0.jar"),
        ("spark.jars", "/usr/share/aws/delta/lib/delta-spark.jar"),
        ("spark.jars.packages", "io.delta:delta-spark_4.2_2.13:4.4.0"),
    ],
)
def test_jars_that_are_named_are_not_fetched_again(given):
    """A machine without a network brings its own."""
    found = settings(given)

    assert given[1] == found[given[0]]
    assert {given[0]} == {name for name in found if name.startswith("spark.jars")}


@pytest.fixture
def maven(tmp_path, monkeypatch):
    """A home folder with Maven's; Spark's settings are in it, too."""
    monkeypatch.delenv("DEFAULT_ARTIFACT_REPOSITORY", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".m2" / "repository").mkdir(parents=True)
    return tmp_path


def test_jars_are_found_beside_what_maven_has(maven):
    """Spark would fail on a POM without its jar: it gets settings of ours. Without Maven, none."""
    ours = Path(zeh_spark.__file__).parent / "spark" / "ivysettings.xml"

    assert ours.as_uri() == settings()["spark.jars.ivySettings"]


@pytest.mark.parametrize("place", ["builder", "defaults", "environment"])
def test_where_jars_are_looked_for_is_the_users_choice(place, maven, monkeypatch):
    """A company has a mirror of Maven Central."""
    given = [("spark.jars.ivySettings", "/etc/ivy.xml")] if place == "builder" else []
    if place == "defaults":
        (maven / "spark-defaults.conf").write_text("spark.jars.ivySettings  /etc/ivy.xml\n")
    if place == "environment":
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "https://maven.example")

    found = settings(*given)

    assert dict(given).get("spark.jars.ivySettings") == found.get("spark.jars.ivySettings")


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


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """`installed(delta, spark)`: pip has installed these versions."""

    def install(delta, spark):
        about = tmp_path / f"delta_spark-{delta}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Name: delta-spark\nVersion: {delta}\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr("pyspark.__version__", spark)

    return install


@pytest.mark.parametrize(
    ("delta", "spark", "jars"),
    [
        ("4.0.1", "4.0.5", "io.delta:delta-spark_2.13:4.0.1"),
        ("4.1.0", "4.0.1", "io.delta:delta-spark_4.0_2.13:4.1.0"),
        ("4.2.0", "4.1.1", "io.delta:delta-spark_4.1_2.13:4.2.0"),
        ("4.4.0", "4.0.0.dev1", "io.delta:delta-spark_4.0_2.13:4.4.0"),
        ("4.4.0", "4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("5.1.0", "5.0.0", "io.delta:delta-spark_5.0_2.13:5.1.0"),
    ],
)
def test_the_jars_are_those_of_this_spark_and_this_delta(installed, delta, spark, jars):
    """Each pair has jars of its own on Maven Central. Versions that come later name them alike."""
    installed(delta, spark)

    assert jars == settings()["spark.jars.packages"]


@pytest.mark.parametrize(
    ("delta", "spark", "told"),
    [
        ("4.0.1", "4.1.0", "only for 4.0. Install one for it with pip install --no-deps"),
        ("4.2.0", "4.2.0", "pip install --no-deps 'delta-spark==4.4.*', or leave Delta out"),
        ("4.4.0", "4.3.0", "only for 4.0, 4.1, 4.2. There is no Delta for Spark 4.3 yet: leave"),
        # Spark 4.1.2 dropped a class that these call: a query would fail at its first write
        ("4.1.0", "4.1.2", "on Spark 4.1 it runs up to 4.1.1. Install one for it"),
        ("4.2.0", "4.1.2", "on Spark 4.1 it runs up to 4.1.1. Install one for it"),
    ],
)
def test_a_delta_without_jars_for_this_spark_is_refused(installed, delta, spark, told):
    """Before Spark starts: it would look for jars that do not exist, or that call what is gone."""
    installed(delta, spark)
    needs = "needs a class that Spark 4.1.2 does not have"
    what = needs if spark == "4.1.2" else f"has no jars for Spark {spark}, only for 4."

    for options in ({}, {"delta": True}):
        with pytest.raises(LakehouseError, match=f"delta-spark {delta} {what}") as refused:
            settings(**options)
        assert told in str(refused.value)
    assert "spark.jars.packages" not in settings(delta=False)


def test_delta_that_is_asked_for_has_to_be_installed(monkeypatch):
    """The error says how it is installed without replacing Spark."""
    monkeypatch.setitem(sys.modules, "delta", None)

    assert "spark.jars.packages" not in settings()
    with pytest.raises(ImportError, match="pip install --no-deps delta-spark"):
        settings(delta=True)
