"""Which tests hold which requirement: read from the docstrings, written to `requirement-ids.md`.

`python -m tests.requirement_ids` writes the page; `tests/unit/test_requirement_ids.py` fails if it
is stale. It needs nothing but Python.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("requirement-ids.md")
ID = re.compile(r"\b(?:[A-Z]{2}-[0-9]{2}|[ADFR][0-9]{1,2})\b")
NUMBERS = {"EH": 17, "EX": 10, "ZE": 9, "PU": 14, "SB": 13, "D": 23}
"""The last number of each family that `docs/explanation/requirement-ids.md` explains."""
OTHERS = {"R": 9, "DL": 3, "KA": 5, "IC": 1, "DS": 2, "BQ": 1, "F": 24, "A": 12}

_HEAD = """# Which tests hold a requirement

Generated from the docstrings of the tests by `python -m tests.requirement_ids`.
[Tests](README.md) says where the ids come from, and
[Requirements and their tests](../docs/explanation/requirement-ids.md) what each of the first
families asks for.
"""


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
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                for each in ID.findall(ast.get_docstring(node) or ""):
                    found[each].add(node.name)
    return dict(found)


def page() -> str:
    """Return the page as the docstrings have it now."""
    tests, known = cited(), ids(NUMBERS | OTHERS)
    rows = [f"| {each} | {', '.join(sorted(tests[each]))} |" for each in known if each in tests]
    absent = ", ".join(each for each in known if each not in tests)
    table = "\n".join(["| id | tests |", "|---|---|", *rows])
    return f"{_HEAD}\n{table}\n\nCited by no docstring: {absent}.\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
