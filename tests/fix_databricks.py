"""A notebook's kernel as Databricks starts one: environment, `dbutils`, and a session with Delta.

What is emulated is Databricks' public interface. Unity Catalog, volumes and access modes are not:
a schema of Spark's own catalog stands for `main.default`, and a folder for a volume.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from notebooks import run as notebooks
from tests.fix_publisher import served
from tests.fix_spark import ENVIRONMENT
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbformat import NotebookNode

    from tests.fix_cli import Run

ROOT = Path(__file__).parents[1]
RUNTIME = ROOT / "tests" / "databricks_runtime"


@dataclass
class Workspace:
    """A workspace with a volume, and a publisher that wants a token, with feeds of flights."""

    folder: Path
    token: str
    publisher: str
    operator: str = ""
    """The token of a person who repairs."""

    @property
    def volume(self) -> Path:
        return self.folder / "volume"

    def notebook(self, name: str) -> NotebookNode:
        """Run a notebook of this repository, as a job with its parameters would."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        return notebooks.executed(notebooks.HERE / f"{name}.ipynb", work)

    def job(
        self, program: Path | None = None, **variables: object
    ) -> subprocess.CompletedProcess[str]:
        """Run the bundle's job with these variables, or a program in its place: all that it says
        is in `stdout`.
        """
        bundle = yaml.safe_load((ROOT / "conf" / "databricks.yml").read_text(encoding="utf-8"))
        values = {name: each.get("default") for name, each in bundle["variables"].items()}
        values |= {"publisher": self.publisher, "volume": str(self.volume), **variables}
        (task,) = bundle["resources"]["jobs"]["flights"]["tasks"]
        told = task["spark_python_task"]
        words = [
            re.sub(r"\$\{var\.(\w+)\}", lambda found: str(values[found[1]]), each)
            for each in told["parameters"]
        ]
        return self.run(program or ROOT / "conf" / told["python_file"], *words)

    def run(self, program: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program that finds `spark` and `dbutils`: all that it says is in `stdout`."""
        job = {"startup": str(RUNTIME / "startup.py"), "program": str(program), "words": words}
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        catalog = "--conf spark.sql.catalogImplementation=hive "  # it outlives a run
        return subprocess.run(
            [
                sys.executable,
                str(ROOT / "tests" / "programs" / "databricks_job.py"),
                json.dumps(job),
            ],
            env={
                **os.environ,
                **ENVIRONMENT,
                "PYSPARK_SUBMIT_ARGS": catalog + ENVIRONMENT["PYSPARK_SUBMIT_ARGS"],
            },
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def files_with_the_token(self) -> list[str]:
        """Name what in the volume, in the notebook's folder or in its tables holds the token."""
        secret = self.token.encode()
        return [
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.is_file() and secret in path.read_bytes()
        ]


@pytest.fixture
def databricks(
    tmp_path: Path, run: Run, warm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workspace]:
    """A workspace whose notebooks find the feed's address and token as on Databricks."""
    run("create", "flights", "--partitions", "4")
    words = ("--read", "flights", "--publish", "flights/*", "--audit", "flights")
    token = run("token", "create", "notebooks", *words).stdout.strip()
    with _workspace(tmp_path, token, warm, monkeypatch) as workspace:
        yield workspace


@pytest.fixture
def databricks_job(
    tmp_path: Path, run: Run, warm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workspace]:
    """A workspace for the bundle's job, with the feeds and the token that the docs tell to make."""
    page = (ROOT / "docs" / "operate" / "databricks.md").read_text(encoding="utf-8")
    commands = re.findall(r"^zeh-spark (create .*|token create .*)$", page, re.MULTILINE)
    assert [each.split()[0] for each in commands] == ["create"] * 3 + ["token"] * 2
    for each in commands:
        assert run(*each.split()).returncode == 0
    job, operator = (
        (tmp_path / f"{each}.token").read_text().strip() for each in ("job", "operator")
    )
    with _workspace(tmp_path, job, warm, monkeypatch) as workspace:
        workspace.operator = operator
        yield workspace


@contextmanager
def _workspace(
    tmp_path: Path, token: str, warm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workspace]:
    """Serve the store, and set the environment that a notebook or a job has."""
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    shutil.copy(RUNTIME / "startup.py", startup / "00-databricks.py")
    with served(tmp_path / "feeds.db") as (base, _):
        workspace = Workspace(tmp_path / "workspace", token, base)
        workspace.volume.mkdir(parents=True)
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
        }
        for name, value in {**warm, **environment}.items():
            monkeypatch.setenv(name, value)
        yield workspace
