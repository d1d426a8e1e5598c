"""Run the notebooks and keep their outputs in them: `python notebooks/run.py [NOTEBOOK …]`.

Each runs in a kernel and a folder of its own, as on a laptop. What is kept is what a reader needs:
no logs of Spark's, no times of execution, nothing of this machine, and port 8080 in place of the
port that happened to be free. So a notebook that did not change has a small difference after a run.

A run also keeps a digest of the code cells and their outputs in the notebook's metadata. With
`--check` nothing is run. The digests are compared, which finds a cell that was changed without a
run, and an output that is from no run. `tests/unit/test_notebooks.py` checks the same, and
`tests/acceptance/test_notebooks.py` runs the notebooks by `executed`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
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
    # These sessions live for a minute: compile little, collect simply. The default code cache
    # of the first level is too small for the longest, and the JVM prints that it is full.
    "PYSPARK_SUBMIT_ARGS": "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:ReservedCodeCacheSize=128m' pyspark-shell",
}
_BAR = re.compile(r"^.*\x1b\[\?25l.*\n(.*\x1b\[\?25h.*\n)?", re.MULTILINE)
"""What a bar leaves behind: it hides the terminal's cursor, and shows it again."""
_PORT = re.compile(r"(127\.0\.0\.1:|--port )[1-9]\d+")
PATIENCE = 240
"""Seconds for a cell."""
_OURS = "zeh_spark"
"""The key of the digest in a notebook's metadata."""


def executed(path: Path, folder: Path) -> NotebookNode:
    """Return the notebook with new outputs. It writes its files into `folder`.

    Raises the error of the first cell that fails.
    """
    notebook = nbformat.read(path, as_version=4)
    shutil.copytree(HERE / "kit", folder / "kit", dirs_exist_ok=True)  # beside it, as here
    client = NotebookClient(
        notebook,
        timeout=PATIENCE,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**_ENVIRONMENT, **os.environ, "TMPDIR": str(folder)})
    notebook = tidied(notebook)
    notebook.metadata[_OURS] = {"digest": digest(notebook)}
    return notebook


def tidied(notebook: NotebookNode) -> NotebookNode:
    """Return it without standard error, where logs are, without bars that showed progress, and with
    the same metadata and port from every machine.
    """
    ours = {_OURS: notebook.metadata[_OURS]} if _OURS in notebook.metadata else {}
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        **ours,
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output.text = _tidied(output.text)
                elif "text/plain" in output.get("data", {}):
                    output.data["text/plain"] = _tidied(output.data["text/plain"])
    return notebook


def _tidied(text: str) -> str:
    return _PORT.sub(r"\g<1>8080", _BAR.sub("", text.replace("\r\n", "\n")))


def digest(notebook: NotebookNode) -> str:
    """Return a digest of the code cells and of what is kept of their outputs."""
    ran = [[cell.source, cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(ran, sort_keys=True).encode()).hexdigest()


def is_from_a_run(notebook: NotebookNode) -> bool:
    """Return whether a run of the present cells gave the outputs that are kept."""
    return notebook.metadata.get(_OURS, {}).get("digest") == digest(notebook)


def check(paths: list[Path]) -> None:
    """Raises SystemExit, with the notebooks whose outputs are not from a run of their cells."""
    stale = [path for path in paths if not is_from_a_run(nbformat.read(path, as_version=4))]
    if stale:
        names = " ".join(str(path) for path in stale)
        raise SystemExit(
            f"Cells or outputs were changed since the last run. Run: {__file__} {names}"
        )


def run(paths: list[Path]) -> None:
    for path in paths:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            notebook = executed(path, Path(folder))
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.monotonic() - began:.0f} s, {path.stat().st_size // 1000} kB")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", type=Path, default=NOTEBOOKS, metavar="NOTEBOOK")
    parser.add_argument("--check", action="store_true", help="compare the digests; run nothing")
    given = parser.parse_args(arguments)
    (check if given.check else run)(given.notebooks)


if __name__ == "__main__":
    main()
