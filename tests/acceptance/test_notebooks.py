"""The notebooks run as they are, and what is kept in them is what a run gives."""

import pytest

from notebooks import run
from tests.fix_lake import why_absent
from tests.fix_sessions import needs_batches
from tests.unit.test_notebooks import NAMES, code, kept, texts

MARKS = {
    "03_feed_to_lakehouse": pytest.mark.campaign,  # `test_databricks` runs it and compares
    "04_sessions_and_dedup": needs_batches,
    # They take longest, and what they show has tests of its own.
    "05_when_things_go_wrong": pytest.mark.campaign,
    "06_your_own_table": pytest.mark.campaign,
}

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, ())) for name in NAMES],
)
def test_notebook_runs_and_proves_what_is_kept_in_it(name, warm, tmp_path, monkeypatch):
    """What I read in it is what I get. `python notebooks/run.py` renews the outputs."""
    before = kept(name)
    sources = [cell.source for cell in code(before)]
    if any("lakehouse" in source for source in sources) and (absent := why_absent()):
        pytest.skip(absent)
    if any("sessions" in source for source in sources):
        pytest.importorskip("google.protobuf", reason="protobuf is not installed")

    for variable, value in warm.items():
        monkeypatch.setenv(variable, value)

    again = run.executed(run.HERE / f"{name}.ipynb", tmp_path)

    assert texts(code(again)[-1]) == texts(code(before)[-1])
