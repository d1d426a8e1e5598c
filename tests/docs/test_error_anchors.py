"""Each error names a place in the page of errors, and that place is there."""

import ast
import pickle
import re
import sys
import traceback
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.test_errors import TREE
from zeh_spark import errors
from zeh_spark.errors import OptionError
from zeh_spark.tools.cli.explain_command import slug
from zeh_spark.tools.cli.main import zeh_spark
from zeh_spark.wire.problems import PROBLEMS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / errors.ERRORS_PAGE).read_text(encoding="utf-8")


def places() -> set[str]:
    """Return all anchors of the page: of headings, as the site makes them, and explicit ones."""
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    return {slug(each) for each in headings} | set(re.findall(r'<a id="(.+?)">', PAGE))


def named_in_code() -> dict[str, str]:
    """Return the anchors that are written in the code, with one file that names each."""
    found = {}
    for file in (ROOT / "zeh_spark").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "anchor":
                for part in ast.walk(node.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        found[part.value] = str(file.relative_to(ROOT))
    return found


def test_what_the_code_names_is_in_the_page():
    known = places()

    assert {place: file for place, file in named_in_code().items() if place not in known} == {}
    assert [each for each in TREE if each.anchor not in known] == []
    assert PROBLEMS.keys() - known == set()
    assert errors.CODES.keys() - known == set()
    assert len(errors.CODES) == len(set(errors.CODES.values()))


def test_every_error_is_explained_offline_by_its_code_and_by_its_heading():
    """What the page says is on my terminal; a name that I mistype is understood."""
    by_code = {code: anchor for anchor, code in errors.CODES.items()}
    for code, anchor in {**by_code, "[ZEH_OPTION]": OptionError.anchor}.items():
        said = CliRunner().invoke(zeh_spark, ["explain", code])
        assert (0, said.output) == (0, CliRunner().invoke(zeh_spark, ["explain", anchor]).output)
        assert said.output.startswith("##"), code
    for heading, place in [("The publisher", "busy"), ("Checkpoints", "the-publisher-tells-no-id")]:
        said = CliRunner().invoke(zeh_spark, ["explain", heading]).output
        (told,) = re.findall(rf"(?im)^- ({place.replace('-', ' ')}.*)", said)
        listed = CliRunner().invoke(zeh_spark, ["explain", told]).output
        assert listed == CliRunner().invoke(zeh_spark, ["explain", place]).output
        assert re.search(r"\n\nZEH_\w+ \(\w+Error\): \w", said)
    meant = CliRunner().invoke(zeh_spark, ["explain", "ZEH_BATCH_GEP"])
    assert (1, True) == (meant.exit_code, "did you mean ZEH_BATCH_GAP" in meant.output)


def test_python_prints_the_address_below_the_message():
    """Also for an error that came from another process."""
    if sys.version_info < (3, 11):
        pytest.skip("Python prints notes since 3.11")
    error = pickle.loads(pickle.dumps(OptionError("'mode' is 'x'", option="mode")))

    printed = traceback.format_exception(error)

    assert printed[-2:] == [
        "zeh_spark.errors.OptionError: [ZEH_OPTION] 'mode' is 'x'\n",
        "See zeh-spark explain an-unknown-option-or-a-wrong-value\n",
    ]
