"""The notebooks run as they are, and what is kept in them is what a run gives."""

from __future__ import annotations

import re

import nbformat
import pytest

from notebooks import run
from tests.fix_lake import why_absent
from tests.fix_spark import ENVIRONMENT

NAMES = [path.stem for path in run.NOTEBOOKS]
LONGEST = "05_when_things_go_wrong"
"""Takes minutes. What it shows has tests of its own."""
SIZE = 300_000
OF_A_MACHINE = re.compile(r"/tmp\b|/work/|/home/|/Users/|/root\b|Bearer|[Tt]oken=|\x1b")

pytestmark = pytest.mark.slow


def kept(name):
    return nbformat.read(run.HERE / f"{name}.ipynb", as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(cell):
    """What a cell shows, without pictures."""
    shown = []
    for output in cell.outputs:
        shown.append(output.get("text", ""))
        shown += [text for kind, text in output.get("data", {}).items() if "image" not in kind]
    return "".join(map(str, shown))


def proof(notebook):
    """What the last cell says, whose assertions hold."""
    return texts(code(notebook)[-1])


@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.campaign) if name == LONGEST else name for name in NAMES],
)
def test_notebook_runs_and_proves_what_is_kept_in_it(name, tmp_path, monkeypatch):
    """What I read in a notebook is what I get. If this fails for a change that was meant, renew
    the outputs: `python notebooks/run.py`.
    """
    before = kept(name)
    sources = [cell.source for cell in code(before)]
    if any("lakehouse" in source for source in sources) and (absent := why_absent()):
        pytest.skip(absent)
    if any("sessions" in source for source in sources):
        pytest.importorskip("google.protobuf", reason="protobuf is not installed")

    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", ENVIRONMENT["PYSPARK_SUBMIT_ARGS"])

    again = run.executed(run.HERE / f"{name}.ipynb", tmp_path)

    assert proof(again) == proof(before)


@pytest.mark.parametrize("name", NAMES)
def test_kept_outputs_are_whole_and_of_no_machine(name):
    """Each cell ran once, in order and without an error; nothing says where."""
    cells = code(kept(name))
    shown = [texts(cell) for cell in cells]
    kinds = {output.output_type for cell in cells for output in cell.outputs}

    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert kinds <= {"stream", "display_data", "execute_result"}
    assert [text for text in shown if OF_A_MACHINE.search(text)] == []
    assert proof(kept(name))


@pytest.mark.parametrize("name", NAMES)
def test_file_is_small_and_as_the_tool_writes_it(name):
    """A change of a notebook is a change of what it says."""
    path = run.HERE / f"{name}.ipynb"
    notebook = kept(name)

    assert path.stat().st_size < SIZE
    assert path.read_text() == nbformat.writes(run.tidied(notebook)) + "\n"
    assert all(re.fullmatch(r"[a-z-]+", cell.id) for cell in notebook.cells)


def test_all_begin_alike():
    """Who has set one up has set up all."""
    begins = {code(kept(name))[0].source for name in NAMES}

    assert len(begins) == 1


def test_readme_names_all():
    """The list in the folder is complete."""
    readme = (run.HERE / "README.md").read_text()

    assert [name for name in NAMES if f"({name}.ipynb)" not in readme] == []
