"""What the documents say about requirements is what the tests say."""

import re
from collections import Counter

from tests.requirement_ids import ID, NUMBERS, OTHERS, ROOT, cited, ids

BY_ID = ROOT / "docs" / "explanation" / "requirement-ids.md"
IN_WORDS = ROOT / "docs" / "explanation" / "requirements.md"


def rows():
    lines = BY_ID.read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if ID.match(line.strip("| "))]
    return {each[0]: each[1:] for each in cells}, Counter(each[0] for each in cells)


def test_each_requirement_has_one_row():
    _, counts = rows()

    assert counts == dict.fromkeys(ids(NUMBERS), 1)


def test_a_row_names_tests_that_cite_it_or_a_reason():
    tests = cited()
    for each, (_, here, why) in rows()[0].items():
        named = set(re.findall(r"`(test_\w+)`", why))
        assert named <= tests.get(each, set()), f"{each}: {named} do not all cite it"
        if here == "yes":
            assert named, f"{each} names no test"
        else:
            assert here in ("otherwise", "not yet"), each
            assert len(why) > 20, f"{each} gives no reason"


def test_the_page_in_words_says_the_same():
    """Where it names an id, both pages judge alike; what is not simply there has a reason."""
    lines = IN_WORDS.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    told = [row for row in cells if len(row) == 4 and row[1] in ("yes", "otherwise", "not yet")]
    in_words = {(each, row[1]) for row in told for each in ID.findall(row[3])}
    by_id = {each: here for each, (_, here, _) in rows()[0].items()}

    assert len(in_words) >= 40
    assert in_words == {(each, by_id[each]) for each, _ in in_words}
    assert [] == [row[0] for row in told if row[1] != "yes" and len(row[2]) < 20]


def test_every_id_in_a_docstring_is_of_a_family():
    """So that it can be looked up."""
    assert set() == cited().keys() - set(ids(NUMBERS | OTHERS))
