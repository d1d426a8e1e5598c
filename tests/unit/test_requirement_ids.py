"""What the documents say about requirements is what the tests say."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "requirement-ids.md"
IN_WORDS = ROOT / "docs" / "explanation" / "requirements.md"
README = ROOT / "tests" / "README.md"
ID = re.compile(r"\b(?:[A-Z]{2}-[0-9]{2}|[ADFR][0-9]{1,2})\b")
NUMBERS = {"EH": 17, "EX": 10, "ZE": 9, "PU": 14, "SB": 13, "D": 23}
OTHERS = {"R": 9, "DL": 3, "KA": 5, "F": 24, "A": 12, "BQ": 1}


def ids(families):
    return {
        f"{family}-{n:02}" if len(family) == 2 else f"{family}{n}"
        for family, last in families.items()
        for n in range(1, last + 1)
    }


def cited():
    """The names of the tests that cite each id in their docstrings."""
    found = defaultdict(set)
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("zeh_spark/testing/contract_*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                for each in ID.findall(ast.get_docstring(node) or ""):
                    found[each].add(node.name)
    return found


def rows():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if ID.match(line.strip("| "))]
    return {each[0]: each[1:] for each in cells}, Counter(each[0] for each in cells)


def test_each_requirement_has_one_row():
    _, counts = rows()

    assert counts == dict.fromkeys(ids(NUMBERS), 1)


def test_a_row_names_a_test_that_cites_it_or_a_reason():
    tests = cited()
    for each, (_, here, why) in rows()[0].items():
        named = re.findall(r"`(test_\w+)`", why)
        assert set(named) <= tests[each], f"{each}: {named} do not cite it: {tests[each]}"
        if here == "yes":
            assert named, f"{each} names no test"
        else:
            assert here in ("otherwise", "not yet"), each
            assert len(why) > 20, f"{each} gives no reason"


def test_the_page_in_words_says_the_same():
    """Where it names an id, both pages judge alike; what is not simply there has a reason."""
    lines = IN_WORDS.read_text(encoding="utf-8").splitlines()
    told = [line.strip("|").split("|") for line in lines if line.count("|") == 5]
    told = [[cell.strip() for cell in row] for row in told if row[1].strip(" -") not in ("", "here")]
    in_words = {(each, row[1]) for row in told for each in ID.findall(row[3])}
    by_id = {each: here for each, (_, here, _) in rows()[0].items()}

    assert len(in_words) >= 40
    assert in_words == {(each, by_id[each]) for each, _ in in_words}
    assert [] == [row[0] for row in told if row[1] != "yes" and len(row[2]) < 20]


def test_the_list_of_ids_without_a_test_is_right():
    """Of all families that the README of the tests explains."""
    text = " ".join(README.read_text(encoding="utf-8").split())
    listed = re.search(r"Cited by no docstring: ([^.]*)\.", text)
    uncited = ids(NUMBERS | OTHERS) - cited().keys()

    assert listed
    assert uncited == set(listed[1].split(", "))
