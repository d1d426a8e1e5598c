"""Jars that a session needs are found whatever else lies in the home folder."""

import os
import subprocess
import sys
import zipfile

import pytest

from tests.fix_lake import why_absent
from tests.fix_spark import ENVIRONMENT
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())

from pyspark.sql import SparkSession

import zeh_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import sys
import zeh_spark
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = zeh_spark.configure(builder.config("spark.jars.ivy", sys.argv[1])).getOrCreate()
print(spark.conf.get("spark.jars.packages"), spark.conf.get("spark.jars"))
"""
POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>{}</groupId> <artifactId>{}</artifactId> <version>{}</version>
</project>"""


def test_a_pom_without_its_jar_is_no_end(tmp_path, monkeypatch):
    """Maven's folder in my home has Delta's POM alone, as after a build that did not need the jar:
    the jar comes from the next place. Here that is the folder where sbt publishes.
    """
    monkeypatch.delenv("DEFAULT_ARTIFACT_REPOSITORY", raising=False)
    coordinates = zeh_spark.configure(SparkSession.Builder())._options["spark.jars.packages"]
    group, name, version = coordinates.split(":")
    home = tmp_path / "a home"
    pom = home / f".m2/repository/{group.replace('.', '/')}/{name}/{version}/{name}-{version}.pom"
    jar = home / f".ivy2.5.2/local/{group}/{name}/{version}/jars/{name}.jar"
    for each in (pom, jar):
        each.parent.mkdir(parents=True)
    pom.write_text(POM.format(group, name, version))
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr("nothing", "")

    homes = {"HOME": str(home), "JDK_JAVA_OPTIONS": f'"-Duser.home={home}"'}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, f"{tmp_path}/ivy"],
        env=os.environ | ENVIRONMENT | homes,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    of_session = f"file://{tmp_path}/ivy/jars/{group}_{name}-{version}.jar"
    assert [coordinates, of_session] == done.stdout.splitlines()[-1].split()
