"""The processes of the pipeline: how each begins, is killed, and may end by itself."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
from pyarrow import parquet

from tests import class_archive
from tests.fix_spark import ENVIRONMENT, kill_program
from tests.programs import produce

ROOT = Path(__file__).parents[2]
EXPECTED = re.compile(
    r"errors\.UnavailableError"  # no answer for a minute
    r"|errors\.OutcomeUnknownError"  # the same, after a commit was sent; the program asks
    r"|upload-missing"  # a crash of the database lost uploads; the batch is repeated
)
"""Errors that faults may cause. Each of them says that the program may start again."""
SLOW = 60
"""Seconds after which a driver may be killed although it has committed no batch since it began."""
NAMED = re.compile(r"zeh_spark[\w.]*\.errors\.\w+")


class Part(ABC):
    """A process that is started again whenever it has ended.

    `anomalies` are the ends, or failures of a query, that no fault explains.
    """

    def __init__(self, name: str, work: Path) -> None:
        self.name, self.log = name, work / f"{name}.log"
        self.starts = 0
        self.failures: Counter[str] = Counter()
        self.anomalies: list[str] = []
        self.killed = False
        self._read = 0
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]: ...

    def environment(self) -> dict[str, str]:
        return {}

    def start(self) -> None:
        self.starts += 1
        self.killed = False
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment()},
                start_new_session=True,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process:
            self.killed = True
            kill_program(self.process)
            self.process.wait(60)

    def close(self) -> None:
        self.kill()

    def new_text(self) -> str:
        """What it has said since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            data = log.read()
        self._read += len(data)
        return data.decode(errors="replace")

    def judge(self) -> None:
        """Look at its end, once it has ended."""
        assert self.process
        text = self.new_text()
        if not self.killed and self.process.returncode:
            self.judge_failure(text)

    def judge_failure(self, text: str) -> None:
        expected = EXPECTED.search(text)
        if expected:
            self.failures[expected[0].removeprefix("errors.")] += 1
        else:
            self.anomalies.append(f"{self.name} failed by itself:\n{text[-3000:]}")


class Publisher(Part):
    """`zeh-spark serve` on a store that is there."""

    def __init__(self, work: Path, store: str, port: int, own: Mapping[str, str]) -> None:
        super().__init__("publisher", work)
        self._store, self._port, self._own = store, port, own

    def command(self) -> list[str]:
        words = ["--store", self._store, "--port", str(self._port), "--least-free", "1"]
        return [sys.executable, "-m", "zeh_spark", "serve", *words]

    def environment(self) -> dict[str, str]:
        return dict(self._own)

    def judge_failure(self, text: str) -> None:
        """It may not start without its database, or without room for a page."""
        reason = re.search(r"Error: .*(no connection|connection failed|disk is full)", text)
        if reason:
            self.failures[reason[1]] += 1
        else:
            super().judge_failure(text)


class Program(Part):
    """`produce.py`: it publishes the numbers up to `total`, and ends."""

    def __init__(self, work: Path, url: str, total: int) -> None:
        super().__init__("producer", work)
        self._url, self.total = url, total
        self.way = "counted"

    def command(self) -> list[str]:
        return [sys.executable, str(produce.__file__), self._url, str(self.total), self.way]

    @property
    def done(self) -> bool:
        return self.process is not None and self.process.poll() == 0


class Driver(Part):
    """`driver.py`, with one executor of two cores in a process of its own."""

    def __init__(self, kind: str, work: Path, base: str) -> None:
        super().__init__(kind, work)
        self.folder = work / kind
        self._job = {
            "kind": kind,
            "base": base,
            "folder": str(self.folder),
            "master": "local-cluster[1,2,1024]",
        }
        self._left: list[psutil.Process] = []
        self._commits, self._since = 0, 0.0

    def start(self) -> None:
        super().start()
        self.begin_again()

    def begin_again(self) -> None:
        """From now on it has to commit a batch, before it is `ready` for another fault."""
        self._commits, self._since = self._committed(), time.monotonic()

    def _committed(self) -> int:
        return sum(1 for _ in (self.folder / "checkpoint" / "commits").glob("[0-9]*"))

    @property
    def ready(self) -> bool:
        """Whether it has come on since the last fault, or had the time to."""
        return self._committed() > self._commits or time.monotonic() > self._since + SLOW

    def command(self) -> list[str]:
        program = Path(__file__).with_name("driver.py")
        return [sys.executable, "-W", "ignore", str(program), json.dumps(self._job)]

    def environment(self) -> dict[str, str]:
        home = str(Path(pyspark.__file__).parent)
        arguments = class_archive.submit_arguments()
        return {**ENVIRONMENT, "SPARK_HOME": home, "PYSPARK_SUBMIT_ARGS": arguments}

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Those of the driver (Python and JVM), its executors, and all of Spark's workers."""
        found: dict[str, list[psutil.Process]] = {"driver": [], "executor": [], "worker": []}
        if not self.runs:
            return found
        assert self.process
        with suppress(psutil.NoSuchProcess):
            python = psutil.Process(self.process.pid)
            found["driver"].append(python)
            for each in python.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    words = each.cmdline()
                    if "pyspark.daemon" in words or any("_runner" in word for word in words):
                        found["worker"].append(each)
                    elif any("CoarseGrainedExecutorBackend" in word for word in words):
                        found["executor"].append(each)
                    else:
                        found["driver"].append(each)
        return found

    def kill_alone(self) -> None:
        """Kill the driver: its executor has to find out, and may go on for a while."""
        assert self.process
        self.killed = True
        found = self.processes()
        self._left += found["executor"]
        for each in found["driver"]:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def close(self) -> None:
        self.kill()
        for each in self._left:
            with suppress(psutil.NoSuchProcess):
                each.kill()

    def look(self) -> None:
        """Judge the failures of its query."""
        for line in self.new_text().splitlines():
            if line.startswith("failed: "):
                self.judge_query(json.loads(line.removeprefix("failed: ")))

    def judge(self) -> None:
        """Its process ends when Spark is gone; what counts are the failures before."""
        self.look()

    def judge_query(self, failure: str) -> None:
        if NAMED.search(failure) or ("zeh_spark" in failure and "Traceback" in failure):
            self.judge_failure(failure)
        else:
            self.failures["of Spark: " + kind_of(failure)] += 1


def kind_of(failure: str) -> str:
    """Return what Spark says of a failure, without what differs between two of a kind."""
    said = re.search(r"with exception: (.*) SQLSTATE", failure) or re.search(r"\n: (\S+)", failure)
    text = said[1] if said else failure.splitlines()[0]
    return re.sub(r"\d+", "N", text)[:100] or "no text"


class Table:
    """A Delta table that is only appended to. `rows` are its versions, each with its numbers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rows: dict[int, list[int]] = {}

    def look(self) -> int:
        """Read the versions that are new; return the number of all rows."""
        for log in sorted((self._folder / "_delta_log").glob("*.json")):
            if (version := int(log.stem)) not in self.rows:
                actions = [json.loads(line) for line in log.read_text().splitlines()]
                assert not any("remove" in each for each in actions), log
                files = [each["add"]["path"] for each in actions if "add" in each]
                self.rows[version] = [number for file in files for number in self._numbers(file)]
        return sum(map(len, self.rows.values()))

    def _numbers(self, file: str) -> list[int]:
        table = parquet.read_table(self._folder / file, columns=["number"])
        found: list[int] = table["number"].to_pylist()
        return found
