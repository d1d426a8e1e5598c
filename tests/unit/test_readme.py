"""The README's tables say what the code does."""

import re
from pathlib import Path

from zeh_spark.audit.findings import Difference, Tally
from zeh_spark.protocol.problems import PROBLEMS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(first_cell: str) -> list[list[str]]:
    """The rows of the table whose header begins so."""
    lines = README.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    found = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split(" |")])
    return found


def test_every_refusal_of_a_batch_is_explained():
    """What an error names can be looked up; only what concerns writers of clients is left out."""
    told = {name for row in rows("refusal") for name in re.findall(r"`([\w-]+)`", row[0])}

    decided = {name for name, known in PROBLEMS.items() if "incarnation" in known.members}

    assert decided - {"upload-conflict", "unknown-batch"} == told


def test_an_audit_speaks_as_the_example_does():
    """What to expect is what comes."""
    tally = Tally(producers=3, batches=1234, events=5_678_901, first=1, last=9876)
    wrong = Difference(17, "sequence number in partition 0", 1000, 2000, "orders-job", 3)

    assert f"\n{tally}\n" in README
    assert f" is not as published:\n{wrong}\n" in README
