"""Each message that the docs name for alerts was found in a log, as it is written there."""

import re
from pathlib import Path

from tests.fix_log_texts import documented

TESTS = Path(__file__).parents[1]


def test_each_message_of_the_docs_is_taken_out_of_a_log():
    """By `check_documented`, in the test that makes the product write it."""
    sources = [file.read_text(encoding="utf-8") for file in TESTS.rglob("test_*.py")]
    taken = re.findall(r"check_documented\([^\"]+\"([^\"]+)\"", "\n".join(sources))

    assert len(documented()) > 15
    assert [] == [each.text for each in documented() if not any(t in each.text for t in taken)]
