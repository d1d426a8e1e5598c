"""A notebook's kernel as Databricks starts one: environment, `dbutils`, and a session with Delta.

What is emulated is Databricks' public interface. Unity Catalog, volumes and access modes are not:
a schema of Spark's own catalog stands for `main.default`, and a folder for a volume.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from notebooks import run as notebooks
from tests.fix_publisher import served
from tests.fix_spark import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbformat import NotebookNode

    from tests.fix_cli import Run

ROOT = Path(__file__).parents[1]
RUNTIME = ROOT / "tests" / "databricks_runtime"


@dataclass
class Workspace:
    """A workspace with a volume, and a feed `flights` that wants a token."""

    folder: Path
    token: str

    @property
    def volume(self) -> Path:
        return self.folder / "volume"

    def notebook(self, name: str) -> NotebookNode:
        """Run a notebook of this repository, as a job with its parameters would."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        return notebooks.executed(notebooks.HERE / f"{name}.ipynb", work)

    def files_with_the_token(self) -> list[str]:
        """Name what in the volume, in the notebook's folder or in its tables holds the token."""
        secret = self.token.encode()
        return [
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.is_file() and secret in path.read_bytes()
        ]


@pytest.fixture
def databricks(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace whose notebooks find the feed's address and token as on Databricks."""
    run("create", "flights", "--partitions", "4")
    words = ("--read", "flights", "--publish", "flights/*", "--audit", "flights")
    token = run("token", "create", "notebooks", *words).stdout.strip()
    workspace = Workspace(tmp_path / "workspace", token)
    workspace.volume.mkdir(parents=True)
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    shutil.copy(RUNTIME / "startup.py", startup / "00-databricks.py")
    with served(tmp_path / "feeds.db") as (base, _):
        widgets = {
            "url": f"{base}/flights",
            "schema": "spark_catalog.default",
            "volume": str(workspace.volume),
            "scope": "feeds",
            "key": "token",
        }
        secrets = {"feeds": {"token": token}}
        environment = {
            "DATABRICKS_RUNTIME_VERSION": "18.0",
            "EMULATED_DATABRICKS": json.dumps({"widgets": widgets, "secrets": secrets}),
            "IPYTHONDIR": str(tmp_path / "ipython"),
            "PYTHONPATH": f"{RUNTIME}:{ROOT}",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": ENVIRONMENT["PYSPARK_SUBMIT_ARGS"],
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield workspace
