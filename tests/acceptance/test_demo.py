"""`make demo`, as somebody meets it who ends it before it is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.fix_spark import ENVIRONMENT

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.parametrize(
    "ended", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.campaign)]
)
def test_a_demo_that_is_ended_leaves_no_process(ended, tmp_path):
    """Ctrl-C, and what a terminal that closes sends, end Spark and the publisher, too."""
    program = [sys.executable, "-m", "zeh_spark.demo"]
    environment = {**os.environ, **ENVIRONMENT, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout
        assert next(demo.stdout).startswith("A year of real flights")
        next(line for line in demo.stdout if line.startswith("Publishing: batch 1,"))
        started = psutil.Process(demo.pid).children(recursive=True)
        assert any("java" in each.name() for each in started)
        demo.send_signal(ended)
        rest = demo.stdout.read()

    gone, alive = psutil.wait_procs(started, timeout=30)
    assert (alive, len(gone), demo.returncode != 0) == ([], len(started), True)
    assert "Traceback" not in rest
    assert list(tmp_path.glob("zeh-spark-demo-*")) == []
