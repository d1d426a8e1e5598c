"""Run the notebooks and keep their outputs in them: `python notebooks/run.py [NOTEBOOK …]`.

Each runs in a kernel and a folder of its own, as on a laptop. What is kept is what a reader needs:
no logs of Spark's, no times of execution, nothing of this machine; so a notebook that did not
change leaves a small difference. `tests/acceptance/test_notebooks.py` runs them by `executed`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from nbclient import NotebookClient

if TYPE_CHECKING:
    from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
NOTEBOOKS = sorted(HERE.glob("*.ipynb"))
_ENVIRONMENT = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    # These sessions live for a minute: compile little, collect simply.
    "PYSPARK_SUBMIT_ARGS": "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' "
    "pyspark-shell",
}
_BAR = re.compile(r"^.*\x1b\[\?25l.*\n(.*\x1b\[\?25h.*\n)?", re.MULTILINE)
"""What a bar leaves behind: it hides the terminal's cursor, and shows it again."""
PATIENCE = 240
"""Seconds for a cell."""


def executed(path: Path, folder: Path) -> NotebookNode:
    """The notebook with new outputs; raises the error of the first cell that fails. What it writes
    is in `folder`.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=PATIENCE,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**_ENVIRONMENT, **os.environ, "TMPDIR": str(folder)})
    return tidied(notebook)


def tidied(notebook: NotebookNode) -> NotebookNode:
    """Without standard error, where logs are, without bars that showed progress, and with the same
    metadata from every machine.
    """
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output.text = _BAR.sub("", output.text.replace("\r\n", "\n"))
    return notebook


def main(names: list[str]) -> None:
    for path in [Path(name) for name in names] or NOTEBOOKS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            notebook = executed(path, Path(folder))
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.monotonic() - began:.0f} s, {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
