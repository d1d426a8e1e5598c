"""State outlives the Spark that wrote it."""

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.fix_killed import run_to_the_end
from tests.fix_sessions import rows_of

ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
@pytest.mark.parametrize("version", ["4.0", "4.1"])
def test_sessions_continue_with_the_state_of_an_older_spark(orders, tmp_path, version):
    """What is held, how far sessions are, and the settings of the checkpoint."""
    subprocess.run(["make", f".venv-spark-{version}/.installed"], cwd=ROOT, check=True)
    older = str(ROOT / f".venv-spark-{version}" / "bin" / "python")
    orders.add(("a", 0), ("a", 2), *(("large", step) for step in range(1, 200)))
    job = {"kind": "order", "url": orders.url, "limit": "1", "tables": str(tmp_path)}
    job["checkpoint"] = str(orders.checkpoint)
    run_to_the_end(tmp_path, [job], older)
    orders.add(("a", 1), ("a", 0), ("large", 0))

    run_to_the_end(tmp_path, [job])

    rows = rows_of(tmp_path, "ordered")
    assert [0, 1, 2] == [step for name, step in rows if name == "a"]
    assert list(range(200)) == [step for name, step in rows if name == "large"]
    assert [] == rows_of(tmp_path, "dead")
