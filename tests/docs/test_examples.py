"""Every code block of the README and of the docs runs, or says why it does not.

What a block does depends on its language:

- `bash`: runs in a shell. A publisher that it starts keeps running until the end of the page.
- `python`: runs in this process, in one namespace for each page.
- `json`: has to be JSON.
- a block with a title, like ```` ```toml title="publisher.toml" ````: is written to that file.
- `text`, `sql` and others without a title: only shown.

A page begins in an empty directory, and its blocks run from top to bottom. One that reads the
variable DATABASE_URL gets a database of PostgreSQL. A block after the
comment `<!-- not run: REASON -->` is left out. The port 8080 is replaced by a free one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from markdown_it import MarkdownIt

from tests import postgresql
from tests.cases import each_case
from tests.patience import PATIENCE, eventually
from tests.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_NOT_RUN = re.compile(r"<!--\s*not run: \S.*?-->", re.DOTALL)
_STARTS = re.compile(r"\.start\(|to_delta\(")
_WAITS = re.compile(r"awaitTermination|drain\(|processAllAvailable|wait_for\(")
_DATABASE = "DATABASE_URL"
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A code block. `line` is where it begins; `info` is what follows the fence."""

    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split(maxsplit=1)[0] if self.info else ""

    @property
    def file(self) -> str | None:
        """The file that it is written to."""
        title = _TITLE.search(self.info)
        return title[1] if title else None


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page that have to run."""
    found, skipped = [], False
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            skipped = bool(_NOT_RUN.search(token.content))
        elif token.type == "fence":
            if not skipped:
                assert token.map
                found.append(Block(token.map[0] + 1, token.info.strip(), token.content))
            skipped = False
    return found


@dataclass
class Reader:
    """Does what a page says, in a directory of its own."""

    directory: Path
    port: int
    warm: dict[str, str]
    namespace: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})
    shells: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def follow(self, block: Block) -> None:
        text = block.text.replace("8080", str(self.port))
        if block.file:
            file = self.directory / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif block.language == "bash":
            self._shell(text)
        elif block.language == "python":
            exec(compile(text, f"line {block.line}", "exec"), self.namespace)
        elif block.language == "json":
            json.loads(text)

    def _shell(self, text: str) -> None:
        serves = "zeh-spark serve" in text or "zeh-spark quickstart" in text
        if serves and "--port" not in text:
            text = text.replace("zeh-spark serve", f"zeh-spark serve --port {self.port}")
        environment = {**os.environ, **self.warm}
        programs = Path(self.warm["PYSPARK_PYTHON"]).parent, Path(sys.executable).parent
        environment["PATH"] = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        with (self.directory / ".shell.log").open("ab") as log:
            shell = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=self.directory, env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.shells.append(shell)
        if shell.wait(PATIENCE):
            raise AssertionError(self.said)
        if serves:
            eventually(self._is_served)

    @property
    def said(self) -> str:
        """What the shells have printed."""
        return (self.directory / ".shell.log").read_text(encoding="utf-8")

    def _is_served(self) -> bool:
        with suppress(OSError):  # also a reset: quickstart looks whether the port is free, first
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/openapi.json").close()
            return True
        return False

    def close(self) -> None:
        """End what the shells have left running."""
        for shell in self.shells:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)


@pytest.fixture
def reader(
    spark: SparkSession, warm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    """A reader in an empty directory."""
    monkeypatch.chdir(tmp_path)
    before = _change_directory(spark, tmp_path)
    found = Reader(tmp_path, free_port(), warm)
    yield found
    found.close()
    _change_directory(spark, before)


def _change_directory(spark: SparkSession, directory: str | Path) -> str:
    """Have Spark resolve relative paths in this directory. Returns the one before.

    Tables go by the working directory of a cached FileSystem, and checkpoints by a system property.
    """
    jvm: Any = spark.sparkContext._jvm
    before: str = jvm.java.lang.System.setProperty("user.dir", str(directory))
    files = jvm.org.apache.hadoop.fs.FileSystem.get(spark.sparkContext._jsc.hadoopConfiguration())
    files.setWorkingDirectory(jvm.org.apache.hadoop.fs.Path(str(directory)))
    return before


def _case(page: Path) -> Any:
    marks = [pytest.mark.postgresql] if _DATABASE in page.read_text(encoding="utf-8") else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("page", [_case(page) for page in PAGES])
def test_every_code_block_runs(
    page: Path, reader: Reader, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I copy the blocks of a page one after the other, and each does what it says."""
    if postgresql.marked:
        postgresql.needed()
        server = postgresql.shared()
        monkeypatch.setenv(_DATABASE, server.url(server.create_database()))
    for block in blocks(page):
        try:
            reader.follow(block)
        except Exception as exc:
            exc.add_note(f"{page.relative_to(ROOT)}, line {block.line}: {shlex.quote(block.text)}")
            raise
    for query in spark.streams.active:  # they read what there is, and raise what is wrong
        query.processAllAvailable()
        query.stop()


@each_case("page", PAGES)
def test_every_block_that_starts_a_query_waits_for_it(page: Path) -> None:
    """As a script, it would end before the query has done anything."""
    starting = [
        f"line {token.map[0] + 1}"
        for token in MarkdownIt().parse(page.read_text(encoding="utf-8"))
        if token.type == "fence" and token.info.startswith("python") and token.map
        if _STARTS.search(token.content) and not _WAITS.search(token.content)
    ]

    assert [] == starting
    # a block without a language would be neither coloured nor run
    assert [] == [f"line {block.line}" for block in blocks(page) if not block.language]
