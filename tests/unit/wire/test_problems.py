"""The types of problems: what a publisher raises, and what a client reads, are the same."""

import pytest

from tests.cases import each_case
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems
from zeh_spark.wire.problems import PROBLEMS, ProblemType

GONE = {"partition": 0, "cursor": "17.ab", "oldest": "20.cd", "lost": {"0": "20.cd"}}


def test_the_name_of_the_constant_is_the_name_of_the_problem():
    """I find what is raised from the name that I read in an answer."""
    constants = {key: each for key, each in vars(problems).items() if type(each) is ProblemType}

    assert constants == {key.upper().replace("-", "_"): each for key, each in PROBLEMS.items()}


@each_case("name", PROBLEMS)
def test_a_type_is_an_error_that_is_explained(name):
    """Each problem has an error status and a sentence that says what happened."""
    declared = PROBLEMS[name]

    assert 400 <= declared.status < 600
    assert declared.says.endswith(".")
    assert declared.optional <= declared.members.keys()


def test_a_problem_has_the_status_and_name_of_its_type():
    """A program compares `type`; the facts are members of the document."""
    problem = Problem(problems.CURSOR_GONE, "removed", **GONE)

    assert problem.document() == {
        "type": "urn:zeroeventhub:problem:cursor-gone",
        "title": "Cursor gone",
        "status": 410,
        "detail": "removed",
        **GONE,
    }
    assert (problem.name, problem.status) == ("cursor-gone", 410)


def test_what_is_not_declared_is_refused_at_once():
    """A member that is missing, one that is unknown, and a type that is there twice."""
    for missing in GONE.keys() - {"lost"}:
        members = {name: value for name, value in GONE.items() if name != missing}
        with pytest.raises(TypeError, match=f"'cursor-gone' needs the member '{missing}'"):
            Problem(problems.CURSOR_GONE, "removed", **members)
    with pytest.raises(TypeError, match="'cursor-gone' has no member 'newest'"):
        Problem(problems.CURSOR_GONE, "removed", **GONE, newest="30.ef")
    with pytest.raises(ValueError, match="'fenced' is declared twice"):
        problems.declare("fenced", 403, "Again.")


def test_an_optional_member_may_be_left_out_and_added_later():
    """The identity of a feed is added only if the feed tells one."""
    problem = Problem(problems.PARTITION_COUNT_MISSING, "n is missing", partitionCount=2)

    told = problem.with_members(feed={"id": "9f86d081884c7d65"})

    assert "feed" not in problem.document()
    assert told.document() == {**problem.document(), "feed": {"id": "9f86d081884c7d65"}}


@each_case(
    ("document", "name"),
    [
        ({"type": problems.FENCED.type}, "fenced"),
        ({"type": "urn:zeroeventhub:problem:of-a-newer-version"}, "of-a-newer-version"),
        ({"type": "about:blank"}, None),
        ({"type": ["urn:zeroeventhub:problem:fenced"]}, None),
        ({}, None),
    ],
)
def test_a_client_reads_the_name_of_our_problems_only(document, name):
    """Other services have problem documents of their own."""
    assert name == problems.name_in(document)


@each_case(
    ("status", "transient"),
    [(400, False), (404, False), (408, True), (425, True), (429, True), (500, True), (507, True)],
)
def test_a_client_repeats_what_may_be_answered_otherwise_later(status, transient):
    assert transient is problems.is_transient(status)
