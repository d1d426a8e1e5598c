"""What is kept in the notebooks is from a run of their cells, and from no machine in particular."""

import base64
import re
from contextlib import nullcontext

import nbformat
import pytest

from notebooks import run
from tests.notebook_pictures import PICTURES, digest, digest_in

NAMES = [path.stem for path in run.NOTEBOOKS]
SIZE = 300_000
OF_A_MACHINE = re.compile(r"/tmp\b|/work/|/home/|/Users/|/root\b|Bearer|[Tt]oken=|\x1b")


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


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_from_a_run_of_these_cells(name):
    """After a change of a cell run it again: `make notebooks ARGS=notebooks/…`."""
    run.main(["--check", str(run.HERE / f"{name}.ipynb")])


@pytest.mark.parametrize("part", ["text", "source", "output", "digest"])
def test_a_change_without_a_run_is_noticed(part, tmp_path):
    """Of a cell, an output, a notebook that never ran. I can mend a sentence without Spark."""
    notebook = kept(NAMES[0])
    cell = next(cell for cell in code(notebook) if "text" in cell.outputs[0])
    if part == "text":
        notebook.cells[0].source += "."
    elif part == "source":
        cell.source += "\n"
    elif part == "output":
        cell.outputs[0].text += "1"
    else:
        del notebook.metadata["zeh_spark"]
    changed = tmp_path / "changed.ipynb"
    nbformat.write(notebook, changed)

    told = r"Cells or outputs were changed .*/changed\.ipynb"
    with nullcontext() if part == "text" else pytest.raises(SystemExit, match=told):
        run.main(["--check", str(changed)])


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_small_whole_and_of_no_machine(name):
    """Each cell ran once, in order and without an error; nothing says where."""
    notebook = kept(name)
    cells = code(notebook)
    shown = [texts(cell) for cell in cells]
    kinds = {output.output_type for cell in cells for output in cell.outputs}

    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert kinds <= {"stream", "display_data", "execute_result"}
    assert [text for text in shown if OF_A_MACHINE.search(text)] == []
    assert texts(cells[-1])  # whose assertions hold
    path = run.HERE / f"{name}.ipynb"
    # a change of a notebook is a change of what it says
    assert path.stat().st_size < SIZE
    assert path.read_text() == nbformat.writes(run.tidied(notebook)) + "\n"
    assert all(re.fullmatch(r"[a-z-]+", cell.id) for cell in notebook.cells)


@pytest.mark.parametrize("name", NAMES)
def test_it_begins_with_a_picture_of_what_runs_where(name):
    """A file beside it, which GitHub, Jupyter and Databricks find; who cannot see it reads it."""
    (shown,) = re.findall(r"!\[(.+)\]\((.+)\)", kept(name).cells[0].source)
    about, path = shown

    assert path == f"pictures/{name}.png"
    assert len(about) > 50
    assert digest_in(run.HERE / path) == digest((run.HERE / path).with_suffix(".svg")), (
        "stale: run python -m tests.notebook_pictures"
    )


def test_pictures_have_one_style():
    """They look like those of the docs, also on a dark page."""
    docs = run.HERE.parent / "docs" / "pictures" / "publishing.svg"
    (style,) = re.findall(r"<style>.*</style>", docs.read_text(), re.DOTALL)

    assert [each.stem for each in sorted(PICTURES.glob("*.svg"))] == NAMES
    assert all(style in each.read_text() for each in PICTURES.glob("*.svg"))


def test_charts_have_twice_the_pixels():
    """They are sharp on a good screen."""
    shown = [
        (output.metadata["image/png"], output.data["image/png"])
        for name in NAMES
        for cell in code(kept(name))
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]

    assert len(shown) >= len(NAMES)
    for about, png in shown:
        width = int.from_bytes(base64.b64decode(png)[16:20], "big")  # PNG's IHDR
        assert 2 * about["width"] == pytest.approx(width, abs=2)


def test_readme_names_all():
    """The list in the folder is complete."""
    readme = (run.HERE / "README.md").read_text()

    assert [name for name in NAMES if f"({name}.ipynb)" not in readme] == []
