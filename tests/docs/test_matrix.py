"""The matrix of Spark versions: what the page shows is what the tests gave."""

from __future__ import annotations

import ast

from tests.cases import each_case
from tests.matrix import LINES, PAGE, SPARKS, TESTS, Line, stored, table, verdict, written

TWO = Line("part", "classic", ("m::a", "m::b"), refusal="m::c")
RUNS = stored()


def functions_of(module: str) -> set[str]:
    tree = ast.parse((TESTS / f"{module}.py").read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_part_is_there_in_both_kinds_of_session():
    """Declarative pipelines run on Spark Connect only."""
    lines = [(line.part, line.session) for line in LINES]
    parts = {part for part, _ in lines} - {"declarative pipelines"}

    assert len(lines) == len(set(lines))
    assert {(part, session) for part in parts for session in ("classic", "Connect")} <= {*lines}


def test_a_line_names_tests_that_exist():
    for line in LINES:
        for name in line.names:
            module, _, test = name.partition("::")
            assert test.partition("[")[0] in functions_of(module), name


@each_case("spark", SPARKS)
def test_each_cell_has_been_run(spark):
    """Each test of each line has an outcome on each Spark, and none is a failure."""
    run = RUNS[spark]

    assert {name for line in LINES for name in line.names} == {*run["tests"]}
    assert [] == [line for line in LINES if verdict(line, run["tests"])[0] == "failed"]
    assert run["spark"].startswith(spark)


def test_the_page_shows_the_runs():
    """`make matrix` writes it, and no other Spark is in it."""
    page = PAGE.read_text(encoding="utf-8")

    assert {*RUNS} <= {*SPARKS}
    assert written(page, RUNS) == page


@each_case(
    ("outcomes", "expected"),
    [
        ({"m::a": "passed", "m::b": "passed"}, ("passed", "")),
        ({"m::a": "passed", "m::b": "failed"}, ("failed", "")),
        ({"m::a": "passed", "m::b": "skipped: no b"}, ("failed", "")),
        ({"m::a": "passed"}, ("failed", "")),
        ({"m::a": "skipped: none", "m::b": "skipped: none", "m::c": "passed"}, ("refused", "")),
        ({"m::a": "skipped: none", "m::b": "skipped: no b", "m::c": "skipped: none"},
         ("not there", "no b; none")),
    ],
)  # fmt: skip
def test_a_cell_is_what_its_tests_gave(outcomes, expected):
    """Nothing counts as passed or refused that was not run."""
    assert expected == verdict(TWO, outcomes)


def test_reasons_for_what_is_not_there_are_numbered_once():
    missing = {name: "skipped: no Delta" for line in LINES for name in line.names}
    run = {"spark": "4.9.0", "delta": "none", "python": "3.12.1", "java": "17", "tests": missing}

    shown = table({"4.9": run})

    assert f"| {LINES[0].part} | classic | not there (1) |" in shown
    assert shown.count("no Delta") == 1
