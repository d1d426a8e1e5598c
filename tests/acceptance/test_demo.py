"""`make demo`, as somebody meets it who ends it before it is done."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from examples.demo import jobs
from tests.fix_spark import ENVIRONMENT

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.parametrize(
    "ended", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.campaign)]
)
def test_a_demo_that_is_ended_leaves_no_process(ended, tmp_path):
    """Ctrl-C, and what a terminal that closes sends, end Spark and the publisher, too."""
    program = [sys.executable, "-m", "examples.demo"]
    environment = {**os.environ, **ENVIRONMENT, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout
        assert next(demo.stdout).startswith("A year of real flights")
        next(line for line in demo.stdout if line.startswith("Publishing: batch 1,"))
        started = psutil.Process(demo.pid).children(recursive=True)
        assert any(map(_is_java, started))
        demo.send_signal(ended)
        rest = demo.stdout.read()

    gone, alive = psutil.wait_procs(started, timeout=30)
    assert (alive, len(gone), demo.returncode != 0) == ([], len(started), True)
    assert "Traceback" not in rest
    assert list(tmp_path.glob("zeh-spark-demo-*")) == []


def _is_java(process):
    try:
        return "java" in process.name()
    except psutil.NoSuchProcess:  # Spark's script has become something else, or has ended
        return False


def test_the_comparison_finds_what_is_missing_doubled_or_changed(spark, capsys):
    """The demo says "exactly once" of nothing else; an empty value is a value, too."""
    rows = spark.createDataFrame([(1, "UA"), (2, None), (3, "DL"), (3, "DL")], "a INT, b STRING")
    doubled = rows.union(rows.where("a = 2"))
    changed = rows.where("a != 2").union(spark.sql("SELECT 2, 'AA'"))

    same = [jobs.is_same(rows, {"it": each}) for each in (rows, doubled, rows.limit(0), changed)]

    assert same == [True, False, False, False]
    assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "0 missing, 0 doubled or changed.",
        "0 missing, 1 doubled or changed.",
        "4 missing, 0 doubled or changed.",
        "1 missing, 1 doubled or changed.",
    ]


@pytest.mark.campaign
def test_a_demo_ends_with_everything_once(tmp_path):
    """I see only what the demo says, and at the end what it found, and a picture."""
    environment = {**os.environ, **ENVIRONMENT, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    log = Path(__file__).parents[2] / "conf" / "log4j2.properties"
    quiet = f"--driver-java-options -Dlog4j2.configurationFile=file:{log} pyspark-shell"
    flights = Path.home() / ".cache" / "zeh-spark"
    if flights.exists():  # what is downloaded once
        shutil.copytree(flights, tmp_path / ".cache" / "zeh-spark")
    demo = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        env={**environment, "PYSPARK_SUBMIT_ARGS": quiet}, capture_output=True, text=True,
        check=True, timeout=600,
    )  # fmt: skip

    said = demo.stdout + demo.stderr
    assert "336,776 flights in the files, 336,776 in the table: 0 missing, 0 doubled" in said
    assert "Each flight was published, and arrived, exactly once." in said
    assert [each for each in ("WARN", "incubator", "Traceback") if each in said] == []
    page = (tmp_path / ".cache" / "zeh-spark" / "demo.html").read_text()
    assert "336,776 flights were published in 6 batches" in page
    assert list(tmp_path.glob("zeh-spark-demo-*")) == []
