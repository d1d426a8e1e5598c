"""The notebooks run as they are, and what is kept in them is what a run gives."""

from __future__ import annotations

import pytest

from notebooks import run
from tests.fix_lake import why_absent
from tests.fix_spark import ENVIRONMENT
from tests.unit.test_notebooks import NAMES, code, kept, proof
from zeh_spark._compat import HAS_ADMISSION_CONTROL

LONG = ("05_when_things_go_wrong", "06_your_own_table")
"""They take longest, and what they show has tests of its own."""

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.campaign) if name in LONG else name for name in NAMES],
)
def test_notebook_runs_and_proves_what_is_kept_in_it(name, tmp_path, monkeypatch):
    """What I read in a notebook is what I get. If this fails for a change that was meant, renew
    the outputs: `python notebooks/run.py`.
    """
    if name == "04_sessions_and_dedup" and not HAS_ADMISSION_CONTROL:
        pytest.skip("on this Spark a finite run is one batch, and judges no gap")
    before = kept(name)
    sources = [cell.source for cell in code(before)]
    if any("lakehouse" in source for source in sources) and (absent := why_absent()):
        pytest.skip(absent)
    if any("sessions" in source for source in sources):
        pytest.importorskip("google.protobuf", reason="protobuf is not installed")

    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", ENVIRONMENT["PYSPARK_SUBMIT_ARGS"])

    again = run.executed(run.HERE / f"{name}.ipynb", tmp_path)

    assert proof(again) == proof(before)
