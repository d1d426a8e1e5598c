"""Run the demo: serve a feed, run the jobs, kill each half way, and show how far everything is."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import warnings
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType

import click

from examples.demo import page
from examples.demo.jobs import JOBS, session
from examples.demo.record import Batch, Record
from notebooks.kit import flights

BATCHES_BEFORE_THE_KILL = 2
"""A driver is killed in the batch after these. Publishing and reading have six batches each."""

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BETWEEN_LINES = 4
_LINES_OF_LOG = 30

_PLAN = """
    A year of real flights goes from six files to a feed, and from the feed to a table. Everything
    runs on this machine, and takes about a minute.

      1. get the flights{download}
      2. publish them with Spark, and kill that job half way (SIGKILL)
      3. stream the feed into a table with Spark, and kill that job half way, too
      4. compare feed and table with the files: each flight has to be there once
"""


class Driver:
    """A Spark driver that runs a job of `jobs`, in a process group of its own.

    It starts Spark, and stands by until the job's turn has come: the start of one driver costs as
    much time as the job, and the one before leaves a processor free.

    Args:
        name: The job's name in `JOBS`.
        arguments: Its arguments.
        work: The folder for the files that take what it prints, and what Spark prints.
    """

    def __init__(self, name: str, arguments: Sequence[str], work: Path) -> None:
        self._said, self._log = work / f"{name}.txt", work / f"{name}.log"
        with self._said.open("ab") as said, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.demo", name, *arguments],
                stdin=subprocess.PIPE, stdout=said, stderr=log, start_new_session=True,
            )  # fmt: skip

    def start(self) -> None:
        """Let it run the job."""
        assert self._process.stdin
        with self._process.stdin as stdin:
            stdin.write(b"go\n")

    def ends(self) -> bool:
        """Wait for a moment; return whether the job has ended.

        Raises:
            SystemExit: It failed.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process.wait(_SECONDS_BETWEEN_LOOKS):
                lines = self._log.read_text(errors="replace").splitlines()[-_LINES_OF_LOG:]
                lines.append(self.said)
                raise SystemExit("\n".join(("\nThe job failed. It printed:", *lines)))
            return True
        return False

    @property
    def said(self) -> str:
        """What it has printed on standard output."""
        return self._said.read_text()

    def kill(self) -> None:
        """End Python and JVM with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Watch:
    """A job that is watched: how far it is, as a bar, or as lines where no terminal shows a bar.

    Args:
        label: What the job does.
        record: Notes the crash.
        look: Adds the batches that are new to the record, and returns them.
    """

    def __init__(self, label: str, record: Record, look: Callable[[], list[Batch]]) -> None:
        self._label, self._record, self._look = label, record, look
        self._bar = click.progressbar(length=flights.FLIGHTS, label=label, show_pos=True)
        self._seen: list[Batch] = []
        self._state, self._told = "starts", 0.0

    def __enter__(self) -> Watch:
        self._bar.__enter__()
        self._tell(self._state)
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.render_finish()

    def kill_half_way(self, driver: Driver) -> None:
        """Let a driver run the job, and kill it as soon as some batches are there."""
        driver.start()
        while len(self._seen) < BATCHES_BEFORE_THE_KILL:
            if driver.ends():
                raise SystemExit("\nThe job ended before it could be killed.")
            self._advance()
        driver.kill()
        self._record.crashes.append(self._record.seconds)
        self._state = f"killed after batch {self._seen[-1].number}, started again"
        self._tell(self._state)

    def finish(self, driver: Driver) -> None:
        """Let a driver run the job to its end."""
        driver.start()
        while not driver.ends():
            self._advance()
        self._advance()

    def _advance(self) -> None:
        for batch in (new := self._look()):
            self._state = "runs"
            self._bar.update(batch.events)
            self._tell(f"batch {batch.number}, {batch.events:,} flights")
        self._seen.extend(new)
        if self._record.seconds > self._told + _SECONDS_BETWEEN_LINES:
            self._tell(f"{self._state}, {self._record.seconds:.0f} s")

    def _tell(self, text: str) -> None:
        self._told = self._record.seconds
        if sys.stdout.isatty():
            self._bar.label = f"{self._label:10} ({text})"
            self._bar.render_progress()
        else:
            click.echo(f"{self._label}: {text}")


def run(*, opened: bool) -> None:
    """Run the demo.

    Args:
        opened: Whether to open the page at the end.

    Raises:
        SystemExit: Something failed, or a flight is not there exactly once.
    """
    download = "" if flights.is_downloaded() else " (a download of 9 MB, once)"
    click.echo(textwrap.dedent(_PLAN).strip().format(download=download) + "\n")
    with tempfile.TemporaryDirectory(prefix="zeh-spark-demo-") as folder, ExitStack() as running:
        work = Path(folder)
        files = str(flights.by_month(flights.flights_csv(work), work / "months", months=2))
        url = running.enter_context(serving(f"sqlite:///{work}/feeds.db", work / "serve.log"))
        record, checkpoint = Record(), work / "reading"

        def driver(name: str, *arguments: str) -> Driver:
            started = Driver(name, (url, *arguments), work)
            running.callback(started.kill)
            return started

        publish = partial(driver, "publish", files, str(work / "publishing"))
        read = partial(driver, "read", str(work / "table"), str(checkpoint), files)
        first, second = publish(), publish()
        with Watch("Publishing", record, lambda: record.look_at_feed(url)) as watch:
            watch.kill_half_way(first)
            first = read()
            watch.finish(second)
        second = read()
        with Watch("Reading", record, lambda: record.look_at_checkpoint(checkpoint)) as watch:
            watch.kill_half_way(first)
            watch.finish(second)
        click.echo(f"\n{second.said}")
    picture = flights.cache() / "demo.html"
    picture.write_text(page.rendered(record), encoding="utf-8")
    click.echo(f"Done in {record.seconds:.0f} s. What happened, as a picture: {picture.as_uri()}")
    if opened:
        webbrowser.open(picture.as_uri())


@contextlib.contextmanager
def serving(store: str, log: Path) -> Iterator[str]:
    """Create the feed, and run `zeh-spark serve` on a free port; yield the feed's URL.

    Args:
        store: The store's URL.
        log: The file that takes what the publisher prints on standard error.

    Raises:
        SystemExit: The publisher did not start.
    """
    command = [sys.executable, "-m", "zeh_spark"]
    subprocess.run(
        [*command, "create", "flights", "--partitions", "4", "--store", store],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command, "serve", "--store", store, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        assert server.stdout
        try:
            for line in server.stdout:
                if found := re.search(r"http://\S+/flights", line):
                    yield found[0]
                    break
            else:
                raise SystemExit(f"The publisher did not start. It printed:\n{log.read_text()}")
        finally:
            server.terminate()


def stop(number: int, _frame: FrameType | None) -> None:
    """End the demo on a signal, and all processes that it started with it."""
    raise SystemExit(128 + number)


def main() -> None:
    """Run the demo, or one of its jobs (see `jobs`)."""
    warnings.simplefilter("ignore")  # PySpark warns about its own dependencies
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if job := JOBS.get("".join(sys.argv[1:2])):
        session()
        if sys.stdin.readline():  # it is this driver's turn; without the demo it never is
            job(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=page.TITLE)
    parser.add_argument("--open", action="store_true", help="open the picture in a browser")
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
    try:
        run(opened=parser.parse_args().open)
    except KeyboardInterrupt:
        raise SystemExit("\nStopped. Everything that the demo started has ended.") from None


if __name__ == "__main__":
    main()
