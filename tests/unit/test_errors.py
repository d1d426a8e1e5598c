"""Errors carry facts, travel between processes, and reach Spark's users with one frame."""

from __future__ import annotations

import inspect
import io
import logging
import pickle
import re
import traceback

import pytest

from zeh_spark import errors
from zeh_spark.errors import UnavailableError, ZeroEventHubError, at_spark_border

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
    "partition": 3,
    "cursor": "17",
    "option": "url",
    "status": 410,
    "body": "gone",
    "expected": {"n": 4},
    "got": [1, "a"],
}


@pytest.mark.parametrize("kind", TREE)
def test_an_error_pickles_with_its_facts(kind):
    """An error raised on an executor tells me on the driver where it happened."""
    names = inspect.signature(kind).parameters.keys() & FACTS.keys()
    error = kind("what happened", **{name: FACTS[name] for name in names})

    copy = pickle.loads(pickle.dumps(error))

    assert (kind, "what happened") == (type(copy), str(copy))
    assert vars(error) == vars(copy)


@pytest.mark.parametrize("kind", TREE)
def test_an_error_says_what_it_means(kind):
    """Each kind of error has a sentence that explains it."""
    assert inspect.getdoc(kind)


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


def test_a_mistake_in_an_option_is_a_value_error():
    """I can catch it as Python's own."""
    assert issubclass(errors.OptionError, ValueError)


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


@pytest.mark.parametrize("call", [failing, lambda error: list(failing_later(error))])
def test_spark_shows_one_frame_of_ours(call):
    """The last line of Spark's error is the message, and nothing else of ours fills the screen."""
    with pytest.raises(UnavailableError) as caught:
        call(UnavailableError("the publisher does not answer"))

    shown = "".join(traceback.format_exception(caught.value))
    assert "UnavailableError: the publisher does not answer" in shown.splitlines()[-1]
    assert "_deep_inside" not in shown
    assert "ConnectionRefusedError" not in shown


def test_the_cause_of_what_spark_shows_is_logged():
    """Whoever runs the cluster finds the whole story in the log."""
    handler = logging.StreamHandler(io.StringIO())  # not pytest's: PySpark changes its format
    errors.log.addHandler(handler)
    try:
        with pytest.raises(ZeroEventHubError):
            failing(UnavailableError("the publisher does not answer"))
    finally:
        errors.log.removeHandler(handler)

    assert "ConnectionRefusedError: port 1" in handler.stream.getvalue()


def test_errors_that_are_not_ours_pass_unchanged():
    """A bug of ours shows with its whole traceback."""
    with pytest.raises(KeyError) as caught:
        failing(KeyError("bug"))

    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


def test_what_works_is_not_touched():
    """The border only deals with errors."""
    assert (5, [0, 1, 2]) == (at_spark_border(len)("rows!"), list(at_spark_border(range)(3)))
