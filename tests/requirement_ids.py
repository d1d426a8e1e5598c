"""Which tests hold which requirement, read from their docstrings.

`python -m tests.requirement_ids` prints it. It needs nothing but Python.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
ID = re.compile(r"\b(?:[A-Z]{2}-[0-9]{2}|[ADFR][0-9]{1,2})\b")
NUMBERS = {"EH": 19, "EX": 10, "ZE": 13, "PU": 14, "SB": 14, "WV": 3, "CN": 7, "D": 23}
"""The last number of each family that `docs/explanation/requirement-ids.md` explains."""
OTHERS = {"R": 9, "DL": 3, "KA": 5, "IC": 1, "DS": 2, "BQ": 1, "F": 24, "A": 12}


def ids(families: Mapping[str, int]) -> list[str]:
    """Return all ids of families, in their order."""
    return [
        f"{family}-{n:02}" if len(family) == 2 else f"{family}{n}"
        for family, last in families.items()
        for n in range(1, last + 1)
    ]


@functools.cache
def cited() -> dict[str, set[str]]:
    """Return the names of the tests that cite each id in their docstrings."""
    found = defaultdict(set)
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("tests/store_contract/*.py")]
    for file in files:
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if ID.search(text) else ():
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                for each in ID.findall(ast.get_docstring(node) or ""):
                    found[each].add(node.name)
    return dict(found)


if __name__ == "__main__":
    for each in ids(NUMBERS | OTHERS):
        print(each, *sorted(cited().get(each, ["is cited by no test"])))
