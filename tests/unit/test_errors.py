"""Errors carry facts, travel between processes, and reach Spark's users with one frame."""

from __future__ import annotations

import ast
import inspect
import io
import logging
import pickle
import re
import traceback
from pathlib import Path

import pytest

from tests.cases import each_case
from zeh_spark import errors
from zeh_spark.client.http.responses import TransientError
from zeh_spark.errors import (
    OptionAdvice,
    PublisherError,
    PublishError,
    UnavailableError,
    ZeroEventHubError,
    at_spark_border,
)
from zeh_spark.wire.problems import PROBLEMS

TREE = sorted(
    (
        each
        for each in vars(errors).values()
        if inspect.isclass(each)
        and each.__module__ == errors.__name__
        and issubclass(each, Exception)
    ),
    key=lambda kind: kind.__name__,
)
FACTS = {
    "anchor": "batch-gap",
    "partition": 3,
    "cursor": "17",
    "option": "url",
    "status": 410,
    "body": "gone",
    "expected": {"n": 4},
    "got": [1, "a"],
    "row": 3,
    "reason": "NULL",
}


@each_case("kind", TREE)
def test_an_error_pickles_with_its_facts(kind):
    """An error raised on an executor tells me on the driver where it happened."""
    error = kind("what happened", **{name: FACTS[name] for name in FACTS if hasattr(kind, name)})

    copy = pickle.loads(pickle.dumps(error))

    assert (kind, "what happened", str(error)) == (type(copy), copy.what, str(copy))
    assert (vars(error), error.help) == (vars(copy), copy.help)
    assert inspect.getdoc(kind)  # a sentence that explains it


def test_the_tree_in_the_docstring_is_the_tree_in_the_code():
    """The overview at the top of the file is complete and right."""
    lines = re.findall(r"^    ([ │├└─]*)(\w+Error)\b", errors.__doc__, re.MULTILINE)
    path: list[str] = []
    drawn = {}
    for indent, name in lines:
        depth = len(indent) // 4
        path[depth:] = [name]
        drawn[name] = path[depth - 1] if depth else "Exception"

    assert {kind.__name__: kind.__bases__[0].__name__ for kind in TREE} == drawn
    assert issubclass(errors.OptionError, ValueError)  # I can catch it as Python's own


def test_advice_about_options_is_part_of_the_message():
    """I read what to set; a program that has no such option leaves the advice out."""
    advice = OptionAdvice("check {} or {}", ("token", "tokenFile"))

    error = UnavailableError("401", advice=advice)

    assert "[ZEH_UNAVAILABLE] 401; check 'token' or 'tokenFile'" == str(error)
    assert "401" == error.what
    assert "check 'TOKEN' or 'TOKENFILE'" == str(advice.renamed(str.upper))
    copy = pickle.loads(pickle.dumps(error))
    assert (error.what, error.advice) == (copy.what, copy.advice)


def test_a_message_has_one_code():
    """An error that quotes another one has its own code; I search for that."""
    inner = errors.PublishError("answered 409", anchor="batch-gap")
    renamed = errors.PublishError("the name is taken", problem="number-taken", anchor="x")

    outer = errors.RowError(f"row 3: {inner}. Repair it")

    assert "[ZEH_BATCH_GAP] answered 409" == str(inner)
    assert "[ZEH_NUMBER_TAKEN] the name is taken" == str(renamed)
    assert "[ZEH_ROW] row 3: answered 409. Repair it" == str(outer)


def test_each_kind_of_error_has_a_code_of_its_own():
    """Each refusal of the publisher, too, unless it is what a class says."""
    of_classes = {kind.__name__: kind("?").code for kind in TREE}
    of_refusals = {name: PublishError("?", problem=name).code for name in PROBLEMS}

    assert len(TREE) == len(set(of_classes.values()))
    assert len(PROBLEMS) == len(set(of_refusals.values()))
    shared = set(of_classes.values()) & set(of_refusals.values())
    assert shared == {"ZEH_CURSOR_GONE"}
    assert of_classes["OutcomeUnknownError"] == "ZEH_OUTCOME_UNKNOWN"
    assert all(re.fullmatch("ZEH_[A-Z0-9_]+", each) for each in of_refusals.values())


@at_spark_border
def failing(error: Exception) -> None:
    _deep_inside(error)


@at_spark_border
def failing_later(error: Exception):
    yield "a row"
    _deep_inside(error)


def _deep_inside(error: Exception) -> None:
    try:
        raise ConnectionRefusedError("port 1")
    except ConnectionRefusedError as exc:
        raise error from exc


@each_case("call", [failing, lambda error: list(failing_later(error))])
def test_spark_shows_one_frame_of_ours(call):
    """Spark's error ends with the message and its address, after one frame of ours."""
    with pytest.raises(UnavailableError) as caught:
        call(UnavailableError("the publisher does not answer"))

    address = f"{caught.value.see}\n"
    shown = "".join(traceback.format_exception(caught.value)).removesuffix(address)
    message = "UnavailableError: [ZEH_UNAVAILABLE] the publisher does not answer"
    assert message in shown.splitlines()[-1]
    assert "_deep_inside" not in shown
    assert "ConnectionRefusedError" not in shown


def test_the_cause_of_what_spark_shows_is_logged():
    """Whoever runs the cluster finds the whole story in the log."""
    handler = logging.StreamHandler(io.StringIO())  # not pytest's: PySpark changes its format
    errors.log.addHandler(handler)
    errors.log.setLevel(logging.INFO)
    try:
        with pytest.raises(ZeroEventHubError):
            failing(UnavailableError("the publisher does not answer"))
    finally:
        errors.log.removeHandler(handler)
        errors.log.setLevel(logging.NOTSET)

    assert "ConnectionRefusedError: port 1" in handler.stream.getvalue()


def test_what_is_not_our_error_passes_unchanged():
    """A bug of ours shows with its whole traceback, and what works is not touched."""
    assert (5, [0, 1, 2]) == (at_spark_border(len)("rows!"), list(at_spark_border(range)(3)))
    with pytest.raises(KeyError) as caught:
        failing(KeyError("bug"))

    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


def test_no_program_decides_on_the_text_of_an_error():
    """A message can be improved, and nothing behaves otherwise after that."""
    package = Path(errors.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if is_decision_on_text(node)
    }

    assert found <= TEXT_IS_ALL_THERE_IS


TEXT_IS_ALL_THERE_IS = {
    "client/http/responses.py",  # requests has no class for a proxy of SOCKS
    "tools/loading/csv_rows.py",  # Python's csv module has one class for all errors
}


def is_decision_on_text(node: ast.AST) -> bool:
    """Whether it looks for something in `str(...)`."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return is_text(node.comparators[0])
    asks = isinstance(node, ast.Attribute) and node.attr in ("startswith", "endswith", "replace")
    return asks and is_text(node.value)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str"


def test_no_error_holds_what_a_terminal_obeys():
    """A publisher's words, in an error or in the log of a retry, are shown and do nothing."""
    said = "\x1b[2J\r\x00\x7f\x9b31m\u202e\u2066 tab\t, line\r\nend \N{GREEK SMALL LETTER PI}"
    shown = (
        "\\u001b[2J\\u000d\\u0000\\u007f\\u009b31m\\u202e\\u2066 tab\t, line\r\nend "
        "\N{GREEK SMALL LETTER PI}"
    )
    error = PublisherError(said)

    assert shown == error.what
    assert f"[ZEH_PUBLISHER] {shown}" == str(error)
    assert shown == str(TransientError(error)) == str(TransientError(error, reason=said))
